// Threads that sleep while another, or nobody, calls for what is to be done: work that a counter
// starts, and accesses that need checks.
#include <rdma/fi_trigger.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "libfabric/node.h"

namespace clan::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint64_t kShownKey = 5, kNewKey = 6;
constexpr std::size_t kLongWrite = 16 * 1024;  ///< made when the call returns, and not as a message
constexpr std::size_t kShownBytes = 2 * kLongWrite;

/// Shows memory by two keys and makes no progress, in a process of its own.
class StillPeer {
 public:
  StillPeer() {
    // libfabric loads its providers once, before any fork.
    if (!get_info(make_hints())) MUST(-FI_ENODATA);
    int fds[2];
    MUST(::pipe(fds));
    pid_ = MUST(::fork());
    if (pid_ == 0) {
      ::alarm(60);
      run(fds[1]);
    }
    ::close(fds[1]);
    name_.resize(16);
    must(::read(fds[0], name_.data(), name_.size()) == 16 ? 0 : -FI_EIO, "the other process");
    ::close(fds[0]);
  }
  ~StillPeer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  StillPeer(const StillPeer&) = delete;
  StillPeer& operator=(const StillPeer&) = delete;
  const std::vector<char>& name() const { return name_; }
  void stop() {
    ::kill(pid_, SIGSTOP);
    int status;
    ::waitpid(pid_, &status, WUNTRACED);
  }
  void resume() { ::kill(pid_, SIGCONT); }

 private:
  [[noreturn]] static void run(int to_parent) {
    Node node;
    node.enable();
    std::vector<char> memory(kShownBytes);
    for (const std::uint64_t key : {kShownKey, kNewKey}) {
      fid_mr* mr = nullptr;
      MUST(fi_mr_reg(node.domain.get(), memory.data(), memory.size(), FI_REMOTE_WRITE, 0, key, 0,
                     &mr, nullptr));
    }
    const auto name = node.name();
    if (::write(to_parent, name.data(), 16) != 16) ::_exit(2);
    for (;;) ::pause();
  }

  pid_t pid_ = 0;
  std::vector<char> name_;
};

Object<fid_cntr> waiting_counter(Node& node) {
  fi_cntr_attr attr{};
  attr.wait_obj = FI_WAIT_FD;
  fid_cntr* made = nullptr;
  MUST(fi_cntr_open(node.domain.get(), &attr, &made, nullptr));
  return Object<fid_cntr>(made);
}

/// Sleeps until the counter has come to `count`. A sleep that is not ended looks once more when its
/// time is over: false if it came to that.
bool counts_to(const Object<fid_cntr>& counter, std::uint64_t count) {
  const auto before = Clock::now();
  const int rc = fi_cntr_wait(counter.get(), count, 6000);
  return rc == 0 && Clock::now() - before < milliseconds(4000);
}

/// A node whose writes a counter counts.
struct CountedWriter {
  explicit CountedWriter(fi_progress progress) : node({.wait = FI_WAIT_FD, .progress = progress}) {
    writes = waiting_counter(node);
    written = waiting_counter(node);
    MUST(fi_ep_bind(node.ep.get(), &writes->fid, FI_WRITE));
    node.enable();
  }
  ~CountedWriter() { node.ep.reset(); }
  /// Meets the peer and its first key.
  void meet(const std::vector<char>& name) {
    to = node.insert(name);
    EXPECT_EQ(sent([&] { return write(4, 0); }, node), 0);
    EXPECT_EQ(fi_cntr_wait(writes.get(), 1, 10'000), 0);
  }
  ssize_t write(std::size_t bytes, std::uint64_t at) {
    return fi_write(node.ep.get(), data.data(), bytes, nullptr, to, at, kShownKey, nullptr);
  }
  /// The same as deferred work, when so many writes have been made; `written` counts it.
  void queue_write(std::uint64_t when, std::size_t bytes, std::uint64_t at, std::uint64_t key) {
    piece = {data.data(), bytes};
    target = {at, bytes, key};
    operation.ep = node.ep.get();
    operation.msg.msg_iov = &piece;
    operation.msg.iov_count = 1;
    operation.msg.addr = to;
    operation.msg.rma_iov = &target;
    operation.msg.rma_iov_count = 1;
    work.threshold = when;
    work.triggering_cntr = writes.get();
    work.completion_cntr = written.get();
    work.op_type = FI_OP_WRITE;
    work.op.rma = &operation;
    MUST(fi_control(&node.domain->fid, FI_QUEUE_WORK, &work));
  }

  Node node;
  Object<fid_cntr> writes, written;
  fi_addr_t to = 0;
  std::vector<char> data = std::vector<char>(kShownBytes, 'x');
  iovec piece{};
  fi_rma_iov target{};
  fi_op_rma operation{};
  fi_deferred_work work{};
};

/// A node that shows memory, and makes no progress.
struct IdleTarget {
  IdleTarget() {
    node.enable();
    MUST(fi_mr_reg(node.domain.get(), memory.data(), memory.size(), FI_REMOTE_WRITE, 0, kShownKey,
                   0, &region, nullptr));
    registered.reset(region);
  }
  char at(std::size_t offset) {
    return std::atomic_ref<char>(memory[offset]).load(std::memory_order_relaxed);
  }
  Node node;
  std::vector<char> memory = std::vector<char>(kShownBytes);
  fid_mr* region = nullptr;
  Object<fid_mr> registered;
};

TEST(FabricDeferredWaits, WorkIsStartedWithoutAnotherCallWhereProgressIsAutomatic) {
  IdleTarget b;
  CountedWriter a(FI_PROGRESS_AUTO);
  a.meet(b.node.name());
  a.queue_write(2, 4, 8, kShownKey);
  std::this_thread::sleep_for(milliseconds(50));  // what B has announced is over
  EXPECT_EQ(b.at(8), 0);
  ASSERT_EQ(a.write(4, 4), 0);
  const auto end = Clock::now() + milliseconds(1000);
  while (b.at(8) != 'x' && Clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(b.at(8), 'x');
}

TEST(FabricDeferredWaits, AThreadThatSleepsStartsWhatAnotherMakesDue) {
  IdleTarget b;
  CountedWriter a(FI_PROGRESS_MANUAL);
  a.meet(b.node.name());
  a.queue_write(2, kLongWrite, kLongWrite, kShownKey);
  bool counted = false;
  std::thread sleeper([&] { counted = counts_to(a.written, 1); });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(a.write(kLongWrite, 0), 0);
  sleeper.join();
  EXPECT_TRUE(counted);
  EXPECT_EQ(b.at(kLongWrite), 'x');
}

TEST(FabricDeferredWaits, WorkForAPeerThatStandsStillIsStartedWhenItGoesOn) {
  for (const fi_progress progress : {FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO}) {
    StillPeer b;
    CountedWriter a(progress);
    a.meet(b.name());
    b.stop();
    a.queue_write(1, kLongWrite, 0, kNewKey);  // a key that has to be asked for
    std::thread waker([&] {
      std::this_thread::sleep_for(milliseconds(500));
      b.resume();
    });
    EXPECT_TRUE(counts_to(a.written, 1)) << progress;
    waker.join();
  }
}

// The thread that sleeps has gone to sleep before there is such work.
TEST(FabricDeferredWaits, WorkForAPeerThatStandsStillMayBeAnotherThreads) {
  StillPeer b;
  CountedWriter a(FI_PROGRESS_MANUAL);
  a.meet(b.name());
  b.stop();
  bool counted = false;
  std::thread sleeper([&] { counted = counts_to(a.written, 1); });
  std::this_thread::sleep_for(milliseconds(100));
  a.queue_write(1, kLongWrite, 0, kNewKey);
  std::this_thread::sleep_for(milliseconds(300));
  b.resume();
  sleeper.join();
  EXPECT_TRUE(counted);
}

// A peer that does not poll leaves a small access to the one that began it.
TEST(FabricWaitsForAccesses, AThreadThatSleepsMakesASmallOneThatAnotherBegins) {
  IdleTarget b;
  CountedWriter a(FI_PROGRESS_MANUAL);
  a.meet(b.node.name());
  // While it polls they go as messages.
  std::uint64_t made = 1;
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(sent([&] { return a.write(4, 0); }, a.node), 0);
    ++made;
    ASSERT_TRUE(eventually([&] {
      fi_cq_tagged_entry nothing;
      (void)fi_cq_read(b.node.cq.get(), &nothing, 0);
      return fi_cntr_read(a.writes.get()) == made;
    }));
  }
  bool counted = false;
  std::thread sleeper([&] { counted = counts_to(a.writes, made + 1); });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(a.write(4, 4), 0);
  sleeper.join();
  EXPECT_TRUE(counted);
  EXPECT_EQ(b.at(4), 'x');
}

TEST(FabricWaitsForAccesses, AThreadThatSleepsHearsOfTheEndOfASlowOneThatAnotherBegins) {
  ::setenv("FI_CLAN_DIRECT_COPY", "0", 1);
  StillPeer b;
  CountedWriter a(FI_PROGRESS_MANUAL);
  ::unsetenv("FI_CLAN_DIRECT_COPY");
  a.meet(b.name());
  b.stop();
  bool counted = false;
  std::thread sleeper([&] { counted = counts_to(a.writes, 2); });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(a.write(kLongWrite, 0), 0);
  std::this_thread::sleep_for(milliseconds(200));
  b.resume();
  sleeper.join();
  EXPECT_TRUE(counted);
}

}  // namespace
}  // namespace clan::test
