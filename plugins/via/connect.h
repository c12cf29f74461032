// What both kinds of connection set-up are made of (connect.cc, peer.cc).
#pragma once

#include "address.h"
#include "vi.h"

namespace clan::via {

/// Why two VIs cannot be connected; VIP_SUCCESS: they can.
VIP_RETURN mismatch(const WireAttributes& ours, const WireAttributes& theirs);
VIP_VI_ATTRIBUTES attributes_of(const WireAttributes& wire);
/// A thread of this process waits there, for as long as this lives.
struct OwnService {
  OwnService(std::string service, Address address) : name(std::move(service)) {
    std::lock_guard lock(provider()->services_mutex);
    provider()->services[name] = address;
  }
  ~OwnService() {
    std::lock_guard lock(provider()->services_mutex);
    provider()->services.erase(name);
  }
  OwnService(const OwnService&) = delete;
  OwnService& operator=(const OwnService&) = delete;
  const std::string name;
};
Result<Stream> reach(const HostAddress& host, const std::string& service, std::int64_t timeout_ms);

/// For errors of Stream::connect().
VIP_RETURN why_not_connected(const Error& error);

/// One record of the type, when there is one. EAGAIN: not yet; else the stream is of no use.
template <typename Record>
Status read_record(Stream& stream, Record* record);

/// A client that asks, before there is a VI for it.
struct Asker {
  explicit Asker(Stream from) : stream(std::move(from)) {}
  /// What it says; `buffers` are its own then. EAGAIN: not yet; else it is of no use.
  Status read_hello(Hello* hello);
  Stream stream;
  PeerBuffers buffers;
};

/// Asks a server: the VI gets the stream, on which its buffers and its Hello go.
Status ask(Vi& vi, Stream stream, const NetAddress& local);
/// The VI gets the stream of a client, and notifies the client; then they are connected.
Status accept(Vi& vi, Asker asker, const WireAttributes& theirs);
void say_no(Stream& stream, const WireAttributes& ours);
/// Takes the answer to ask(). VIP_NOT_DONE: it has not come. But for VIP_SUCCESS the VI has no
/// stream any more.
VIP_RETURN take_answer(Vi& vi, VIP_VI_ATTRIBUTES* theirs);

template <typename Record>
Status read_record(Stream& stream, Record* record) {
  const auto bytes = stream.peek();
  if (!bytes) return bytes.error();
  if (bytes->size() != sizeof *record) return Error{EPROTO, "no record of a VI"};
  const Kind kind = record->kind;
  std::memcpy(static_cast<void*>(record), bytes->data(), sizeof *record);
  stream.consume(sizeof *record);
  if (record->kind != kind || record->magic != kWireMagic)
    return Error{EPROTO, "no record of a VI"};
  return {};
}

}  // namespace clan::via
