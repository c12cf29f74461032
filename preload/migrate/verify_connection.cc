#include "migrate/verify_connection.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>

#include "clan/detail/log.h"
#include "os/config.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

constexpr int kEstablished = 1;  // TCP_ESTABLISHED
constexpr int kLooks = 3;        ///< at the counters, in one call

/// Bytes that the other end may send between its answer and ours, while bytes come in.
constexpr std::uint64_t kMostUnderWay = 1u << 20;

struct Counters : TcpCounters {
  std::uint8_t state = 0;
};

Counters counters_of(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  const int rc = sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size);
  return {counters_in(info, rc == 0 ? size : 0), info.tcpi_state};
}

// Each end has received what the other has sent, but for bytes under way between the looks.
bool agree(const Counters& before, const SockDiag::Found& theirs, const Counters& after) {
  // The SYN counts among the bytes acknowledged.
  const std::uint64_t acked = before.acked - (before.acked > 0 ? 1 : 0);
  if (theirs.received < acked || theirs.received > after.sent) return false;
  const std::uint64_t slack = after.received != before.received ? kMostUnderWay : 0;
  const std::uint64_t told = theirs.acked - (theirs.acked > 0 ? 1 : 0);
  return theirs.sent >= before.received && theirs.sent <= after.received + slack &&
         told <= after.received;
}

}  // namespace

Verdict compare(int fd, const Route& r, SockDiag& window, std::uint32_t interface, uid_t peer) {
  for (int look = 0; look < kLooks; ++look) {
    if (look > 0) sched_yield();
    const Counters before = counters_of(fd);
    SockDiag::Found theirs;
    if (window.ask(r.remote, r.local, interface, &theirs) != SockDiag::Answer::kFound ||
        !(theirs.local == r.remote) || !(theirs.remote == r.local)) {
      CLAN_INFO(
          "fd %d: where an offer of shared memory comes from the kernel knows of no such "
          "connection; refused",
          fd);
      return Verdict::kOther;
    }
    const Counters after = counters_of(fd);
    if (theirs.state != kEstablished || after.state != kEstablished || !theirs.counted ||
        !after.counted) {
      return Verdict::kOther;
    }
    // Closed meanwhile: it has no owner, and uid is none.
    if (theirs.inode == 0) return Verdict::kOther;
    if (theirs.uid != peer) {
      CLAN_WARN("user %u offered shared memory for a connection of user %u; refused", peer,
                theirs.uid);
      return Verdict::kOther;
    }
    if (agree(before, theirs, after)) return Verdict::kSame;
  }
  return Verdict::kUnderWay;
}

bool allowed_peer(int rendezvous, uid_t* uid) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (sys::getsockopt(rendezvous, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
  *uid = credentials.uid;
  return config().allows_uid(credentials.uid);
}

}  // namespace clan::preload
