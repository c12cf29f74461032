// A client that knows how the slots are laid out and means no good: its server goes on, frees
// nothing that it has not decoded, and serves the others. (shrimp-server's stubs are compiled so
// that what is not set is not zero, either.)
#include <clan/aperture.h>
#include <clan/memory.h>
#include <clan/message.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "plugins/sunrpc/shrimp/slot.h"
#include "tests/programs/sunrpc/shrimp/child.h"
#include "tree.h"

namespace clan::shrimp {
namespace {

constexpr int kProcedures = 15;  // of every.x, version 2

/// A binding whose words are written by hand.
class Stranger {
 public:
  Stranger(Context& context, const std::string& name, std::uint64_t hash)
      : memory_(std::move(*Memory::allocate(sizeof(Binding)))),
        aperture_(std::move(
            *Aperture::export_memory(context, memory_, 0, sizeof(Binding), Rights::kReadWrite))),
        endpoint_(std::move(*MessageEndpoint::create(context))) {
    auto peer = endpoint_.connect("shrimp." + name, 20'000);
    EXPECT_TRUE(peer.ok());
    server_ = *peer;
    hello_.hash = hash;
    hello_.memory = aperture_.cookie();
  }

  bool say_hello() {
    return endpoint_.send(server_, std::as_bytes(std::span(&hello_, 1)), 20'000).ok();
  }
  int meet() {
    Hello answer;
    EXPECT_TRUE(say_hello());
    const auto got = endpoint_.recv(std::as_writable_bytes(std::span(&answer, 1)), 20'000);
    return got.ok() ? answer.status : -got.error().err;
  }

  Hello& hello() { return hello_; }
  Binding& binding() { return *reinterpret_cast<Binding*>(memory_.data()); }
  Slot& slot() { return binding().slots[next_ % kSlots]; }

  void ask(std::uint32_t number, std::uint32_t where, std::uint32_t size) {
    Line& line = slot().line;
    line.number = number;
    line.where = where;
    line.size = size;
    line.flag.exchange(flag_of(next_, kAsked));
    if (binding().head.server_sleeps.load() == 0) return;
    Hello bell;
    bell.kind = kBell;
    (void)endpoint_.try_send(server_, std::as_bytes(std::span(&bell, 1)), {});
  }

  /// The status of the call; -1: the server has gone.
  int answer() {
    Line& line = slot().line;
    while (line.flag.load() != flag_of(next_, kAnswered)) {
      if (endpoint_.has_gone(server_)) return -1;
      while (endpoint_.peek().ok()) endpoint_.drop();
      std::this_thread::yield();
    }
    ++next_;
    return static_cast<int>(line.number);
  }
  std::uint64_t last() const { return next_ - 1; }

 private:
  Memory memory_;
  Aperture aperture_;
  MessageEndpoint endpoint_;
  PeerIndex server_ = 0;
  Hello hello_;
  std::uint64_t next_ = 1;
};

/// A server that welcomes its client with any status, serves nothing and rings without end.
class FalseServer {
 public:
  FalseServer(Context& context, const std::string& name, int status)
      : endpoint_(std::move(*MessageEndpoint::create(context, "shrimp." + name))), status_(status) {
    thread_ = std::thread([this] { run(); });
  }
  ~FalseServer() {
    stop_ = true;
    thread_.join();
  }
  FalseServer(const FalseServer&) = delete;
  FalseServer& operator=(const FalseServer&) = delete;

 private:
  void run() {
    std::optional<PeerIndex> client;
    while (!stop_) {
      if (auto message = endpoint_.peek(); message.ok()) {
        const bool first = !client;
        client = message->from;
        endpoint_.drop();
        if (first) say(*client, kAnswer);
      }
      if (client) say(*client, kBell);
    }
  }
  void say(PeerIndex client, std::uint32_t kind) {
    Hello hello;
    hello.kind = kind;
    hello.hash = every_2_program.hash;
    hello.status = status_;
    (void)endpoint_.try_send(client, std::as_bytes(std::span(&hello, 1)), {});
  }

  MessageEndpoint endpoint_;
  const int status_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(HostileServer, AStatusThatIsNoErrnoIsAProtocolError) {
  Context context = std::move(*Context::create());
  for (const int status : {-1, -EAGAIN, 4096, INT_MAX, INT_MIN}) {
    const std::string name = "false-" + std::to_string(getpid()) + std::to_string(status);
    FalseServer server(context, name, status);
    EXPECT_EQ(clan_shrimp_connect(name.c_str(), &every_2_program, 20'000), nullptr);
    EXPECT_EQ(errno, EPROTO) << status;
  }
}

TEST(HostileServer, OneThatRingsWithoutEndDoesNotHoldACallBeyondItsTime) {
  Context context = std::move(*Context::create());
  const std::string name = "false-" + std::to_string(getpid());
  FalseServer server(context, name, 0);
  clan_shrimp_client* client = clan_shrimp_connect(name.c_str(), &every_2_program, 20'000);
  ASSERT_NE(client, nullptr) << std::strerror(errno);
  clan_shrimp_set_timeout(client, 100);
  const auto begin = std::chrono::steady_clock::now();
  int argument = 1, result = 0;
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(negate_2(&argument, &result, client), CLAN_SHRIMP_TIMED_OUT);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  clan_shrimp_close(client);
}

class HostileToStubs : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(server_.line(), "ready\n"); }

  std::unique_ptr<Stranger> welcome() {
    auto stranger = std::make_unique<Stranger>(context_, name_, every_2_program.hash);
    EXPECT_EQ(stranger->meet(), 0);
    return stranger;
  }

  void expect_others_served() {
    clan_shrimp_client* client = clan_shrimp_connect(name_.c_str(), &every_2_program, 20'000);
    ASSERT_NE(client, nullptr) << std::strerror(errno);
    for (int i = 0; i < 20; ++i) {
      int result = 0;
      ASSERT_EQ(negate_2(&i, &result, client), CLAN_SHRIMP_OK);
      EXPECT_EQ(result, -i);
    }
    clan_shrimp_close(client);
  }

  const std::string name_ = "hostile-" + std::to_string(getpid());
  test::Child server_{{SHRIMP_SERVER, name_}};
  Context context_ = std::move(*Context::create());
};

bool is_left_out(int number) { return number == LEAVE || number == SLEEP; }

TEST_F(HostileToStubs, WordsThatMakeNoSenseAreGarbageOfEveryProcedure) {
  auto stranger = welcome();
  for (int number = 0; number < kProcedures; ++number) {
    if (is_left_out(number)) continue;
    for (const std::uint32_t where :
         {std::uint32_t{kLineData}, std::uint32_t{kSlotsData}, std::uint32_t{kArgumentsArena},
          std::uint32_t{kResultsArena}, 9u, 0xffffffffu}) {
      for (const std::uint32_t size :
           {0xffffffffu, 0x80000000u, static_cast<std::uint32_t>(kArenaBytes) + 1}) {
        stranger->ask(static_cast<std::uint32_t>(number), where, size);
        const int status = stranger->answer();
        const bool takes_nothing =
            number == NULLPROC_NEW || number == WHO || number == TOLD || number == SERVED;
        EXPECT_EQ(status, takes_nothing ? CLAN_SHRIMP_OK : CLAN_SHRIMP_GARBAGE)
            << "procedure " << number;
        if (status < 0) return;
      }
    }
  }
  stranger->ask(4711, kLineData, 0);
  EXPECT_EQ(stranger->answer(), CLAN_SHRIMP_NO_PROCEDURE);
  expect_others_served();
}

// Dice, always the same: lengths, discriminants and pointers that are anything.
TEST_F(HostileToStubs, ArgumentsOfAnyBytesAreDecodedOrGarbage) {
  auto stranger = welcome();
  std::mt19937 dice(1);
  for (int round = 0; round < 20'000; ++round) {
    const int number = static_cast<int>(dice() % kProcedures);
    if (is_left_out(number)) continue;
    Slot& slot = stranger->slot();
    const std::uint32_t size = dice() % 600;
    // Mostly small words: they pass as lengths, and as "there is one more".
    for (std::uint32_t at = 0; at + 4 <= size; at += 4) {
      const std::uint32_t word = dice() % 4 != 0 ? dice() % 3 : dice();
      std::memcpy(slot.data + at, &word, sizeof word);
    }
    stranger->ask(static_cast<std::uint32_t>(number), kSlotsData, size);
    ASSERT_GE(stranger->answer(), 0) << "round " << round;
    if (slot.line.where == kResultsArena)
      stranger->binding().head.results_taken.store(stranger->last());
  }
  expect_others_served();
}

TEST_F(HostileToStubs, WordsThatChangeWhileTheyAreReadDoNoHarm) {
  auto stranger = welcome();
  std::atomic<bool> end{false};
  std::thread changing([&] {
    for (std::uint32_t i = 0; !end; ++i) {
      for (Slot& slot : stranger->binding().slots) {
        for (int at = 0; at < 16; ++at) {
          reinterpret_cast<std::atomic<std::uint32_t>*>(slot.data)[at].store(
              i % 7 == 0 ? 0x7fffffff : i % 3, std::memory_order_relaxed);
        }
      }
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 5000; ++round) {
    stranger->ask(round % 2 == 0 ? TURN : ECHO, kSlotsData, 600);
    const int status = stranger->answer();
    EXPECT_GE(status, 0) << "round " << round;
    if (status < 0) break;
  }
  end = true;
  changing.join();
  expect_others_served();
}

TEST_F(HostileToStubs, ResultsThatNobodyTakesAreNotWrittenOver) {
  auto stranger = welcome();
  const std::uint32_t length = 100'000;
  for (int i = 0; i < 3; ++i) {
    std::memcpy(stranger->binding().arguments, &length, sizeof length);
    stranger->ask(ECHO, kArgumentsArena, length + 4);
    EXPECT_EQ(stranger->answer(), i == 0 ? CLAN_SHRIMP_OK : CLAN_SHRIMP_TOO_LARGE);
  }
  expect_others_served();
}

TEST(Decoder, TreesAreFollowedAsDeepAsTheStackAllows) {
  for (const std::size_t deep : {std::size_t{100}, kArenaBytes / 4}) {
    std::vector<std::uint32_t> words(deep, 1);  // each has one branch
    words.back() = 0;
    auto* const begin = reinterpret_cast<char*>(words.data());
    clan_shrimp_bytes bytes{begin, begin + 4 * deep, 0};
    tree root;
    EXPECT_EQ(clan_get_tree(&bytes, &root), deep == 100 ? CLAN_SHRIMP_OK : CLAN_SHRIMP_GARBAGE);
    clan_free_tree(&root);
  }
}

TEST_F(HostileToStubs, HellosThatMakeNoSenseAreRefused) {
  struct {
    void (*spoil)(Hello&);
    int status;
  } const cases[] = {
      {[](Hello& h) { h.abi ^= 2; }, EPROTONOSUPPORT},
      {[](Hello& h) { h.hash ^= 1; }, EPROTOTYPE},
      {[](Hello& h) { h.memory.length = 4096; }, EPROTO},
      {[](Hello& h) { h.kind = 9; }, -EPIPE},
  };
  for (const auto& c : cases) {
    Stranger stranger(context_, name_, every_2_program.hash);
    c.spoil(stranger.hello());
    EXPECT_EQ(stranger.meet(), c.status);
    expect_others_served();
  }
  // Memory that is not there.
  Stranger stranger(context_, name_, every_2_program.hash);
  std::memset(static_cast<void*>(&stranger.hello().memory), 0x5a, sizeof(RdmaCookie));
  EXPECT_NE(stranger.meet(), 0);
  expect_others_served();
}

TEST(NonsenseOfClients, IsToldOnceInAWhile) {
  setenv("CLAN_LOG", "warn", 1);
  testing::internal::CaptureStderr();
  const std::string name = "loud-" + std::to_string(getpid());
  test::Child server({SHRIMP_SERVER, name});
  EXPECT_EQ(server.line(), "ready\n");
  Context context = std::move(*Context::create());
  for (int i = 0; i < 5; ++i) {
    Stranger stranger(context, name, every_2_program.hash);
    stranger.hello().kind = 9;
    EXPECT_EQ(stranger.meet(), -EPIPE);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  const std::size_t at = said.find("makes no sense");
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find("makes no sense", at + 1), std::string::npos) << said;
}

// Its memory is to be mapped, for which its own process is asked: that has stopped.
TEST_F(HostileToStubs, AClientThatStopsWhileItIsBoundDoesNotHoldTheOthers) {
  clan_shrimp_client* client = clan_shrimp_connect(name_.c_str(), &every_2_program, 20'000);
  ASSERT_NE(client, nullptr) << std::strerror(errno);
  int to_child[2], from_child[2];
  ASSERT_EQ(pipe2(to_child, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(from_child, O_CLOEXEC), 0);
  char byte = 0;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // it stops
    Context own = std::move(*Context::create());
    Stranger stranger(own, name_, every_2_program.hash);
    (void)!write(from_child[1], &byte, 1);
    (void)!read(to_child[0], &byte, 1);
    (void)stranger.say_hello();
    raise(SIGSTOP);
    _exit(0);
  }
  EXPECT_EQ(read(from_child[0], &byte, 1), 1);
  kill(server_.pid, SIGSTOP);  // until the child has stopped behind its Hello
  int status = 0;
  waitpid(server_.pid, &status, WUNTRACED);
  EXPECT_EQ(write(to_child[1], &byte, 1), 1);
  waitpid(child, &status, WUNTRACED);
  EXPECT_TRUE(WIFSTOPPED(status));
  kill(server_.pid, SIGCONT);
  clan_shrimp_set_timeout(client, 4000);  // less than the server waits for the child
  for (int i = 0; i < 20; ++i) {
    int result = 0;
    EXPECT_EQ(negate_2(&i, &result, client), CLAN_SHRIMP_OK);
    usleep(5000);
  }
  expect_others_served();
  clan_shrimp_close(client);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (const int fd : {to_child[0], to_child[1], from_child[0], from_child[1]}) close(fd);
  expect_others_served();
}

}  // namespace
}  // namespace clan::shrimp
