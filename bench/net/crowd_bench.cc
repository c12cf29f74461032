// Round trips beside many idle peers, and the end of the transport that all parts of
// clan-net-transport have.

#include <array>

#include "base/fd.h"
#include "base/random.h"
#include "link/udp/wire/security.h"
#include "requests.h"
#include "transport_bench.h"

namespace clan::udp {

End::End(std::unique_ptr<PacketIo> packets, const std::string& path, std::size_t most)
    : io(std::move(packets)), memory(most) {
  const Mode mode = path == "clan-encrypt"     ? Mode::kEncrypt
                    : path == "clan-integrity" ? Mode::kIntegrity
                                               : Mode::kOff;
  const char* key = std::getenv("CLAN_KEY_FILE");
  auto loaded = load_security(mode, key == nullptr ? "" : key);
  if (!loaded) fail(loaded.error().what);
  security = std::move(*loaded);
  clan::udp::Options options;
  options.packet_window = io->packets_of_room();
  endpoint = std::make_unique<Endpoint>(options, *this, clan::random_u64, security.get());
  pump = std::make_unique<PacketPump>(*endpoint, *io);
}

std::unique_ptr<PacketIo> open_io(const SocketAddress& local, const Job& o) {
  auto made = open_packets(local, o.path == "clan-xdp" ? Packets::kXdp : Packets::kSockets);
  if (!made) fail(made.error().what);
  return std::move(*made);
}

void connect(End& end, const Job& o) {
  if (end.endpoint->connect(o.address, {}, monotonic_ns()) == nullptr) fail("connect");
  const std::uint64_t patience = monotonic_ns() + 5 * kSecond;
  while (end.connection == nullptr && monotonic_ns() < patience)
    (void)end.pump->run(monotonic_ns());
  if (end.connection == nullptr) fail("no answer");
}

namespace {

/// A socket of its own, with little memory beside it.
class SmallIo final : public PacketIo {
 public:
  explicit SmallIo(const SocketAddress& to) : fd_(::socket(AF_INET, SOCK_DGRAM, 0)), to_(to) {
    const sockaddr_in address = kernel_address(to);
    if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      fail("connect");
  }
  Sent send(const Train& train, std::span<const std::byte> bytes) override {
    for (std::size_t at = 0; at < bytes.size(); at += train.segment)
      (void)::send(fd_.get(), &bytes[at], std::min(train.segment, bytes.size() - at), 0);
    return Sent::kSent;
  }
  std::size_t receive(std::span<Arrival> out) override {
    const ssize_t n = ::recv(fd_.get(), packet_.data(), packet_.size(), MSG_DONTWAIT);
    if (n <= 0) return 0;
    const auto bytes = static_cast<std::size_t>(n);
    out[0] = {to_, std::span(packet_).first(bytes), bytes};
    return 1;
  }
  int descriptor() const override { return fd_.get(); }
  SocketAddress local_address() const override { return {}; }
  std::uint32_t packets_of_room() const override { return 64; }

 private:
  clan::Fd fd_;
  SocketAddress to_;
  std::array<std::byte, 2048> packet_;
};

}  // namespace

void clan_crowd(const Job& o) {
  End end(open_io(SocketAddress{}, o), o.path, 16 << 20);
  connect(end, o);
  const auto until = [&] { return monotonic_ns() + static_cast<std::uint64_t>(o.seconds * 1e9); };
  std::vector<std::unique_ptr<End>> crowd;
  std::size_t next = 0;
  const auto look = [&] {
    if (!crowd.empty()) (void)crowd[next++ % crowd.size()]->pump->run(monotonic_ns());
    return !crowd.empty();
  };
  bench::print_round_trips(round_trips(end, o, until(), look));
  std::fflush(stdout);
  while (crowd.size() < o.peers) {
    auto made = std::make_unique<End>(std::make_unique<SmallIo>(o.address), o.path, 0);
    connect(*made, o);
    (void)made->endpoint->send(*made->connection, 0, {{}, std::vector<std::byte>(o.bytes)});
    crowd.push_back(std::move(made));
  }
  // Twice what makes a peer idle, and then it gives memory back.
  for (const std::uint64_t end_of_it = monotonic_ns() + 24 * kSecond; monotonic_ns() < end_of_it;) {
    (void)end.pump->run(monotonic_ns());
    for (std::size_t i = 0; i < crowd.size(); ++i) (void)look();
    ::usleep(1000);
  }
  std::puts("idle");
  std::fflush(stdout);
  (void)std::getchar();
  bench::print_round_trips(round_trips(end, o, until(), look));
  const bool all = std::all_of(crowd.begin(), crowd.end(),
                               [](const auto& one) { return one->connection != nullptr; });
  if (!all || end.connection == nullptr) fail("a peer has gone");
}

}  // namespace clan::udp
