// Calls: every type, every size, every way to make a handle and to run a server.
#include <algorithm>
#include <thread>

#include "peers.h"

namespace clan {
namespace {

using namespace test;

blob some_bytes(std::vector<char>& storage, std::size_t size) {
  storage.resize(size);
  for (std::size_t i = 0; i < size; ++i) storage[i] = static_cast<char>(i * 31 + (i >> 8));
  return {static_cast<u_int>(size), storage.data()};
}

void expect_echo(CLIENT* client, std::size_t size) {
  std::vector<char> storage;
  blob sent = some_bytes(storage, size);
  blob got{};
  ASSERT_EQ(clnt_call(client, ECHO, xdr_of(xdr_blob), &sent, xdr_of(xdr_blob), &got, kLong),
            RPC_SUCCESS)
      << size << clnt_sperror(client, "");
  ASSERT_EQ(got.blob_len, size);
  EXPECT_TRUE(size == 0 || std::memcmp(got.blob_val, storage.data(), size) == 0) << size;
  EXPECT_TRUE(clnt_freeres(client, xdr_of(xdr_blob), &got));
}

constexpr std::size_t kSizes[] = {0,    1,      3,      8,       64,      256,    1000,
                                  1023, 1024,   1440,   3072,    8100,    8191,   8192,
                                  8200, 16'384, 65'536, 100'001, 262'144, 1 << 20};

TEST(Calls, OfAnySizeArriveWhole) {
  Server server({"tcp"});
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  warm_up(client.get());
  const Paths before = paths();
  for (const std::size_t size : kSizes) expect_echo(client.get(), size);
  expect_echo(client.get(), std::size_t{20} << 20);
  expect_clan(before, std::size(kSizes) + 1);
  EXPECT_EQ(served_by_clan(server.pid()) > 0, preloaded());
}

// The way of large messages where the kernel forbids to read another process's memory is the
// engine's concern.
TEST(Calls, OverLocalAndDatagramSocketsToo) {
  const std::string path = "/tmp/clan-sunrpc-" + std::to_string(getpid());
  Server server({"udp", "unix:" + path});
  Handle datagram = by_udp(server.udp());
  Handle local = by_unix(path);
  ASSERT_TRUE(datagram && local);
  for (CLIENT* client : {datagram.get(), local.get()}) {
    warm_up(client);
    const Paths before = paths();
    for (const std::size_t size : {0, 8, 256, 3072}) expect_echo(client, size);
    expect_clan(before, 4);
  }
  unlink(path.c_str());
}

bool same(const everything& a, const everything& b) {
  char left[65536], right[65536];
  XDR x, y;
  xdrmem_create(&x, left, sizeof left, XDR_ENCODE);
  xdrmem_create(&y, right, sizeof right, XDR_ENCODE);
  return xdr_everything(&x, const_cast<everything*>(&a)) &&
         xdr_everything(&y, const_cast<everything*>(&b)) && xdr_getpos(&x) == xdr_getpos(&y) &&
         std::memcmp(left, right, xdr_getpos(&x)) == 0;
}

TEST(Calls, CarryEveryTypeOfXdr) {
  Server server({"tcp"});
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  warm_up(client.get());
  everything e{};
  e.one = {-1, 2, -3, 4, 5.5F, -6.25, TRUE, BLUE, -7, 8, 'x', 200, -9, 10};
  scalars few[3] = {e.one, e.one, e.one};
  few[1].h = RED;
  e.few.few_len = 3;
  e.few.few_val = few;
  e.fixed[0] = 1, e.fixed[1] = -2, e.fixed[2] = 3;
  std::memcpy(e.bits, "\0\1\2\3\4", 5);
  std::vector<char> storage;
  e.bytes = some_bytes(storage, 77);
  e.text = const_cast<char*>("plain text");
  shape shapes[4] = {};
  shapes[0].kind = RED;
  shapes[0].shape_u.side = 12;
  shapes[1].kind = GREEN;
  shapes[1].shape_u.name = const_cast<char*>("green");
  shapes[2].kind = BLUE;
  shapes[3].kind = static_cast<colour>(99);
  e.shapes.shapes_len = 4;
  e.shapes.shapes_val = shapes;
  words labels[2] = {const_cast<char*>("a"), const_cast<char*>("")};
  node second{7, {}, nullptr}, first{6, {}, &second};
  first.label.label_len = 2;
  first.label.label_val = labels;
  e.list = &first;
  bool_t yes = TRUE;
  e.maybe = &yes;
  u_quad_t many[] = {0, 1, ~u_quad_t{0}};
  e.many.many_len = 3;
  e.many.many_val = many;

  const Paths before = paths();
  everything got{};
  ASSERT_EQ(clnt_call(client.get(), TURN, xdr_of(xdr_everything), &e, xdr_of(xdr_everything), &got,
                      kLong),
            RPC_SUCCESS);
  EXPECT_EQ(got.one.a, 1);
  EXPECT_EQ(got.fixed[1], 2);
  got.one.a = -1;
  for (int& n : got.fixed) n = -n;
  EXPECT_TRUE(same(e, got));
  clnt_freeres(client.get(), xdr_of(xdr_everything), &got);
  answer reply{};
  ASSERT_EQ(
      clnt_call(client.get(), MAYBE, xdr_of(xdr_everything), &e, xdr_of(xdr_answer), &reply, kLong),
      RPC_SUCCESS);
  EXPECT_EQ(reply.status, 0);
  EXPECT_TRUE(same(e, reply.answer_u.same));
  clnt_freeres(client.get(), xdr_of(xdr_answer), &reply);
  e.one.a = 0;
  ASSERT_EQ(
      clnt_call(client.get(), MAYBE, xdr_of(xdr_everything), &e, xdr_of(xdr_answer), &reply, kLong),
      RPC_SUCCESS);
  EXPECT_EQ(reply.status, 1);
  expect_clan(before, 3);
}

// One server: clients with the library and without, over every kind of socket, under every kind of
// loop.
class Loops : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Of, Loops, testing::Values("run", "select", "poll", "threads"),
                         [](const auto& loop) { return std::string(loop.param); });

TEST_P(Loops, ServeClientsOfBothKindsAtOnce) {
  Server server({"tcp", "udp", std::string("loop:") + GetParam()});
  Handle tcp = by_tcp(server.tcp()), udp = by_udp(server.udp());
  ASSERT_TRUE(tcp && udp);
  warm_up(tcp.get());
  warm_up(udp.get());
  // A client without the library, in another process: `rpcinfo` would need a rpcbind.
  const pid_t stock = fork();
  if (stock == 0) {
    unsetenv("LD_PRELOAD");
    const std::string port = std::to_string(server.tcp());
    execl(SUNRPC_CLIENT, SUNRPC_CLIENT, port.c_str(), "300", nullptr);
    _exit(127);
  }
  const Paths before = paths();
  for (int i = 0; i < 300; ++i) {
    int* negated = negate_2(&i, i % 2 == 0 ? tcp.get() : udp.get());
    ASSERT_NE(negated, nullptr);
    EXPECT_EQ(*negated, -i);
  }
  expect_clan(before, 300);
  int status = -1;
  waitpid(stock, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Calls, OfTheOldCreationCallsTravelTheSameWay) {
  Server server({"tcp", "udp", "old"});
  Handle tcp = by_tcp(server.tcp()), udp = by_udp(server.udp());
  ASSERT_TRUE(tcp && udp);
  for (CLIENT* client : {tcp.get(), udp.get()}) {
    warm_up(client);
    const Paths before = paths();
    for (int i = 0; i < 10; ++i) {
      int* negated = negate_2(&i, client);
      ASSERT_NE(negated, nullptr);
      EXPECT_EQ(*negated, -i);
    }
    expect_clan(before, 10);
  }
}

TEST(Calls, ToAServerWithoutTheLibraryGoByItsSocket) {
  Server server({"tcp", "udp"}, Server::Library::kNo);
  Handle tcp = by_tcp(server.tcp()), udp = by_udp(server.udp());
  ASSERT_TRUE(tcp && udp);
  const Paths before = paths();
  for (int i = 0; i < 10; ++i) {
    ASSERT_NE(negate_2(&i, tcp.get()), nullptr);
    ASSERT_NE(negate_2(&i, udp.get()), nullptr);
  }
  EXPECT_EQ(paths().clan, before.clan);
}

// Nothing in LD_PRELOAD.
void expect_linked_programs_call(const char* server_program, const char* client_program) {
  Server server({"tcp"}, Server::Library::kNo, server_program);
  const pid_t client = fork();
  if (client == 0) {
    unsetenv("LD_PRELOAD");
    const std::string port = std::to_string(server.tcp());
    execl(client_program, client_program, port.c_str(), "500", nullptr);
    _exit(127);
  }
  int status = -1;
  waitpid(client, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_GT(served_by_clan(server.pid()), 0u);
}

TEST(Linked, ProgramsCallOverClan) {
  expect_linked_programs_call(SUNRPC_SERVER_LINKED, SUNRPC_CLIENT_LINKED);
}

TEST(Linked, ProgramsWithTheArchivesCallOverClan) {
#ifdef SUNRPC_SERVER_STATIC
  expect_linked_programs_call(SUNRPC_SERVER_STATIC, SUNRPC_CLIENT_STATIC);
#else
  GTEST_SKIP() << "libtirpc.a or libgssapi_krb5.so is missing";
#endif
}

TEST(Calls, OfSeveralThreadsShareAHandle) {
  Server server({"tcp"});
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  warm_up(client.get());
  const Paths before = paths();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        int value = t * 1000 + i, result = 0;
        if (clnt_call(client.get(), NEGATE, xdr_of(xdr_int), &value, xdr_of(xdr_int), &result,
                      kLong) != RPC_SUCCESS ||
            result != -value) {
          ++wrong;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  expect_clan(before, 800);
}

TEST(Calls, OfAHundredClients) {
  Server server({"tcp"});
  std::vector<Handle> clients;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(by_tcp(server.tcp()));
    ASSERT_TRUE(clients.back());
    warm_up(clients.back().get());
  }
  const Paths before = paths();
  for (int round = 0; round < 5; ++round) {
    for (auto& client : clients) {
      int* negated = negate_2(&round, client.get());
      ASSERT_NE(negated, nullptr);
      EXPECT_EQ(*negated, -round);
    }
  }
  expect_clan(before, 500);
}

TEST(Calls, BackToTheClientWhileItsOwnIsUnderWay) {
  // The client of the outer call is a process of its own, so that it can serve: its server is this
  // one.
  Server inner({"tcp"});
  Server outer({"tcp"});
  Handle client = by_tcp(outer.tcp());
  ASSERT_TRUE(client);
  warm_up(client.get());
  auto port = static_cast<u_int>(inner.tcp());
  const Paths before = paths();
  int* negated = call_back_2(&port, client.get());
  ASSERT_NE(negated, nullptr);
  EXPECT_EQ(*negated, -55);
  expect_clan(before, 1);
  EXPECT_EQ(served_by_clan(inner.pid()) > 0, preloaded());
}

}  // namespace
}  // namespace clan
