// Fuzzes what a link does with a hostile peer after its handshake: control messages of any contents
// and size, with descriptors of any kind, copy jobs and NIC tables that say anything, while this
// side imports, copies and lets go. The link may go down; it must not crash, leak, wait or touch
// what it was not shown.
//
// Input: a sequence of steps. The first byte of each chooses what is done (see step()), the
// following ones the fields; numbers that the input has no more bytes for are 0. What the peer may
// know (cookies, memory ids) is chosen by index, so that the input gets past the first check.
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "input.h"
#include "link/shm_link.h"

namespace {

using clan::Fd;
using clan::Mapping;
using clan::RdmaCookie;
using clan::RdmaOp;
using clan::Rights;
using clan::fuzz::Input;
using clan::link::ControlMessage;
using clan::link::ControlType;
using clan::link::ShmLink;
using clan::nic::RemoteHandle;
namespace nic = clan::nic;
namespace shm = clan::shm;

constexpr std::uint64_t kTheirNode = 2;
// not whole pages: AddressSanitizer sees the first byte beyond
constexpr std::size_t kOwnBytes = 5000;
constexpr std::size_t kBlockBytes = 4 * clan::kPageSize;

struct Sink final : clan::nic::LinkSink {
  void on_oob(const std::shared_ptr<nic::Link>&, const clan::OobMessage& message) override {
    if (message.length > clan::kOobPayload) std::abort();
  }
  void on_transfer_done(std::uint64_t, int, std::uint64_t) override {}
  void on_link_down(const std::shared_ptr<nic::Link>&) override {}
};

// This side's NIC with one aperture of each kind; made once, as links come and go.
struct Ours {
  nic::Nic& nic = *nic::Nic::create({1}, ::geteuid()).value().release();
  std::shared_ptr<nic::MemoryBlock> writable = nic::MemoryBlock::create(kBlockBytes).value();
  std::shared_ptr<nic::MemoryBlock> readable = nic::MemoryBlock::create(kBlockBytes).value();
  std::byte* own = static_cast<std::byte*>(std::calloc(1, kOwnBytes));
  std::array<RdmaCookie, 5> cookies;  ///< the last one: of an aperture that is no more

  Ours() {
    cookies[0] =
        nic.export_aperture({writable->data(), kBlockBytes, Rights::kReadWrite, writable}).value();
    cookies[1] =
        nic.export_aperture({readable->data(), kBlockBytes, Rights::kRead, readable}).value();
    cookies[2] = nic.export_aperture({own, kOwnBytes, Rights::kReadWrite, nullptr}).value();
    cookies[3] = nic.export_aperture({own, 100, Rights::kWrite, nullptr}).value();
    cookies[4] = nic.export_aperture({own, 100, Rights::kReadWrite, nullptr}).value();
    nic.retire(cookies[4].aperture);
    const std::uint32_t flags = shm::kTripOnWrite | shm::kTripPersistent;
    nic.arm(nic.add_tripwire({cookies[2].aperture, 0, 64, flags, 0, 7}).value());
  }
};

// The hostile peer: it writes its own NIC's memory as it likes.
struct Theirs {
  Fd tables_fd = clan::create_memfd("fuzz-tables", shm::kTablesBytes).value();
  Fd signals_fd = clan::create_memfd("fuzz-signals", shm::kSignalsBytes).value();
  Mapping tables_map =
      Mapping::map(tables_fd.get(), shm::kTablesBytes, Mapping::Access::kReadWrite).value();
  shm::NicTables& tables = *reinterpret_cast<shm::NicTables*>(tables_map.data());
  /// Small ones and some that must be refused; opened once, passed often.
  std::vector<Fd> passed;

  Theirs() {
    passed.push_back(clan::create_memfd("fuzz", clan::kPageSize).value());
    passed.push_back(clan::create_memfd("fuzz", 2 * clan::kPageSize).value());
    passed.push_back(clan::create_eventfd().value());
    passed.push_back(Fd(::memfd_create("fuzz-unsealed", MFD_CLOEXEC)));
    passed.push_back(clan::create_memfd("fuzz-sealed", clan::kPageSize).value());
    (void)clan::seal_future_write(passed.back().get());
    int pipe_ends[2];
    if (::pipe(pipe_ends) != 0) std::abort();
    passed.emplace_back(pipe_ends[1]);
    ::close(pipe_ends[0]);
  }
};

// One link between the two, for the length of one input.
class Session {
 public:
  Session(Ours& ours, Theirs& theirs, clan::Reactor& reactor, Input& in)
      : ours_(ours), theirs_(theirs), in_(in) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair) != 0) std::abort();
    peer_end_ = Fd(pair[1]);
    clan::link::ShmPeer peer;
    peer.node = {kTheirNode};
    peer.credentials = {0, ::geteuid()};  // no process: its own memory could only be ours
    peer.socket = Fd(pair[0]);
    peer.tables =
        Mapping::map(theirs.tables_fd.get(), shm::kTablesBytes, Mapping::Access::kRead).value();
    peer.signals =
        Mapping::map(theirs.signals_fd.get(), shm::kSignalsBytes, Mapping::Access::kReadWrite)
            .value();
    peer.doorbell = clan::create_eventfd().value();
    peer.my_slot = in.take<std::uint16_t>() % shm::kMaxPeers;
    slot_ = peer.peer_slot = ours.nic.add_peer_slot().value();
    link_ = std::make_shared<ShmLink>(std::move(peer), ours.nic, sink_, reactor,
                                      ShmLink::Options{false});
  }

  void run() {
    while (!in_.empty() && link_->alive()) step();
    for (const RemoteHandle& handle : handles_) link_->release(handle);
    ours_.nic.image().signals->jobs[slot_].claim.store(0);
  }

 private:
  void step() {
    switch (in_.byte() % 10) {
      case 0:
      case 1:
      case 2: send_message(); break;
      case 3:
        announce_job();
        (void)link_->wants_help();
        (void)link_->help();
        break;
      case 4: scribble(); break;
      case 5: import(); break;
      case 6: use(); break;
      case 7: talk(); break;
      case 8: read_answers(); break;
      default:
        if (in_.byte() % 16 == 0) peer_end_.reset();
        break;
    }
    link_->on_ready(EPOLLIN | (in_.byte() & EPOLLOUT));
  }

  RdmaCookie cookie_of_ours() {
    RdmaCookie cookie = ours_.cookies[in_.byte() % ours_.cookies.size()];
    const std::uint8_t wrong = in_.byte();
    if (wrong == 1) cookie.aperture = in_.take<std::uint32_t>();
    if (wrong == 2) cookie.generation = in_.take<std::uint32_t>();
    if (wrong == 3) cookie.length = in_.number();
    if (wrong == 4) cookie.key ^= 1;
    return cookie;
  }

  void send_message() {
    std::array<std::byte, 2 * sizeof(ControlMessage)> bytes{};
    ControlMessage message;
    message.type = static_cast<ControlType>(in_.byte() % 14);
    message.err = in_.byte() - 128;
    message.request = in_.byte();
    message.memory_id = in_.byte() % 8;
    message.memory_bytes = in_.number();
    message.offset = in_.number();
    message.length = in_.number();
    message.slot = static_cast<std::uint32_t>(in_.number());
    message.flags = in_.byte() % 4;
    message.cookie = cookie_of_ours();
    message.oob.length = static_cast<std::uint32_t>(in_.number());
    std::memcpy(bytes.data(), &message, sizeof message);
    std::size_t size = sizeof message;
    if (in_.byte() == 1) size = 1 + in_.take<std::uint16_t>() % (bytes.size() - 1);
    if (in_.byte() == 1) bytes[in_.take<std::uint16_t>() % sizeof message] = std::byte{in_.byte()};
    std::array<int, 2> fds{};
    const std::size_t count = in_.byte() % (fds.size() + 1);
    for (std::size_t i = 0; i < count; ++i)
      fds[i] = theirs_.passed[in_.byte() % theirs_.passed.size()].get();
    if (peer_end_) {
      (void)clan::send_datagram(peer_end_.get(), std::span(bytes).first(size),
                                std::span(fds).first(count));
    }
  }

  void announce_job() {
    shm::CopyJob& job = ours_.nic.image().signals->jobs[slot_];
    const RdmaCookie cookie = cookie_of_ours();
    job.aperture.store(cookie.aperture);
    job.generation.store(cookie.generation);
    job.address.store(in_.take<std::uint64_t>());
    job.offset.store(in_.number());
    job.length.store(in_.number());
    job.op.store(in_.byte() % 3);
    const std::uint64_t chunks = in_.byte();  // up to 65535, but that takes its time
    job.claim.store(chunks << 16 | (in_.byte() & 3u));
  }

  // An entry of the peer's tables, most often one that import() takes.
  void scribble() {
    const std::uint32_t index = in_.byte() % 4;
    shm::ApertureEntry& entry = theirs_.tables.apertures[index];
    if (in_.byte() % 2 == 0) {
      RdmaCookie cookie;
      cookie.node = {kTheirNode};
      cookie.aperture = index;
      cookie.generation = static_cast<std::uint32_t>(entry.generation.load() | 1);
      cookie.length = in_.number();
      cookie.rights = static_cast<Rights>(in_.byte() % 4);
      entry.generation.store(cookie.generation);
      entry.memory.store(in_.byte() % 8);
      entry.memory_offset.store(in_.number());
      entry.key_image.store(nic::key_image(cookie));
      shown_[index] = cookie;
    } else {
      entry.generation.store(in_.number());
    }
    entry.length.store(in_.number());
    entry.armed.store(in_.take<std::uint64_t>());
    entry.first_tripwire.store(static_cast<std::uint32_t>(in_.number()));
    shm::TripwireEntry& tripwire = theirs_.tables.tripwires[in_.byte()];
    tripwire.start.store(in_.number());
    tripwire.end.store(in_.number());
    tripwire.aperture.store(index);
    tripwire.next.store(static_cast<std::uint32_t>(in_.number()));
    tripwire.flags.store(in_.byte());
    tripwire.queue.store(static_cast<std::uint32_t>(in_.number()));
    tripwire.event.store(static_cast<std::uint32_t>(in_.number()));
  }

  void import() {
    if (handles_.size() >= 8) {
      link_->release(handles_.front());
      handles_.erase(handles_.begin());
    }
    auto handle = link_->import(shown_[in_.byte() % shown_.size()], false);
    if (handle) handles_.push_back(*handle);
  }

  void use() {
    if (handles_.empty()) return;
    const RemoteHandle& handle = handles_[in_.byte() % handles_.size()];
    const std::uint64_t offset = in_.number();
    std::vector<std::byte> local(in_.take<std::uint16_t>());
    switch (in_.byte() % 5) {
      case 0: (void)link_->put(handle, offset, local, nic::PutOrder::kAny); break;
      case 1: (void)link_->get(handle, offset, local); break;
      case 2:
        (void)link_->after_access(handle, offset, in_.number(), nic::AccessKind::kWrite);
        break;
      default: {
        const auto op = in_.byte() % 2 == 0 ? RdmaOp::kWrite : RdmaOp::kRead;
        auto result = link_->transfer({op, &handle, offset, local.data(), local.size(), kToken});
        // What the peer's driver was asked to copy may come later: the memory has to stay.
        if (result.kind == nic::TransferResult::Kind::kPending) {
          if (in_.byte() % 4 == 0) link_->cancel(kToken);
          pending_.push_back(std::move(local));
        }
      }
    }
  }

  void talk() {
    switch (in_.byte() % 4) {
      case 0: link_->ring(in_.byte()); break;
      case 1: link_->announce_queue_fd(in_.byte(), theirs_.passed[2].get()); break;
      case 2:
        (void)link_->send_oob({0, 0, in_.byte() % 2 == 0 ? clan::kOobInternal : 0, 0, {}});
        break;
      default: (void)link_->grant(ours_.cookies[in_.byte() % ours_.cookies.size()]);
    }
  }

  void read_answers() {
    ControlMessage answer;
    for (int i = in_.byte() % 8; i > 0 && peer_end_; --i) {
      (void)clan::receive_datagram(peer_end_.get(), std::as_writable_bytes(std::span(&answer, 1)));
    }
  }

  static constexpr std::uint64_t kToken = 1;
  Ours& ours_;
  Theirs& theirs_;
  Input& in_;
  Sink sink_;
  Fd peer_end_;
  std::uint32_t slot_ = 0;
  std::array<RdmaCookie, 4> shown_{};  ///< the peer's cookies that this side knows
  std::vector<RemoteHandle> handles_;
  std::vector<std::vector<std::byte>> pending_;
  std::shared_ptr<ShmLink> link_;  ///< goes first: it may know the memory of a pending copy
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Ours& ours = *new Ours;
  static Theirs& theirs = *new Theirs;
  static clan::Reactor& reactor = *new clan::Reactor;
  static const std::uint32_t apertures = ours.nic.live_apertures();

  Input in(data, size);
  Session(ours, theirs, reactor, in).run();
  if (ours.nic.live_apertures() != apertures) std::abort();  // a link leaves nothing behind
  // The next input starts from the same tables.
  std::memset(static_cast<void*>(theirs.tables.apertures), 0, 4 * sizeof(shm::ApertureEntry));
  std::memset(static_cast<void*>(theirs.tables.tripwires), 0, 256 * sizeof(shm::TripwireEntry));
  return 0;
}
