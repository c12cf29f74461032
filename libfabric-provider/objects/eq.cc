#include "objects/eq.h"

#include <clan/detail/clock.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "objects/fabric.h"

namespace clan::ofi {

fi_ops Eq::ops_ = object_ops(close_object<Eq>, not_supported, guarded<control_wait<Eq>>);

fi_ops_eq Eq::eq_ops_ = {
    .size = sizeof(fi_ops_eq),
    .read = Eq::read,
    .readerr = guarded<Eq::read_error>,
    .write = guarded<Eq::user_write>,
    .sread = Eq::sread,
    .strerror = Eq::error_text,
};

int Eq::open(fid_fabric* fabric, fi_eq_attr* attr, fid_eq** eq, void* context) {
  fi_eq_attr defaults{};
  if (attr == nullptr) attr = &defaults;
  if ((attr->flags & ~(FI_WRITE | FI_AFFINITY)) != 0) return -FI_EINVAL;
  auto* made = new (std::nothrow) Eq;
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_EQ, context, &ops_};
  made->ops = &eq_ops_;
  made->writable_ = (attr->flags & FI_WRITE) != 0;
  if (int rc = made->wait_.open(attr->wait_obj, attr->wait_set, *made, nullptr); rc != 0) {
    delete made;
    return rc;
  }
  made->fabric_ = Held(object_of<Fabric>(&fabric->fid).references());
  *eq = made;
  return 0;
}

void Eq::try_write(std::uint32_t event, const void* entry, std::size_t length,
                   std::unique_ptr<Request> request) {
  const auto* bytes = static_cast<const char*>(entry);
  {
    std::lock_guard lock(mutex_);
    entries_.push_back({false, event, {bytes, bytes + length}, {}, std::move(request)});
  }
  wait_.signal();
}

void Eq::write(std::uint32_t event, const void* entry, std::size_t length) noexcept try {
  try_write(event, entry, length);
} catch (const std::bad_alloc&) {
  lose();
}

void Eq::write_error(const fi_eq_err_entry& error) noexcept try {
  const auto* data = static_cast<const char*>(error.err_data);
  {
    std::lock_guard lock(mutex_);
    entries_.push_back(
        {true, 0, {data, data + (data != nullptr ? error.err_data_size : 0)}, error, {}});
  }
  wait_.signal();
} catch (const std::bad_alloc&) {
  lose();
}

void Eq::lose() noexcept {
  FI_WARN(&g_provider, FI_LOG_EQ, "no memory for an event\n");
  {
    std::lock_guard lock(mutex_);
    overrun_ = true;
  }
  wait_.signal();
}

int Eq::add_source(Source& source) {
  {
    std::lock_guard lock(sources_mutex_);
    sources_.push_back(&source);
  }
  return wait_.object() != nullptr ? wait_.object()->add_source(source) : 0;
}

void Eq::remove_source(Source& source) {
  if (wait_.object() != nullptr) wait_.object()->remove_source(source);
  std::lock_guard lock(sources_mutex_);
  auto it = std::find(sources_.begin(), sources_.end(), &source);
  if (it != sources_.end()) sources_.erase(it);
}

void Eq::forget(fid_t object) {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [object](const Entry& entry) {
    if (entry.error) return entry.failure.fid == object;
    if (entry.bytes.size() < sizeof(fid_t)) return false;
    fid_t named;  // each standard entry begins with it
    std::memcpy(&named, entry.bytes.data(), sizeof named);
    return named == object;
  });
}

bool Eq::pending() {
  std::lock_guard lock(mutex_);
  return !entries_.empty() || overrun_;
}

void Eq::make_progress() {
  std::lock_guard lock(sources_mutex_);
  for (Source* source : sources_) source->make_progress();
}

ssize_t Eq::take(std::uint32_t* event, void* buffer, std::size_t length, std::uint64_t flags) {
  std::lock_guard lock(mutex_);
  if (entries_.empty()) return overrun_ ? -FI_EOVERRUN : -FI_EAGAIN;
  const Entry& entry = entries_.front();
  if (entry.error) return -FI_EAVAIL;
  if (length < entry.bytes.size() && length < sizeof(fi_eq_cm_entry)) return -FI_ETOOSMALL;
  const std::size_t n = std::min(length, entry.bytes.size());
  if (event != nullptr) *event = entry.event;
  if (n > 0) std::memcpy(buffer, entry.bytes.data(), n);
  if ((flags & FI_PEEK) != 0) return static_cast<ssize_t>(n);
  if (entry.request != nullptr) entries_.front().request->take();
  entries_.pop_front();
  return static_cast<ssize_t>(n);
}

ssize_t Eq::read(fid_eq* id, std::uint32_t* event, void* buffer, std::size_t length,
                 std::uint64_t flags) {
  auto& eq = *static_cast<Eq*>(id);
  eq.make_progress();
  return eq.take(event, buffer, length, flags);
}

ssize_t Eq::read_error(fid_eq* id, fi_eq_err_entry* buffer, std::uint64_t flags) {
  auto& eq = *static_cast<Eq*>(id);
  std::lock_guard lock(eq.mutex_);
  if (eq.entries_.empty() || !eq.entries_.front().error) return -FI_EAGAIN;
  Entry& entry = eq.entries_.front();
  void* const place = buffer->err_data;
  const std::size_t room = buffer->err_data_size;
  *buffer = entry.failure;
  if (room > 0 && place != nullptr) {
    buffer->err_data = place;
    buffer->err_data_size = std::min(room, entry.bytes.size());
    if (buffer->err_data_size > 0) std::memcpy(place, entry.bytes.data(), buffer->err_data_size);
  } else {
    eq.last_error_data_ = entry.bytes;
    buffer->err_data = eq.last_error_data_.empty() ? nullptr : eq.last_error_data_.data();
    buffer->err_data_size = eq.last_error_data_.size();
  }
  if ((flags & FI_PEEK) == 0) eq.entries_.pop_front();
  return sizeof *buffer;
}

ssize_t Eq::user_write(fid_eq* id, std::uint32_t event, const void* buffer, std::size_t length,
                       std::uint64_t) {
  auto& eq = *static_cast<Eq*>(id);
  if (!eq.writable_) return -FI_EINVAL;
  eq.try_write(event, buffer, length);
  return static_cast<ssize_t>(length);
}

ssize_t Eq::sread(fid_eq* id, std::uint32_t* event, void* buffer, std::size_t length,
                  int timeout_ms, std::uint64_t flags) {
  auto& eq = *static_cast<Eq*>(id);
  WaitObject* object = eq.wait_.object();
  if (object == nullptr) return -FI_EINVAL;
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  for (;;) {
    const ssize_t n = read(id, event, buffer, length, flags);
    if (n != -FI_EAGAIN) return n;
    const std::int64_t left = sleep_ms(deadline);
    if (left == 0) return -FI_EAGAIN;
    if (int rc = object->sleep_unless([&] { return eq.pending(); }, left); rc == -FI_EINTR)
      return rc;
  }
}

const char* Eq::error_text(fid_eq*, int prov_errno, const void*, char* buffer, std::size_t length) {
  const char* text = fi_strerror(prov_errno);
  if (buffer != nullptr && length > 0) std::snprintf(buffer, length, "%s", text);
  return text;
}

}  // namespace clan::ofi
