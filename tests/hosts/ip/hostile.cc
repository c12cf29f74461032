// A peer of `clan ip` that follows no rule but those of its transport:
//
//     ip-hostile OWN PEER lies       a peer at its own address, which then sends nonsense
//     ip-hostile CLAIMED PEER claims says that it has an address which another process has,
//                                and sends datagrams from it, until the connection has been ended
//                                or some are on their way
//     ip-hostile OWN PEER late       a peer at its own address, which greets when a line has come
//     ip-hostile OWN PEER fewer      a peer at its own address, which takes fewer offloads later
//     ip-hostile OWN PEER noise      messages without a Hello
//     ip-hostile OWN PEER crowd      300 peers, of addresses from OWN on, each of which goes once
//                                it has been greeted
//
// Says "done" when all is sent, and stays until its input ends.
#include <clan/context.h>
#include <clan/message.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "ip/frames.h"
#include "hello.h"
#include "options.h"

using namespace clan::ip;

namespace {

struct Ends {
  clan::Context context;
  clan::MessageEndpoint endpoint;
  clan::PeerIndex to;
};

void send(Ends& ends, std::span<const std::byte> bytes) {
  while (!ends.endpoint.has_gone(ends.to)) {  // not by send(), which would offer a large one
    const auto sent = ends.endpoint.try_send(ends.to, bytes, {});
    if (sent.ok() || sent.error().err != EAGAIN) break;
    ::usleep(100);
  }
  while (ends.endpoint.peek().ok()) ends.endpoint.drop();
}

void send(Ends& ends, const Frame& frame) {
  std::vector<std::byte> bytes(kHeader);
  std::memcpy(bytes.data(), &frame.header, kHeader);
  bytes.insert(bytes.end(), frame.ip.begin(), frame.ip.end());
  send(ends, bytes);
}

Hello hello_of(const Address& own, unsigned offloads = kAllOffloads) {
  Hello hello;
  hello.mtu = 1500;
  hello.offloads = offloads;
  hello.v6 = own.v6;
  std::copy(own.bytes.begin(), own.bytes.end(), hello.address);
  return hello;
}

void say_who(Ends& ends, const Hello& hello) { send(ends, std::as_bytes(std::span(&hello, 1))); }

Frame any_frame(std::mt19937& random, const Address& own, const Address& peer) {
  Frame f = random() % 2 == 0 ? segments(false) : frame(false, IPPROTO_UDP, 60 + random() % 9000);
  std::memcpy(f.ip.data() + 12, own.bytes.data(), 4);
  std::memcpy(f.ip.data() + 16, peer.bytes.data(), 4);
  return f;
}

/// One thing is wrong with each, or several.
void lie(Ends& ends, const Address& own, const Address& peer) {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    Frame f = any_frame(random, own, peer);
    auto* const header = reinterpret_cast<std::uint8_t*>(&f.header);
    switch (random() % 5) {
      case 0: header[random() % kHeader] = static_cast<std::uint8_t>(random()); break;
      case 1: f.ip[random() % 60] = static_cast<std::byte>(random()); break;
      case 2: f.ip.resize(random() % f.ip.size()); break;
      case 3: f.ip[12 + random() % 4] = static_cast<std::byte>(random()); break;
      default:
        for (std::size_t at = 0; at < kHeader; ++at)
          header[at] = static_cast<std::uint8_t>(random());
    }
    if (header[0] != Hello::kFirst) send(ends, f);
  }
}

// Comes, is greeted and goes. Not by say_who(), which drops what has come.
bool visit(const Address& own, const Address& peer, const std::string& directory) {
  auto context = clan::Context::create();
  if (!context) return false;
  auto endpoint = clan::MessageEndpoint::create(*context, service_of(own, "", directory));
  if (!endpoint) return false;
  const auto to = endpoint->connect(service_of(peer, "", directory), 10'000);
  if (!to) return false;
  const Hello hello = hello_of(own);
  std::byte bytes[100];
  return endpoint->send(*to, std::as_bytes(std::span(&hello, 1))).ok() &&
         endpoint->recv(bytes, 10'000).ok();
}

// One that is turned away, as the device has yet to notice that others have gone, comes again.
bool crowd(Address own, const Address& peer, const std::string& directory) {
  constexpr int kMostVisits = 100;
  for (int i = 0; i < 300; ++i) {
    int visits = 0;
    while (!visit(own, peer, directory)) {
      if (++visits == kMostVisits) return false;
      ::usleep(20'000);
    }
    if (own.bytes[3]++ == 255) ++own.bytes[2];
  }
  return true;
}

int run(const Address& own, const Address& peer, const std::string& mode) {
  const char* const shared = std::getenv("CLAN_DIR");
  const std::string directory = shared != nullptr ? shared : "";
  if (mode == "crowd") {
    if (crowd(own, peer, directory)) std::puts("done");
    return 0;
  }
  auto context = clan::Context::create();
  if (!context) return 1;
  const bool claims = mode == "claims" || mode == "noise";
  auto endpoint =
      clan::MessageEndpoint::create(*context, claims ? "" : service_of(own, "", directory));
  if (!endpoint) return 1;
  const auto to = endpoint->connect(service_of(peer, "", directory), 10'000);
  if (!to) return 1;
  Ends ends{std::move(*context), std::move(*endpoint), *to};
  if (mode == "late") {
    std::puts("connected");
    std::fflush(stdout);
    (void)std::getchar();
  }
  if (mode != "noise") say_who(ends, hello_of(own));
  if (mode == "noise") {
    std::byte bytes[100] = {};
    send(ends, bytes);
  } else if (mode == "lies") {
    lie(ends, own, peer);
  } else if (mode == "fewer") {
    say_who(ends, hello_of(own, kCsum));
  } else if (mode == "claims") {
    for (int i = 0; i < 100 && !ends.endpoint.has_gone(ends.to); ++i)
      send(ends, datagram(own, peer));
  }
  std::puts("done");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return argc == 4 ? run(*parse_address(argv[1]), *parse_address(argv[2]), argv[3]) : 2;
}
