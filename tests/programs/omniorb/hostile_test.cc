// Peers that speak CLAN and mean no good: the server ends their connections and serves the others;
// a client gets an exception.
#include <clan/stream.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server.h"

namespace {

using namespace suite;
using std::chrono::milliseconds;

/// A head of GIOP 1.2 that promises `size` more bytes, and what follows it.
std::string giop(unsigned char type, std::uint32_t size, const std::string& body = {}) {
  std::string message("GIOP\x01\x02\x01", 7);  // little-endian
  message += static_cast<char>(type);
  message.append(reinterpret_cast<const char*>(&size), 4);
  return message + body;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class HostilePeer : public ::testing::Test {
 protected:
  void SetUp() override {
    if (stock()) GTEST_SKIP() << "without CLAN there is no such endpoint";
    process.emplace(start_server({"-ORBendPoint", "giop:clan:" + name}));
    reference = process->line();
    orb.emplace();
    server = orb->server(reference);
    server->null_call();
    context.emplace(std::move(*clan::Context::create()));
  }
  void TearDown() override {
    server = Suite::Server::_nil();
    orb.reset();
  }
  clan::Stream connect() {
    auto stream = clan::Stream::connect(*context, "giop." + name, 5000);
    EXPECT_TRUE(stream.ok());
    return std::move(*stream);
  }
  /// What the server says until it ends the connection, or for two seconds.
  bool is_ended(clan::Stream& stream) {
    std::byte answer[256];
    for (int i = 0; i < 100; ++i) {
      auto got = stream.recv(answer, 2000);
      if (!got.ok()) return got.error().err != ETIMEDOUT;
      if (*got == 0) return true;
    }
    return false;
  }
  void expect_others_served() {
    for (int i = 0; i < 20; ++i) server->null_call();
    EXPECT_EQ(server->process(), process->pid());
    EXPECT_TRUE(went_by("giop:clan:"));
  }

  const std::string name = "hostile." + std::to_string(::getpid());
  std::optional<Process> process;
  std::string reference;
  std::optional<Orb> orb;
  Suite::Server_var server;
  std::optional<clan::Context> context;
};

TEST_F(HostilePeer, ThatSpeaksNoGiopIsLeft) {
  for (const std::string& text :
       {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(12, '\0'), std::string(70'000, 'x'),
        giop(99, 0), giop(0, 0xffffffffu), giop(0, 0x7fffffffu, std::string(100'000, '\xff'))}) {
    clan::Stream stream = connect();
    (void)stream.send(bytes_of(text), 2000);
    EXPECT_TRUE(is_ended(stream)) << text.substr(0, 12);
    expect_others_served();
  }
}

TEST_F(HostilePeer, WhoseRequestsMakeNoSenseIsAnsweredOrLeft) {
  std::mt19937 random(4711);
  for (int round = 0; round < 200; ++round) {
    std::string body(random() % 200, '\0');
    for (char& c : body) c = static_cast<char>(random() % 4 == 0 ? random() : 0);
    const auto type = static_cast<unsigned char>(random() % 8);
    clan::Stream stream = connect();
    (void)stream.send(bytes_of(giop(type, static_cast<std::uint32_t>(body.size()), body)), 2000);
    if (round % 3 == 0) stream.abort();
  }
  expect_others_served();
}

TEST_F(HostilePeer, ThatStopsWithinAMessageKeepsNobodyWaiting) {
  std::vector<clan::Stream> halves;
  for (std::size_t n : {1u, 5u, 11u, 12u, 40u}) {
    halves.push_back(connect());
    const std::string message = giop(0, 1000, std::string(100, 'x'));
    ASSERT_TRUE(halves.back().send(bytes_of(message).first(n), 2000).ok());
  }
  const auto start = std::chrono::steady_clock::now();
  expect_others_served();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// Somebody else has the name of a server that is gone.
TEST_F(HostilePeer, AsAServerIsAnExceptionAtItsClients) {
  process->end(SIGKILL);
  auto listener = clan::Listener::create(*context, "giop." + name);
  ASSERT_TRUE(listener.ok());
  std::atomic<bool> done{false};
  std::atomic<int> met{0};
  std::thread liar([&] {
    std::vector<clan::Stream> met_streams;
    const std::string answers[] = {std::string(12, 'x'), giop(1, 0xffffffffu),
                                   giop(1, 100, std::string(100, '\xff')), giop(6, 0), giop(5, 0)};
    while (!done) {
      auto stream = listener->accept(100);
      if (!stream.ok()) continue;
      (void)stream->send(bytes_of(answers[met++ % 5]), 1000);
      met_streams.push_back(std::move(*stream));
    }
  });
  for (int round = 0; round < 10; ++round) {
    Orb other;
    Suite::Server_var again = other.server(reference);
    omniORB::setClientCallTimeout(again, 1000);
    EXPECT_THROW(again->null_call(), CORBA::SystemException);
  }
  done = true;
  liar.join();
  EXPECT_GT(met, 4);
}

// Each byte of the private component in turn is another one: its calls go by CLAN or TCP, or end in
// an exception.
TEST_F(HostilePeer, ThatMakesReferencesHasThemIgnored) {
  const bool little = reference.find("4e414c43") != std::string::npos;  // "CLAN", as a number
  const std::size_t at = reference.find(little ? "4e414c43" : "434c414e");
  ASSERT_NE(at, std::string::npos);
  const std::string text = reference.substr(at + 8, 8);
  std::uint32_t length = static_cast<std::uint32_t>(std::stoul(text, nullptr, 16));
  if (little) length = __builtin_bswap32(length);
  ASSERT_LT(length, 200u);
  int served = 0;
  for (std::size_t i = 0; i < length; ++i) {
    for (const char* value : {"00", "ff", "7f"}) {
      std::string changed = reference;
      changed.replace(at + 16 + 2 * i, 2, value);
      try {
        Suite::Server_var other = orb->server(changed);
        omniORB::setClientCallTimeout(other, 2000);
        other->null_call();
        ++served;
      } catch (const CORBA::Exception&) {
      }
    }
  }
  EXPECT_EQ(served, static_cast<int>(3 * length));  // there is always TCP
  expect_others_served();
}

}  // namespace
