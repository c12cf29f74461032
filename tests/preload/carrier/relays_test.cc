#include "carrier/relays.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "carrier/name_answer.h"
#include "preload/carrier/two_hosts.h"
#include "support/streams.h"

namespace clan::preload {
namespace {

// What stands for the program that listens: one end of a pair, or an error.
std::atomic<int> program_end{-1}, open_error{0};

int open_pair(const char*, std::size_t) {
  if (open_error.load() != 0) return -open_error.load();
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return -errno;
  program_end.store(ends[0]);
  return ends[1];
}

// Two hosts, over loopback. Their relays live as long as the process, as they do in a program.
class CarrierRelays : public ::testing::Test {
 protected:
  void SetUp() override {
    const ContextOptions options = options_of_two_hosts();
    for (auto** context : {&server_context_, &client_context_}) {
      *context = new Context(test::must(Context::create(options)));
    }
    server_ = test::must(Relays::start(*server_context_));
    client_ = test::must(Relays::start(*client_context_));
    // A sanitizer is not to take them for lost.
    static auto& kept = *new std::vector<const void*>;
    kept.insert(kept.end(), {server_context_, client_context_, server_, client_});
    open_error = 0;
  }
  void TearDown() override {
    client_->finish(2000);
    server_->finish(2000);
  }
  // The name is offered by a thread: until then nobody is there.
  Result<Stream> dial(const std::string& name) {
    auto stream = Relays::dial(*client_context_, "udp:127.0.0.1/" + name);
    for (int i = 0; i < 100 && !stream && stream.error().err == ECONNREFUSED; ++i) {
      ::usleep(10'000);
      stream = Relays::dial(*client_context_, "udp:127.0.0.1/" + name);
    }
    return stream;
  }
  Context* server_context_ = nullptr;
  Context* client_context_ = nullptr;
  Relays* server_ = nullptr;
  Relays* client_ = nullptr;
};

TEST_F(CarrierRelays, CarryBytesToTheProgramThatHasTheName) {
  const std::string name = test::unique_name("relays");
  server_->offer(name, open_pair);
  auto stream = dial(name);
  ASSERT_TRUE(stream) << stream.error().message();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  client_->add(std::move(*stream), ends[1]);
  ASSERT_EQ(::send(ends[0], "hello", 5, 0), 5);
  char text[6] = {};
  for (int i = 0; i < 1000 && ::recv(program_end, text, 5, 0) != 5; ++i) ::usleep(10'000);
  EXPECT_STREQ(text, "hello");
  ::close(ends[0]);
  ::close(program_end);
}

TEST_F(CarrierRelays, SayWhatTheOtherHostSaidOfAName) {
  const std::string name = test::unique_name("relays");
  server_->offer(name, open_pair);
  open_error = EACCES;
  const auto stream = dial(name);
  ASSERT_FALSE(stream);
  EXPECT_EQ(stream.error().err, EACCES);
}

TEST_F(CarrierRelays, RefuseANameThatNobodyOffers) {
  const auto stream = Relays::dial(*client_context_, "udp:127.0.0.1/" + test::unique_name("none"));
  ASSERT_FALSE(stream);
  EXPECT_EQ(stream.error().err, ECONNREFUSED);
}

TEST_F(CarrierRelays, RefuseAServiceThatDoesNotSpeakAsTheyDo) {
  const std::string name = test::unique_name("relays");
  auto listener = test::must(Listener::create(*server_context_, "af1." + name));
  std::thread other([&] {
    auto stream = test::must(listener.accept(10'000));
    (void)stream.send(test::text("HTTP/1.1"));
  });
  const auto stream = Relays::dial(*client_context_, "udp:127.0.0.1/" + name);
  other.join();
  ASSERT_FALSE(stream);
  EXPECT_EQ(stream.error().err, EPROTO);
}

TEST_F(CarrierRelays, RefuseAnAnswerThatIsCutShort) {
  const std::string name = test::unique_name("relays");
  auto listener = test::must(Listener::create(*server_context_, "af1." + name));
  std::thread other([&] {
    auto stream = test::must(listener.accept(10'000));
    const NameAnswer answer = answer_of(0);
    (void)stream.send(std::span(answer).first(7));
  });
  const auto stream = Relays::dial(*client_context_, "udp:127.0.0.1/" + name);
  other.join();
  ASSERT_FALSE(stream);
  EXPECT_EQ(stream.error().err, ECONNREFUSED);
}

// A host that takes a second for each byte, and one that says nothing.
TEST_F(CarrierRelays, WaitNoLongerForAnAnswerThatComesByteByByteOrNotAtAll) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{0}}) {
    const std::string name = test::unique_name("relays");
    auto listener = test::must(Listener::create(*server_context_, "af1." + name));
    std::atomic<bool> done{false};
    std::thread other([&] {
      auto stream = test::must(listener.accept(10'000));
      const NameAnswer answer = answer_of(0);
      for (std::size_t i = 0; !done; ++i) {
        if (i < bytes) (void)stream.send(std::span(answer).subspan(i, 1), 0);
        for (int nap = 0; nap < 100 && !done; ++nap) ::usleep(10'000);
      }
    });
    const auto stream = Relays::dial(*client_context_, "udp:127.0.0.1/" + name);
    done = true;
    other.join();
    ASSERT_FALSE(stream);
    EXPECT_EQ(stream.error().err, ETIMEDOUT);
  }
}

TEST_F(CarrierRelays, RefuseWhatIsNoName) {
  for (const char* wrong : {"udp:", "udp:host", "udp:/name", "udp:host/"}) {
    const auto stream = Relays::dial(*client_context_, wrong);
    ASSERT_FALSE(stream);
    EXPECT_EQ(stream.error().err, EINVAL) << wrong;
  }
}

}  // namespace
}  // namespace clan::preload
