// What the director of the differential test (differential.cc) and its actors
// (differential_actor.cc) say to each other.
//
// The director owns no TCP socket. It sends one Command at a time to the actor that plays the
// server or the client, over a SOCK_SEQPACKET pair, and prints the Reply; so everything happens in
// an order that depends on the seed alone. Two actors are busy at once only in steps whose Replies
// do not depend on their timing.
#pragma once

#include <cstdint>
#include <string>

namespace clan::interpose_test {

enum class Op : std::int32_t {
  kListen,      // how: family; result: port
  kConnect,     // how: family, a: port, b: 1 non-blocking
  kRefused,     // how: family
  kAccept,      // how: 0 accept, 1 accept4 with flags, 2 poll first, 3 non-blocking listener
  kSend,        // offset, bytes, how: method, a: flags
  kReceive,     // offset, bytes: size of the buffer, how: method, a: flags, b: bytes that must have
                // arrived
  kTransfer,    // sends bytes[0] and receives bytes[1] at once; how[], chunk[]
  kPing,        // a: rounds, b: 1 begins; bytes: size
  kWait,        // how: method, a: timeout in ms, b: poll events
  kEpollStory,  // how: 0 level, 1 edge, 2 oneshot, 3 nested; b: bytes that must have arrived (> 0)
  kEpollArm,    // edge-triggered registration before the bytes come
  kEpollCheck,  // b: bytes that must have arrived
  kInput,       // FIONREAD until it says b
  kOutput,      // SIOCOUTQ until it says 0
  kBlocking,    // how: 0 fcntl off, 1 fcntl on, 2 FIONBIO off, 3 FIONBIO on (on: non-blocking)
  kTimeout,     // SO_RCVTIMEO expires
  kInterrupt,   // EINTR by an interval timer; how: 0 recv, 1 poll, 2 epoll_wait, 3 select
  kRestarted,   // kInterrupt with SA_RESTART: receives `bytes` that are sent meanwhile
  kLowWater,    // SO_RCVLOWAT = a, b bytes there: readable?
  kNames,
  kOptions,
  kOddCalls,
  kDuplicate,  // how: call, a: 1 keeps the old one as the spare
  kSwap,       // goes on with the spare
  kCloseSpare,
  kFork,   // how: 1 the parent closes its own
  kSpawn,  // how: 0 posix_spawn, 1 vfork and exec; a: 1 without preload
  kExec,   // a: 1 without preload
  kLeave,  // ends a forked child: its parent goes on; how: 0 _exit, 1 exit
  kPass,   // SCM_RIGHTS to the understudy; how: 0 closes at once
  kTake,
  kLineOut,  // fdopen + fprintf
  kLineIn,   // fdopen + fgets
  kFill,     // sends until EAGAIN; how: 0 MSG_DONTWAIT, 1 SO_SNDTIMEO; result: bytes
  kDrain,    // receives a bytes of it
  kSigioArm,
  kSigioCheck,
  kUrgentOut,
  kUrgentIn,
  kShutdown,     // how
  kClose,        // how: 0 close, 1 close_range, 2 SO_LINGER 0, 3 dup2 over it
  kReadToEnd,    // b: bytes before the end
  kSendForever,  // until it is killed
  kReadAll,      // until the end; says only what does not depend on when that was
  kWriteDead,    // the peer has closed: a write, and another when the answer has come; how: 1
                 // MSG_NOSIGNAL
  kResetEnd,     // b bytes, then ECONNRESET
  kDie,          // SIGKILL to itself
  kQuit,
};

struct Command {
  Op op = Op::kQuit;
  std::int32_t how = 0;
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::uint64_t key_out = 0;  // of the pattern in each direction
  std::uint64_t key_in = 0;
  std::int64_t offset[2] = {};  // in the stream: [0] out, [1] in
  std::int64_t bytes[2] = {};
  std::int32_t hows[2] = {};
  std::int32_t chunk[2] = {};
};

struct Reply {
  std::int64_t result = 0;  // for the director only
  char text[600] = {};
};

constexpr int kSendMethods = 11;
constexpr int kReceiveMethods = 9;
constexpr int kTransferOut = 9;
constexpr int kTransferIn = 11;
constexpr int kFamilies = 5;
constexpr int kWaits = 7;
constexpr int kDuplicates = 6;
constexpr int kWaitMs = 10'000;  // for what must come

/// `control`, `wings` (to the understudy), `listener`, `connection`: descriptors, -1 for none.
/// Returns the process's exit code.
int run_actor(int control, int wings, int listener, int connection);

}  // namespace clan::interpose_test
