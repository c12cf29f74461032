// Fuzzes the transport between hosts: packets of any contents to an endpoint that listens and to
// one that has a connection, whose state machine is driven on meanwhile. Nothing may crash, spin,
// leak or grow without bound.
//
// Input: steps. The first byte of each chooses: a packet as it is; one with the right id, number
// and check, so that the frames are reached; frames put together from the input; one of our
// messages; time. Deterministic.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "input.h"
#include "link/udp/transport/endpoint.h"

namespace {

using namespace clan::udp;
using clan::fuzz::Input;

struct Sink final : EndpointSink, MessageSink {
  Connection* connection = nullptr;
  int on_request(const SocketAddress&, std::span<const std::byte> greeting,
                 std::span<std::byte> answer, std::size_t* n) override {
    *n = std::min(greeting.size(), answer.size());
    return greeting.size() % 7 == 6 ? EACCES : 0;
  }
  void on_established(Connection& c, std::span<const std::byte>) override {
    connection = &c;
    c.user = this;
  }
  bool on_fragment(std::uint8_t channel, std::span<const std::byte>, std::uint32_t total,
                   std::uint32_t offset, std::span<const std::byte> bytes) override {
    if (offset > total || bytes.size() > total - offset) std::abort();
    return channel == 3;
  }
  void on_message(std::uint8_t, std::span<const std::byte> header, std::uint32_t total,
                  std::span<const std::byte> payload) override {
    if (header.size() > kMostHeader || (!payload.empty() && payload.size() != total)) std::abort();
  }
  void on_sent(std::uint8_t, std::uint64_t) override {}
  void on_down(Connection& c, int) override {
    if (connection == &c) connection = nullptr;
  }
};

SocketAddress address(std::uint8_t last) {
  SocketAddress a;
  a.ip[15] = last;
  a.port = 1;
  return a;
}

// Two ends, joined by a wire the fuzzer shares.
class Wire {
 public:
  explicit Wire(Input& in)
      : in_(in),
        client_(
            {}, at_client_, [this] { return ++random_; }, nullptr),
        server_(
            {}, at_server_, [this] { return ++random_; }, nullptr) {
    client_.connect(address(2), {}, now_);
    for (int i = 0; i < 8; ++i) exchange();
  }

  void run() {
    while (!in_.empty()) step();
    for (int i = 0; i < 4; ++i) exchange();
    if (server_.connections() > 2000) std::abort();  // memory: libFuzzer's limit
  }

 private:
  void step() {
    switch (in_.byte() % 6) {
      case 0: {
        auto raw = in_.bytes(in_.byte());
        deliver({raw.begin(), raw.end()}, in_.byte() % 2 == 0);
        break;
      }
      case 1: handshake(); break;
      case 2:
      case 3: frames(); break;
      case 4: {
        if (at_client_.connection == nullptr) break;
        const auto payload = in_.bytes(in_.byte());
        const auto channel = static_cast<std::uint8_t>(in_.byte() % 5);
        (void)client_.send(*at_client_.connection, channel,
                           {payload.first(std::min<std::size_t>(payload.size(), 9)), payload});
        exchange();
        break;
      }
      default: now_ += in_.take<std::uint32_t>(); exchange();
    }
  }

  void handshake() {
    auto raw = in_.bytes(in_.byte());
    std::vector<std::byte> packet(in_.byte() % 2 == 0 ? kBasePacket : raw.size());
    std::copy_n(raw.begin(), std::min(raw.size(), packet.size()), packet.begin());
    if (packet.size() < kCommonHeader) return;
    packet[0] = static_cast<std::byte>(0x10 | (1 + in_.byte() % 6));
    packet[1] = packet[2] = packet[3] = std::byte{0};
    write_check(packet);
    deliver(packet, true);
  }

  // Any frames, in a packet that passes.
  void frames() {
    if (at_server_.connection == nullptr) return;
    std::vector<std::byte> packet(1400);
    Writer w(packet);
    number_ += in_.byte() % 8 == 0 ? in_.take<std::uint16_t>() : 1;
    write_data_header(w, Mode::kOff, at_server_.connection->id(), number_);
    for (int n = in_.byte() % 4; n >= 0; --n)
      w.bytes(in_.bytes(std::min<std::size_t>(in_.byte(), w.left())));
    packet.resize(w.size());
    write_check(packet);
    deliver(packet, true);
  }

  void deliver(std::vector<std::byte> packet, bool to_server) {
    if (to_server) {
      server_.receive(address(in_.byte() % 4 == 0 ? 3 : 1), packet, now_);
    } else {
      client_.receive(address(2), packet, now_);
    }
    exchange();
  }

  void pass(Endpoint& from, Endpoint& to, const SocketAddress& source) {
    for (int i = 0; i < 64; ++i) {
      const Train t = from.transmit(buffer_, now_);
      if (t.bytes == 0) return;
      if (t.segment == 0 || t.bytes > buffer_.size()) std::abort();
      for (std::size_t at = 0; at < t.bytes; at += t.segment) {
        to.receive(source, std::span(buffer_).subspan(at, std::min(t.segment, t.bytes - at)), now_);
      }
    }
  }

  void exchange() {
    now_ += 20'000;
    if (now_ >= client_.next_timeout()) client_.on_timeout(now_);
    if (now_ >= server_.next_timeout()) server_.on_timeout(now_);
    pass(client_, server_, address(1));
    pass(server_, client_, address(2));
  }

  Input& in_;
  std::uint64_t random_ = 1000;
  std::uint64_t now_ = 1;
  std::uint64_t number_ = 1'000'000;
  Sink at_client_, at_server_;
  Endpoint client_, server_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(Endpoint::kTrainBytes);
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  Wire(in).run();
  return 0;
}
