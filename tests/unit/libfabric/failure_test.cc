// Peers that stop, die and come again, at every step of a conversation; too few descriptors, too
// little memory; forks; other users.
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "libfabric/node.h"

namespace clan::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint64_t kKey = 77;

std::size_t entries_of(const char* directory) {
  DIR* d = ::opendir(directory);
  std::size_t n = 0;
  while (::readdir(d) != nullptr) ++n;
  ::closedir(d);
  return n;
}

/// Files of CLAN: other programs have theirs there.
std::size_t our_files() {
  std::size_t n = 0;
  std::error_code none;  // where there is no such directory
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
    if (entry.path().filename().native().find("clan") != std::string::npos) ++n;
  }
  return n;
}

std::size_t our_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t n = 0;
  for (std::string line; std::getline(maps, line);)
    n += line.find("/memfd:clan") != std::string::npos;
  return n;
}

enum class Manner {
  kEcho,    ///< sends back what comes
  kSilent,  ///< shows its memory, and then makes no progress at all
};

// A node in a process of its own. It echoes messages of tag 1 to their sender, as tag 2.
class Other {
 public:
  explicit Other(Manner manner, std::uint16_t port = 0) {
    // libfabric loads its providers once, before any fork.
    if (!get_info(make_hints())) MUST(-FI_ENODATA);
    int fds[2];
    MUST(::pipe(fds));
    pid_ = MUST(::fork());
    if (pid_ == 0) {
      ::alarm(100);
      run(manner, port, fds[1]);
      ::_exit(0);
    }
    ::close(fds[1]);
    name_.resize(16);
    must(::read(fds[0], name_.data(), name_.size()) == 16 ? 0 : -FI_EIO, "the other process");
    ::close(fds[0]);
  }
  ~Other() { kill(); }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;

  const std::vector<char>& name() const { return name_; }
  std::uint16_t port() const {
    sockaddr_in address{};
    std::memcpy(&address, name_.data(), sizeof address);
    return ntohs(address.sin_port);
  }
  void stop() {
    ::kill(pid_, SIGSTOP);
    int status;
    ::waitpid(pid_, &status, WUNTRACED);
  }
  void resume() { ::kill(pid_, SIGCONT); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  static void run(Manner manner, std::uint16_t port, int to_parent) {
    Node node({.port = port});
    node.enable();
    std::vector<char> memory(1 << 20);
    fid_mr* mr = nullptr;
    MUST(fi_mr_reg(node.domain.get(), memory.data(), memory.size(),
                   FI_REMOTE_READ | FI_REMOTE_WRITE, 0, kKey, 0, &mr, nullptr));
    const auto name = node.name();
    if (::write(to_parent, name.data(), 16) != 16) ::_exit(2);
    while (manner == Manner::kSilent) ::pause();
    char buffer[128];
    for (;;) {
      MUST(fi_trecv(node.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr));
      fi_cq_tagged_entry entry;
      fi_cq_err_entry error{};
      ssize_t n;
      while ((n = fi_cq_read(node.cq.get(), &entry, 1)) == -FI_EAGAIN) ::usleep(100);
      if (n == -FI_EAVAIL) MUST(fi_cq_readerr(node.cq.get(), &error, 0));
      // The first 16 bytes name it.
      const fi_addr_t to = node.insert(std::vector<char>(buffer, buffer + 16));
      (void)sent([&] { return fi_tinject(node.ep.get(), buffer, 32, to, 2); }, node);
    }
  }

  pid_t pid_ = 0;
  std::vector<char> name_;
};

// The survivor.
struct Survivor {
  Node node{{.wait = FI_WAIT_FD}};
  std::vector<char> own;
  Survivor() {
    node.enable();
    own = node.name();
    own.resize(32);
  }
  ssize_t greet(fi_addr_t to) { return fi_tinject(node.ep.get(), own.data(), own.size(), to, 1); }
  /// What an operation comes to: what it answers, or else its completion. 1: it was completed well.
  ssize_t outcome(const std::function<ssize_t()>& operation) {
    if (const ssize_t rc = sent(operation, node); rc != 0) return rc;
    fi_cq_tagged_entry entry;
    fi_cq_err_entry error{};
    ssize_t n = fi_cq_sread(node.cq.get(), &entry, 1, nullptr, 20'000);
    if (n != -FI_EAVAIL) return n;
    EXPECT_EQ(fi_cq_readerr(node.cq.get(), &error, 0), 1);
    return -error.err;
  }
  /// Says hello until somebody answers.
  bool hears(fi_addr_t to) {
    char echo[32] = {};
    if (fi_trecv(node.ep.get(), echo, sizeof echo, nullptr, FI_ADDR_UNSPEC, 2, 0, echo) != 0)
      return false;
    const bool greeted = eventually([&] {
      fi_cq_tagged_entry nothing;
      (void)fi_cq_read(node.cq.get(), &nothing, 0);
      return greet(to) == 0;
    });
    if (!greeted) return false;
    fi_cq_tagged_entry entry{};
    // Errors of what was under way before may come first.
    for (int i = 0; i < 100; ++i) {
      const ssize_t n = fi_cq_sread(node.cq.get(), &entry, 1, nullptr, 20'000);
      if (n == 1 && entry.op_context == echo)
        return std::memcmp(echo, own.data(), sizeof echo) == 0;
      if (n == -FI_EAGAIN) return false;
      fi_cq_err_entry error{};
      if (n == -FI_EAVAIL) (void)fi_cq_readerr(node.cq.get(), &error, 0);
    }
    return false;
  }
};

bool means_gone(ssize_t rc) {
  return rc == -FI_ECONNREFUSED || rc == -FI_ECONNRESET || rc == -EPIPE;
}

// --- peers that are stopped ----------------------------------------------------------------------

TEST(FabricFailure, AFirstMessageToAPeerThatStandsStillHoldsUpNobody) {
  Other still(Manner::kEcho), lively(Manner::kEcho);
  Survivor us;
  const fi_addr_t to_still = us.node.insert(still.name()),
                  to_lively = us.node.insert(lively.name());
  ASSERT_TRUE(us.hears(to_lively));
  still.stop();
  std::atomic<bool> given{false};
  std::atomic<int> attempts{0};
  ssize_t rc = 0;
  std::thread first([&] {
    while ((rc = us.greet(to_still)) == -FI_EAGAIN && !given.load()) {
      ++attempts;
      std::this_thread::yield();
    }
  });
  // Meanwhile a conversation goes on.
  Clock::duration longest{};
  int rounds = 0;
  const auto begun = Clock::now();
  while (Clock::now() - begun < std::chrono::milliseconds(500)) {
    const auto before = Clock::now();
    ASSERT_TRUE(us.hears(to_lively));
    longest = std::max(longest, Clock::now() - before);
    ++rounds;
  }
  EXPECT_LT(longest, std::chrono::seconds(2));
  EXPECT_GT(rounds, 1);
  EXPECT_GT(attempts, 0);
  char echo[32] = {};
  ASSERT_EQ(fi_trecv(us.node.ep.get(), echo, sizeof echo, nullptr, to_still, 2, 0, nullptr), 0);
  still.resume();
  first.join();
  EXPECT_EQ(rc, 0);
  fi_cq_tagged_entry entry;
  EXPECT_EQ(fi_cq_sread(us.node.cq.get(), &entry, 1, nullptr, 20'000), 1);
  EXPECT_EQ(std::memcmp(echo, us.own.data(), sizeof echo), 0);
}

TEST(FabricFailure, AFirstMessageToAPeerThatNeverGoesOnIsGivenUp) {
  Other still(Manner::kEcho);
  Survivor us;
  const fi_addr_t to = us.node.insert(still.name());
  still.stop();
  EXPECT_EQ(sent([&] { return us.greet(to); }, us.node), -FI_ETIMEDOUT);
  still.resume();
  EXPECT_TRUE(us.hears(to));
}

// --- stopped peers whose memory is to be accessed ------------------------------------------------

// With process_vm_readv and its like, and without.
class FabricStill : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    ::alarm(60);
    ::setenv("FI_CLAN_DIRECT_COPY", GetParam() ? "1" : "0", 1);
  }
  void TearDown() override {
    ::unsetenv("FI_CLAN_DIRECT_COPY");
    ::alarm(0);
  }
};
INSTANTIATE_TEST_SUITE_P(, FabricStill, testing::Bool(), [](const auto& it) {
  return it.param ? "copied_by_us" : "copied_by_them";
});

// A peer that is spoken to meanwhile hears nothing of it.
void expect_conversation(Survivor& us, fi_addr_t with) {
  for (int i = 0; i < 20; ++i) {
    const auto before = Clock::now();
    ASSERT_TRUE(us.hears(with));
    ASSERT_LT(Clock::now() - before, std::chrono::seconds(2));
  }
}

struct Transfer {
  Survivor& us;
  fi_addr_t to;
  std::vector<char> data;
  std::atomic<bool> given{false};
  std::atomic<ssize_t> rc{-FI_EAGAIN};
  std::thread thread;

  // Begins a write, and tries until that has been possible.
  Transfer(Survivor& survivor, fi_addr_t peer, std::size_t bytes)
      : us(survivor), to(peer), data(pattern(bytes, 5)), thread([this] {
          const auto call = [this] {
            return fi_write(us.node.ep.get(), data.data(), data.size(), nullptr, to, 0, kKey, this);
          };
          ssize_t rc_now;
          while ((rc_now = call()) == -FI_EAGAIN && !given.load()) std::this_thread::yield();
          rc = rc_now;
        }) {}
  // How it ends. 1: well.
  ssize_t end() {
    thread.join();
    if (rc != 0) return rc;
    fi_cq_tagged_entry entry{};
    fi_cq_err_entry error{};
    const ssize_t n = fi_cq_sread(us.node.cq.get(), &entry, 1, nullptr, 20'000);
    EXPECT_TRUE(n != 1 || entry.op_context == this);
    if (n != -FI_EAVAIL) return n;
    EXPECT_EQ(fi_cq_readerr(us.node.cq.get(), &error, 0), 1);
    EXPECT_EQ(error.op_context, this);
    return -error.err;
  }
};

ssize_t read_back(Survivor& us, fi_addr_t from, std::vector<char>* data) {
  return us.outcome([&] {
    return fi_read(us.node.ep.get(), data->data(), data->size(), nullptr, from, 0, kKey, nullptr);
  });
}

TEST_P(FabricStill, AFirstAccessHoldsUpNobodyAndIsMadeInTheEnd) {
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{500'000}}) {
    Other still(Manner::kSilent), lively(Manner::kEcho);
    Survivor us;
    const fi_addr_t to_still = us.node.insert(still.name()),
                    to_lively = us.node.insert(lively.name());
    ASSERT_TRUE(us.hears(to_lively));
    ASSERT_EQ(sent([&] { return us.greet(to_still); }, us.node), 0);
    still.stop();
    Transfer transfer(us, to_still, bytes);
    expect_conversation(us, to_lively);
    still.resume();
    ASSERT_EQ(transfer.end(), 1);
    std::vector<char> back(bytes);
    ASSERT_EQ(read_back(us, to_still, &back), 1);
    EXPECT_EQ(back, transfer.data);
  }
}

TEST_P(FabricStill, AnAccessHoldsUpNobodyAndIsMadeInTheEnd) {
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{500'000}}) {
    Other still(Manner::kSilent), lively(Manner::kEcho);
    Survivor us;
    const fi_addr_t to_still = us.node.insert(still.name()),
                    to_lively = us.node.insert(lively.name());
    ASSERT_TRUE(us.hears(to_lively));
    std::vector<char> back(bytes);
    ASSERT_EQ(read_back(us, to_still, &back), 1);
    still.stop();
    Transfer transfer(us, to_still, bytes);
    if (!GetParam()) {
      expect_conversation(us, to_lively);
      // Nothing overtakes it, and it costs nothing to wait for it.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      EXPECT_TRUE(bytes == 64 || us.greet(to_still) == -FI_EAGAIN);
      fi_cq_tagged_entry entry;
      rusage before, after;
      ::getrusage(RUSAGE_SELF, &before);
      transfer.given = true;
      EXPECT_EQ(fi_cq_sread(us.node.cq.get(), &entry, 1, nullptr, 500), -FI_EAGAIN);
      ::getrusage(RUSAGE_SELF, &after);
      const auto used = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1'000'000 +
                        after.ru_utime.tv_usec - before.ru_utime.tv_usec +
                        (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1'000'000 +
                        after.ru_stime.tv_usec - before.ru_stime.tv_usec;
      EXPECT_LT(used, 150'000);
    }
    still.resume();
    ASSERT_EQ(transfer.end(), 1);
    ASSERT_EQ(read_back(us, to_still, &back), 1);
    EXPECT_EQ(back, transfer.data);
  }
}

TEST_P(FabricStill, AnAccessEndsWithItsPeer) {
  for (const bool is_first : {true, false}) {
    for (const std::size_t bytes : {std::size_t{64}, std::size_t{500'000}}) {
      Other still(Manner::kSilent);
      Survivor us;
      const fi_addr_t to = us.node.insert(still.name());
      std::vector<char> back(bytes);
      if (is_first) {
        ASSERT_EQ(sent([&] { return us.greet(to); }, us.node), 0);
      } else {
        ASSERT_EQ(read_back(us, to, &back), 1);
      }
      still.stop();
      Transfer transfer(us, to, bytes);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      still.kill();
      const ssize_t rc = transfer.end();
      if (GetParam() && !is_first) {
        EXPECT_EQ(rc, 1);  // we have made it while it stood still
      } else {
        EXPECT_TRUE(means_gone(rc)) << rc;
      }
    }
  }
}

// --- peers that die ------------------------------------------------------------------------------

class FabricDeath : public testing::TestWithParam<int> {};

struct Step {
  const char* name;
  /// Begins what the peer dies in; the answer as of Survivor::outcome().
  ssize_t (*act)(Survivor& us, Other& other, fi_addr_t to);
};

// Kills it a little later than now.
struct Killer {
  explicit Killer(Other& other)
      : thread([&other] {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          other.kill();
        }) {}
  ~Killer() { thread.join(); }
  std::thread thread;
};

ssize_t while_connecting(Survivor& us, Other& other, fi_addr_t to) {
  other.stop();
  Killer killer(other);
  return us.outcome([&] { return us.greet(to); });
}

ssize_t with_small_messages_unread(Survivor& us, Other& other, fi_addr_t to) {
  Killer killer(other);
  fi_msg_tagged msg{};
  iovec iov{us.own.data(), us.own.size()};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = to;
  return us.outcome([&] { return fi_tsendmsg(us.node.ep.get(), &msg, FI_DELIVERY_COMPLETE); });
}

ssize_t with_a_full_ring(Survivor& us, Other& other, fi_addr_t to) {
  Killer killer(other);
  char bytes[1024] = {};
  return us.outcome([&]() -> ssize_t {
    const ssize_t rc = fi_tinject(us.node.ep.get(), bytes, sizeof bytes, to, 9);
    return rc == 0 ? -FI_EAGAIN : rc;  // once more
  });
}

std::vector<char>& large() {
  static std::vector<char> data(3 << 20);
  return data;
}

ssize_t with_a_large_message_unread(Survivor& us, Other& other, fi_addr_t to) {
  Killer killer(other);
  return us.outcome([&] {
    return fi_tsend(us.node.ep.get(), large().data(), large().size(), nullptr, to, 1, nullptr);
  });
}

ssize_t with_its_memory_written(Survivor& us, Other& other, fi_addr_t to) {
  Killer killer(other);
  ssize_t rc = 1;
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (rc == 1 && Clock::now() < end) {
    rc = us.outcome([&] {
      return fi_write(us.node.ep.get(), large().data(), 1 << 20, nullptr, to, 0, kKey, nullptr);
    });
  }
  return rc;
}

ssize_t with_its_memory_read(Survivor& us, Other& other, fi_addr_t to) {
  Killer killer(other);
  ssize_t rc = 1;
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (rc == 1 && Clock::now() < end) {
    rc = us.outcome([&] {
      return fi_read(us.node.ep.get(), large().data(), 8, nullptr, to, 0, kKey, nullptr);
    });
  }
  return rc;
}

ssize_t with_an_atomic_operation_asked_for(Survivor& us, Other& other, fi_addr_t to) {
  Killer killer(other);
  static std::uint64_t operand = 1, found = 0;
  return us.outcome([&] {
    return fi_fetch_atomic(us.node.ep.get(), &operand, 1, nullptr, &found, nullptr, to, 0, kKey,
                           FI_UINT64, FI_SUM, nullptr);
  });
}

constexpr std::array kSteps = {
    Step{"WhileConnecting", while_connecting},
    Step{"WithSmallMessagesUnread", with_small_messages_unread},
    Step{"WithAFullRing", with_a_full_ring},
    Step{"WithALargeMessageUnread", with_a_large_message_unread},
    Step{"WithItsMemoryWritten", with_its_memory_written},
    Step{"WithItsMemoryRead", with_its_memory_read},
    Step{"WithAnAtomicOperationAskedFor", with_an_atomic_operation_asked_for},
};
INSTANTIATE_TEST_SUITE_P(Steps, FabricDeath, testing::Range(0, static_cast<int>(kSteps.size())),
                         [](const auto& step) {
                           return kSteps[static_cast<std::size_t>(step.param)].name;
                         });

TEST_P(FabricDeath, EndsWhatWasUnderWayAndThePeerMayComeAgain) {
  Survivor us;
  std::uint16_t port = 0;
  fi_addr_t to = FI_ADDR_NOTAVAIL;
  {
    Other other(Manner::kSilent);
    port = other.port();
    to = us.node.insert(other.name());
    const ssize_t rc = kSteps[static_cast<std::size_t>(GetParam())].act(us, other, to);
    EXPECT_TRUE(means_gone(rc)) << rc << " " << fi_strerror(static_cast<int>(-rc));
  }
  // Nobody is there, and that is known soon: what is injected until then is lost.
  EXPECT_TRUE(eventually([&] { return means_gone(sent([&] { return us.greet(to); }, us.node)); }));
  Other again(Manner::kEcho, port);
  EXPECT_TRUE(us.hears(to));
}

// A send that finds out by itself that its peer has gone must have failed once, not twice.
TEST(FabricFailure, ASendToAPeerThatHasGoneFailsOnce) {
  Other lively(Manner::kEcho);
  Survivor us;
  const fi_addr_t to_lively = us.node.insert(lively.name());
  ASSERT_TRUE(us.hears(to_lively));
  char operand[10'000] = {};
  for (const bool atomic : {false, true}) {
    Other dead(Manner::kSilent);
    const fi_addr_t to_dead = us.node.insert(dead.name());
    ASSERT_EQ(sent([&] { return us.greet(to_dead); }, us.node), 0);
    dead.kill();
    ::usleep(200'000);  // the engine learns of it, and the test does not ask
    iovec iov{us.own.data(), us.own.size()};
    fi_msg_tagged msg{};
    msg.msg_iov = &iov;
    msg.iov_count = 1;
    msg.addr = to_dead;
    msg.tag = 1;
    fid_ep* const ep = us.node.ep.get();
    const ssize_t rc = atomic ? fi_atomic(ep, operand, sizeof operand, nullptr, to_dead, 0, kKey,
                                          FI_UINT8, FI_SUM, nullptr)
                              : fi_tsendmsg(ep, &msg, FI_DELIVERY_COMPLETE);
    EXPECT_TRUE(means_gone(rc)) << rc;
    fi_cq_tagged_entry entry;
    EXPECT_EQ(fi_cq_sread(us.node.cq.get(), &entry, 1, nullptr, 100), -FI_EAGAIN);
    fi_cq_err_entry error{};
    (void)fi_cq_readerr(us.node.cq.get(), &error, 0);
    // Two that are under way together are two.
    int contexts[2];
    msg.addr = to_lively;
    for (int& context : contexts) {
      msg.context = &context;
      ASSERT_EQ(
          sent([&] { return fi_tsendmsg(us.node.ep.get(), &msg, FI_DELIVERY_COMPLETE); }, us.node),
          0);
    }
    for (int& context : contexts) {
      ASSERT_EQ(fi_cq_sread(us.node.cq.get(), &entry, 1, nullptr, 20'000), 1);
      EXPECT_EQ(entry.op_context, &context);
    }
  }
}

TEST(FabricFailure, APeerMayDieAtAnyMoment) {
  Survivor us;
  std::uint16_t port = 0;
  static std::uint64_t operand = 1, found = 0;
  unsigned random = 1;
  for (int round = 0; round < 30; ++round) {
    Other other(Manner::kEcho, port);
    port = other.port();
    const fi_addr_t to = us.node.insert(other.name());
    random = random * 1103515245 + 12345;
    const auto delay = std::chrono::microseconds(random % 16384);
    const int first = static_cast<int>(random >> 20);
    std::thread killer([&] {
      std::this_thread::sleep_for(delay);
      other.kill();
    });
    ssize_t rc = 1;
    const auto end = Clock::now() + std::chrono::seconds(20);
    for (int i = first; !means_gone(rc) && Clock::now() < end; ++i) {
      fid_ep* const ep = us.node.ep.get();
      switch (i % 4) {
        case 0:
          rc = us.outcome(
              [&] { return fi_write(ep, large().data(), 1 << 20, nullptr, to, 0, kKey, nullptr); });
          break;
        case 1:
          rc = us.outcome([&] {
            return fi_fetch_atomic(ep, &operand, 1, nullptr, &found, nullptr, to, 0, kKey,
                                   FI_UINT64, FI_SUM, nullptr);
          });
          break;
        case 2:
          rc = us.outcome(
              [&] { return fi_tsend(ep, us.own.data(), us.own.size(), nullptr, to, 3, nullptr); });
          break;
        default:
          // Nobody receives it: its end is that of the peer.
          rc = us.outcome([&] {
            return fi_tsend(ep, large().data(), large().size(), nullptr, to, 3, nullptr);
          });
      }
    }
    killer.join();
    ASSERT_TRUE(means_gone(rc)) << "round " << round << ": " << rc;
  }
  Other again(Manner::kEcho, port);
  EXPECT_TRUE(us.hears(us.node.insert(again.name())));
}

TEST(FabricPeers, ThatBeginWithEachOtherAtOnceKeepTheirOrder) {
  constexpr int kRounds = 60, kMessages = 50;
  for (int round = 0; round < kRounds; ++round) {
    Two two;
    std::atomic<int> ready{0};
    const auto talk = [&](Node& node, fi_addr_t to) {
      ++ready;
      while (ready.load() < 2) {
      }
      for (int i = 0; i < kMessages; ++i) {
        ASSERT_EQ(sent([&] { return fi_tinject(node.ep.get(), &i, sizeof i, to, 1); }, node), 0);
      }
      for (int i = 0; i < kMessages; ++i) {
        int got = -1;
        ASSERT_EQ(fi_trecv(node.ep.get(), &got, sizeof got, nullptr, to, 1, 0, nullptr), 0);
        fi_cq_tagged_entry entry;
        ASSERT_TRUE(eventually([&] { return fi_cq_read(node.cq.get(), &entry, 1) == 1; })) << i;
        ASSERT_EQ(got, i) << "round " << round;
      }
    };
    std::thread other([&] { talk(two.b, two.to_a); });
    talk(two.a, two.to_b);
    other.join();
    if (HasFatalFailure()) return;
  }
}

// --- too little of something ---------------------------------------------------------------------

// Opens everything, sends one message, closes everything. 0, or what the first call that failed has
// answered.
ssize_t whole_life(const std::vector<char>& to) {
  Info hints = make_hints();
  Info info = get_info(hints, "127.0.0.1", "0", FI_SOURCE);
  if (!info) return -FI_ENODATA;
  Object<fid_fabric> fabric;
  Object<fid_domain> domain;
  Object<fid_cq> cq;
  Object<fid_av> av;
  Object<fid_ep> ep;
  const auto opened = [](auto& object, auto* raw, ssize_t rc) {
    if (rc == 0) object.reset(raw);
    return rc;
  };
  fid_fabric* f = nullptr;
  ssize_t rc = fi_fabric(info->fabric_attr, &f, nullptr);
  if (opened(fabric, f, rc) != 0) return rc;
  fid_domain* d = nullptr;
  rc = fi_domain(f, info.get(), &d, nullptr);
  if (opened(domain, d, rc) != 0) return rc;
  fi_cq_attr cq_attr{};
  cq_attr.format = FI_CQ_FORMAT_TAGGED;
  cq_attr.wait_obj = FI_WAIT_FD;
  fid_cq* c = nullptr;
  rc = fi_cq_open(d, &cq_attr, &c, nullptr);
  if (opened(cq, c, rc) != 0) return rc;
  fi_av_attr av_attr{};
  av_attr.type = FI_AV_TABLE;
  fid_av* a = nullptr;
  rc = fi_av_open(d, &av_attr, &a, nullptr);
  if (opened(av, a, rc) != 0) return rc;
  fid_ep* e = nullptr;
  rc = fi_endpoint(d, info.get(), &e, nullptr);
  if (opened(ep, e, rc) != 0) return rc;
  if ((rc = fi_ep_bind(e, &c->fid, FI_TRANSMIT | FI_RECV)) != 0) return rc;
  if ((rc = fi_ep_bind(e, &a->fid, 0)) != 0) return rc;
  if ((rc = fi_enable(e)) != 0) return rc;
  fi_addr_t peer = 0;
  if (fi_av_insert(a, to.data(), 1, &peer, 0, nullptr) != 1) return -FI_EINVAL;
  const auto end = Clock::now() + std::chrono::seconds(15);
  while ((rc = fi_tinject(e, "x", 1, peer, 9)) == -FI_EAGAIN && Clock::now() < end) {
    fi_cq_tagged_entry entry;
    (void)fi_cq_read(c, &entry, 0);
  }
  return rc;
}

// What a forked child ends with, or minus its signal.
int in_a_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(body());
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(FabricFailure, TooFewDescriptorsAreAnErrorAndLeakNone) {
  Other other(Manner::kEcho);
  const auto& name = other.name();
  EXPECT_EQ(
      in_a_child([&] {
        (void)whole_life(name);  // what is opened once stays
        const std::size_t before = entries_of("/proc/self/fd");
        rlimit usual{};
        ::getrlimit(RLIMIT_NOFILE, &usual);
        int failed = 0;
        bool succeeded = false;
        for (rlim_t more = 0; more < 60; ++more) {
          rlimit tight{before + more, usual.rlim_max};
          ::setrlimit(RLIMIT_NOFILE, &tight);
          const ssize_t rc = whole_life(name);
          ::setrlimit(RLIMIT_NOFILE, &usual);
          if (rc != 0) {
            ++failed;
            if (rc != -FI_EMFILE && rc != -FI_ENOMEM && rc != -FI_EAGAIN && rc != -FI_ENODATA &&
                rc != -ENOBUFS) {
              std::fprintf(stderr, "with %lu more: %zd\n", static_cast<unsigned long>(more), rc);
              return 1;
            }
            succeeded = false;
          } else {
            succeeded = true;
          }
          if (entries_of("/proc/self/fd") != before) {
            std::fprintf(stderr, "with %lu more: %zu descriptors, not %zu\n",
                         static_cast<unsigned long>(more), entries_of("/proc/self/fd"), before);
            return 2;
          }
        }
        if (failed < 3 || !succeeded) return 3;
        return whole_life(name) == 0 ? 0 : 4;
      }),
      0);
}

TEST(FabricFailure, TooLittleMemoryIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's shadow is address space too";
#endif
  Other other(Manner::kEcho);
  const auto& name = other.name();
  EXPECT_EQ(in_a_child([&] {
              (void)whole_life(name);
              std::ifstream statm("/proc/self/statm");
              rlim_t pages = 0;
              statm >> pages;
              rlimit usual{};
              ::getrlimit(RLIMIT_AS, &usual);
              int failed = 0;
              for (rlim_t more = 1; more <= 1024; more *= 2) {
                rlimit tight{pages * 4096 + (more << 20), usual.rlim_max};
                ::setrlimit(RLIMIT_AS, &tight);
                const ssize_t rc = whole_life(name);
                ::setrlimit(RLIMIT_AS, &usual);
                failed += rc != 0;
                if (rc != 0 && rc != -FI_ENOMEM && rc != -FI_EAGAIN && rc != -FI_ENODATA &&
                    rc != -ENOBUFS) {
                  std::fprintf(stderr, "with %lu MiB more: %zd\n", static_cast<unsigned long>(more),
                               rc);
                  return 1;
                }
              }
              if (failed == 0) return 3;
              return whole_life(name) == 0 ? 0 : 4;
            }),
            0);
}

TEST(FabricFailure, WhatIsClosedLeavesNothing) {
  Other other(Manner::kEcho);
  const auto life = [&] {
    Survivor us;
    ASSERT_TRUE(us.hears(us.node.insert(other.name())));
    ASSERT_EQ(us.outcome([&] {
      return fi_write(us.node.ep.get(), large().data(), 1 << 20, nullptr, 0, 0, kKey, nullptr);
    }),
              1);
    Two two({.progress = FI_PROGRESS_AUTO}, {.wait = FI_WAIT_FD});
    ASSERT_EQ(sent([&] { return fi_tinject(two.a.ep.get(), "x", 1, two.to_b, 1); }, two.a), 0);
  };
  life();
  const std::size_t fds = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task"),
                    files = our_files(), mappings = our_mappings();
  for (int i = 0; i < 5; ++i) life();
  EXPECT_EQ(entries_of("/proc/self/fd"), fds);
  EXPECT_EQ(entries_of("/proc/self/task"), threads);
  EXPECT_EQ(our_files(), files);
  EXPECT_EQ(our_mappings(), mappings);
}

// --- forks and users -----------------------------------------------------------------------------

TEST(FabricFailure, AForkedChildMayTouchWhatItHasInherited) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP()
      << "the sanitizers' own locks stay locked in a child forked while another thread holds them";
#endif
  Other other(Manner::kEcho);
  Survivor us;
  Node automatic({.progress = FI_PROGRESS_AUTO});
  automatic.enable();
  const fi_addr_t to = us.node.insert(other.name()), also = automatic.insert(other.name());
  ASSERT_TRUE(us.hears(to));
  std::atomic<bool> enough{false};
  std::thread busy;
  const std::shared_ptr<void> end(nullptr, [&](void*) {
    enough.store(true);
    busy.join();
  });
  busy = std::thread([&] {  // somebody is in the middle of something whenever the fork comes
    while (!enough.load()) {
      fi_cq_tagged_entry entry;
      (void)fi_tinject(automatic.ep.get(), "x", 1, also, 9);
      (void)fi_cq_read(automatic.cq.get(), &entry, 0);
    }
  });
  for (int i = 0; i < 30; ++i) {
    const int ended = in_a_child([&] {
      ::alarm(20);
      fi_cq_tagged_entry entry;
      // No message of the child's may come to be the parent's.
      if (us.greet(to) == 0) return 1;
      if (fi_tinject(automatic.ep.get(), "x", 1, also, 1) == 0) return 2;
      if (fi_cq_read(us.node.cq.get(), &entry, 1) > 0) return 3;
      (void)fi_cq_read(automatic.cq.get(), &entry, 1);
      us.node.ep.reset();
      automatic.ep.reset();
      Survivor own;
      return own.hears(own.node.insert(other.name())) ? 0 : 4;
    });
    ASSERT_EQ(ended, 0) << i;
  }
  EXPECT_TRUE(us.hears(to));
}

TEST(FabricFailure, ProcessesOfAnotherUserAreNotThere) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes somebody else";
  Other other(Manner::kEcho);
  EXPECT_EQ(in_a_child([&] {
              if (::setgid(65534) != 0 || ::setuid(65534) != 0) return 1;
              Survivor us;
              return us.outcome([&] { return us.greet(us.node.insert(other.name())); }) ==
                             -FI_ECONNREFUSED
                         ? 0
                         : 2;
            }),
            0);
}

}  // namespace
}  // namespace clan::test
