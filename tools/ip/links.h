// Links: the peers, and the connections to them.
//
// An own address is offered as the service "ip.ADDRESS". Each end connects to the other's, and
// sends by the connection that it has made:
//
//   A                                        B
//   first packet to B: begin_connect, with
//   a Hello: "A, takes these offloads"  ->   A says so? connects to "ip.A" where A is to be
//                                       <-   Hello: "B, ..."
//   both connections end at the same endpoint: it is B. Packets go.
//
// So a peer is what is found at the place that the user, or this host's names, give for its
// address; a process that only says so is not. Packets of a peer that is not verified stay in its
// ring, and those to it in the device's queue.
#pragma once

#include <clan/event_queue.h>
#include <clan/message.h>

#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "hello.h"
#include "options.h"
#include "packet.h"
#include "page.h"

namespace clan::ip {

struct Peer;

/// An own address, and where the peers of its prefix are met.
struct Face {
  Prefix own;
  MessageEndpoint endpoint;
  std::unordered_map<PeerIndex, Peer*> by_in;  ///< by the connection that their Hello came by
};

struct Peer {
  enum class State { kDown, kOpening, kUp };
  std::vector<Prefix> prefixes;  ///< its addresses; the first is its name
  std::string service;
  Face* face = nullptr;
  IpRow* row = nullptr;
  State state = State::kDown;
  bool failed = false;               ///< the last attempt, whose packets still need an answer
  bool fresh = false;                ///< `out` was begun after the peer's Hello had come
  std::optional<PeerIndex> out, in;  ///< ours, and the one that its Hello came by
  bool held = false;                 ///< packets wait in `in`
  std::optional<PeerIndex> claim;    ///< of another process: held until `in` ends
  Hello hello;                       ///< the last one of `in`
  unsigned takes = 0;                ///< offloads that we take from it
  std::uint64_t since_ns = 0;        ///< of opening
  // The forwarder's.
  unsigned queue = 0;
  bool readable = false;
  std::deque<std::vector<std::byte>> waiting;  ///< packets that came before it had a queue
};

class Links {
 public:
  Links(Context& context, EventQueue& events, const UpOptions& options, std::string directory)
      : context_(context), events_(events), options_(options), directory_(std::move(directory)) {}
  /// Offers the own addresses. EADDRINUSE: another process has one of them.
  Status start(unsigned offloads);

  std::vector<std::unique_ptr<Face>>& faces() { return faces_; }
  std::vector<std::unique_ptr<Peer>>& peers() { return peers_; }

  /// The peer that has the address; of the longest prefix. Null: none that is known.
  Peer* find(const Address& address);
  /// The same; where nobody has it and it may be on this host, it is asked for. Null: nobody.
  Peer* look_for(const Address& address);
  /// The peer whose packets come by that connection, or its Hello has. Null: a stranger.
  static Peer* of(const Face& face, PeerIndex from);

  /// Begins to connect. Where that cannot be, the peer has failed.
  void open(Peer& peer);
  /// Ends both connections.
  void close(Peer& peer, bool failed);
  /// A Hello, of a stranger or of a peer once more. False: it is not a peer's.
  bool greet(Face& face, PeerIndex from, const Hello& hello);
  /// Checks whether a Hello that has just been shown stays in its ring: another process has greeted
  /// with that address, and has neither gone nor proved to be a stranger.
  bool waits(Face& face, PeerIndex from, const Hello& hello);
  /// Whether a packet that has just been shown is to be left until its peer is verified.
  bool hold(Peer& peer);
  /// Withdraws an offload that this end has offered to a peer.
  void refuse_offload(Peer& peer, unsigned offload);
  void end_stranger(Face& face, PeerIndex from);

  /// Handles connections that have come, ended or not come in time.
  void look(std::uint64_t now_ns);
  /// Whether some peer is being opened: then time passes.
  bool opening() const;
  /// Offloads that all peers take which can be sent to.
  unsigned common_offloads() const;
  /// How often a peer has got a place.
  std::size_t changes() const { return changes_; }

 private:
  std::unique_ptr<Peer> make(const PeerOption& option, Face& face) const;
  std::optional<std::size_t> place() const;
  Peer* put(std::unique_ptr<Peer> peer, std::size_t place);
  bool begin(Peer& peer);
  static bool same(Peer& peer, PeerIndex other);
  void say_hello(Peer& peer);
  Face* face_for(bool v6, const Address* inside);
  Peer* claimed(Face& face, PeerIndex from, const Address& address);
  Hello hello_to(const Peer& peer) const;
  void verify(Peer& peer);
  void drop_in(Peer& peer);
  void take_departed(Face& face);

  Context& context_;
  EventQueue& events_;
  const UpOptions& options_;
  const std::string directory_;
  unsigned offloads_ = 0;
  std::size_t changes_ = 0;
  std::vector<std::unique_ptr<Face>> faces_;
  std::vector<std::unique_ptr<Peer>> peers_;
};

}  // namespace clan::ip
