#include "objects/av.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "objects/domain.h"
#include "objects/eq.h"

namespace clan::ofi {

fi_ops Av::ops_ = object_ops(close_object<Av>, guarded<Av::bind>);

fi_ops_av Av::av_ops_ = {
    .size = sizeof(fi_ops_av),
    .insert = guarded<Av::insert>,
    .insertsvc = guarded<Av::insert_service>,
    .insertsym = guarded<Av::insert_symmetric>,
    .remove = guarded<Av::remove>,
    .lookup = guarded<Av::lookup>,
    .straddr = Av::to_string,
    .av_set = not_supported,
};

int Av::open(fid_domain* id, fi_av_attr* attr, fid_av** av, void* context) {
  auto& domain = *static_cast<Domain*>(id);
  if (attr == nullptr) return -FI_EINVAL;
  if ((attr->flags & ~(FI_EVENT | FI_SYMMETRIC | FI_READ)) != 0) return -FI_ENOSYS;
  if ((attr->flags & FI_READ) != 0 && attr->name == nullptr) return -FI_EINVAL;
  if (attr->rx_ctx_bits < 0 || attr->rx_ctx_bits > 16) return -FI_EINVAL;
  if (attr->type > FI_AV_TABLE) return -FI_EINVAL;
  if (domain.av_type() != FI_AV_UNSPEC && attr->type != FI_AV_UNSPEC &&
      attr->type != domain.av_type()) {
    return -FI_EINVAL;
  }
  std::unique_ptr<SharedTable> shared;
  if (attr->name != nullptr) {
    const int rc =
        SharedTable::open(attr->name, (attr->flags & FI_READ) != 0, attr->count, &shared);
    if (rc != 0) return rc;
    // Numbers are indices: the same in every process, wherever it has the table.
    if (attr->map_addr == nullptr) attr->map_addr = shared->numbers();
  }
  auto* made = new (std::nothrow) Av(domain);
  if (made == nullptr) return -FI_ENOMEM;
  made->shared_ = std::move(shared);
  if (made->shared_ != nullptr) made->generation_ = &made->shared_->generation();
  made->fid = {FI_CLASS_AV, context, &ops_};
  made->ops = &av_ops_;
  made->domain_held_ = Held(domain.references());
  made->context_bits_ = static_cast<unsigned>(attr->rx_ctx_bits);
  made->asynchronous_ = (attr->flags & FI_EVENT) != 0;
  if (attr->type == FI_AV_UNSPEC) {
    attr->type = domain.av_type() == FI_AV_UNSPEC ? FI_AV_TABLE : domain.av_type();
  }
  try {
    made->entries_.reserve(std::min<std::size_t>(attr->count, 65536));
  } catch (const std::bad_alloc&) {
    delete made;
    return -FI_ENOMEM;
  }
  *av = made;
  return 0;
}

int Av::bind(fid_t id, fid_t to, std::uint64_t) {
  auto& av = object_of<Av>(id);
  if (to->fclass != FI_CLASS_EQ || av.eq_ != nullptr) return -FI_EINVAL;
  av.eq_ = &object_of<Eq>(to);
  av.eq_held_ = Held(av.eq_->references());
  return 0;
}

int Av::find_place(const SocketAddress& address, fi_addr_t* index) try {
  if (shared_ != nullptr) {
    if (shared_->read_only()) return FI_EACCES;
    return -shared_->insert(address, index);
  }
  const fi_addr_t at = free_.empty() ? entries_.size() : free_.back();
  put(at, address);
  if (!free_.empty()) free_.pop_back();
  *index = at;
  own_generation_.fetch_add(1, std::memory_order_relaxed);  // relaxed: the lock orders
  return 0;
} catch (const std::bad_alloc&) {
  return FI_ENOMEM;
}

void Av::put(fi_addr_t index, const SocketAddress& address) {
  const Name name = name_of(address);
  by_name_.try_emplace(name, index);
  try {
    if (free_.capacity() <= index) free_.reserve(2 * index + 16);  // its removal needs no memory
    if (entries_.size() <= index) entries_.resize(index + 1);
  } catch (const std::bad_alloc&) {
    if (auto it = by_name_.find(name); it->second == index) by_name_.erase(it);
    throw;
  }
  entries_[index] = {name, address, true};
}

void Av::take_out(fi_addr_t index) {
  const Name name = entries_[index].name;
  entries_[index].used = false;
  auto it = by_name_.find(name);
  if (it == by_name_.end() || it->second != index) return;
  for (fi_addr_t other = 0; other < entries_.size(); ++other) {
    if (!entries_[other].used || !(entries_[other].name == name)) continue;
    it->second = other;
    return;
  }
  by_name_.erase(it);
}

void Av::follow_slowly() {
  followed_ = shared_->changes(followed_, [this](fi_addr_t index, const SocketAddress* address) {
    if (index < entries_.size() && entries_[index].used) take_out(index);
    if (address != nullptr) put(index, *address);
  });
}

void Av::insert_one(const SocketAddress& address, std::size_t i, Insertion& insertion) {
  fi_addr_t index = FI_ADDR_NOTAVAIL;
  const int rc = address.valid() ? find_place(address, &index) : FI_EADDRNOTAVAIL;
  if (rc == 0) {
    ++insertion.inserted;
  } else {
    insertion.failed_at = i;
    insertion.err = rc;
  }
  if (insertion.indices != nullptr) insertion.indices[i] = index;
  if (insertion.errors != nullptr) insertion.errors[i] = rc;
}

// Answers the number inserted, or writes events, where insertion is asynchronous.
int Av::finish(const Insertion& insertion, std::size_t count, void* context) {
  if (!asynchronous_) return static_cast<int>(insertion.inserted);
  if (eq_ == nullptr) return -FI_ENOEQ;
  if (insertion.inserted < count) {
    fi_eq_err_entry error{};
    error.fid = &fid;
    error.context = context;
    error.data = insertion.failed_at;
    error.err = insertion.err;
    eq_->write_error(error);
  }
  fi_eq_entry entry{&fid, context, insertion.inserted};
  eq_->write(FI_AV_COMPLETE, &entry, sizeof entry);
  return 0;
}

int Av::insert(fid_av* id, const void* addresses, std::size_t count, fi_addr_t* fi_addr,
               std::uint64_t flags, void* context) {
  auto& av = *static_cast<Av*>(id);
  if (addresses == nullptr && count > 0) return -FI_EINVAL;
  if ((flags & ~(FI_MORE | FI_SYNC_ERR)) != 0) return -FI_ENOSYS;
  if (av.asynchronous_ && av.eq_ == nullptr) return -FI_ENOEQ;
  const std::size_t stride = address_bytes(av.domain_.address_format());
  Insertion insertion{fi_addr, (flags & FI_SYNC_ERR) != 0 ? static_cast<int*>(context) : nullptr};
  {
    std::lock_guard lock(av.domain_.lock());
    for (std::size_t i = 0; i < count; ++i) {
      av.insert_one(read_address(static_cast<const char*>(addresses) + i * stride, stride), i,
                    insertion);
    }
  }
  return av.finish(insertion, count, context);
}

int Av::insert_service(fid_av* id, const char* node, const char* service, fi_addr_t* fi_addr,
                       std::uint64_t flags, void* context) {
  return insert_symmetric(id, node, 1, service, 1, fi_addr, flags, context);
}

namespace {

// "node7" and 2 -> "node9"; zeros in front are kept.
bool count_up(const char* name, std::size_t by, std::string* result) {
  const std::string text = name;
  std::size_t digits = text.size();
  while (digits > 0 && text[digits - 1] >= '0' && text[digits - 1] <= '9') --digits;
  if (by == 0) {
    *result = text;
    return true;
  }
  if (digits == text.size()) return false;
  const std::size_t width = text.size() - digits;
  if (width > 18) return false;
  const unsigned long long number = std::strtoull(text.c_str() + digits, nullptr, 10) + by;
  char tail[32];
  std::snprintf(tail, sizeof tail, "%0*llu", static_cast<int>(width), number);
  *result = text.substr(0, digits) + tail;
  return true;
}

}  // namespace

int Av::insert_symmetric(fid_av* id, const char* node, std::size_t nodes, const char* service,
                         std::size_t services, fi_addr_t* fi_addr, std::uint64_t flags,
                         void* context) {
  auto& av = *static_cast<Av*>(id);
  if (node == nullptr || service == nullptr) return -FI_EINVAL;
  if ((flags & ~(FI_MORE | FI_SYNC_ERR | FI_NUMERICHOST)) != 0) return -FI_ENOSYS;
  if (av.asynchronous_ && av.eq_ == nullptr) return -FI_ENOEQ;
  Insertion insertion{fi_addr, (flags & FI_SYNC_ERR) != 0 ? static_cast<int*>(context) : nullptr};
  for (std::size_t i = 0; i < nodes * services; ++i) {
    std::string host, port;
    SocketAddress address;  // not valid(): there is none
    if (count_up(node, i / services, &host) && count_up(service, i % services, &port)) {
      (void)resolve(host.c_str(), port.c_str(), flags, av.domain_.address_format(), false,
                    &address);
    }
    std::lock_guard lock(av.domain_.lock());
    av.insert_one(address, i, insertion);
  }
  return av.finish(insertion, nodes * services, context);
}

int Av::remove(fid_av* id, fi_addr_t* fi_addr, std::size_t count, std::uint64_t) {
  auto& av = *static_cast<Av*>(id);
  std::lock_guard lock(av.domain_.lock());
  int answer = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const fi_addr_t index = fi_addr[i] & av.address_mask();
    if (av.find(index) == nullptr) {
      answer = -FI_EINVAL;
      continue;
    }
    if (av.shared_ != nullptr) {
      const int rc = av.shared_->read_only() ? -FI_EACCES : av.shared_->remove(index);
      if (rc != 0) answer = rc;
      continue;
    }
    av.take_out(index);
    av.free_.push_back(index);
    av.own_generation_.fetch_add(1, std::memory_order_relaxed);  // relaxed: the lock orders
  }
  return answer;
}

int Av::lookup(fid_av* id, fi_addr_t fi_addr, void* address, std::size_t* length) {
  auto& av = *static_cast<Av*>(id);
  std::lock_guard lock(av.domain_.lock());
  fi_addr &= av.address_mask();
  if (av.find(fi_addr) == nullptr) return -FI_EINVAL;
  const SocketAddress& found = av.entries_[fi_addr].address;
  std::memcpy(address, &found.storage, std::min<std::size_t>(*length, found.length));
  *length = found.length;
  return 0;
}

const char* Av::to_string(fid_av*, const void* address, char* buffer, std::size_t* length) {
  const auto* generic = static_cast<const sockaddr*>(address);
  const SocketAddress read = read_address(
      address, generic->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  const std::string text = to_text(read);
  if (buffer != nullptr && *length > 0) std::snprintf(buffer, *length, "%s", text.c_str());
  *length = text.size() + 1;
  return buffer;
}

}  // namespace clan::ofi
