#include "objects/memory_region.h"

#include "objects/counter.h"
#include "objects/domain.h"
#include "objects/eq.h"
#include "system/info.h"

namespace clan::ofi {

fi_ops MemoryRegion::ops_ =
    object_ops(close_object<MemoryRegion>, guarded<MemoryRegion::bind>, enable_object);

fi_ops_mr MemoryRegion::register_ops = {
    .size = sizeof(fi_ops_mr),
    .reg = guarded<MemoryRegion::reg>,
    .regv = guarded<MemoryRegion::regv>,
    .regattr = guarded<MemoryRegion::regattr>,
};

MemoryRegion::~MemoryRegion() {
  // First away from the peers: when that returns, no access by a peer can be under way.
  aperture_.reset();
  piece_apertures_.clear();
  if (!listed_) return;
  std::lock_guard lock(domain_.lock());
  domain_.remove_region(key);
}

int MemoryRegion::open(fid_t id, const fi_mr_attr* attr, std::uint64_t flags, fid_mr** region) {
  if (id->fclass != FI_CLASS_DOMAIN || attr == nullptr || attr->iov_count == 0 ||
      attr->iov_count > kRegionPieces) {
    return -FI_EINVAL;
  }
  constexpr std::uint64_t kAccess =
      FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  if ((attr->access & ~kAccess) != 0 || attr->iface != FI_HMEM_SYSTEM) return -FI_EINVAL;
  if ((flags & ~(FI_RMA_EVENT | FI_RMA_PMEM)) != 0) return -FI_EINVAL;
  auto& domain = object_of<Domain>(id);
  auto* made = new (std::nothrow) MemoryRegion(domain);
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_MR, attr->context, &ops_};
  made->domain_held_ = Held(domain.references());
  made->mem_desc = made;
  int rc;
  try {
    rc = made->set_up(*attr);
  } catch (const std::bad_alloc&) {
    rc = -FI_ENOMEM;
  }
  if (rc != 0) {
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

int MemoryRegion::set_up(const fi_mr_attr& attr) {
  for (const iovec& piece : std::span(attr.mr_iov, attr.iov_count)) {
    pieces_.emplace_back(static_cast<std::byte*>(piece.iov_base), piece.iov_len);
    size_ += piece.iov_len;
  }
  access_ = attr.access;
  {
    std::lock_guard lock(domain_.lock());
    key = (domain_.mr_mode() & FI_MR_PROV_KEY) != 0 ? domain_.free_key() : attr.requested_key;
    if (!domain_.add_region(key, *this)) return -FI_ENOKEY;
    listed_ = true;
  }
  return expose();
}

// Only what peers may reach has an aperture.
int MemoryRegion::expose() {
  Rights rights = Rights::kNone;
  if ((access_ & FI_REMOTE_READ) != 0) rights = Rights::kRead;
  if ((access_ & FI_REMOTE_WRITE) != 0)
    rights = rights == Rights::kRead ? Rights::kReadWrite : Rights::kWrite;
  if (rights == Rights::kNone || size_ == 0) return 0;
  RegionNote note{reinterpret_cast<std::uint64_t>(pieces_[0].data()),
                  domain_.rma_events() ? 1u : 0u, 0};
  if (pieces_.size() == 1) {
    auto aperture = Aperture::export_region(domain_.context(), pieces_[0], rights);
    if (!aperture) return failure(aperture.error());
    aperture_.emplace(std::move(*aperture));
  } else {
    if (int rc = expose_pieces(rights); rc != 0) return rc;
    note.pieces = static_cast<std::uint32_t>(piece_apertures_.size());
  }
  if (auto s = aperture_->set_name(key, std::as_bytes(std::span(&note, 1))); !s) {
    return s.error().err == EEXIST ? -FI_ENOKEY : failure(s.error());
  }
  return 0;
}

// The table has pages of its own: nothing else of this process is shown with it.
int MemoryRegion::expose_pieces(Rights rights) {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kBytes = (kRegionPieces * sizeof(RegionPiece) + kPage - 1) / kPage * kPage;
  table_.reset(static_cast<RegionPiece*>(std::aligned_alloc(kPage, kBytes)));
  if (table_ == nullptr) return -FI_ENOMEM;
  for (const std::span<std::byte> piece : pieces_) {
    if (piece.empty()) continue;
    auto aperture = Aperture::export_region(domain_.context(), piece, rights);
    if (!aperture) return failure(aperture.error());
    table_[piece_apertures_.size()] = {aperture->cookie(), piece.size()};
    piece_apertures_.push_back(std::move(*aperture));
  }
  const std::span<RegionPiece> table(table_.get(), piece_apertures_.size());
  auto aperture =
      Aperture::export_region(domain_.context(), std::as_writable_bytes(table), Rights::kRead);
  if (!aperture) return failure(aperture.error());
  aperture_.emplace(std::move(*aperture));
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
                       std::uint64_t offset, std::uint64_t key, std::uint64_t flags,
                       fid_mr** region, void* context) {
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

std::uint64_t MemoryRegion::base() const {
  return domain_.virtual_addresses() ? reinterpret_cast<std::uint64_t>(pieces_[0].data()) : 0;
}

bool MemoryRegion::allows(std::uint64_t address, std::size_t length, std::uint64_t access) const {
  if ((access & ~access_) != 0 || address < base()) return false;
  const std::uint64_t offset = address - base();
  return offset <= size_ && length <= size_ - offset;
}

std::byte* MemoryRegion::locate(std::uint64_t address, std::size_t length,
                                std::uint64_t access) const {
  if (!allows(address, length, access)) return nullptr;
  std::uint64_t offset = address - base();
  for (const std::span<std::byte> piece : pieces_) {
    if (offset < piece.size())
      return length <= piece.size() - offset ? piece.data() + offset : nullptr;
    offset -= piece.size();
  }
  return nullptr;
}

void MemoryRegion::note_access(std::uint64_t flags) {
  if (counter_ != nullptr && (counter_flags_ & flags) != 0) counter_->count();
}

}  // namespace clan::ofi
