// Message endpoints and their connections; peers that die.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "libfabric/node.h"

namespace clan::test {
namespace {

// One side of a connection: a domain, a queue for completions and one for events.
class Side {
 public:
  explicit Side(const char* service = nullptr) {
    info =
        get_info(make_hints(FI_EP_MSG), "127.0.0.1", service, service == nullptr ? FI_SOURCE : 0);
    if (!info) MUST(-FI_ENODATA);
    fid_fabric* f;
    MUST(fi_fabric(info->fabric_attr, &f, nullptr));
    fabric.reset(f);
    fi_eq_attr eq_attr{};
    eq_attr.wait_obj = FI_WAIT_FD;
    fid_eq* q;
    MUST(fi_eq_open(f, &eq_attr, &q, nullptr));
    eq.reset(q);
  }

  void open_endpoint(fi_info* with) {
    fid_domain* d;
    MUST(fi_domain(fabric.get(), with, &d, nullptr));
    domain.reset(d);
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_TAGGED;
    fid_cq* c;
    MUST(fi_cq_open(d, &cq_attr, &c, nullptr));
    cq.reset(c);
    fid_ep* e;
    MUST(fi_endpoint(d, with, &e, nullptr));
    ep.reset(e);
    MUST(fi_ep_bind(e, &eq->fid, 0));
    MUST(fi_ep_bind(e, &c->fid, FI_TRANSMIT | FI_RECV));
    MUST(fi_enable(e));
  }

  struct Event {
    std::uint32_t what = ~0u;
    Info info;
    fid* object = nullptr;
    std::string data;
    int err = 0;
  };
  Event next(int timeout_ms = 10'000) {
    alignas(fi_eq_cm_entry) char buffer[2048];
    Event event;
    const ssize_t n = fi_eq_sread(eq.get(), &event.what, buffer, sizeof buffer, timeout_ms, 0);
    if (n == -FI_EAVAIL) {
      fi_eq_err_entry error{};
      EXPECT_GT(fi_eq_readerr(eq.get(), &error, 0), 0);
      event.err = error.err;
      event.object = error.fid;
      event.data.assign(static_cast<const char*>(error.err_data), error.err_data_size);
      return event;
    }
    if (n < 0) {
      event.err = static_cast<int>(-n);
      return event;
    }
    const auto* entry = reinterpret_cast<const fi_eq_cm_entry*>(buffer);
    event.object = entry->fid;
    if (event.what == FI_CONNREQ) event.info.reset(entry->info);
    event.data.assign(buffer + sizeof *entry, static_cast<std::size_t>(n) - sizeof *entry);
    return event;
  }

  Info info;
  Object<fid_fabric> fabric;
  Object<fid_eq> eq;
  Object<fid_domain> domain;
  Object<fid_cq> cq;
  Object<fid_pep> pep;
  Object<fid_ep> ep;
};

struct Listening : Side {
  Listening() {
    fid_pep* p;
    MUST(fi_passive_ep(fabric.get(), info.get(), &p, nullptr));
    pep.reset(p);
    MUST(fi_pep_bind(p, &eq->fid, 0));
    MUST(fi_listen(p));
    sockaddr_in name{};
    std::size_t length = sizeof name;
    MUST(fi_getname(&p->fid, &name, &length));
    service = std::to_string(ntohs(name.sin_port));
  }
  std::string service;
};

struct Connected {
  Connected() : client(server.service.c_str()) {
    client.open_endpoint(client.info.get());
    MUST(fi_connect(client.ep.get(), client.info->dest_addr, "may I", 5));
    auto request = server.next();
    if (request.what != FI_CONNREQ) MUST(-FI_EOTHER);
    asked = request.data;
    server.open_endpoint(request.info.get());
    MUST(fi_accept(server.ep.get(), "you may", 7));
    server_event = server.next();
    client_event = client.next();
  }
  Listening server;
  Side client;
  std::string asked;
  Side::Event server_event, client_event;
};

TEST(FabricConnections, AreMadeWithDataBothWays) {
  Connected c;
  EXPECT_EQ(c.asked, "may I");
  EXPECT_EQ(c.server_event.what, static_cast<std::uint32_t>(FI_CONNECTED));
  EXPECT_EQ(c.server_event.object, &c.server.ep->fid);
  EXPECT_EQ(c.client_event.what, static_cast<std::uint32_t>(FI_CONNECTED));
  EXPECT_EQ(c.client_event.object, &c.client.ep->fid);
  EXPECT_EQ(c.client_event.data, "you may");
}

TEST(FabricConnections, AreAskedForWithoutWaitingForAServerThatStandsStill) {
  ASSERT_NE(get_info(make_hints(FI_EP_MSG)),
            nullptr);  // libfabric loads its providers once, before the forks
  for (const bool dies : {false, true}) {
    int fds[2];
    ASSERT_EQ(::pipe(fds), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      Listening server;
      std::string text = server.service + " ";
      if (::write(fds[1], text.data(), text.size()) < 0) ::_exit(2);
      auto request = server.next(50'000);
      if (request.what != FI_CONNREQ || request.data != "may I") ::_exit(1);
      server.open_endpoint(request.info.get());
      MUST(fi_accept(server.ep.get(), "you may", 7));
      for (;;) ::pause();
    }
    char service[16] = {};
    ASSERT_GT(::read(fds[0], service, sizeof service - 1), 0);
    ::close(fds[0]);
    ::close(fds[1]);
    Side client(std::to_string(std::atoi(service)).c_str());
    client.open_endpoint(client.info.get());
    ::kill(child, SIGSTOP);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_EQ(fi_connect(client.ep.get(), client.info->dest_addr, "may I", 5), 0);
    EXPECT_EQ(client.next(100).err, FI_EAGAIN);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5));
    ::kill(child, dies ? SIGKILL : SIGCONT);
    auto event = client.next(20'000);
    if (dies) {
      EXPECT_EQ(event.err, FI_ECONNREFUSED);
    } else {
      EXPECT_EQ(event.what, static_cast<std::uint32_t>(FI_CONNECTED));
      EXPECT_EQ(event.data, "you may");
      ::kill(child, SIGKILL);
      EXPECT_EQ(client.next(20'000).what, static_cast<std::uint32_t>(FI_SHUTDOWN));
    }
    ::waitpid(child, &status, 0);
  }
}

TEST(FabricConnections, AreHeardOfThoughTheServerLeavesAtOnce) {
  for (int i = 0; i < 20; ++i) {
    Listening server;
    Side client(server.service.c_str());
    client.open_endpoint(client.info.get());
    ASSERT_EQ(fi_connect(client.ep.get(), client.info->dest_addr, nullptr, 0), 0);
    auto request = server.next();
    ASSERT_EQ(request.what, static_cast<std::uint32_t>(FI_CONNREQ));
    server.open_endpoint(request.info.get());
    ASSERT_EQ(fi_accept(server.ep.get(), nullptr, 0), 0);
    ASSERT_EQ(fi_shutdown(server.ep.get(), 0), 0);
    EXPECT_EQ(client.next().what, static_cast<std::uint32_t>(FI_CONNECTED));
    EXPECT_EQ(client.next().what, static_cast<std::uint32_t>(FI_SHUTDOWN));
  }
}

TEST(FabricConnections, CarryMessagesBothWays) {
  Connected c;
  for (const std::size_t n : {5u, 100'000u}) {
    for (int way = 0; way < 2; ++way) {
      Side& from = way == 0 ? static_cast<Side&>(c.client) : c.server;
      Side& to = way == 0 ? static_cast<Side&>(c.server) : c.client;
      const auto sent = pattern(n, 1);
      std::vector<char> got(n);
      ASSERT_EQ(fi_recv(to.ep.get(), got.data(), n, nullptr, 0, nullptr), 0);
      ASSERT_EQ(fi_send(from.ep.get(), sent.data(), n, nullptr, 0, nullptr), 0);
      fi_cq_tagged_entry entry;
      bool received = false, complete = false;
      ASSERT_TRUE(eventually([&] {
        received = received || fi_cq_read(to.cq.get(), &entry, 1) == 1;
        complete = complete || fi_cq_read(from.cq.get(), &entry, 1) == 1;
        return received && complete;
      }));
      EXPECT_EQ(got, sent);
    }
  }
}

TEST(FabricConnections, AreRejectedWithData) {
  Listening server;
  Side client(server.service.c_str());
  client.open_endpoint(client.info.get());
  ASSERT_EQ(fi_connect(client.ep.get(), client.info->dest_addr, nullptr, 0), 0);
  auto request = server.next();
  ASSERT_EQ(request.what, static_cast<std::uint32_t>(FI_CONNREQ));
  ASSERT_EQ(fi_reject(server.pep.get(), request.info->handle, "no", 2), 0);
  auto answer = client.next();
  EXPECT_EQ(answer.err, FI_ECONNREFUSED);
  EXPECT_EQ(answer.data, "no");
  EXPECT_EQ(fi_send(client.ep.get(), "x", 1, nullptr, 0, nullptr), -FI_ENOTCONN);
}

TEST(FabricConnections, AreRefusedWhereTheEndpointThatWasMadeForThemIsClosed) {
  Listening server;
  Side client(server.service.c_str());
  client.open_endpoint(client.info.get());
  ASSERT_EQ(fi_connect(client.ep.get(), client.info->dest_addr, nullptr, 0), 0);
  auto request = server.next();
  ASSERT_EQ(request.what, static_cast<std::uint32_t>(FI_CONNREQ));
  server.open_endpoint(request.info.get());
  server.ep.reset();
  EXPECT_EQ(server.next(50).err, FI_EAGAIN);
  EXPECT_EQ(client.next().err, FI_ECONNREFUSED);
}

TEST(FabricConnections, ToNobodyAreRefused) {
  std::string service;
  {
    Listening gone;
    service = gone.service;
  }
  Side client(service.c_str());
  client.open_endpoint(client.info.get());
  ASSERT_EQ(fi_connect(client.ep.get(), client.info->dest_addr, nullptr, 0), 0);
  EXPECT_EQ(client.next().err, FI_ECONNREFUSED);
}

TEST(FabricConnections, TellOfTheOthersShutdown) {
  Connected c;
  char buffer[8];
  ASSERT_EQ(fi_recv(c.client.ep.get(), buffer, sizeof buffer, nullptr, 0, nullptr), 0);
  ASSERT_EQ(fi_inject(c.server.ep.get(), "last", 4, 0), 0);
  ASSERT_EQ(fi_shutdown(c.server.ep.get(), 0), 0);
  EXPECT_EQ(c.client.next().what, static_cast<std::uint32_t>(FI_SHUTDOWN));
  fi_cq_tagged_entry entry;
  EXPECT_EQ(fi_cq_read(c.client.cq.get(), &entry, 1), 1);
  EXPECT_EQ(fi_inject(c.client.ep.get(), "x", 1, 0), -FI_ENOTCONN);
}

// --- death ---------------------------------------------------------------------------------------

// A child that answers messages until it is killed. Its address comes by a pipe.
pid_t start_child(std::uint16_t port, bool receives, std::vector<char>* address) {
  int fds[2];
  if (::pipe(fds) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    Node node({.port = port});
    node.enable();
    const auto name = node.name();
    if (::write(fds[1], name.data(), name.size()) < 0) ::_exit(1);
    char buffer[64];
    fi_cq_tagged_entry entry;
    if (receives)
      (void)fi_recv(node.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr);
    for (;;) (void)fi_cq_read(node.cq.get(), &entry, 1);
  }
  ::close(fds[1]);
  address->resize(64);
  const ssize_t n = ::read(fds[0], address->data(), address->size());
  if (n <= 0) std::abort();
  address->resize(static_cast<std::size_t>(n));
  ::close(fds[0]);
  return child;
}

void end_child(pid_t child) {
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(FabricPeers, ThatDieFailWhatIsOnItsWayToThem) {
  std::vector<char> address;
  const pid_t child = start_child(0, false, &address);
  Node node;
  node.enable();
  const fi_addr_t to = node.insert(address);
  const auto data = pattern(100'000, 1);
  ASSERT_EQ(fi_send(node.ep.get(), data.data(), data.size(), nullptr, to, &node), 0);
  const iovec iov{const_cast<char*>(data.data()), 10};
  fi_msg msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = to;
  ASSERT_EQ(fi_sendmsg(node.ep.get(), &msg, FI_DELIVERY_COMPLETE), 0);
  fi_cq_tagged_entry entry;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(fi_cq_read(node.cq.get(), &entry, 1), -FI_EAGAIN);
  end_child(child);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(eventually([&] { return fi_cq_read(node.cq.get(), &entry, 1) == -FI_EAVAIL; }));
    fi_cq_err_entry error{};
    ASSERT_EQ(fi_cq_readerr(node.cq.get(), &error, 0), 1);
    EXPECT_EQ(error.err, FI_ECONNRESET);
  }
  EXPECT_EQ(fi_inject(node.ep.get(), "x", 1, to), -FI_ECONNREFUSED);
}

TEST(FabricPeers, ThatAreStartedAgainCanBeTalkedTo) {
  std::vector<char> address;
  pid_t child = start_child(0, true, &address);
  Node node;
  node.enable();
  const fi_addr_t to = node.insert(address);
  ASSERT_EQ(fi_inject(node.ep.get(), "x", 1, to), 0);
  end_child(child);
  std::uint16_t port;
  std::memcpy(&port, address.data() + 2, 2);
  child = start_child(ntohs(port), true, &address);
  // What is sent before its end has been noticed may fail or be lost, but not for long.
  const iovec iov{const_cast<char*>("y"), 1};
  fi_msg msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = to;
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(eventually([&] {
    if (fi_sendmsg(node.ep.get(), &msg, FI_DELIVERY_COMPLETE) != 0) return false;
    ssize_t n = 0;
    if (!eventually([&] { return (n = fi_cq_read(node.cq.get(), &entry, 1)) != -FI_EAGAIN; }))
      return false;
    fi_cq_err_entry error{};
    if (n == -FI_EAVAIL) (void)fi_cq_readerr(node.cq.get(), &error, 0);
    return n == 1;
  }));
  end_child(child);
}

// No deadlines: on a slow machine it takes minutes. With ThreadSanitizer, which sees one process
// alone, those would be many.
#if !defined(__SANITIZE_THREAD__)
TEST(FabricPeers, MayBeThreeHundred) {
  constexpr int kPeers = 300;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 10 * kPeers) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 10 * kPeers);
    if (::setrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur < 10 * kPeers) {
      GTEST_SKIP() << "too few open files are allowed (ulimit -n)";
    }
  }
  // libfabric loads its providers once, before the forks
  ASSERT_NE(get_info(make_hints()), nullptr);
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kPeers; ++i) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<char> server(16);
    if (::read(fds[0], server.data(), server.size()) != static_cast<ssize_t>(server.size()))
      ::_exit(2);
    Node node({.wait = FI_WAIT_FD});
    node.enable();
    const fi_addr_t to = node.insert(server);
    int answer = 0;
    fi_cq_tagged_entry entry;
    const auto own = node.name();
    // Its address first, then its number.
    bool good = fi_trecv(node.ep.get(), &answer, sizeof answer, nullptr, FI_ADDR_UNSPEC, 2, 0,
                         nullptr) == 0;
    ssize_t sent = -FI_EAGAIN;
    while (good && (sent = fi_tinject(node.ep.get(), own.data(), own.size(), to, 1)) == -FI_EAGAIN)
      (void)fi_cq_read(node.cq.get(), &entry, 0);
    good = good && sent == 0;
    good = good && fi_cq_sread(node.cq.get(), &entry, 1, nullptr, -1) == 1;
    ::_exit(good && answer == 4711 ? 0 : 1);
  }
  Node node;
  node.enable();
  const auto name = node.name();
  ASSERT_EQ(name.size(), 16u);
  for (int i = 0; i < kPeers; ++i) ASSERT_EQ(::write(fds[1], name.data(), 16), 16);
  const int answer = 4711;
  for (int i = 0; i < kPeers; ++i) {
    std::vector<char> peer(16);
    ASSERT_EQ(fi_trecv(node.ep.get(), peer.data(), 16, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
    ssize_t n = 0;
    fi_cq_tagged_entry entry;
    fi_cq_err_entry error{};
    while ((n = fi_cq_read(node.cq.get(), &entry, 1)) == -FI_EAGAIN) std::this_thread::yield();
    // It is not in the vector yet: that is how such a message is reported. (It may have the port of
    // one that has ended.)
    if (n != 1) {
      ASSERT_EQ(n, -FI_EAVAIL);
      ASSERT_EQ(fi_cq_readerr(node.cq.get(), &error, 0), 1);
      ASSERT_EQ(error.err, FI_EADDRNOTAVAIL);
    }
    ASSERT_EQ(fi_tinject(node.ep.get(), &answer, sizeof answer, node.insert(peer), 2), 0) << i;
  }
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  ::close(fds[0]);
  ::close(fds[1]);
}
#endif

// Bytes of /proc/self/status's line.
long status_kib(const char* line) {
  std::ifstream status("/proc/self/status");
  for (std::string l; std::getline(status, l);) {
    if (l.starts_with(line)) return std::atol(l.c_str() + std::strlen(line));
  }
  return 0;
}

TEST(FabricPeers, MayBeThreeHundredEndpointsOfOneDomain) {
  constexpr int kEndpoints = 300;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 4 * kEndpoints) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4 * kEndpoints);
    if (::setrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur < 4 * kEndpoints) {
      GTEST_SKIP() << "too few open files are allowed (ulimit -n)";
    }
  }
  Node hub({.wait = FI_WAIT_FD}), many({.wait = FI_WAIT_FD});
  hub.enable();
  many.enable();
  const long before = status_kib("VmRSS:");
  std::vector<Object<fid_ep>> endpoints;
  std::vector<fi_addr_t> to_endpoint;
  for (int i = 0; i < kEndpoints; ++i) {
    fid_ep* ep;
    ASSERT_EQ(fi_endpoint(many.domain.get(), many.info.get(), &ep, nullptr), 0) << i;
    endpoints.emplace_back(ep);
    ASSERT_EQ(fi_ep_bind(ep, &many.cq->fid, FI_TRANSMIT | FI_RECV), 0);
    ASSERT_EQ(fi_ep_bind(ep, &many.av->fid, 0), 0);
    ASSERT_EQ(fi_enable(ep), 0) << i;
    std::vector<char> name(64);
    std::size_t length = name.size();
    ASSERT_EQ(fi_getname(&ep->fid, name.data(), &length), 0);
    name.resize(length);
    to_endpoint.push_back(hub.insert(name));
  }
  const fi_addr_t hub_address = many.insert(hub.name());
  const long made = status_kib("VmRSS:");
  // Each says its number to the hub, which answers it with the double.
  std::vector<int> answers(kEndpoints);
  for (int i = 0; i < kEndpoints; ++i) {
    ASSERT_EQ(fi_trecv(endpoints[static_cast<std::size_t>(i)].get(),
                       &answers[static_cast<std::size_t>(i)], sizeof(int), nullptr, FI_ADDR_UNSPEC,
                       2, 0, nullptr),
              0);
    ASSERT_EQ(sent(
                  [&] {
                    return fi_tinject(endpoints[static_cast<std::size_t>(i)].get(), &i, sizeof i,
                                      hub_address, 1);
                  },
                  many),
              0);
  }
  fi_cq_tagged_entry entry;
  for (int i = 0; i < kEndpoints; ++i) {
    int number = -1;
    fi_addr_t source = FI_ADDR_NOTAVAIL;
    ASSERT_EQ(
        fi_trecv(hub.ep.get(), &number, sizeof number, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
    ASSERT_EQ(fi_cq_sreadfrom(hub.cq.get(), &entry, 1, &source, nullptr, 20'000), 1) << i;
    ASSERT_TRUE(number >= 0 && number < kEndpoints);
    EXPECT_EQ(source, to_endpoint[static_cast<std::size_t>(number)]);
    const int twice = 2 * number;
    ASSERT_EQ(sent([&] { return fi_tinject(hub.ep.get(), &twice, sizeof twice, source, 2); }, hub),
              0);
  }
  for (int i = 0; i < kEndpoints; ++i) {
    ASSERT_EQ(fi_cq_sread(many.cq.get(), &entry, 1, nullptr, 20'000), 1) << i;
  }
  for (int i = 0; i < kEndpoints; ++i) EXPECT_EQ(answers[static_cast<std::size_t>(i)], 2 * i);
  const long connected = status_kib("VmRSS:");
  const auto each = [](long kib) { return static_cast<int>(kib / kEndpoints); };
  RecordProperty("kib_per_endpoint", each(made - before));
  RecordProperty("kib_per_connection_both_sides", each(connected - made));
  std::printf("resident: %d KiB for an endpoint, %d KiB for a connection, both sides of it\n",
              each(made - before), each(connected - made));
#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // which have shadows of all memory
  EXPECT_LT(each(connected - before), 256);
#endif
}

TEST(FabricPeers, ThatNeverWereAreRefused) {
  Node node;
  node.enable();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(1);
  fi_addr_t to = 0;
  ASSERT_EQ(fi_av_insert(node.av.get(), &address, 1, &to, 0, nullptr), 1);
  EXPECT_EQ(fi_inject(node.ep.get(), "x", 1, to), -FI_ECONNREFUSED);
  address.sin_addr.s_addr = htonl(0xc6336407);  // 198.51.100.7: for documents, nobody's
  ASSERT_EQ(fi_av_insert(node.av.get(), &address, 1, &to, 0, nullptr), 1);
  EXPECT_EQ(fi_inject(node.ep.get(), "x", 1, to), -FI_EHOSTUNREACH);
}

}  // namespace
}  // namespace clan::test
