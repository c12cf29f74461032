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
#include <clan/aperture.h>
#include <clan/memory.h>
#include <clan/rdma.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "benchmarks.h"
#include "support/clock.h"
#include "support/context.h"
#include "support/pattern.h"
#include "support/shared_memory.h"
#include "transports/clan_transport.h"

namespace clan::bench {

namespace {

enum class Copy { kWritev, kReadv, kMemcpy, kMemcpyTwice };

const char* name_of(Copy copy) {
  switch (copy) {
    case Copy::kWritev: return "writev";
    case Copy::kReadv: return "readv";
    case Copy::kMemcpy: return "memcpy";
    case Copy::kMemcpyTwice: return "memcpy x2";
  }
  return "";
}

/// In the group's scratch memory: where the other side's buffer is, and whose turn it is.
struct Exchange {
  std::array<std::atomic<std::int32_t>, 2> pid;
  std::array<std::atomic<std::uint64_t>, 2> address;
  alignas(64) std::atomic<std::uint64_t> sent;
  alignas(64) std::atomic<std::uint64_t> received;
};

class CopyEnd {
 public:
  CopyEnd(Member& m, Copy copy, std::size_t bytes, std::byte* shared)
      : copy_(copy),
        shared_(shared),
        buffer_(bytes, std::byte{0x5a}),
        x_(*reinterpret_cast<Exchange*>(m.scratch())),
        peer_(1 - m.index()) {
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
    // PAIR bench.copy.sent: publishes the transfer to receive()
    x_.sent.store(number + 1, std::memory_order_release);
    Spinner spin;
    // PAIR bench.copy.received: sees that the buffer may be used again
    while (x_.received.load(std::memory_order_acquire) != number + 1) spin();
    return true;
  }

  bool receive(std::uint64_t number) {
    Spinner spin;
    // PAIR bench.copy.sent: sees the transfer
    while (x_.sent.load(std::memory_order_acquire) != number + 1) spin();
    if (copy_ == Copy::kReadv && !kernel_copy(process_vm_readv)) return false;
    if (copy_ == Copy::kMemcpyTwice) std::memcpy(buffer_.data(), shared_, buffer_.size());
    const std::byte* data = copy_ == Copy::kMemcpy ? shared_ : buffer_.data();
    if (!check({data, buffer_.size()}, number)) return false;
    // PAIR bench.copy.received: gives the buffer back to send()
    x_.received.store(number + 1, std::memory_order_release);
    return true;
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
  std::vector<std::byte> buffer_;
  Exchange& x_;
  std::size_t peer_;
};

/// An RDMA write from member 0 into memory that member 1 exports.
class ClanCopyEnd {
 public:
  ClanCopyEnd(Member& m, WaitMode mode, bool mapped, std::size_t bytes)
      : polls_(mode == WaitMode::kPoll),
        buffer_(bytes, std::byte{0x5a}),
        x_(*reinterpret_cast<Exchange*>(m.scratch())),
        cookie_(*reinterpret_cast<RdmaCookie*>(m.scratch() + sizeof(Exchange))) {
    context_ = make_context(mode);
    bool ok = context_ != nullptr && make_queue();
    if (m.index() == 1) ok = ok && export_target(mapped);
    m.barrier();
    if (m.index() == 0) ok = ok && import_target();
    ready_ = ok;
    m.barrier();
  }
  bool ready() const { return ready_; }

  bool send(std::uint64_t number) {
    stamp(buffer_, number);
    if (!queue_->write(*remote_, 0, buffer_.data(), buffer_.size()).ok()) return false;
    std::array<RdmaCompletion, 1> done;
    auto n = queue_->wait(done);
    if (!n.ok() || done[0].status != 0) return false;
    // PAIR bench.copy.sent: publishes the transfer to receive()
    x_.sent.store(number + 1, std::memory_order_release);
    Spinner spin;
    // PAIR bench.copy.received: sees that the buffer may be used again
    while (x_.received.load(std::memory_order_acquire) != number + 1) spin();
    return true;
  }

  bool receive(std::uint64_t number) {
    Spinner spin;
    std::array<RdmaCompletion, 1> none;
    // PAIR bench.copy.sent: sees the transfer
    while (x_.sent.load(std::memory_order_acquire) != number + 1) {
      if (polls_) {
        queue_->poll(none);
      } else {
        spin();
      }
    }
    if (!check(aperture_->region().first(buffer_.size()), number)) return false;
    // PAIR bench.copy.received: gives the buffer back to send()
    x_.received.store(number + 1, std::memory_order_release);
    return true;
  }

 private:
  bool make_queue() {
    auto queue = RdmaQueue::create(*context_);
    if (!queue) return complain("RDMA queue", queue.error());
    queue_ = std::move(*queue);
    return true;
  }
  bool export_target(bool mapped) {
    if (mapped) {
      auto memory = Memory::allocate(buffer_.size());
      if (!memory) return complain("memory", memory.error());
      memory_ = std::move(*memory);
    }
    auto aperture =
        mapped ? Aperture::export_memory(*context_, *memory_, 0, buffer_.size(), Rights::kReadWrite)
               : Aperture::export_region(*context_, buffer_, Rights::kReadWrite);
    if (!aperture) return complain("export", aperture.error());
    aperture_ = std::move(*aperture);
    cookie_ = aperture_->cookie();
    return true;
  }
  bool import_target() {
    auto remote = RemoteAperture::import(*context_, cookie_);
    if (!remote) return complain("import", remote.error());
    remote_ = std::move(*remote);
    return true;
  }

  bool polls_;
  bool ready_ = false;
  std::vector<std::byte> buffer_;
  Exchange& x_;
  RdmaCookie& cookie_;
  std::unique_ptr<clan::Context> context_;
  std::optional<Memory> memory_;
  std::optional<Aperture> aperture_;
  std::optional<RemoteAperture> remote_;
  std::optional<RdmaQueue> queue_;
};

/// `End` has send(number) at member 0 and receive(number) at member 1.
template <class End>
bool copy_member(Member& m, End& end) {
  const std::uint64_t warm_up = m.options().smoke ? 2 : 32;
  std::uint64_t number = 0;
  const auto transfers = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i, ++number) {
      if (!(m.index() == 0 ? end.send(number) : end.receive(number))) return false;
    }
    return true;
  };
  if (!transfers(warm_up)) return m.fail("the copy is refused here, or damaged");
  const std::uint64_t start = Clock::now();
  if (!transfers(warm_up)) return m.fail("the copy is refused here, or damaged");
  const double each = Clock::to_ns(Clock::now() - start) / static_cast<double>(warm_up);
  const std::uint64_t count = m.agree(m.repeats_for(each));
  while (m.next_sample()) {
    const std::uint64_t begin = Clock::now();
    if (!transfers(count)) return m.fail("data lost or damaged");
    m.record(Clock::to_ns(Clock::now() - begin) / static_cast<double>(count));
    if (m.index() == 0) m.did(count);
  }
  return true;
}

Row bandwidth_row(const std::string& variant, std::size_t bytes, const Outcome& outcome) {
  Row row = make_row("rdma_copy", variant, static_cast<double>(bytes), "GB/s", outcome);
  row.higher_is_better = true;
  row.op_ns = row.stats.p50;
  std::vector<double> runs = outcome.members.front().runs[0];
  for (double& ns : runs) ns = static_cast<double>(bytes) / ns;
  row.stats = summarise_runs(runs);
  return row;
}

Context::Variant copy_variant(Copy copy, std::size_t bytes) {
  return [=](Context& context) -> std::optional<Row> {
    SharedMemory shared(bytes);
    const Outcome outcome = run_group(context.across_cores(), [&](Member& m) {
      CopyEnd end(m, copy, bytes, shared.data());
      return copy_member(m, end);
    });
    if (!outcome.ok()) {
      context.skip("rdma_copy", name_of(copy), outcome.failure);
      return std::nullopt;
    }
    return bandwidth_row(name_of(copy), bytes, outcome);
  };
}

Context::Variant clan_variant(WaitMode mode, bool mapped, std::size_t bytes) {
  return [=](Context& context) -> std::optional<Row> {
    const std::string name = clan_name(mode) + (mapped ? ", mapped" : "");
    const Outcome outcome = run_group(context.across_cores(), [&](Member& m) {
      ClanCopyEnd end(m, mode, mapped, bytes);
      if (!end.ready()) return m.fail("cannot set up RDMA");
      return copy_member(m, end);
    });
    if (!outcome.ok()) {
      context.failed("rdma_copy", name, outcome.failure);
      return std::nullopt;
    }
    return bandwidth_row(name, bytes, outcome);
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
