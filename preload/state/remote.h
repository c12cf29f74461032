// Connections to other hosts (`clan run --net`). A library of its own, libclan-net.so, carries
// them; it is loaded when the first such connection is in use. The rooms of the interposer know it
// by this table alone, and a build without it has nothing to fill the table.
//
// To a program's end of a pipe the component is the other end: it moves bytes between that pipe and
// the other host. Both libraries are of one build, and `version` says so.
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

/// What the component does to sockets of the program.
struct Interposer {
  /// Calls `what` with a descriptor of the socket, for as long as it lives, and returns the answer;
  /// true if there is no descriptor.
  bool (*with)(Socket& s, bool (*what)(int fd, Socket& s));
  void (*for_each)(void (*what)(int fd, Socket& s, void* argument), void* argument);
  // See attach/attach.h, migrate/bells.h, tcp/ring.h, state/withdraw.h, tcp/tcp_backlog.h, demote/demote_on_request.h and
  // tcp/aborted.h.
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

/// What a thread that sleeps in the kernel watches beside its own descriptors, if it is the one
/// that fetches packets meanwhile: it does as soon as one of these is readable.
struct PacketFds {
  static constexpr unsigned kMost = 2;
  int fd[kMost] = {};
  unsigned count = 0;  ///< 0: another thread does
};

struct RemoteConnections {
  std::uint32_t version;
  /// Returns null, or why there is no network.
  const char* (*start)(const Settings& settings, const Interposer& program);
  /// Looks for the other end if `route` is given, and asks whether it has come if not. Then the
  /// socket enters a pipe.
  void (*move)(int fd, Socket& s, const Route* route);
  /// The socket is gone, or is TCP's again. What lies in its pipe is still sent.
  void (*let_go)(Socket& s);
  /// The program has done something to its pipe.
  void (*wake)(int fd, Socket& s);
  /// Takes what has come for all connections, by a thread that waits. True: something has.
  bool (*look)();
  /// A thread goes to sleep, and fetches packets meanwhile if it may and no other does. False:
  /// there is something to check first, and it has not begun to sleep.
  bool (*begin_sleep)(pid_t thread, bool may_fetch, PacketFds* watched);
  /// It has slept, and takes what has come if it `fetches`. True: something has. A thread that a
  /// signal handler has taken out of its sleep need not say so.
  bool (*end_sleep)(pid_t thread, bool fetches);
  /// TCP says that the other end is gone. True: all that came from it lies in the pipe.
  bool (*is_all_there)(Socket& s);
  /// This end has said that it leaves, under Socket::moving: waits until the other host has done
  /// its part, and resets the connection if that takes too long.
  void (*leave)(int fd, Socket& s);
  /// The process ends: what has been sent is to arrive.
  void (*end)();
  void (*before_fork)();
  void (*after_fork)(bool in_child);
};
constexpr std::uint32_t kRemoteVersion = 2;
constexpr char kRemoteSymbol[] = "clan_remote_connections";
constexpr char kRemoteLibrary[] = "libclan-net.so";
using RemoteConnectionsOf = const RemoteConnections*();

/// The connection is, or was when somebody checked, carried to another host.
// relaxed: written before the pipe is known
inline bool is_remote(const Socket& s) {
  return s.remote.load(std::memory_order_relaxed) != nullptr;
}
/// Options of waits for another host: a round trip takes longer, and one that sleeps costs two
/// wake-ups.
constexpr WaitOptions kRemoteWait{.max_spin_us = 100};

/// The component has been loaded by this process.
bool remote_is_loaded();

// As in the table; nothing where the connection is not remote, or the component not loaded.
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

/// Says what is known of the other end, as a process of this host. The component, which writes in
/// its place, may have been this very thread.
inline PeerHint awaited_of(const Socket& s) {
  if (is_remote(s)) return {};
  return {s.pipe.peer_cpu(), s.rang.load(std::memory_order_relaxed)};
}

/// See Interposer::with.
bool with_descriptor(Socket& s, bool (*what)(int fd, Socket& s));

}  // namespace clan::preload
