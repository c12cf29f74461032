// Apertures, remote apertures and CLAN memory: the public face of nic/.
#include "clan/aperture.h"

#include <algorithm>
#include <cstring>

#include "clan/detail/clock.h"
#include "clan/detail/words.h"
#include "engine/aperture/aperture_core.h"
#include "engine/event/inbox.h"
#include "nic/memory_block.h"

namespace clan::engine {

Result<std::shared_ptr<ApertureCore>> ApertureCore::create(std::shared_ptr<ContextCore> context,
                                                           const nic::ApertureSpec& spec,
                                                           std::int64_t peers_uid) {
  if (!context->usable()) return unusable_error();
  nic::Nic* nic =
      peers_uid < 0 ? &context->own_lane() : context->lane(static_cast<uid_t>(peers_uid));
  if (nic == nullptr) {
    return Error{EACCES, "policy forbids that user id (see ContextOptions::allow_uids)"};
  }
  auto cookie = nic->export_aperture(spec);
  if (!cookie) return cookie.error();
  std::shared_ptr<ApertureCore> core(new ApertureCore(context, nic, *cookie, spec.base));
  if (auto s = context->listen_as_node(); !s) return s.error();
  return core;
}

ApertureCore::~ApertureCore() { end(); }

void ApertureCore::end() {
  if (!live_.load(std::memory_order_relaxed) || !context_->usable()) return;
  if (revoke()) return;
  // order: one of revoke() and end() retires it; acq_rel as the other may put it back
  if (live_.exchange(false, std::memory_order_acq_rel))
    context_->links().retire(*nic_, cookie_.aperture);
}

Status ApertureCore::revoke() {
  if (!context_->usable()) return unusable_error();
  // order: as in end()
  if (!live_.exchange(false, std::memory_order_acq_rel))
    return Error{EINVAL, "the aperture has been revoked already"};
  {
    std::lock_guard lock(name_mutex_);
    if (std::exchange(named_, false)) (void)context_->names().take(name_);
  }
  Status s = context_->links().revoke(*nic_, cookie_.aperture);
  if (!s) live_.store(true, std::memory_order_release);  // order: for the next exchange
  return s;
}

Status ApertureCore::set_name(std::uint64_t name, std::span<const std::byte> note) {
  if (!context_->usable()) return unusable_error();
  if (note.size() > kMaxApertureNote) return Error{EMSGSIZE, "a note longer than kMaxApertureNote"};
  std::lock_guard lock(name_mutex_);
  if (named_) return Error{EEXIST, "the aperture has a name already"};
  NamedAperture named{cookie_, static_cast<std::uint32_t>(note.size()), {}};
  std::copy(note.begin(), note.end(), named.note.begin());
  if (!live()) return Error{EINVAL, "the aperture has been revoked already"};
  if (!context_->names().add(name, {nic_, named})) {
    return Error{EEXIST, "another aperture of this context has that name"};
  }
  name_ = name;
  named_ = true;
  return {};
}

Result<std::shared_ptr<RemoteApertureCore>> RemoteApertureCore::import(
    std::shared_ptr<ContextCore> context, std::shared_ptr<nic::Link> link, const RdmaCookie& cookie,
    bool may_wait) {
  auto handle = link->import(cookie, may_wait);
  if (!handle) return handle.error();
  return std::shared_ptr<RemoteApertureCore>(
      new RemoteApertureCore(std::move(context), std::move(link), *handle));
}

// --- names ---------------------------------------------------------------------------------------

namespace {

constexpr std::uint64_t kAnswerTimeoutNs = 10'000'000'000u;

/// Payload of kOobFound; that of kOobLookUp is the name.
struct FoundRecord {
  std::int32_t err = 0;
  std::uint32_t reserved = 0;
  NamedAperture aperture;
};
static_assert(sizeof(FoundRecord) <= kOobPayload);

// A thread that asks, until the answer is there.
class Question final : public Inbox<FoundRecord> {
 public:
  Question(std::shared_ptr<ContextCore> context, std::shared_ptr<nic::Link> link)
      : Inbox(std::move(context), EventKind::kOob, 1), link_(std::move(link)) {}

  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override {
    if (link != link_ || message.type != kOobFound || is_full()) return;
    FoundRecord record;
    if (!get_payload(message, &record) || record.aperture.note_bytes > kMaxApertureNote)
      record.err = EPROTO;
    deliver(record);
  }
  void on_link_down(const std::shared_ptr<nic::Link>& link) override {
    if (link == link_) deliver({.err = ECONNREFUSED, .aperture = {}});
  }

 private:
  std::shared_ptr<nic::Link> link_;
};

}  // namespace

Result<NamedAperture> look_up_aperture(const std::shared_ptr<ContextCore>& context, NodeId owner,
                                       uid_t uid, std::uint64_t name, std::uint64_t deadline_ns) {
  auto link = context->link_to_node(owner, uid, deadline_ns);
  if (!link) return link.error();
  auto question = std::make_shared<Question>(context, *link);
  if (auto s = question->endpoint().begin(question); !s) return s.error();
  OobMessage message{.from = question->endpoint().number(), .type = kOobLookUp};
  put_payload(message, name);
  if (auto s = (*link)->send_oob(message); !s) return s.error();
  deadline_ns = std::min(deadline_ns, monotonic_ns() + kAnswerTimeoutNs);
  auto answer = question->take(deadline_ns);
  while (!answer && answer.error().err == EINTR) answer = question->take(deadline_ns);
  if (!answer && answer.error().err == ETIMEDOUT)
    return Error{ETIMEDOUT, "the node did not say what aperture has this name"};
  if (!answer) return answer.error();
  const FoundRecord& found = *answer;
  if (found.err == ENOENT) return Error{ENOENT, "the node has no aperture of this name for us"};
  if (found.err != 0) return Error{ECONNREFUSED, "the node did not answer for its apertures"};
  return found.aperture;
}

void answer_look_up(ContextCore& context, nic::Link& link, const OobMessage& message) {
  FoundRecord found;
  std::uint64_t name = 0;
  if (!get_payload(message, &name)) return;
  const auto shown = context.names().find(name);
  if (!shown || shown->nic != context.lane(link.remote_uid())) {
    found.err = ENOENT;
  } else {
    found.aperture = shown->aperture;
    if (auto s = link.grant(found.aperture.cookie); !s) found.err = s.error().err;
  }
  OobMessage answer{.to = message.from, .type = kOobFound};
  put_payload(answer, found);
  (void)link.send_oob(answer);
}

}  // namespace clan::engine

namespace clan {

// --- Memory --------------------------------------------------------------------------------------

Result<Memory> Memory::allocate(std::size_t bytes) {
  auto block = nic::MemoryBlock::create(bytes);
  if (!block) return block.error();
  return Memory(std::move(*block));
}

std::byte* Memory::data() const { return block_->data(); }
std::size_t Memory::size() const { return block_->size(); }

// --- Aperture ------------------------------------------------------------------------------------

Aperture& Aperture::operator=(Aperture&& other) noexcept {
  if (this != &other) {
    if (core_) core_->end();
    core_ = std::move(other.core_);
  }
  return *this;
}
// Tripwires on it may live on; peers' access must not.
Aperture::~Aperture() {
  if (core_) core_->end();
}

Result<Aperture> Aperture::export_memory(Context& context, const Memory& memory, std::size_t offset,
                                         std::size_t length, Rights rights,
                                         std::int64_t peers_uid) {
  if (offset > memory.size() || length > memory.size() - offset) {
    return Error{ERANGE, "aperture reaches beyond its CLAN memory"};
  }
  auto core = engine::ApertureCore::create(
      context.core(), {memory.data() + offset, length, rights, memory.block()}, peers_uid);
  if (!core) return core.error();
  return Aperture(std::move(*core));
}

Result<Aperture> Aperture::export_region(Context& context, std::span<std::byte> region,
                                         Rights rights, std::int64_t peers_uid) {
  auto core = engine::ApertureCore::create(
      context.core(), {region.data(), region.size(), rights, nullptr}, peers_uid);
  if (!core) return core.error();
  return Aperture(std::move(*core));
}

const RdmaCookie& Aperture::cookie() const { return core_->cookie(); }
Status Aperture::revoke() { return core_->revoke(); }
Status Aperture::set_name(std::uint64_t name, std::span<const std::byte> note) {
  return core_->set_name(name, note);
}
std::span<std::byte> Aperture::region() const { return core_->region(); }

// --- RemoteAperture ------------------------------------------------------------------------------

RemoteAperture::RemoteAperture(std::shared_ptr<engine::RemoteApertureCore> core)
    : core_(std::move(core)) {
  const nic::RemoteHandle& h = core_->handle();
  mapped_ = h.mapped;
  armed_ = h.armed;
  length_ = h.length;
  const bool direct = h.mapped != nullptr && h.light_fence;
  writes_directly_ = direct && includes(h.rights, Rights::kWrite);
  reads_directly_ = direct && includes(h.rights, Rights::kRead);
}

Result<RemoteAperture> RemoteAperture::import(Context& context, const RdmaCookie& cookie,
                                              std::int64_t timeout_ms, std::int64_t uid) {
  const uid_t owner = context.core()->owner(uid);
  auto link = context.core()->link_to_node(cookie.node, owner, deadline_after_ms(timeout_ms));
  if (!link) return link.error();
  auto core =
      engine::RemoteApertureCore::import(context.core(), std::move(*link), cookie, timeout_ms != 0);
  if (!core) return core.error();
  return RemoteAperture(std::move(*core));
}

Result<NamedAperture> RemoteAperture::look_up(Context& context, NodeId owner, std::uint64_t name,
                                              std::int64_t timeout_ms, std::int64_t uid) {
  return engine::look_up_aperture(context.core(), owner, context.core()->owner(uid), name,
                                  deadline_after_ms(timeout_ms));
}

namespace {

Status check_access(const nic::RemoteHandle& h, std::uint64_t offset, std::size_t bytes,
                    Rights right) {
  if (offset > h.length || bytes > h.length - offset) {
    return Error{ERANGE, "access beyond the remote aperture"};
  }
  if (!includes(h.rights, right))
    return Error{EACCES, "the RDMA cookie does not grant this access"};
  return {};
}

}  // namespace

Status RemoteAperture::after_write(std::uint64_t offset, std::size_t bytes) {
  const nic::RemoteHandle& h = core_->handle();
  if (auto s = check_access(h, offset, bytes, Rights::kWrite); !s) return s;
  if (h.mapped == nullptr) return Error{EOPNOTSUPP, "wrote() needs a mapped aperture"};
  shm::AsymmetricFence::full();
  if (h.armed->load(std::memory_order_relaxed) == 0) return {};  // relaxed: after the full fence
  return core_->link().after_access(h, offset, bytes, nic::AccessKind::kWrite);
}

Status RemoteAperture::after_read(std::uint64_t offset, std::size_t bytes) {
  return core_->link().after_access(core_->handle(), offset, bytes, nic::AccessKind::kRead);
}

Status RemoteAperture::check() const {
  const nic::RemoteHandle& h = core_->handle();
  if (!core_->context_pointer()->usable()) return engine::unusable_error();
  const bool alive = core_->link().alive();
  if (h.generation == nullptr) {
    return alive ? core_->link().check(h) : Status(Error{ECONNRESET, "the peer is gone"});
  }
  // Readable even after the peer is gone: an owner that revoked and then ended did so in order.
  // PAIR aperture.generation: sees what the owner did before it revoked
  if (static_cast<std::uint32_t>(words::load_acquire(*h.generation)) != h.generation_wanted) {
    return Error{ESTALE, "the aperture has been revoked"};
  }
  if (!alive) return Error{ECONNRESET, "the peer is gone"};
  return {};
}

Status RemoteAperture::write_slowly(std::uint64_t offset, const void* source, std::size_t bytes) {
  const nic::RemoteHandle& h = core_->handle();
  if (auto s = check_access(h, offset, bytes, Rights::kWrite); !s) return s;
  if (h.mapped == nullptr) {
    return core_->link().put(h, offset, {static_cast<const std::byte*>(source), bytes},
                             nic::PutOrder::kAny);
  }
  if (bytes > 0) std::memcpy(h.mapped + offset, source, bytes);
  return after_write(offset, bytes);
}

Status RemoteAperture::publish(std::uint64_t offset, std::uint64_t word) {
  const nic::RemoteHandle& h = core_->handle();
  if (offset % sizeof word != 0) return Error{EINVAL, "publish() of a word that is not aligned"};
  if (auto s = check_access(h, offset, sizeof word, Rights::kWrite); !s) return s;
  if (h.mapped == nullptr) {
    return core_->link().put(h, offset, std::as_bytes(std::span(&word, 1)),
                             nic::PutOrder::kAfterEarlier);
  }
  // PAIR aperture.publish: publishes the writes before it to the owner's acquire load
  words::store_release(*reinterpret_cast<std::atomic<std::uint64_t>*>(h.mapped + offset), word);
  if (h.light_fence && nic::armed_chunks_after_store<shm::AsymmetricFence>(*h.armed) == 0) {
    return {};
  }
  return after_write(offset, sizeof word);
}

Status RemoteAperture::read_slowly(std::uint64_t offset, void* destination, std::size_t bytes) {
  const nic::RemoteHandle& h = core_->handle();
  if (auto s = check_access(h, offset, bytes, Rights::kRead); !s) return s;
  if (h.mapped == nullptr) {
    return core_->link().get(h, offset, {static_cast<std::byte*>(destination), bytes});
  }
  if (bytes > 0) std::memcpy(destination, h.mapped + offset, bytes);
  return after_read(offset, bytes);
}

}  // namespace clan
