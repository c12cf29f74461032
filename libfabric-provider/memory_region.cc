#include "memory_region.h"

#include "counter.h"
#include "domain.h"
#include "eq.h"

namespace clan::ofi {

fi_ops MemoryRegion::ops_ = {
    .size = sizeof(fi_ops),
    .close = MemoryRegion::close,
    .bind = MemoryRegion::bind,
    .control = MemoryRegion::control,
    .ops_open = not_supported,
    .tostr = not_supported,
    .ops_set = not_supported,
};

fi_ops_mr MemoryRegion::register_ops = {
    .size = sizeof(fi_ops_mr),
    .reg = MemoryRegion::reg,
    .regv = MemoryRegion::regv,
    .regattr = MemoryRegion::regattr,
};

MemoryRegion::~MemoryRegion() {
  // First away from the peers: when that returns, no access of theirs can be under way.
  aperture_.reset();
  if (!listed_) return;
  std::lock_guard lock(domain_.lock());
  domain_.remove_region(key);
}

int MemoryRegion::open(fid_t id, const fi_mr_attr* attr, std::uint64_t flags, fid_mr** region) {
  if (id->fclass != FI_CLASS_DOMAIN || attr == nullptr || attr->iov_count != 1) return -FI_EINVAL;
  constexpr std::uint64_t kAccess = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  if ((attr->access & ~kAccess) != 0 || attr->iface != FI_HMEM_SYSTEM) return -FI_EINVAL;
  if ((flags & ~(FI_RMA_EVENT | FI_RMA_PMEM)) != 0) return -FI_EINVAL;
  auto& domain = object_of<Domain>(id);
  auto* made = new (std::nothrow) MemoryRegion(domain);
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_MR, attr->context, &ops_};
  made->domain_held_ = Held(domain.references());
  made->mem_desc = made;
  made->memory_ = {static_cast<std::byte*>(attr->mr_iov[0].iov_base), attr->mr_iov[0].iov_len};
  made->access_ = attr->access;
  {
    std::lock_guard lock(domain.lock());
    made->key = (domain.mr_mode() & FI_MR_PROV_KEY) != 0 ? domain.free_key() : attr->requested_key;
    if (!domain.add_region(made->key, *made)) {
      delete made;
      return -FI_ENOKEY;
    }
    made->listed_ = true;
  }
  if (int rc = made->expose(); rc != 0) {
    delete made;
    return rc;
  }
  *region = made;
  if (Eq* eq = domain.eq(); eq != nullptr) {
    fi_eq_entry entry{&made->fid, attr->context, 0};
    eq->write(FI_MR_COMPLETE, &entry, sizeof entry);
  }
  return 0;
}

// Only what peers may reach has an aperture.
int MemoryRegion::expose() {
  Rights rights = Rights::kNone;
  if ((access_ & FI_REMOTE_READ) != 0) rights = Rights::kRead;
  if ((access_ & FI_REMOTE_WRITE) != 0)
    rights = rights == Rights::kRead ? Rights::kReadWrite : Rights::kWrite;
  if (rights == Rights::kNone || memory_.empty()) return 0;
  auto aperture = Aperture::export_region(domain_.context(), memory_, rights);
  if (!aperture) return failure(aperture.error());
  aperture_.emplace(std::move(*aperture));
  const RegionNote note{reinterpret_cast<std::uint64_t>(memory_.data()), domain_.rma_events() ? 1u : 0u, 0};
  if (auto s = aperture_->set_name(key, std::as_bytes(std::span(&note, 1))); !s) {
    return s.error().err == EEXIST ? -FI_ENOKEY : failure(s.error());
  }
  return 0;
}

int MemoryRegion::regattr(fid_t id, const fi_mr_attr* attr, std::uint64_t flags, fid_mr** region) {
  return open(id, attr, flags, region);
}

int MemoryRegion::reg(fid_t id, const void* buffer, std::size_t length, std::uint64_t access,
                      std::uint64_t offset, std::uint64_t key, std::uint64_t flags, fid_mr** region,
                      void* context) {
  const iovec iov{const_cast<void*>(buffer), length};
  return regv(id, &iov, 1, access, offset, key, flags, region, context);
}

int MemoryRegion::regv(fid_t id, const iovec* iov, std::size_t count, std::uint64_t access,
                       std::uint64_t offset, std::uint64_t key, std::uint64_t flags, fid_mr** region,
                       void* context) {
  fi_mr_attr attr{};
  attr.mr_iov = iov;
  attr.iov_count = count;
  attr.access = access;
  attr.offset = offset;
  attr.requested_key = key;
  attr.context = context;
  attr.iface = FI_HMEM_SYSTEM;
  return open(id, &attr, flags, region);
}

int MemoryRegion::close(fid_t id) {
  delete &object_of<MemoryRegion>(id);
  return 0;
}

int MemoryRegion::bind(fid_t id, fid_t to, std::uint64_t flags) {
  auto& region = object_of<MemoryRegion>(id);
  if (to->fclass == FI_CLASS_EP) return 0;  // regions belong to the whole domain
  if (to->fclass != FI_CLASS_CNTR || region.counter_ != nullptr) return -FI_EINVAL;
  if ((flags & ~(FI_REMOTE_READ | FI_REMOTE_WRITE)) != 0) return -FI_EINVAL;
  std::lock_guard lock(region.domain_.lock());
  region.counter_ = &object_of<Counter>(to);
  region.counter_held_ = Held(region.counter_->references());
  region.counter_->watch_domain();
  region.counter_flags_ = flags == 0 ? FI_REMOTE_WRITE : flags;
  return 0;
}

int MemoryRegion::control(fid_t, int command, void*) { return command == FI_ENABLE ? 0 : -FI_ENOSYS; }

std::byte* MemoryRegion::locate(std::uint64_t address, std::size_t length, std::uint64_t access) const {
  if ((access & ~access_) != 0) return nullptr;
  const std::uint64_t base =
      domain_.virtual_addresses() ? reinterpret_cast<std::uint64_t>(memory_.data()) : 0;
  if (address < base) return nullptr;
  const std::uint64_t offset = address - base;
  if (offset > memory_.size() || length > memory_.size() - offset) return nullptr;
  return memory_.data() + offset;
}

void MemoryRegion::note_access(std::uint64_t flags) {
  if (counter_ != nullptr && (counter_flags_ & flags) != 0) counter_->count();
}

}  // namespace clan::ofi
