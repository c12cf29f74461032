// How fast does one process's memory get into another's? The copies an RDMA transfer can use.
//
//   writev     process_vm_writev: the writer pushes, one copy by its CPU
//   readv      process_vm_readv: the reader pulls, one copy by its CPU
//   memcpy     the writer stores into memory the reader has mapped as well: one copy
//   memcpy x2  copy into a shared buffer, copy out again: what a ring does without pipelining
//   clan       RdmaQueue::write into the owner's own memory; the owner polls a flag only
//   clan-poll  the same while the owner polls its RDMA queue: both processors may copy
//   "mapped"   the same into CLAN memory, which the writer has mapped
//
// Member 0 stamps its buffer, the copy is made, member 1 checks the stamps and says so: one
// transfer at a time, both sides polling.
#include <clan/rdma.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include <cstring>

#include "benchmarks.h"
#include "transports/clan_transport.h"
#include "transports/loops.h"

namespace clan::bench {

namespace {

enum class Copy { kWritev, kReadv, kMemcpy, kMemcpyTwice };
constexpr const char* kCopyNames[] = {"writev", "readv", "memcpy", "memcpy x2"};

/// In the group's scratch memory: where the other side's buffer is, and whose turn it is.
struct Exchange {
  std::array<std::atomic<std::int32_t>, 2> pid;
  std::array<std::atomic<std::uint64_t>, 2> address;
  alignas(64) std::atomic<std::uint64_t> sent;
  alignas(64) std::atomic<std::uint64_t> received;
  alignas(64) RdmaCookie cookie;
};

/// A buffer, and the turns of sender and receiver.
class TakesTurns {
 public:
  TakesTurns(Member& m, std::size_t bytes)
      : buffer_(bytes, std::byte{0x5a}), x_(*reinterpret_cast<Exchange*>(m.scratch())) {}

 protected:
  /// Sender: until the receiver has checked the transfer.
  void sent(std::uint64_t number) {
    // PAIR bench.copy.sent: publishes the transfer to the receiver
    x_.sent.store(number + 1, std::memory_order_release);
    Spinner spin;
    // PAIR bench.copy.received: sees that the buffer may be used again
    while (x_.received.load(std::memory_order_acquire) != number + 1) spin();
  }
  /// Receiver: until there is a transfer; calls `spin` meanwhile.
  template <class Spin>
  void await(std::uint64_t number, Spin spin) {
    // PAIR bench.copy.sent: sees the transfer
    while (x_.sent.load(std::memory_order_acquire) != number + 1) spin();
  }
  bool received(std::span<const std::byte> data, std::uint64_t number) {
    if (!check(data, number)) return false;
    // PAIR bench.copy.received: gives the buffer back to the sender
    x_.received.store(number + 1, std::memory_order_release);
    return true;
  }

  std::vector<std::byte> buffer_;
  Exchange& x_;
};

class CopyEnd : TakesTurns {
 public:
  CopyEnd(Member& m, Copy copy, std::size_t bytes, std::byte* shared)
      : TakesTurns(m, bytes), copy_(copy), shared_(shared), peer_(1 - m.index()) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where Yama restricts ptrace to children
    x_.pid[m.index()].store(getpid(), std::memory_order_relaxed);
    x_.address[m.index()].store(reinterpret_cast<std::uint64_t>(buffer_.data()),
                                std::memory_order_relaxed);
    m.barrier();
  }

  bool send(std::uint64_t number) {
    stamp(buffer_, number);
    if (copy_ == Copy::kWritev && !kernel_copy(process_vm_writev)) return false;
    if (copy_ == Copy::kMemcpy || copy_ == Copy::kMemcpyTwice) {
      std::memcpy(shared_, buffer_.data(), buffer_.size());
    }
    sent(number);
    return true;
  }
  bool receive(std::uint64_t number) {
    await(number, Spinner());
    if (copy_ == Copy::kReadv && !kernel_copy(process_vm_readv)) return false;
    if (copy_ == Copy::kMemcpyTwice) std::memcpy(buffer_.data(), shared_, buffer_.size());
    const std::byte* data = copy_ == Copy::kMemcpy ? shared_ : buffer_.data();
    return received({data, buffer_.size()}, number);
  }

 private:
  template <class Call>
  bool kernel_copy(Call call) {
    const iovec local{buffer_.data(), buffer_.size()};
    const iovec remote{reinterpret_cast<void*>(x_.address[peer_].load(std::memory_order_relaxed)),
                       buffer_.size()};
    const pid_t pid = x_.pid[peer_].load(std::memory_order_relaxed);
    return call(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(buffer_.size());
  }

  Copy copy_;
  std::byte* shared_;
  std::size_t peer_;
};

/// An RDMA write from member 0 into memory that member 1 exports.
class ClanCopyEnd : TakesTurns {
 public:
  ClanCopyEnd(Member& m, WaitMode mode, bool mapped, std::size_t bytes)
      : TakesTurns(m, bytes), polls_(mode == WaitMode::kPoll), context_(make_context(mode)) {
    ready_ = context_ != nullptr && keep("RDMA queue", RdmaQueue::create(*context_), queue_);
    if (m.index() == 1) ready_ = ready_ && export_target(mapped);
    m.barrier();
    if (m.index() == 0)
      ready_ = ready_ && keep("import", RemoteAperture::import(*context_, x_.cookie), remote_);
    m.barrier();
  }
  bool ready() const { return ready_; }

  bool send(std::uint64_t number) {
    stamp(buffer_, number);
    if (!queue_->write(*remote_, 0, buffer_.data(), buffer_.size()).ok()) return false;
    std::array<RdmaCompletion, 1> done;
    if (!queue_->wait(done).ok() || done[0].status != 0) return false;
    sent(number);
    return true;
  }
  bool receive(std::uint64_t number) {
    Spinner spin;
    std::array<RdmaCompletion, 1> none;
    await(number, [&] {
      if (polls_) {
        queue_->poll(none);
      } else {
        spin();
      }
    });
    return received(aperture_->region().first(buffer_.size()), number);
  }

 private:
  bool export_target(bool mapped) {
    constexpr Rights kBoth = Rights::kReadWrite;
    if (mapped && !keep("memory", Memory::allocate(buffer_.size()), memory_)) return false;
    auto aperture = mapped ? Aperture::export_memory(*context_, *memory_, 0, buffer_.size(), kBoth)
                           : Aperture::export_region(*context_, buffer_, kBoth);
    if (!keep("export", std::move(aperture), aperture_)) return false;
    x_.cookie = aperture_->cookie();
    return true;
  }

  bool polls_;
  bool ready_ = false;
  std::unique_ptr<clan::Context> context_;
  std::optional<Memory> memory_;
  std::optional<Aperture> aperture_;
  std::optional<RemoteAperture> remote_;
  std::optional<RdmaQueue> queue_;
};

/// `End` has send(number) at member 0 and receive(number) at member 1.
template <class End>
bool copy_member(Member& m, End& end) {
  std::uint64_t number = 0;
  const auto transfers = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i, ++number) {
      if (!(m.index() == 0 ? end.send(number) : end.receive(number)))
        return m.fail("the copy is refused here, or damaged");
    }
    return true;
  };
  return time_bursts(m, m.options().smoke ? 2 : 32, transfers, kMostRepeats);
}

std::optional<Row> copy_row(Context& context, const std::string& variant, std::size_t bytes,
                            bool required, const std::function<bool(Member&)>& body) {
  const auto outcome =
      context.run("rdma_copy", variant, "", context.across_cores(), body, required);
  if (!outcome) return std::nullopt;
  const auto x = static_cast<double>(bytes);
  return rate_row("rdma_copy", variant, x, "GB/s", *outcome, x);
}

Context::Variant copy_variant(Copy copy, std::size_t bytes) {
  return [=](Context& context) {
    SharedMemory shared(bytes);
    const char* name = kCopyNames[static_cast<int>(copy)];
    return copy_row(context, name, bytes, false, [&](Member& m) {
      CopyEnd end(m, copy, bytes, shared.data());
      return copy_member(m, end);
    });
  };
}

Context::Variant clan_variant(WaitMode mode, bool mapped, std::size_t bytes) {
  return [=](Context& context) {
    const std::string name = clan_name(mode) + (mapped ? ", mapped" : "");
    return copy_row(context, name, bytes, true, [&](Member& m) {
      ClanCopyEnd end(m, mode, mapped, bytes);
      return end.ready() ? copy_member(m, end) : m.fail("cannot set up RDMA");
    });
  };
}

}  // namespace

void rdma_copy(Context& context) {
  for (std::size_t bytes : context.sizes(
           {8, 64, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304}, {65536, 1048576}, {4096})) {
    context.point({
        clan_variant(WaitMode::kPoll, false, bytes),
        clan_variant(WaitMode::kAdaptive, false, bytes),
        clan_variant(WaitMode::kPoll, true, bytes),
        clan_variant(WaitMode::kAdaptive, true, bytes),
        copy_variant(Copy::kWritev, bytes),
        copy_variant(Copy::kReadv, bytes),
        copy_variant(Copy::kMemcpy, bytes),
        copy_variant(Copy::kMemcpyTwice, bytes),
    });
  }
}

}  // namespace clan::bench
