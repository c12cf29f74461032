// CLAN as the measuring loops see it: streams, message endpoints, and many streams behind one event
// queue; and its remote memory.
//
// The contexts are made in open(), in each member: a forked child inherits no network. The client
// asks again until the server has its listener.
#pragma once

#include <clan/aperture.h>
#include <clan/context.h>
#include <clan/event_queue.h>
#include <clan/memory.h>
#include <clan/message.h>
#include <clan/stream.h>

#include <atomic>
#include <memory>

#include "support/owned.h"
#include "transports/transport.h"

namespace clan::bench {

using WaitMode = WaitOptions::Mode;

/// "clan-poll" never sleeps, "clan" is what applications get by default.
std::string clan_name(WaitMode mode);

/// A context of the calling process, on the heap: what is made from it refers to it. Null: it has
/// printed why.
std::unique_ptr<clan::Context> make_context(WaitMode mode);

/// Prints why something failed; answers false.
bool complain(const char* what, const Error& error);

/// Keeps what was made; false: it has printed why there is nothing.
template <class T>
bool keep(const char* what, Result<T> made, std::optional<T>& to) {
  if (!made) return complain(what, made.error());
  to = std::move(*made);
  return true;
}

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

 private:
  std::unique_ptr<clan::Context> context_;
  Stream stream_;
};

class ClanStream : public Named {
 public:
  explicit ClanStream(WaitMode mode, std::string variant = {})
      : mode_(mode), variant_(variant.empty() ? clan_name(mode) : std::move(variant)) {}
  std::string name() const { return variant_; }
  std::optional<ClanStreamEnd> open(Side side);

 private:
  WaitMode mode_;
  std::string variant_;
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

 private:
  std::unique_ptr<clan::Context> context_;
  MessageEndpoint endpoint_;
  PeerIndex peer_;  ///< the server knows it from the first message on
};

class ClanMessages : public Named {
 public:
  explicit ClanMessages(WaitMode mode) : mode_(mode) {}
  std::string name() const { return clan_name(mode_); }
  std::optional<ClanMessageEnd> open(Side side);

 private:
  WaitMode mode_;
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

class ClanHubTransport : public Named {
 public:
  explicit ClanHubTransport(WaitMode mode) : mode_(mode) {}
  std::string name() const { return clan_name(mode_); }
  std::optional<ClanHub> open(Side side, std::size_t connections);

 private:
  WaitMode mode_;
};

/// A page that its owner, the server, exports and the client imports. The cookie goes by memory
/// that both inherit.
class RemotePage {
 public:
  static constexpr std::size_t kBytes = 4096;
  std::string prepare();
  bool open(Side side, WaitMode mode);
  Aperture& aperture() { return *aperture_; }
  std::byte* data() { return memory_->data(); }
  RemoteAperture& remote() { return *remote_; }

 private:
  struct Exchange {
    std::atomic<bool> there{false};
    RdmaCookie cookie;
  };
  SharedMemory shared_;
  Exchange* exchange_ = nullptr;
  std::unique_ptr<clan::Context> context_;
  std::optional<Memory> memory_;
  std::optional<Aperture> aperture_;
  std::optional<RemoteAperture> remote_;
};

/// What makes each of them, for a variant.
inline auto clan_stream(WaitMode mode) {
  return [=] { return ClanStream(mode); };
}
inline auto clan_messages(WaitMode mode) {
  return [=] { return ClanMessages(mode); };
}
inline auto clan_hub(WaitMode mode) {
  return [=] { return ClanHubTransport(mode); };
}

}  // namespace clan::bench
