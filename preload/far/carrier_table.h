// What the interposer and the carrier (libclan-carrier.so) say to each other: the table of calls
// that the carrier exports, and those that it makes.
//
// The carrier takes the bytes of a connection that has moved between this host and another one
// between a pipe and a stream of the engine. To the program's end of the pipe it is the other end.
// It is a library of its own, loaded when the first such connection is met, so that without
// CLAN_NET nothing of the network is in the process. Both are of one build: `version` says so.
#pragma once

#include <clan/pipe.h>
#include <clan/settings.h>
#include <netinet/in.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace clan::preload {

class Carried;  ///< a connection, for the carrier

struct CarrierSide {
  in6_addr address{};  ///< IPv4 ones mapped
  std::uint16_t port = 0;
};
/// Both ends of a TCP connection, as this one sees them.
struct CarrierNames {
  CarrierSide local, remote;
};

enum class CarrierStage : std::uint32_t {
  kMeeting,  ///< the other end has not come
  kMet,      ///< it has, and a pipe may be attached
  kCarried,
  kOver,    ///< ended, or gone back to TCP: nothing more comes through it
  kFailed,  ///< the other end will not come, or may not
};

/// What a thread of the program that sleeps in the kernel watches beside its own descriptors, if it
/// is the one that fetches packets meanwhile: it does as soon as one of these is readable.
struct PacketFds {
  static constexpr unsigned kMost = 2;
  int fd[kMost] = {};
  unsigned count = 0;  ///< 0: another thread does
};

/// Calls of a thread of the carrier, with the socket that dial() or await() named; none after
/// release().
struct CarrierCalls {
  /// The program is to look at its pipe.
  void (*ring)(void* socket);
  /// The other end is in its pipe: this direction may switch. False: a call is under way.
  bool (*may_switch)(void* socket);
  /// The other end knows where this one has switched: the parked byte may be sent (far/bell.h).
  void (*park)(void* socket);
  /// The other end has gone back to TCP, and all it sent lies in the pipe. Before kGone is said.
  void (*comes_back)(void* socket);
  /// This end is to go back, too.
  void (*answer)(void* socket);
  /// The way to the other host is gone, and bytes with it.
  void (*lost)(void* socket);
};

struct CarrierTable {
  std::uint32_t version;
  /// Null, or why there is no network.
  /// `key`: what has been read of the settings' key file, or empty; it stays where it is.
  const char* (*start)(const Settings& settings, std::string_view key, const CarrierCalls& calls);
  /// The end that connected looks for the other one; the end that accepted waits for it. Null: no
  /// memory or descriptors.
  Carried* (*dial)(const CarrierNames& names, void* socket);
  Carried* (*await)(const CarrierNames& names, void* socket);
  /// To be asked for now and then: dials again if the other end was not there.
  CarrierStage (*stage)(Carried* carried);
  /// Takes the end of the pipe that is not the program's. False: the other end has gone meanwhile.
  bool (*attach)(Carried* carried, Pipe* end);
  /// The program has done something to its pipe.
  void (*wake)(Carried* carried);
  /// A thread of the program waits, for whatever connection: it takes what has come of all of them.
  /// True: something has.
  bool (*look)();
  /// It goes to sleep, and fetches packets meanwhile if it may and no other does. False: there is
  /// something to look at first, and it has not begun to sleep.
  bool (*begin_sleep)(pid_t thread, bool may_fetch, PacketFds* watched);
  /// It has slept, and takes what has come if it `fetches`. True: something has. A thread that a
  /// signal handler has taken out of its sleep need not say so.
  bool (*end_sleep)(pid_t thread, bool fetches);
  /// The kernel says that the other end is gone: bytes may yet come, for a moment.
  void (*tcp_ended)(Carried* carried);
  /// The socket is gone, or is TCP's again. What is in its pipe is still sent.
  void (*release)(Carried* carried);
  /// The process ends: waits until all has been sent, for at most so long.
  void (*finish)(std::uint32_t ms);
  void (*before_fork)();
  void (*after_fork)(bool in_child);
};
constexpr std::uint32_t kCarrierVersion = 6;
constexpr char kCarrierSymbol[] = "clan_carrier_table";
constexpr char kCarrierLibrary[] = "libclan-carrier.so";
using CarrierTableOf = const CarrierTable*();

}  // namespace clan::preload
