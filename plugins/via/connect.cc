// Client and server: VipConnectRequest() and VipConnectWait(), and VipDisconnect().
//
// A server is a listener of the engine for as long as a thread waits: a request at any other time
// finds nobody, as VIA has it.
#include "connect.h"

#include <clan/detail/clock.h>

#include <thread>

namespace clan::via {

VIP_RETURN mismatch(const WireAttributes& ours, const WireAttributes& theirs) {
  if (ours.level != theirs.level) return VIP_INVALID_RELIABILITY_LEVEL;
  if (ours.max_transfer != theirs.max_transfer) return VIP_INVALID_MTU;
  return ours.qos == theirs.qos ? VIP_SUCCESS : VIP_INVALID_QOS;
}

Result<Stream> reach(const HostAddress& host, const std::string& service, std::int64_t timeout_ms) {
  Provider& process = *provider();
  std::unique_lock lock(process.services_mutex);
  const auto own = process.services.find(service);
  if (is_own(host) && own != process.services.end()) {
    const Address address = own->second;
    lock.unlock();
    return Stream::connect(process.context, address, timeout_ms);
  }
  lock.unlock();
  return Stream::connect(process.context, place_of_service(host, service), timeout_ms);
}

VIP_VI_ATTRIBUTES attributes_of(const WireAttributes& wire) {
  VIP_VI_ATTRIBUTES attributes{};
  attributes.ReliabilityLevel = wire.level;
  attributes.MaxTransferSize = wire.max_transfer;
  attributes.QoS = reinterpret_cast<VIP_QOS>(wire.qos);
  attributes.EnableRdmaWrite = wire.rdma_write != 0;
  attributes.EnableRdmaRead = wire.rdma_read != 0;
  return attributes;
}

VIP_RETURN why_not_connected(const Error& error) {
  switch (error.err) {
    case ECONNREFUSED:
    case ENOENT: return VIP_NO_MATCH;
    case ETIMEDOUT: return VIP_TIMEOUT;
    case ENOSPC:
    case ENOMEM:
    case EMFILE: return VIP_ERROR_RESOURCE;
    default: return VIP_NOT_REACHABLE;
  }
}

namespace {

template <typename Record>
Status write_record(Stream& stream, const Record& record) {
  auto room = stream.reserve(sizeof record);
  if (!room) return room.error();
  std::memcpy(room->data(), &record, sizeof record);
  stream.commit(sizeof record);
  return {};
}

}  // namespace

Status ask(Vi& vi, Stream stream, const NetAddress& local) {
  vi.begin(std::move(stream));
  Hello hello;
  hello.attributes = vi.wire_attributes();
  hello.discriminator_bytes = static_cast<std::uint8_t>(local.discriminator_bytes);
  std::memcpy(hello.host, local.host.data(), kHostBytes);
  std::memcpy(hello.discriminator, local.discriminator.data(), kMostDiscriminator);
  vi.tell_buffers();
  Status s = write_record(*vi.stream, hello);
  if (!s) vi.close_stream();
  return s;
}

Status Asker::read_hello(Hello* hello) {
  if (const Status s = buffers.meet(stream); !s) return s;
  if (const Status s = read_record(stream, hello); !s) return s;
  if (hello->discriminator_bytes <= kMostDiscriminator) return {};
  return Error{EPROTO, "no record of a VI"};
}

Status accept(Vi& vi, Asker asker, const WireAttributes& theirs) {
  // What it has posted since; and it may have gone.
  Status s = asker.buffers.meet(asker.stream);
  if (!s && s.error().err != EAGAIN) return s;
  vi.begin(std::move(asker.stream));
  vi.buffers = std::move(asker.buffers);
  s = vi.meet(theirs);
  if (s) {
    vi.tell_buffers();
    Answer answer;
    answer.accepted = 1;
    answer.attributes = vi.wire_attributes();
    s = write_record(*vi.stream, answer);
  }
  s ? vi.connect() : vi.close_stream();
  return s;
}

void say_no(Stream& stream, const WireAttributes& ours) {
  Answer answer;
  answer.attributes = ours;
  (void)write_record(stream, answer);
}

VIP_RETURN take_answer(Vi& vi, VIP_VI_ATTRIBUTES* theirs) {
  Answer answer;
  Status s = vi.buffers.meet(*vi.stream);
  if (s) s = read_record(*vi.stream, &answer);
  if (!s && s.error().err == EAGAIN) return VIP_NOT_DONE;
  if (s && answer.accepted == 1) s = vi.meet(answer.attributes);
  if (s && answer.accepted == 1) {
    if (theirs != nullptr) *theirs = attributes_of(answer.attributes);
    vi.connect();
    return VIP_SUCCESS;
  }
  vi.close_stream();
  if (!s) return VIP_NO_MATCH;  // the one that waited has not taken it
  const VIP_RETURN why = mismatch(vi.wire_attributes(), answer.attributes);
  return why == VIP_SUCCESS ? VIP_REJECT : why;
}

namespace {

/// A request that waits for VipConnectAccept() or VipConnectReject().
struct Connection : Object {
  static constexpr std::uint32_t kMagic = 0x6e6e6f63;
  Connection(Asker from, const Hello& said) : Object(kMagic), asker(std::move(from)), hello(said) {}
  Asker asker;
  Hello hello;
};

// What a client says first. It has a second, so that one that says nothing is not in the way.
bool await_hello(Asker& asker, std::uint64_t deadline_ns, Hello* hello) {
  const std::uint64_t end = std::min(deadline_ns, monotonic_ns() + 1'000'000'000u);
  for (;;) {
    const Status s = asker.read_hello(hello);
    if (s) return true;
    if (s.error().err != EAGAIN || monotonic_ns() >= end) return false;
    (void)asker.stream.wait_readable(ms_until(end));
  }
}

VIP_RETURN await_answer(Vi& vi, std::uint64_t deadline_ns, VIP_VI_ATTRIBUTES* theirs) {
  for (;;) {
    {
      const Held held(vi);
      const VIP_RETURN rc = take_answer(vi, theirs);
      if (rc != VIP_NOT_DONE) return rc;
      if (monotonic_ns() >= deadline_ns) {
        vi.close_stream();
        return VIP_TIMEOUT;
      }
    }
    // Only this thread reads it until both ends have agreed.
    (void)vi.stream->wait_readable(ms_until(deadline_ns));
  }
}

VIP_RETURN request(Vi& vi, const NetAddress& local, const NetAddress& remote,
                   std::uint64_t deadline_ns, VIP_VI_ATTRIBUTES* theirs) {
  Provider& process = *provider();
  if (!is_own(remote.host) && !process.network) return VIP_NOT_REACHABLE;
  auto stream = reach(remote.host, service_of(remote), ms_until(deadline_ns));
  if (!stream) return why_not_connected(stream.error());
  {
    const Held held(vi);
    if (!ask(vi, std::move(*stream), local)) return VIP_NO_MATCH;
  }
  return await_answer(vi, deadline_ns, theirs);
}

VIP_RETURN disconnect(Vi& vi, Reports* reports) {
  for (bool first = true;; first = false) {
    {
      const Held held(vi, reports);
      if (first && vi.abandon_peering()) return VIP_SUCCESS;
      if (first && vi.state != VIP_STATE_CONNECTED && vi.state != VIP_STATE_ERROR)
        return VIP_INVALID_STATE;
      if (first) {
        vi.progress();  // what has arrived, has
        vi.close_stream();
        vi.state = VIP_STATE_ERROR;
      }
      vi.progress();
      if (vi.flights.empty()) {
        vi.flush();
        vi.attend();
        vi.state = VIP_STATE_IDLE;
        return VIP_SUCCESS;
      }
    }
    // Memory of the program is in use until the transfer is over.
    std::this_thread::yield();
  }
}

}  // namespace
}  // namespace clan::via

using namespace clan::via;
using clan::Listener;

extern "C" CLAN_EXPORT VIP_RETURN VipConnectWait(VIP_NIC_HANDLE handle, VIP_NET_ADDRESS* local,
                                                 VIP_ULONG timeout_ms, VIP_NET_ADDRESS* remote,
                                                 VIP_VI_ATTRIBUTES* theirs, VIP_CONN_HANDLE* made) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  NetAddress here;
  if (!read_address(local, &here) || made == nullptr || !is_own(here.host))
    return VIP_INVALID_PARAMETER;
  const std::uint64_t deadline_ns = deadline_of(timeout_ms);
  auto listener = Listener::create(provider()->context, service_of(here));
  if (!listener) return VIP_ERROR_RESOURCE;
  const OwnService waits(service_of(here), listener->address());
  for (;;) {
    auto stream = listener->accept(ms_until(deadline_ns));
    if (!stream) {
      if (stream.error().err == EINTR) continue;
      return stream.error().err == ETIMEDOUT || stream.error().err == EAGAIN ? VIP_TIMEOUT
                                                                             : VIP_ERROR_RESOURCE;
    }
    Asker asker(std::move(*stream));
    Hello hello;
    if (!await_hello(asker, deadline_ns, &hello)) continue;
    if (remote != nullptr) {
      NetAddress from;
      std::memcpy(from.host.data(), hello.host, kHostBytes);
      std::memcpy(from.discriminator.data(), hello.discriminator, kMostDiscriminator);
      from.discriminator_bytes = hello.discriminator_bytes;
      write_address(from, remote);
    }
    if (theirs != nullptr) *theirs = attributes_of(hello.attributes);
    *made = new Connection(std::move(asker), hello);
    return VIP_SUCCESS;
  }
}

// Does not report a mismatch to the peer: another VI may do.
extern "C" CLAN_EXPORT VIP_RETURN VipConnectAccept(VIP_CONN_HANDLE handle,
                                                   VIP_VI_HANDLE vi_handle) {
  Connection* connection = nullptr;
  if (const VIP_RETURN rc = find(handle, &connection); rc != VIP_SUCCESS) return rc;
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(vi_handle, &vi); rc != VIP_SUCCESS) return rc;
  const Held held(*vi);
  if (vi->state != VIP_STATE_IDLE) return VIP_INVALID_STATE;
  const VIP_RETURN rc = mismatch(vi->wire_attributes(), connection->hello.attributes);
  if (rc != VIP_SUCCESS) return rc;
  const clan::Status s = accept(*vi, std::move(connection->asker), connection->hello.attributes);
  connection->magic = 0;
  delete connection;
  return s ? VIP_SUCCESS : VIP_TIMEOUT;  // the one that asked has given up
}

extern "C" CLAN_EXPORT VIP_RETURN VipConnectReject(VIP_CONN_HANDLE handle) {
  Connection* connection = nullptr;
  if (const VIP_RETURN rc = find(handle, &connection); rc != VIP_SUCCESS) return rc;
  say_no(connection->asker.stream, connection->hello.attributes);
  connection->magic = 0;
  delete connection;
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipConnectRequest(VIP_VI_HANDLE handle, VIP_NET_ADDRESS* local,
                                                    VIP_NET_ADDRESS* remote, VIP_ULONG timeout_ms,
                                                    VIP_VI_ATTRIBUTES* theirs) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  NetAddress here, there;
  if (!read_address(local, &here) || !read_address(remote, &there) || timeout_ms == 0)
    return VIP_INVALID_PARAMETER;
  {
    const Held held(*vi);
    if (vi->state != VIP_STATE_IDLE) return VIP_INVALID_STATE;
    vi->state = VIP_STATE_CONNECT_PENDING;
  }
  const VIP_RETURN rc = request(*vi, here, there, deadline_of(timeout_ms), theirs);
  if (rc != VIP_SUCCESS) {
    const Held held(*vi);
    vi->state = VIP_STATE_IDLE;
  }
  return rc;
}

extern "C" CLAN_EXPORT VIP_RETURN VipDisconnect(VIP_VI_HANDLE handle) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  // A handler may destroy the VI.
  Reports reports;
  const VIP_RETURN rc = disconnect(*vi, &reports);
  tell(reports);
  return rc;
}
