// The load program of `clan bench rpc`: a server and a client of a service that echoes bytes, by
// libtirpc's public interface. Its caller says which libraries are loaded.
//
//   clan-rpc-load tcp|udp|local SERVER_CORE CLIENT_CORE   as calls.h has it; kinds: echo (in and
//       out), sink (in only), xdr (libtirpc's XDR alone for one echo: arguments and results, each
//       encoded and decoded)
//   clan-rpc-load tcp|udp|local crowd CLIENTS MS    says calls per second of all clients together,
//       and the microseconds of CPU time of a call, of server and clients
#include <rpc/rpc.h>
#include <sys/un.h>

#include <atomic>

#include "calls.h"

namespace {

using namespace clan::bench;

constexpr rpcprog_t kProgram = 0x2fabc002;
constexpr rpcvers_t kVersion = 1;
constexpr rpcproc_t kEcho = 1, kSink = 2;
constexpr u_int kMost = 64u << 20;
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
  sockaddr_in address = address_of("127.0.0.1", 0);
  socklen_t length = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail("bind");
  }
  if (stream) listen(fd, 64);
  place->port = ntohs(address.sin_port);
  return fd;
}

void run_server(const Place& place, int fd, int core, int ready) {
  pin(core);
  SVCXPRT* xprt = nullptr;
  if (place.transport == "local") {
    std::string path = place.path;
    xprt = svcunix_create(RPC_ANYSOCK, 0, 0, path.data());
  } else {
    xprt = svc_tli_create(fd, nullptr, nullptr, 0, 0);
  }
  if (xprt == nullptr || svc_reg(xprt, kProgram, kVersion, serve, nullptr) == FALSE) fail("server");
  if (write(ready, "x", 1) != 1) fail("write");
  svc_run();
}

CLIENT* connected(const Place& place) {
  int fd = RPC_ANYSOCK;
  if (place.transport == "local") {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::strncpy(to.sun_path, place.path.c_str(), sizeof to.sun_path - 1);
    return clntunix_create(&to, kProgram, kVersion, &fd, 0, 0);
  }
  sockaddr_in to = address_of("127.0.0.1", place.port);
  return place.transport == "tcp" ? clnttcp_create(&to, kProgram, kVersion, &fd, 0, 0)
                                  : clntudp_create(&to, kProgram, kVersion, timeval{5, 0}, &fd);
}

struct Client {
  static constexpr int kBatch = 4;
  CLIENT* handle;
  std::vector<char> sent{}, encoded{};

  explicit Client(const Place& place) : handle(connected(place)) {
    if (handle == nullptr) fail("client");
    begin("echo", 8);
  }
  void begin(const std::string&, u_int size) {
    sent.resize(std::max<std::size_t>(size, 8));
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 7 + 1);
  }
  void end() {}

  void call(const std::string& kind, u_int size) {
    if (kind == "xdr") return translate(size);
    Bytes in{sent.data(), size}, out{};
    const bool null = size == 0 && kind == "echo";
    if (null || kind == "sink") {
      const auto void_ = routine(xdr_void);
      return check(
          null ? clnt_call(handle, NULLPROC, void_, nullptr, void_, nullptr, kPatience)
               : clnt_call(handle, kSink, routine(xdr_bytes_of), &in, void_, nullptr, kPatience));
    }
    check(clnt_call(handle, kEcho, routine(xdr_bytes_of), &in, routine(xdr_bytes_of), &out,
                    kPatience));
    if (out.size != size ||
        (size > 0 && (out.data[0] != in.data[0] || out.data[size - 1] != in.data[size - 1])))
      give_up("echo", "not what was sent");
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
    give_up("call", clnt_sperror(handle, ""));
  }
};

int pair_of_processes(Place place, int server_core, int client_core) {
  const int fd = bound(&place);
  const pid_t server = start_server([&](int ready) { run_server(place, fd, server_core, ready); });
  pin(client_core);
  Client client(place);
  answer_lines(client, server);
  clnt_destroy(client.handle);
  end_child(server);
  if (!place.path.empty()) unlink(place.path.c_str());
  return 0;
}

int crowd(Place place, int clients, int ms) {
  auto* counts = static_cast<std::atomic<long>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const int fd = bound(&place);
  const pid_t server = start_server([&](int ready) { run_server(place, fd, -1, ready); });
  std::vector<pid_t> started;
  std::atomic<long>& go = counts[clients];
  for (int i = 0; i < clients; ++i) {
    const pid_t child = start_child();
    if (child == 0) {
      Client client(place);
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
    double all = cpu_ns_of(server);
    for (const pid_t child : started) all += cpu_ns_of(child);
    return all / 1000;
  };
  const double before = calls(), used = cpu_us();
  const double begin = now_us();
  usleep(static_cast<useconds_t>(ms) * 1000);
  const double done = calls() - before, seconds = (now_us() - begin) * 1e-6;
  std::printf("%.1f %.4f\n", done / seconds, (cpu_us() - used) / std::max(done, 1.0));
  for (const pid_t child : started) kill(child, SIGKILL);
  for (const pid_t child : started) end_child(child);
  end_child(server);
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
