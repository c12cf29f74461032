// Contexts with a network: services of other hosts by name, under keys. All on loopback: what
// differs between hosts is in hosts.py.
#include <clan/context.h>
#include <clan/face/connection_name.h>
#include <clan/face/network.h>
#include <clan/message.h>
#include <clan/rdma.h>
#include <clan/stream.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <thread>

#include "base/fd.h"
#include "support/pattern.h"
#include "support/streams.h"

namespace clan::test {
namespace {

using Mode = NetworkOptions::Mode;

// `total` bytes each way at once.
void both_ways(Stream& client, Stream& server, std::uint64_t total, std::size_t most) {
  std::thread up([&] { EXPECT_EQ(send_pattern(client, 1, 0, total, most), total); });
  std::thread down([&] { EXPECT_EQ(send_pattern(server, 2, 0, total, most), total); });
  std::thread taking([&] { EXPECT_EQ(receive_pattern(server, 1, 0, total, most).bytes, total); });
  EXPECT_EQ(receive_pattern(client, 2, 0, total, most).bytes, total);
  up.join();
  down.join();
  taking.join();
}

/// Names the connection that this end has accepted. IPv4.
ConnectionName name_of_end(int socket) {
  ConnectionName name;
  const auto fill = [&](int (*call)(int, sockaddr*, socklen_t*), in6_addr* address,
                        std::uint16_t* port) {
    sockaddr_in at{};
    socklen_t size = sizeof at;
    EXPECT_EQ(call(socket, reinterpret_cast<sockaddr*>(&at), &size), 0);
    address->s6_addr[10] = address->s6_addr[11] = 0xff;
    std::memcpy(address->s6_addr + 12, &at.sin_addr, 4);
    *port = ntohs(at.sin_port);
  };
  fill(::getsockname, &name.server, &name.server_port);
  fill(::getpeername, &name.client, &name.client_port);
  return name;
}

/// A port that was free a moment ago.
std::uint16_t free_port() {
  ContextOptions options;
  options.network.enabled = true;
  options.network.mode = Mode::kOff;
  options.network.directory_port = 0;
  return must(Context::create(options)).network_port();
}

class NetworkTest : public testing::Test {
 protected:
  ContextOptions with_network(Mode mode, std::uint16_t directory = 0) {
    ContextOptions options;
    options.network.enabled = true;
    options.network.mode = mode;
    options.network.directory_port = directory;
    options.network.key_file = key_;
    return options;
  }
  std::string make_key(const std::string& content) {
    char name[] = "/tmp/clan-key-XXXXXX";
    ::close(::mkstemp(name));
    std::ofstream(name) << content;
    made_.push_back(name);
    return name;
  }
  void TearDown() override {
    for (const std::string& name : made_) ::unlink(name.c_str());
  }
  static std::string name_at(const Context& context, const char* service) {
    return "udp:127.0.0.1:" + std::to_string(context.network_port()) + "/" + service;
  }
  // An echo through a stream, whose two ends are `server`'s and `client`'s.
  static void echo(Listener& listener, Context& client, const std::string& name) {
    auto stream = must(Stream::connect(client, name.c_str(), 10'000));
    auto served = must(listener.accept(10'000));
    EXPECT_STREQ(stream.peer().path, "udp");
    both_ways(stream, served, 300'000, 9'000);
  }

  std::vector<std::string> made_;
  std::string key_ = make_key("0123456789abcdef0123456789abcdef");
};

TEST_F(NetworkTest, AServiceIsReachedByHostAndPort) {
  auto a = must(Context::create(with_network(Mode::kOff)));
  auto b = must(Context::create(with_network(Mode::kOff)));
  auto listener = must(Listener::create(a, "network-port"));
  echo(listener, b, name_at(a, "network-port"));
  echo(listener, b, name_at(a, "network-port"));
  EXPECT_EQ(b.counters().links, 1u) << "one link carries both streams";
}

// A peer by packets says itself which node it is.
TEST_F(NetworkTest, ALinkOfThisHostGoesBeforeOneOfPacketsWithTheSameNode) {
  auto a = must(Context::create(with_network(Mode::kOff)));
  auto b = must(Context::create(with_network(Mode::kOff)));
  auto listener = must(Listener::create(a, "network-both"));
  echo(listener, b, name_at(a, "network-both"));
  auto by_name = must(Stream::connect(b, "network-both", 10'000));
  EXPECT_STREQ(by_name.peer().path, "shm");
  auto by_node = must(Stream::connect(b, listener.address(), 10'000));
  EXPECT_STREQ(by_node.peer().path, "shm");
  EXPECT_EQ(b.counters().links, 2u);
}

#ifdef CLAN_CRYPTO_LIBRARY
TEST_F(NetworkTest, ItIsReachedUnderAKeyAndThatIsTheDefault) {
  EXPECT_EQ(NetworkOptions().mode, Mode::kEncrypt);
  for (Mode mode : {Mode::kIntegrity, Mode::kEncrypt}) {
    auto a = must(Context::create(with_network(mode)));
    auto b = must(Context::create(with_network(mode)));
    auto listener = must(Listener::create(a, "network-key"));
    echo(listener, b, name_at(a, "network-key"));
  }
}

TEST_F(NetworkTest, AnotherKeyOrModeIsNotServed) {
  auto a = must(Context::create(with_network(Mode::kEncrypt)));
  auto listener = must(Listener::create(a, "network-wrong"));
  auto other_mode = must(Context::create(with_network(Mode::kOff)));
  EXPECT_EQ(Stream::connect(other_mode, name_at(a, "network-wrong").c_str(), 5'000).error().err,
            EPROTO);
  key_ = make_key("another key, of 32 bytes or a few more");
  auto other_key = must(Context::create(with_network(Mode::kEncrypt)));
  const Error refused =
      Stream::connect(other_key, name_at(a, "network-wrong").c_str(), 500).error();
  EXPECT_EQ(refused.err, ETIMEDOUT);
  EXPECT_NE(std::string(refused.what).find("does not take our key"), std::string::npos)
      << refused.what;
  EXPECT_EQ(a.counters().links, 0u);
}
#endif

TEST_F(NetworkTest, WithoutAKeyThereIsNoContext) {
  key_ = "/nonexistent/key";
  EXPECT_EQ(Context::create(with_network(Mode::kEncrypt)).error().err, ENOENT);
}

TEST_F(NetworkTest, TheDirectoryFindsServicesOfOtherProcesses) {
  const std::uint16_t directory = free_port();
  auto holder = must(Context::create(with_network(Mode::kOff, directory)));
  auto a = must(Context::create(with_network(Mode::kOff, directory)));
  auto b = must(Context::create(with_network(Mode::kOff, directory)));
  auto listener = must(Listener::create(a, "network-found"));
  auto held = must(Listener::create(holder, "network-held"));
  const std::string host = "udp:127.0.0.1:" + std::to_string(directory) + "/";
  echo(listener, b, host + "network-found");
  echo(held, b, host + "network-held");
  EXPECT_EQ(Stream::connect(b, (host + "network-none").c_str(), 5'000).error().err, ECONNREFUSED);
}

// One user has the port, and another has accepted a connection: the connection's name finds its
// process; a service without a connection is not found.
TEST_F(NetworkTest, TheDirectoryFindsConnectionsOfOtherUsersButNoNames) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Fd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(::bind(listening.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(::listen(listening.get(), 1), 0);
  ASSERT_EQ(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  const std::uint16_t port = free_port();
  int ready[2], over[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(over), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(over[1]);
    if (::setuid(61'004) != 0) ::_exit(2);
    const Fd served(::accept(listening.get(), nullptr, nullptr));
    ConnectionName name = name_of_end(served.get());
    // The parent holds the directory by then.
    auto context = must(Context::create(with_network(Mode::kOff, port)));
    auto of_connection = must(Listener::create(context, name.service()));
    auto of_name = must(Listener::create(context, "network-other-user"));
    if (::write(ready[1], &byte, 1) != 1 || ::read(over[0], &byte, 1) != 0) ::_exit(3);
    ::_exit(0);
  }
  ::close(over[0]);
  auto holder = must(Context::create(with_network(Mode::kOff, port)));
  Fd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  ConnectionName name = name_of_end(client.get());
  std::swap(name.client, name.server);
  std::swap(name.client_port, name.server_port);
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  auto asking = must(Context::create(with_network(Mode::kOff)));
  const auto ask = [&](const std::string& service) {
    return Stream::connect(
        asking, ("udp:127.0.0.1:" + std::to_string(port) + "/" + service).c_str(), 10'000);
  };
  // On a busy machine the other user's process is late, and is not asked again for 2 s.
  const auto is_found = [&] {
    auto found = ask(name.service());
    for (int i = 0; i < 400 && !found.ok(); ++i, found = ask(name.service())) ::usleep(50'000);
    return found.ok();
  };
  EXPECT_TRUE(is_found());
  EXPECT_EQ(ask("network-other-user").error().err, ECONNREFUSED);
  ++name.client_port;
  EXPECT_EQ(ask(name.service()).error().err, ECONNREFUSED);
  // The other user's process takes the port over.
  { const Context ends = std::move(holder); }
  --name.client_port;
  EXPECT_TRUE(is_found());
  ::close(over[1]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (int fd : {ready[0], ready[1]}) ::close(fd);
}

TEST_F(NetworkTest, AnotherContextTakesTheDirectoryOver) {
  const std::uint16_t directory = free_port();
  std::optional<Context> holder(must(Context::create(with_network(Mode::kOff, directory))));
  auto a = must(Context::create(with_network(Mode::kOff, directory)));
  auto b = must(Context::create(with_network(Mode::kOff, directory)));
  auto listener = must(Listener::create(a, "network-survives"));
  holder.reset();
  const std::string name = "udp:127.0.0.1:" + std::to_string(directory) + "/network-survives";
  for (int i = 0; i < 100; ++i) {
    auto stream = Stream::connect(b, name.c_str(), 200);
    if (!stream) continue;
    auto served = must(listener.accept(10'000));
    both_ways(*stream, served, 10'000, 1'000);
    return;
  }
  FAIL() << "nobody took the directory over";
}

// Its name is whose takes it first, and the holder may have no room for one more.
TEST_F(NetworkTest, ADirectoryThatEndsAtOnceAgainAndAgainIsNotJoinedInALoop) {
  const std::uint16_t directory = free_port();
  auto squatter = must(listen_abstract("clan/" + std::to_string(::geteuid()) + "/udp-directory/" +
                                       std::to_string(directory)));
  auto holder = must(Context::create(with_network(Mode::kOff, directory)));
  auto other = must(Context::create(with_network(Mode::kOff, directory)));
  int joins = 0;
  for (;; ++joins) {
    pollfd ready{squatter.get(), POLLIN, 0};
    if (joins == 500 || ::poll(&ready, 1, 500) != 1) break;
    Fd(::accept(squatter.get(), nullptr, nullptr));
  }
  EXPECT_GE(joins, 1);
  EXPECT_LT(joins, 20);
  squatter.reset();
}

TEST_F(NetworkTest, APathIsReportedByPing) {
  auto a = must(Context::create(with_network(Mode::kOff)));
  auto b = must(Context::create(with_network(Mode::kOff)));
  const std::string at = "127.0.0.1:" + std::to_string(a.network_port());
  std::uint64_t trips[5] = {};
  const PathValues path = must(ping(b, at, trips, 1, 10'000));
  for (std::uint64_t trip : trips) EXPECT_GT(trip, 0u);
  EXPECT_EQ(path.port, a.network_port());
  EXPECT_GE(path.packets_sent, 5u);
  EXPECT_GE(path.packet_bytes, 1200u);
  EXPECT_GE(path.window_bytes, path.packet_bytes);
  EXPECT_GT(path.round_trip_ns, 0u);
#ifdef CLAN_CRYPTO_LIBRARY
  auto keyed = must(Context::create(with_network(Mode::kIntegrity)));
  const std::string other = "127.0.0.1:" + std::to_string(keyed.network_port());
  EXPECT_EQ(ping(b, other, trips, 1, 3'000).error().err, EPROTO);
#endif
  EXPECT_EQ(ping(b, "127.0.0.1", trips, 1, 3'000).error().err, EINVAL);
  auto local = must(Context::create());
  EXPECT_EQ(ping(local, at, trips, 1, 1'000).error().err, EHOSTUNREACH);
}

TEST_F(NetworkTest, NamesThatMakeNoSenseAreRefused) {
  auto a = must(Context::create(with_network(Mode::kOff)));
  for (const char* name : {"udp:", "udp:/x", "udp:127.0.0.1:4000/", "udp:127.0.0.1/x"}) {
    EXPECT_EQ(Stream::connect(a, name, 1'000).error().err, EINVAL) << name;
  }
  EXPECT_EQ(Listener::create(a, "udp:x").error().err, EINVAL);
  auto local = must(Context::create());
  EXPECT_EQ(Stream::connect(local, "udp:127.0.0.1:4000/x", 1'000).error().err, EHOSTUNREACH);
}

TEST_F(NetworkTest, MessagesGoBetweenEndpoints) {
  auto a = must(Context::create(with_network(Mode::kOff)));
  auto b = must(Context::create(with_network(Mode::kOff)));
  auto server = must(MessageEndpoint::create(a, "network-messages"));
  auto client = must(MessageEndpoint::create(b));
  auto peer = must(client.connect(name_at(a, "network-messages").c_str(), 10'000));
  for (std::size_t bytes : {0u, 1u, 64u, 5'000u, 300'000u}) {
    std::thread sender([&] { EXPECT_TRUE(client.send(peer, pattern(bytes, bytes)).ok()); });
    std::vector<std::byte> buffer(bytes + 1);
    auto got = server.recv(buffer, 10'000);
    sender.join();
    ASSERT_TRUE(got.ok()) << got.error().message();
    EXPECT_EQ(got->size, bytes);
    EXPECT_TRUE(is_pattern(std::span<const std::byte>(buffer).first(bytes), bytes, 0));
  }
}

// Takes the next message as text; empty: none came in time.
std::string next_text(MessageEndpoint& endpoint, PeerIndex* from) {
  std::array<std::byte, 64> room;
  auto got = endpoint.recv(room, 10'000);
  if (!got) return "";
  *from = got->from;
  return {reinterpret_cast<const char*>(room.data()), got->size};
}

TEST_F(NetworkTest, AConnectionIsBegunWithoutWaitingAndItsGreetingsArrive) {
  const std::uint16_t directory = free_port();
  auto holder = must(Context::create(with_network(Mode::kOff, directory)));
  auto a = must(Context::create(with_network(Mode::kOff, directory)));
  auto b = must(Context::create(with_network(Mode::kOff)));
  auto server = must(MessageEndpoint::create(a, "network-begun"));
  auto client = must(MessageEndpoint::create(b));
  const std::string host = "udp:127.0.0.1:" + std::to_string(directory) + "/";
  const std::string hello = "hello", second = "second";
  const std::span<const std::byte> greetings[] = {std::as_bytes(std::span(hello)),
                                                  std::as_bytes(std::span(second))};
  // By the directory, which sends us on; then by the link that is known.
  for (int i = 0; i < 2; ++i) {
    const PeerIndex to = must(client.begin_connect(host + "network-begun", greetings, 10'000));
    PeerIndex from = 0;
    EXPECT_EQ(next_text(server, &from), "hello");
    EXPECT_EQ(next_text(server, &from), "second");
    ASSERT_TRUE(client.await(to, 10'000).ok());
    EXPECT_TRUE(client.is_far(to));
    EXPECT_TRUE(server.is_far(from));
    EXPECT_EQ(must(server.peer_address(from)).node, b.node());
    EXPECT_EQ(must(client.peer_address(to)).node, a.node());
    ASSERT_TRUE(server.send(from, std::as_bytes(std::span(hello)), 10'000).ok());
    EXPECT_EQ(next_text(client, &from), "hello");
    EXPECT_EQ(from, to);
  }
  EXPECT_EQ(b.counters().links, 1u);
}

TEST_F(NetworkTest, AConnectionThatWasBegunIsRefusedOrEndsInTime) {
  auto a = must(Context::create(with_network(Mode::kOff)));
  auto b = must(Context::create(with_network(Mode::kOff)));
  auto client = must(MessageEndpoint::create(b));
  const auto reason = [&](const std::string& name, std::int64_t timeout_ms) {
    const PeerIndex to = must(client.begin_connect(name, {}, timeout_ms));
    return client.await(to, 20'000).error().err;
  };
  EXPECT_EQ(reason(name_at(a, "network-nobody"), 10'000), ECONNREFUSED);
  const std::string nowhere = "udp:127.0.0.1:" + std::to_string(free_port()) + "/network-nobody";
  EXPECT_EQ(reason(nowhere, 10'000), ECONNREFUSED) << "nobody has the port open";
  EXPECT_EQ(client.begin_connect("udp:127.0.0.1").error().err, EINVAL);
  // One that is given up, by its endpoint's end, while the host has not answered.
  const int silent = ::socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string name = "udp:127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/silent";
  EXPECT_EQ(reason(name, 100), ETIMEDOUT);
  {
    auto other = must(MessageEndpoint::create(b));
    must(other.begin_connect(name, {}, 10'000));
  }
  // Nor does the end of a context wait for it, as it does for what has been sent: for 2 s.
  bool soon = false;
  for (int i = 0; i < 5 && !soon; ++i) {
    std::optional<Context> ending(must(Context::create(with_network(Mode::kOff))));
    auto other = must(MessageEndpoint::create(*ending));
    must(other.begin_connect(name, {}, 10'000));
    const auto begin = std::chrono::steady_clock::now();
    ending.reset();
    soon = std::chrono::steady_clock::now() - begin < std::chrono::seconds(1);
  }
  EXPECT_TRUE(soon);
  ::close(silent);
}

TEST_F(NetworkTest, APeerThatDiesIsAResetAndOneThatClosesIsTheEnd) {
  std::optional<Context> a(must(Context::create(with_network(Mode::kOff))));
  auto b = must(Context::create(with_network(Mode::kOff)));
  auto listener = must(Listener::create(*a, "network-end"));
  const std::string name = name_at(*a, "network-end");
  auto first = must(Stream::connect(b, name.c_str(), 10'000));
  auto second = must(Stream::connect(b, name.c_str(), 10'000));
  std::optional<Stream> served(must(listener.accept(10'000)));
  auto other = must(listener.accept(10'000));
  std::byte byte{7};
  ASSERT_TRUE(served->send({&byte, 1}).ok());
  served.reset();
  EXPECT_EQ(must(first.recv({&byte, 1}, 10'000)), 1u);
  EXPECT_EQ(must(first.recv({&byte, 1}, 10'000)), 0u);
  a.reset();
  auto end = second.recv({&byte, 1}, 10'000);
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().err, ECONNRESET);
}

TEST_F(NetworkTest, WhatWasSentBeforeTheContextEndsArrives) {
  std::optional<Context> a(must(Context::create(with_network(Mode::kOff))));
  auto b = must(Context::create(with_network(Mode::kOff)));
  auto listener = must(Listener::create(b, "network-last"));
  std::optional<Stream> stream(
      must(Stream::connect(*a, name_at(b, "network-last").c_str(), 10'000)));
  auto served = must(listener.accept(10'000));
  auto bytes = pattern(200'000, 5);
  ASSERT_EQ(must(stream->send(bytes)), bytes.size());
  stream.reset();
  a.reset();
  std::vector<std::byte> seen(bytes.size());
  std::size_t got = 0;
  while (got < seen.size()) {
    auto n = served.recv(std::span(seen).subspan(got), 10'000);
    ASSERT_TRUE(n.ok()) << n.error().message();
    ASSERT_GT(*n, 0u);
    got += *n;
  }
  EXPECT_EQ(seen, bytes);
}

TEST_F(NetworkTest, AForkedChildLeavesTheParentsLinksAlone) {
  auto a = must(Context::create(with_network(Mode::kOff)));
  auto b = must(Context::create(with_network(Mode::kOff)));
  auto listener = must(Listener::create(a, "network-fork"));
  auto stream = must(Stream::connect(b, name_at(a, "network-fork").c_str(), 10'000));
  auto served = must(listener.accept(10'000));
  const pid_t child = ::fork();
  if (child == 0) {
    std::byte byte{};
    const bool refused = !stream.send({&byte, 1}).ok() && !stream.recv({&byte, 1}, 100).ok();
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  both_ways(stream, served, 100'000, 5'000);
}

TEST_F(NetworkTest, TwoThatConnectToEachOtherAtOnceAreBothConnected) {
  for (int i = 0; i < 40; ++i) {
    Context contexts[] = {must(Context::create(with_network(Mode::kOff))),
                          must(Context::create(with_network(Mode::kOff)))};
    MessageEndpoint ends[] = {must(MessageEndpoint::create(contexts[0], "network-at-once-0")),
                              must(MessageEndpoint::create(contexts[1], "network-at-once-1"))};
    const std::string names[] = {name_at(contexts[0], "network-at-once-0"),
                                 name_at(contexts[1], "network-at-once-1")};
    std::barrier together(2);
    const auto connect = [&](int self) {
      together.arrive_and_wait();
      const auto peer = ends[self].connect(names[1 - self], 10'000);
      ASSERT_TRUE(peer.ok()) << "pair " << i << ": " << peer.error().message();
      together.arrive_and_wait();
      EXPECT_OK(ends[self].send(*peer, pattern(100, 1), 10'000));
      std::vector<std::byte> buffer(100);
      EXPECT_OK(ends[self].recv(buffer, 10'000));
      EXPECT_EQ(buffer, pattern(100, 1));
      together.arrive_and_wait();
    };
    std::thread other([&] {
      connect(1);
      if (HasFatalFailure()) together.arrive_and_drop();
    });
    connect(0);
    if (HasFatalFailure()) together.arrive_and_drop();
    other.join();
    if (HasFailure()) return;
  }
}

TEST_F(NetworkTest, AnIdleLinkCostsNoProcessorTime) {
  auto a = must(Context::create(with_network(Mode::kOff)));
  auto b = must(Context::create(with_network(Mode::kOff)));
  auto listener = must(Listener::create(a, "network-idle"));
  auto stream = must(Stream::connect(b, name_at(a, "network-idle").c_str(), 10'000));
  auto served = must(listener.accept(10'000));
  both_ways(stream, served, 100'000, 5'000);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(1'000));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.005);
}

}  // namespace
}  // namespace clan::test
