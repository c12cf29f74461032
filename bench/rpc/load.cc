// The load program of `clan bench rpc`: a server and a client of a service that echoes bytes, by
// libtirpc's public interface and nothing else. Which transport and which libraries are loaded is
// its caller's business.
//
//   clan-rpc-load tcp|udp|local SERVER_CORE CLIENT_CORE
//       says "ready SERVER_PID"; then answers each line "KIND BYTES MS" with "MIN MEDIAN KEPT
//       DROPPED SHARED CPU", microseconds per call; CPU is that of both processes.
//       Kinds: echo (in and out), sink (in only), xdr (what
//       libtirpc's XDR alone takes for one echo, in this process: arguments and results, each
//       encoded and decoded)
//   clan-rpc-load tcp|udp|local crowd CLIENTS MS    says calls per second of all clients together,
//       and the microseconds of CPU time of a call, of server and clients
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rpc/rpc.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "transports/slices.h"

namespace {

constexpr rpcprog_t kProgram = 0x2fabc002;
constexpr rpcvers_t kVersion = 1;
constexpr rpcproc_t kEcho = 1, kSink = 2;
constexpr u_int kMost = 64u << 20;
constexpr int kSlices = 9;
constexpr timeval kPatience{25, 0};

struct Bytes {
  char* data;
  u_int size;
};

bool_t xdr_bytes_of(XDR* xdrs, Bytes* bytes) {
  return xdr_bytes(xdrs, &bytes->data, &bytes->size, kMost);
}

template <typename Function>
xdrproc_t routine(Function* function) {
  return reinterpret_cast<xdrproc_t>(reinterpret_cast<void (*)()>(function));
}

void serve(svc_req* request, SVCXPRT* xprt) {
  Bytes bytes{};
  switch (request->rq_proc) {
    case NULLPROC: svc_sendreply(xprt, routine(xdr_void), nullptr); return;
    case kEcho:
    case kSink:
      if (svc_getargs(xprt, routine(xdr_bytes_of), &bytes) == FALSE) {
        svcerr_decode(xprt);
        return;
      }
      if (request->rq_proc == kEcho) {
        svc_sendreply(xprt, routine(xdr_bytes_of), &bytes);
      } else {
        svc_sendreply(xprt, routine(xdr_void), nullptr);
      }
      svc_freeargs(xprt, routine(xdr_bytes_of), &bytes);
      return;
    default: svcerr_noproc(xprt);
  }
}

void pin(int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

struct Place {
  std::string transport;
  std::uint16_t port = 0;
  std::string path;
};

// Binds in the parent, so that the child's clients know where; made into a transport by the server.
int bound(Place* place) {
  if (place->transport == "local") return RPC_ANYSOCK;
  const bool stream = place->transport == "tcp";
  const int fd = socket(AF_INET, stream ? SOCK_STREAM : SOCK_DGRAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    die("bind");
  }
  if (stream) listen(fd, 64);
  place->port = ntohs(address.sin_port);
  return fd;
}

[[noreturn]] void run_server(const Place& place, int fd, int core, int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin(core);
  SVCXPRT* xprt = nullptr;
  if (place.transport == "local") {
    std::string path = place.path;
    xprt = svcunix_create(RPC_ANYSOCK, 0, 0, path.data());
  } else {
    xprt = svc_tli_create(fd, nullptr, nullptr, 0, 0);
  }
  if (xprt == nullptr || svc_reg(xprt, kProgram, kVersion, serve, nullptr) == FALSE) die("server");
  if (write(ready, "x", 1) != 1) die("write");
  svc_run();
  std::exit(1);
}

CLIENT* connected(const Place& place) {
  int fd = RPC_ANYSOCK;
  if (place.transport == "local") {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::strncpy(to.sun_path, place.path.c_str(), sizeof to.sun_path - 1);
    return clntunix_create(&to, kProgram, kVersion, &fd, 0, 0);
  }
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(place.port);
  return place.transport == "tcp" ? clnttcp_create(&to, kProgram, kVersion, &fd, 0, 0)
                                  : clntudp_create(&to, kProgram, kVersion, timeval{5, 0}, &fd);
}

struct Client {
  CLIENT* handle;
  std::vector<char> sent;
  std::vector<char> encoded{};

  void call(const char* kind, u_int size) {
    if (std::strcmp(kind, "xdr") == 0) return translate(size);
    if (size == 0 && std::strcmp(kind, "echo") == 0) {
      check(clnt_call(handle, NULLPROC, routine(xdr_void), nullptr, routine(xdr_void), nullptr,
                      kPatience));
      return;
    }
    Bytes in{sent.data(), size}, out{};
    if (std::strcmp(kind, "sink") == 0) {
      check(clnt_call(handle, kSink, routine(xdr_bytes_of), &in, routine(xdr_void), nullptr,
                      kPatience));
      return;
    }
    check(clnt_call(handle, kEcho, routine(xdr_bytes_of), &in, routine(xdr_bytes_of), &out,
                    kPatience));
    if (out.size != size ||
        (size > 0 && (out.data[0] != in.data[0] || out.data[size - 1] != in.data[size - 1]))) {
      std::fprintf(stderr, "the echo is not what was sent\n");
      std::exit(1);
    }
    clnt_freeres(handle, routine(xdr_bytes_of), &out);
  }

  // As much XDR as both ends do for one call.
  void translate(u_int size) {
    if (size == 0) return;
    encoded.resize(size + 8);
    for (int message = 0; message < 2; ++message) {
      Bytes in{sent.data(), size}, out{};
      XDR xdrs;
      xdrmem_create(&xdrs, encoded.data(), static_cast<u_int>(encoded.size()), XDR_ENCODE);
      xdr_bytes_of(&xdrs, &in);
      xdrmem_create(&xdrs, encoded.data(), static_cast<u_int>(encoded.size()), XDR_DECODE);
      xdr_bytes_of(&xdrs, &out);
      clnt_freeres(handle, routine(xdr_bytes_of), &out);
    }
  }

  void check(enum clnt_stat stat) {
    if (stat == RPC_SUCCESS) return;
    std::fprintf(stderr, "%s\n", clnt_sperror(handle, "call"));
    std::exit(1);
  }

  void prepare(u_int size) {
    sent.resize(std::max<std::size_t>(size, 8));
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 7 + 1);
  }
};

void measure(Client& client, const char* kind, u_int size, int ms, pid_t server) {
  client.prepare(size);
  const double slice_us = ms * 1000.0 / kSlices;
  for (const double end = now_us() + slice_us; now_us() < end;) client.call(kind, size);
  clan::bench::Slices slices;
  const double limit = now_us() + 5 * ms * 1000.0;
  while (slices.calm() < kSlices && (now_us() < limit || slices.all() < 3)) {
    const clan::bench::Slice slice;
    const double its = clan::bench::cpu_ns_of(server);
    const double begin = now_us();
    double at = begin;
    int calls = 0;
    while (at - begin < slice_us) {
      for (int i = 0; i < 4; ++i) client.call(kind, size);
      calls += 4;
      at = now_us();
    }
    clan::bench::Spent spent = slice.spent();
    spent.cpu_us += (clan::bench::cpu_ns_of(server) - its) / 1000;
    slices.add((at - begin) / calls, spent, calls);
  }
  print(slices.figure());
}

int pair_of_processes(Place place, int server_core, int client_core) {
  int ready[2];
  if (pipe(ready) != 0) die("pipe");
  const int fd = bound(&place);
  const pid_t server = fork();
  if (server == 0) run_server(place, fd, server_core, ready[1]);
  char byte;
  if (read(ready[0], &byte, 1) != 1) die("server");
  pin(client_core);
  Client client{connected(place), {}};
  if (client.handle == nullptr) die("client");
  client.prepare(8);
  for (int i = 0; i < 100; ++i) client.call("echo", 8);
  std::printf("ready %d\n", server);
  std::fflush(stdout);
  char kind[16];
  unsigned size;
  int ms;
  while (std::scanf("%15s %u %d", kind, &size, &ms) == 3) measure(client, kind, size, ms, server);
  clnt_destroy(client.handle);
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  if (!place.path.empty()) unlink(place.path.c_str());
  return 0;
}

int crowd(Place place, int clients, int ms) {
  int ready[2];
  if (pipe(ready) != 0) die("pipe");
  auto* counts = static_cast<std::atomic<long>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const int fd = bound(&place);
  const pid_t server = fork();
  if (server == 0) run_server(place, fd, -1, ready[1]);
  char byte;
  if (read(ready[0], &byte, 1) != 1) die("server");
  std::vector<pid_t> started;
  std::atomic<long>& go = counts[clients];
  for (int i = 0; i < clients; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Client client{connected(place), {}};
      if (client.handle == nullptr) die("client");
      client.prepare(8);
      for (int n = 0; n < 20; ++n) client.call("echo", 8);
      go.fetch_add(1);
      for (;;) {
        client.call("echo", 8);
        counts[i].fetch_add(1, std::memory_order_relaxed);
      }
    }
    started.push_back(child);
  }
  while (go.load() < clients) usleep(1000);
  usleep(20'000);
  const auto calls = [&] {
    long all = 0;
    for (int i = 0; i < clients; ++i) all += counts[i].load();
    return static_cast<double>(all);
  };
  const auto cpu_us = [&] {
    double all = clan::bench::cpu_ns_of(server);
    for (const pid_t child : started) all += clan::bench::cpu_ns_of(child);
    return all / 1000;
  };
  const double before = calls(), used = cpu_us();
  const double begin = now_us();
  usleep(static_cast<useconds_t>(ms) * 1000);
  const double done = calls() - before, seconds = (now_us() - begin) * 1e-6;
  std::printf("%.1f %.4f\n", done / seconds, (cpu_us() - used) / std::max(done, 1.0));
  for (const pid_t child : started) kill(child, SIGKILL);
  kill(server, SIGKILL);
  while (wait(nullptr) > 0) continue;
  if (!place.path.empty()) unlink(place.path.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  Place place{argv[1], 0, {}};
  if (place.transport == "local") place.path = "/tmp/clan-rpc-load-" + std::to_string(getpid());
  if (std::strcmp(argv[2], "crowd") == 0 && argc == 5)
    return crowd(place, std::atoi(argv[3]), std::atoi(argv[4]));
  return pair_of_processes(place, std::atoi(argv[2]), std::atoi(argv[3]));
}
