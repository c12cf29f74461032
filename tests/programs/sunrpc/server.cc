// A server of every.x, made with rpcgen and libtirpc alone: nothing here knows CLAN.
//
//   sunrpc-server [any] [tcp] [udp] [unix:PATH] [old] [loop:run|select|poll|threads] [rpcbind]
//                 [gss:SERVICE@HOST]
//
// Says "ready tcp=PORT udp=PORT" when it serves. `any`: on all addresses, not on loopback alone.
// `old`: by the creation calls of the old interface. `threads`: a second thread answers SLEEP.
// `rpcbind`: registers with it. `gss`: takes calls with RPCSEC_GSS as that service.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <rpc/pmap_clnt.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "every.h"

extern "C" void every_1(struct svc_req*, SVCXPRT*);
extern "C" void every_2(struct svc_req*, SVCXPRT*);
// <rpc/rpcsec_gss.h> takes Kerberos' headers
extern "C" bool_t rpc_gss_set_svc_name(char*, char*, u_int, u_int, u_int);

namespace {

int told = 0;
long served = 0;
SVCXPRT* current = nullptr;
SVCXPRT* other = nullptr;  ///< served before the current one

struct Later {
  SVCXPRT* xprt;
  int ms;
};
bool threads = false;
std::mutex mutex;
std::condition_variable changed;
std::deque<Later> later;

void answer_later() {
  for (;;) {
    Later job;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [] { return !later.empty(); });
      job = later.front();
      later.pop_front();
    }
    usleep(static_cast<useconds_t>(job.ms) * 1000);
    svc_sendreply(job.xprt, reinterpret_cast<xdrproc_t>(reinterpret_cast<void (*)()>(xdr_int)),
                  &job.ms);
  }
}

void poll_once(int ms) {
  std::vector<pollfd> fds(svc_pollfd, svc_pollfd + svc_max_pollfd);
  const int ready = poll(fds.data(), fds.size(), ms);
  if (ready > 0) svc_getreq_poll(fds.data(), ready);
}

void dispatch(struct svc_req* request, SVCXPRT* xprt) {
  if (current != xprt) other = std::exchange(current, xprt);
  ++served;
  if (request->rq_vers == EVERY_OLD) {
    every_1(request, xprt);
  } else {
    every_2(request, xprt);
  }
}

}  // namespace

extern "C" {

void* every_null_1_svc(void*, svc_req*) {
  static char nothing;
  return &nothing;
}
void* nullproc_new_2_svc(void*, svc_req*) {
  static char nothing;
  return &nothing;
}
int* every_negate_1_svc(int* value, svc_req*) {
  static int result;
  result = -*value;
  return &result;
}
int* negate_2_svc(int* value, svc_req* request) { return every_negate_1_svc(value, request); }

// Results that are arguments as well: rpcgen frees the arguments after the reply has been sent.
blob* echo_2_svc(blob* value, svc_req*) { return value; }

everything* turn_2_svc(everything* value, svc_req*) {
  value->one.a = -value->one.a;
  for (int& n : value->fixed) n = -n;
  return value;
}

answer* maybe_2_svc(everything* value, svc_req*) {
  static answer result;
  result.status = value->one.a == 0 ? 1 : 0;
  result.answer_u.same = *value;
  return &result;
}

u_int* count_2_svc(blob* value, svc_req*) {
  static u_int result;
  result = 0;
  for (u_int i = 0; i < value->blob_len; ++i)
    result += static_cast<unsigned char>(value->blob_val[i]);
  return &result;
}

credential* who_2_svc(void*, svc_req* request) {
  static credential result;
  static char machine[256];
  static u_int groups[16];
  static char caller[128];
  result = {};
  result.flavor = request->rq_cred.oa_flavor;
  machine[0] = 0;
  result.machine = machine;
  if (result.flavor == AUTH_SYS) {
    const auto* unix_cred = reinterpret_cast<const authunix_parms*>(request->rq_clntcred);
    result.uid = unix_cred->aup_uid;
    result.gid = unix_cred->aup_gid;
    result.groups.groups_len = unix_cred->aup_len;
    for (u_int i = 0; i < unix_cred->aup_len; ++i) groups[i] = unix_cred->aup_gids[i];
    result.groups.groups_val = groups;
    std::snprintf(machine, sizeof machine, "%s", unix_cred->aup_machname);
  }
  const netbuf* from = svc_getrpccaller(request->rq_xprt);
  result.caller.caller_len = from->len < sizeof caller ? from->len : sizeof caller;
  if (from->len > 0) std::memcpy(caller, from->buf, result.caller.caller_len);
  result.caller.caller_val = caller;
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(request->rq_xprt->xp_fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0)
    result.pid = peer.pid;
  return &result;
}

void* tell_2_svc(int* value, svc_req*) {
  told += *value;
  return nullptr;  // no reply
}
int* told_2_svc(void*, svc_req*) { return &told; }

int* sleep_2_svc(int* ms, svc_req* request) {
  static int result;
  result = *ms;
  if (threads) {
    std::lock_guard lock(mutex);
    later.push_back({request->rq_xprt, *ms});
    changed.notify_one();
    return nullptr;
  }
  usleep(static_cast<useconds_t>(*ms) * 1000);
  return &result;
}

int* call_back_2_svc(u_int* port, svc_req*) {
  static int result;
  result = 0;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<std::uint16_t>(*port));
  int fd = RPC_ANYSOCK;
  CLIENT* client = clnttcp_create(&to, EVERY, EVERY_OLD, &fd, 0, 0);
  if (client == nullptr) return &result;
  for (int i = 1; i <= 10; ++i) {
    if (const int* negated = every_negate_1(&i, client)) result += *negated;
  }
  clnt_destroy(client);
  return &result;
}

int* forked_2_svc(int* value, svc_req* request) {
  const pid_t child = fork();
  if (child == 0) {
    int result = *value + 1;
    svc_sendreply(request->rq_xprt,
                  reinterpret_cast<xdrproc_t>(reinterpret_cast<void (*)()>(xdr_int)), &result);
    _exit(0);
  }
  return nullptr;  // the child answers
}

void* leave_2_svc(int* how, svc_req*) {
  if (*how == SIGKILL || *how == SIGSTOP) raise(*how);
  if (*how == 1 && other != nullptr) {
    SVCXPRT* const gone = std::exchange(other, nullptr);
    svc_destroy(gone);
  }
  if (*how == 2) svc_exit();
  if (*how == 3) poll_once(0);
  if (*how == 0) std::exit(0);
  return nullptr;
}

// Its reply's verifier names the caller's credential by a word, as RFC 5531 allows.
int* shorten_2_svc(int* value, svc_req* request) {
  static char name[] = "abc";
  request->rq_xprt->xp_verf.oa_flavor = AUTH_SHORT;
  std::memset(request->rq_xprt->xp_verf.oa_base, 0, 16);
  XDR xdrs;
  xdrmem_create(&xdrs, request->rq_xprt->xp_verf.oa_base, MAX_AUTH_BYTES, XDR_ENCODE);
  opaque_auth shorthand{AUTH_SHORT, name, sizeof name};
  xdr_opaque_auth(&xdrs, &shorthand);
  request->rq_xprt->xp_verf.oa_length = XDR_GETPOS(&xdrs);
  return value;
}

quad_t* served_2_svc(void*, svc_req*) {
  static quad_t result;
  result = served;
  return &result;
}

}  // extern "C"

namespace {

in_addr_t listen_at = INADDR_LOOPBACK;

int bound_socket(int type, std::uint16_t* port) {
  const int fd = socket(AF_INET, type, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(listen_at);
  socklen_t length = sizeof address;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    std::perror("bind");
    std::exit(1);
  }
  if (type == SOCK_STREAM) listen(fd, 128);
  *port = ntohs(address.sin_port);
  return fd;
}

void require(SVCXPRT* xprt, const char* what) {
  if (xprt == nullptr) {
    std::fprintf(stderr, "%s failed\n", what);
    std::exit(1);
  }
  if (svc_reg(xprt, EVERY, EVERY_OLD, dispatch, nullptr) == FALSE ||
      svc_reg(xprt, EVERY, EVERY_NEW, dispatch, nullptr) == FALSE) {
    std::fprintf(stderr, "svc_reg for %s failed\n", what);
    std::exit(1);
  }
}

void run_select() {
  while (svc_pollfd != nullptr) {
    fd_set fds = svc_fdset;
    timeval tick{1, 0};
    if (select(FD_SETSIZE, &fds, nullptr, nullptr, &tick) > 0) svc_getreqset(&fds);
  }
}

void run_poll() {
  while (svc_pollfd != nullptr) poll_once(1000);
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test may end while we are stopped
  std::uint16_t tcp = 0, udp = 0;
  std::string loop = "run", path, service;
  bool old = false, register_them = false, want_tcp = false, want_udp = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "tcp") want_tcp = true;
    if (word == "udp") want_udp = true;
    if (word == "any") listen_at = INADDR_ANY;
    if (word == "old") old = true;
    if (word == "rpcbind") register_them = true;
    if (word.starts_with("unix:")) path = word.substr(5);
    if (word.starts_with("loop:")) loop = word.substr(5);
    if (word.starts_with("gss:")) service = word.substr(4);
  }
  signal(SIGCHLD, SIG_IGN);
  if (register_them) {
    pmap_unset(EVERY, EVERY_NEW);
    if (svc_create(dispatch, EVERY, EVERY_NEW, "tcp") == 0 ||
        svc_create(dispatch, EVERY, EVERY_NEW, "udp") == 0) {
      return 1;
    }
  }
  if (want_tcp) {
    const int fd = bound_socket(SOCK_STREAM, &tcp);
    require(old ? svctcp_create(fd, 0, 0) : svc_tli_create(fd, nullptr, nullptr, 0, 0), "tcp");
  }
  if (want_udp) {
    const int fd = bound_socket(SOCK_DGRAM, &udp);
    require(old ? svcudp_create(fd) : svc_tli_create(fd, nullptr, nullptr, 0, 0), "udp");
  }
  if (!path.empty()) {
    std::vector<char> name(path.begin(), path.end());
    name.push_back(0);
    require(svcunix_create(RPC_ANYSOCK, 0, 0, name.data()), "unix");
  }
  char kerberos[] = "kerberos_v5";
  if (!service.empty() &&
      rpc_gss_set_svc_name(service.data(), kerberos, 0, EVERY, EVERY_NEW) == FALSE) {
    std::fprintf(stderr, "rpc_gss_set_svc_name failed\n");
    return 1;
  }
  if (loop == "threads") {
    threads = true;
    std::thread(answer_later).detach();
  }
  std::printf("ready tcp=%d udp=%d\n", tcp, udp);
  std::fflush(stdout);
  if (loop == "select") {
    run_select();
  } else if (loop == "poll") {
    run_poll();
  } else {
    svc_run();
  }
  return 0;
}
