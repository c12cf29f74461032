// CLAN as the measuring loops see it: streams, message endpoints, and many streams behind one event
// queue. The only files of support/ that know CLAN.
//
// prepare() chooses a service name, before the fork; the contexts are made in open(), in each
// member: a forked child inherits no network. The client asks again until the server has its
// listener.
#pragma once

#include <clan/context.h>
#include <clan/event_queue.h>
#include <clan/message.h>
#include <clan/stream.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "support/shared_memory.h"
#include "transports/transport.h"

namespace clan::bench {

using WaitMode = WaitOptions::Mode;

/// "clan-poll" never sleeps, "clan" is what applications get by default.
std::string clan_name(WaitMode mode);

/// A context of the calling process, on the heap: what is made from it refers to it.
std::unique_ptr<clan::Context> make_context(WaitMode mode);

/// A name nobody else offers.
std::string unique_service();

/// Prints why something failed, for open() functions; answers false.
bool complain(const char* what, const Error& error);

class ClanStreamEnd {
 public:
  ClanStreamEnd(std::unique_ptr<clan::Context> context, Stream stream)
      : context_(std::move(context)), stream_(std::move(stream)) {}

  bool send(std::span<const std::byte> message) {
    auto n = stream_.send(message);
    return n.ok() && *n == message.size();
  }
  bool recv(std::span<std::byte> message) {
    while (!message.empty()) {
      auto n = stream_.recv(message);
      if (!n.ok() || *n == 0) return false;
      message = message.subspan(*n);
    }
    return true;
  }
  bool flush() { return true; }

 private:
  std::unique_ptr<clan::Context> context_;
  Stream stream_;
};

class ClanStream {
 public:
  explicit ClanStream(WaitMode mode, std::string name = {})
      : mode_(mode), name_(name.empty() ? clan_name(mode) : std::move(name)) {}
  std::string name() const { return name_; }
  std::string prepare(std::size_t bytes);
  std::optional<ClanStreamEnd> open(Side side);

 private:
  WaitMode mode_;
  std::string name_;
  std::string service_;
};

class ClanMessageEnd {
 public:
  ClanMessageEnd(std::unique_ptr<clan::Context> context, MessageEndpoint endpoint, PeerIndex peer)
      : context_(std::move(context)), endpoint_(std::move(endpoint)), peer_(peer) {}

  bool send(std::span<const std::byte> message) { return endpoint_.send(peer_, message).ok(); }
  bool recv(std::span<std::byte> message) {
    auto got = endpoint_.recv(message);
    if (!got.ok() || got->size != message.size()) return false;
    peer_ = got->from;
    return true;
  }
  bool flush() { return true; }

 private:
  std::unique_ptr<clan::Context> context_;
  MessageEndpoint endpoint_;
  PeerIndex peer_;  ///< the server knows it from the first message on
};

class ClanMessages {
 public:
  explicit ClanMessages(WaitMode mode) : mode_(mode) {}
  std::string name() const { return clan_name(mode_); }
  std::string prepare(std::size_t bytes);
  std::optional<ClanMessageEnd> open(Side side);

 private:
  WaitMode mode_;
  std::string service_;
};

/// Streams registered with one event queue.
class ClanHub {
 public:
  ClanHub(std::unique_ptr<clan::Context> context, EventQueue queue, std::vector<Stream> streams)
      : context_(std::move(context)),
        queue_(std::move(queue)),
        streams_(std::move(streams)),
        reported_(streams_.size()) {}

  std::size_t wait(std::span<std::uint32_t> ready);
  bool send(std::uint32_t i, std::span<const std::byte> message) {
    return streams_[i].send(message).ok();
  }
  bool recv(std::uint32_t i, std::span<std::byte> message) {
    auto n = streams_[i].recv(message);
    return n.ok() && *n == message.size();
  }

 private:
  std::unique_ptr<clan::Context> context_;
  EventQueue queue_;
  std::vector<Stream> streams_;
  std::vector<std::uint64_t> reported_;  ///< the round of wait() that last reported a stream
  std::uint64_t round_ = 0;
};

class ClanHubTransport {
 public:
  explicit ClanHubTransport(WaitMode mode) : mode_(mode) {}
  std::string name() const { return clan_name(mode_); }
  std::string prepare(std::size_t connections);
  std::optional<ClanHub> open(Side side, std::size_t connections);

 private:
  WaitMode mode_;
  std::string service_;
};

/// How a cookie gets from its owner to the other member: a page both inherit.
class CookiePage {
 public:
  bool prepare();
  void put(const RdmaCookie& cookie);
  /// Waits for put().
  RdmaCookie take() const;

 private:
  struct Page;
  Page& page() const;
  SharedMemory memory_;
};

}  // namespace clan::bench
