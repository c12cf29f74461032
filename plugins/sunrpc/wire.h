// What two processes that have this library say to each other.
//
// 1. Over the socket the program has anyway, as an ordinary remote call (kProgram): "one of us?"
//    A server without this library answers PROG_UNAVAIL, as to any other program it does not have.
//
//      client                                           server (whichever process reads the socket)
//        | -- call kProgram, kMeet {abi, uid} ------------> |
//        | <- {status, address of its endpoint, token} ---- |
//        | == CLAN: connect(address), Hello{token} =======> |   the token proves whose socket it is
//        | <= Welcome ===================================== |   its loop does serve the endpoint
//        | == calls and replies ==========================> |
//
//    From another host it is kMeetFar, answered with a UDP port and the name of a service there.
//    The UDP link is another path than the socket's: it may end while the socket does not. Then
//
//        | -- call kProgram, kLeave {token, xid} ---------> |   takes no more calls of that client
//        | <- {whether it has taken the call of that xid} - |   if not, it is made by the socket
//
// 2. Over CLAN, messages of one endpoint: a head in the machine's byte order, then XDR.
//
//      Call   | head 16 | if new_caller: caller 16, credential (padded to 4) | arguments |
//      Reply  | head  8 | results                     |   kReply: accepted, success, no verifier
//             | head  8 | xdr_replymsg, results if any |   kReplyFull: everything else
//      More   | head  8 | goes on with the call or reply of the same xid
//
//    The caller (program, version, credential) is sent when it differs from the call before. What
//    is longer than a fragment goes on in further ones, each encoded in the receiver's ring and
//    decoded there: while one side encodes a fragment the other decodes the one before. The
//    fragments of a client's calls follow each other; those of replies may have others' between
//    them.
#pragma once

#include <clan/context.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "rpc.h"

namespace clan::rpc {

/// In the range that RFC 5531 leaves to sites.
constexpr rpcprog_t kProgram = 0x3c1a0001;
constexpr rpcvers_t kVersion = 1;
constexpr rpcproc_t kMeet = 1;
constexpr rpcproc_t kMeetFar = 2;
constexpr rpcproc_t kLeave = 3;
constexpr std::uint32_t kAbi = 3;

enum Kind : std::uint8_t { kHello = 1, kWelcome, kCall, kReply, kReplyFull, kMore };

struct Hello {
  std::uint8_t kind = kHello;
  std::uint8_t pad[3] = {};
  std::uint32_t abi = kAbi;
  std::uint64_t token = 0;
};
static_assert(sizeof(Hello) == 16);

/// What follows a fragment.
enum GoOn : std::uint8_t {
  kLast,     ///< nothing: the message ends with it
  kFollows,  ///< another fragment
  kGivenUp,  ///< nothing: the message is not whole, the sender could not encode the rest
};

struct CallHead {
  std::uint8_t kind = kCall;
  std::uint8_t go_on = 0;       ///< a GoOn
  std::uint8_t new_caller = 0;  ///< 1: a Caller follows
  std::uint8_t again = 0;       ///< 1: has been sent before, see Hub::take_one()
  std::uint32_t xid = 0;
  std::uint32_t proc = 0;
  std::uint32_t pad2 = 0;
};
static_assert(sizeof(CallHead) == 16);

struct Caller {
  std::uint32_t prog = 0;
  std::uint32_t vers = 0;
  std::int32_t flavor = 0;
  std::uint32_t length = 0;  ///< of the credential, at most MAX_AUTH_BYTES
};
static_assert(sizeof(Caller) == 16);

/// The head of a reply, and of the further fragments of a call or a reply.
struct ReplyHead {
  std::uint8_t kind = kReply;
  std::uint8_t go_on = 0;  ///< a GoOn
  std::uint8_t pad[2] = {};
  std::uint32_t xid = 0;
};
static_assert(sizeof(ReplyHead) == 8 && offsetof(ReplyHead, go_on) == offsetof(CallHead, go_on));

/// Calls with other flavours go by the socket.
constexpr bool carries_flavor(std::int64_t flavor) {
  return flavor == AUTH_NONE || flavor == AUTH_SYS || flavor == AUTH_SHORT;
}

/// The call: which procedure, and with which credential.
struct CallerState {
  Caller head;
  char credential[MAX_AUTH_BYTES] = {};
  bool known = false;

  bool is(const Caller& other, const char* bytes) const {
    return known && std::memcmp(&head, &other, sizeof head) == 0 &&
           (other.length == 0 || std::memcmp(credential, bytes, other.length) == 0);
  }
  void set(const Caller& other, const char* bytes) {
    head = other;
    if (other.length > 0) std::memcpy(credential, bytes, other.length);
    known = true;
  }
};

/// Arguments and results of kMeet.
struct MeetArguments {
  std::uint32_t abi = kAbi;
  std::uint32_t uid = 0;  ///< as the client says; nobody reads it, the kernel's word counts
};
struct MeetResults {
  std::uint32_t status = 0;  ///< 0 or an errno: why not
  Address address;
  std::uint64_t token = 0;
};
/// Results of kMeetFar, whose arguments are kMeet's.
struct FarResults {
  std::uint32_t status = 0;  ///< 0 or an errno; ENONET: the server has no UDP link
  std::uint32_t port = 0;
  std::uint64_t service = 0;  ///< see far_service()
  std::uint64_t token = 0;
};
/// What a server's endpoint is called, for those that come by UDP.
std::string far_service(std::uint64_t word);

struct LeaveArguments {
  std::uint64_t token = 0;
  std::uint32_t xid = 0;  ///< of the client's last call
};
struct LeaveResults {
  std::uint32_t status = 0;  ///< 0 or ENOENT: nobody knows
  std::uint32_t taken = 0;   ///< 1: the call has been taken
};
extern "C" bool_t clan_rpc_xdr_far_results(XDR* xdrs, FarResults* results);
extern "C" bool_t clan_rpc_xdr_leave_arguments(XDR* xdrs, LeaveArguments* arguments);
extern "C" bool_t clan_rpc_xdr_leave_results(XDR* xdrs, LeaveResults* results);
extern "C" bool_t clan_rpc_xdr_meet_arguments(XDR* xdrs, MeetArguments* arguments);
extern "C" bool_t clan_rpc_xdr_meet_results(XDR* xdrs, MeetResults* results);

/// Takes a T from the front of `bytes`, as a copy. False: too short.
template <typename T>
bool take_front(std::span<const std::byte>* bytes, T* to) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes->size() < sizeof(T)) return false;
  std::memcpy(static_cast<void*>(to), bytes->data(), sizeof(T));
  *bytes = bytes->subspan(sizeof(T));
  return true;
}

/// Takes the Caller and its credential from the front of `bytes`. Every length is checked on its
/// copy. False: the peer wrote nonsense, or a flavour that CLAN does not carry.
bool take_caller(std::span<const std::byte>* bytes, CallerState* caller);

/// A fragment at most, with its head. A ring holds sixteen.
constexpr std::size_t kFragment = 32 * 1024;
constexpr std::size_t kEager = 96 * 1024;  ///< what rings are made for
/// Of one message.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 31;

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 3) & ~std::size_t{3}; }

}  // namespace clan::rpc
