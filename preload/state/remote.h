// Connections to other hosts (`clan run --net`). libclan-net.so carries them; the first one in use
// loads it. The interposer knows it by this table alone.
//
// The component acts as the other end of a local pipe and moves its bytes to the other host. Both
// libraries come from one build, which `version` checks.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "clan/face/pipe.h"
#include "clan/face/reasons.h"
#include "clan/face/settings.h"
#include "clan/face/wait.h"
#include "kernel/sock_diag.h"
#include "state/socket.h"
#include "table/open_file.h"

namespace clan::preload {

/// What the component may do to the program's sockets.
struct Interposer {
  /// Calls `what` with a descriptor of the socket, kept open meanwhile, and returns its answer;
  /// true if there is no descriptor.
  bool (*with)(Socket& s, bool (*what)(int fd, Socket& s));
  void (*for_each)(void (*what)(int fd, Socket& s, void* argument), void* argument);
  // See attach/attach.h, migrate/bells.h, tcp/ring.h, state/withdraw.h, tcp/tcp_backlog.h,
  // demote/demote_on_request.h and tcp/aborted.h.
  bool (*create_pipe)(int fd, Socket& s);
  bool (*make_own_bell)(Socket& s);
  bool (*enter_pipe)(int fd, Socket& s, const Route& route);
  bool (*ring)(Socket& s);
  void (*stay)(int fd, Socket& s, reasons::Why why, std::uint32_t number);
  bool (*switch_sending)(int fd, Socket& s);
  bool (*answer)(int fd, Socket& s);
  bool (*go)(int fd, Socket& s);
  void (*break_off)(int fd, Socket& s, const char* why);
};
extern constinit const Interposer interposer;

/// Descriptors that a sleeping thread also watches if it is the one that fetches packets.
struct PacketFds {
  static constexpr unsigned kMost = 2;
  int fd[kMost] = {};
  unsigned count = 0;  ///< 0: another thread fetches
};

struct RemoteConnections {
  std::uint32_t version;
  /// Returns null, or why there is no network.
  const char* (*start)(const Settings& settings, const Interposer& program);
  /// With `route`, looks for the other end; without, checks whether it has come. Then the socket
  /// enters a pipe.
  void (*move)(int fd, Socket& s, const Route* route);
  /// The socket is closed or back on TCP. What its pipe holds is still sent.
  void (*let_go)(Socket& s);
  /// The program has changed the pipe.
  void (*wake)(int fd, Socket& s);
  /// Fetches packets for all connections, in a thread that waits. True: some came.
  bool (*look)();
  /// A thread goes to sleep, and fetches packets if `may_fetch` and no other thread does. False: it
  /// has to check something first and has not begun to sleep.
  bool (*begin_sleep)(pid_t thread, bool may_fetch, PacketFds* watched);
  /// The thread has slept; if `fetches`, it fetches packets. True: some came. Optional after a
  /// signal handler has jumped out of the sleep.
  bool (*end_sleep)(pid_t thread, bool fetches);
  /// TCP reports that the peer is gone. True: the pipe holds everything it sent.
  bool (*is_all_there)(Socket& s);
  /// This end leaves, under Socket::moving: waits for the other host's part, and resets the
  /// connection if that takes too long.
  void (*leave)(int fd, Socket& s);
  /// The process ends: delivers what has been sent.
  void (*end)();
  void (*before_fork)();
  void (*after_fork)(bool in_child);
};
constexpr std::uint32_t kRemoteVersion = 2;
constexpr char kRemoteSymbol[] = "clan_remote_connections";
constexpr char kRemoteLibrary[] = "libclan-net.so";
using RemoteConnectionsOf = const RemoteConnections*();

/// Whether another host carries the connection.
// relaxed: written before the pipe is known
inline bool is_remote(const Socket& s) {
  return s.remote.load(std::memory_order_relaxed) != nullptr;
}
/// Waits for another host spin longer: a round trip takes longer, and a sleep costs two wake-ups.
constexpr WaitOptions kRemoteWait{.max_spin_us = 100};

bool remote_is_loaded();

// As in the table; no-ops for a local connection or if the component is not loaded.
void move_to_other_host(int fd, Socket& s, const Route* route);
void let_go_of_remote(Socket& s);
void wake_remote(int fd, Socket& s);
bool fetch_packets();
bool begin_packet_sleep(bool may_fetch, PacketFds* watched);
bool end_packet_sleep(bool fetches);
bool is_all_there(Socket& s);
void leave_other_host(int fd, Socket& s);
void end_remote();
void remote_before_fork();
void remote_after_fork(bool in_child);

inline bool fetch_for(const Socket& s) { return is_remote(s) && fetch_packets(); }

/// What is known of the peer as a process of this host. Nothing for a remote one: the component,
/// which writes in its place, may have run in this very thread.
inline PeerHint awaited_of(const Socket& s) {
  if (is_remote(s)) return {};
  return {s.pipe.peer_cpu(), s.rang.load(std::memory_order_relaxed)};
}

/// See Interposer::with.
bool with_descriptor(Socket& s, bool (*what)(int fd, Socket& s));

}  // namespace clan::preload
