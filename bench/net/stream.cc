// Two contexts of the engine over the UDP link, beside the rows of clan-net-transport.
//
//   clan-net-stream serve PATH HOST:PORT
//   clan-net-stream ping|bulk|checked|flood|rdma PATH HOST:PORT [BYTES [SECONDS]]
//
// ping: round trips through a stream; bulk: a stream until the last byte is answered; checked: the
// same, and the server checks each byte; flood: a stream for SECONDS, one of many; rdma: writes of
// BYTES, four under way. PATH: stream (both ends poll), stream-sleep (both sleep), stream-adaptive,
// stream-encrypt (poll; the key from CLAN_KEY_FILE), stream-xdp (poll, by AF_XDP),
// stream-xdp-sleep. net.py runs it.
#include <clan/aperture.h>
#include <clan/context.h>
#include <clan/detail/clock.h>
#include <clan/rdma.h>
#include <clan/stream.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

[[noreturn]] void fail(const clan::Error& error) {
  std::fprintf(stderr, "%s\n", error.message().c_str());
  std::exit(1);
}
template <typename T>
T must(clan::Result<T> result) {
  if (!result.ok()) fail(result.error());
  return std::move(*result);
}

clan::Context make_context(const std::string& path, const std::string& address) {
  clan::ContextOptions options;
  options.wait.mode = path.ends_with("-sleep")    ? clan::WaitOptions::Mode::kSleep
                      : path == "stream-adaptive" ? clan::WaitOptions::Mode::kAdaptive
                                                  : clan::WaitOptions::Mode::kPoll;
  options.network.enabled = true;
  options.network.directory_port = 0;
  options.network.address = address;
  if (path.starts_with("stream-xdp")) options.network.packets = clan::NetworkOptions::Packets::kXdp;
  const char* key = std::getenv("CLAN_KEY_FILE");
  if (path != "stream-encrypt") {
    options.network.mode = clan::NetworkOptions::Mode::kOff;
  } else if (key != nullptr) {
    options.network.key_file = key;
  }
  return must(clan::Context::create(options));
}

bool read_all(clan::Stream& stream, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    auto n = stream.recv(bytes);
    if (!n || *n == 0) return false;
    bytes = bytes.subspan(*n);
  }
  return true;
}

// A request's first 16 bytes: the length of each message, and 0 for ping, kRdma, or the bytes that
// a bulk or a flood sends.
constexpr std::uint64_t kRdma = ~std::uint64_t{0}, kFlood = kRdma - 1;
constexpr std::uint64_t kChecked = std::uint64_t{1} << 62;  ///< in the bytes of a bulk

// Bytes that tell where in the stream they belong; whole words.
void fill(std::span<std::byte> bytes, std::uint64_t at) {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = (at + i) * 0x9e37'79b9'7f4a'7c15u;
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
}

void serve_rdma(clan::Context& context, clan::Stream& stream, std::size_t bytes) {
  std::vector<std::byte> region(bytes);
  auto aperture = must(clan::Aperture::export_region(context, region, clan::Rights::kReadWrite));
  (void)stream.send(std::as_bytes(std::span(&aperture.cookie(), 1)));
  std::byte end;
  (void)stream.recv({&end, 1});
}

// A name for each server, of which a host runs several at once.
std::string service_at(const std::string& address) {
  return "bench-" + address.substr(address.rfind(':') + 1);
}

void serve(const std::string& path, const std::string& address) {
  auto context = make_context(path, address);
  auto listener = must(clan::Listener::create(context, service_at(address)));
  for (;;) {
    auto stream = must(listener.accept());
    std::uint64_t request[2];
    if (!read_all(stream, std::as_writable_bytes(std::span(request)))) continue;
    if (request[1] == kRdma) {
      serve_rdma(context, stream, request[0]);
      continue;
    }
    std::vector<std::byte> buffer(std::max<std::size_t>(request[0], 1)), right(buffer.size());
    const bool checked = request[1] < kFlood && (request[1] & kChecked) != 0;
    if (checked) request[1] &= ~kChecked;
    bool all_right = true;
    for (std::uint64_t got = 0; read_all(stream, buffer);) {
      if (checked) {
        fill(right, got);
        all_right = all_right && buffer == right;
      }
      got += buffer.size();
      if (request[1] == 0) {
        (void)stream.send(buffer);
      } else if (got >= request[1]) {
        const std::byte answer{all_right};
        (void)stream.send({&answer, 1});
      }
    }
  }
}

void print_rate(std::uint64_t bytes, std::uint64_t begin) {
  std::printf("%.5f GB/s\n",
              static_cast<double>(bytes) / static_cast<double>(clan::monotonic_ns() - begin));
}

void run_rdma(clan::Context& context, clan::Stream& stream, std::size_t bytes, std::uint64_t end) {
  constexpr std::size_t kUnderWay = 4;
  clan::RdmaCookie cookie;
  if (!read_all(stream, std::as_writable_bytes(std::span(&cookie, 1)))) fail({EPROTO, "no cookie"});
  auto remote = must(clan::RemoteAperture::import(context, cookie, 10'000));
  auto queue = must(clan::RdmaQueue::create(context));
  std::vector<std::byte> buffer(bytes);
  std::uint64_t posted = 0, done = 0;
  const std::uint64_t begin = clan::monotonic_ns();
  while (posted > done || clan::monotonic_ns() < end) {
    while (posted - done < kUnderWay && clan::monotonic_ns() < end) {
      if (auto s = queue.write(remote, 0, buffer.data(), bytes); !s) fail(s.error());
      ++posted;
    }
    clan::RdmaCompletion completions[kUnderWay];
    const std::size_t n = must(queue.wait(completions, 10'000));
    for (std::size_t i = 0; i < n; ++i) {
      if (completions[i].status != 0) fail({completions[i].status, "an RDMA write"});
    }
    done += n;
  }
  print_rate(done * bytes, begin);
}

void run(const std::string& role, const std::string& path, const std::string& address,
         std::size_t bytes, double seconds) {
  auto context = make_context(path, "");
  auto stream =
      must(clan::Stream::connect(context, "udp:" + address + "/" + service_at(address), 10'000));
  std::vector<std::byte> buffer(bytes);
  const auto total = static_cast<std::uint64_t>(seconds * 1e9) / bytes * bytes;
  const std::uint64_t request[2] = {bytes, role == "ping"      ? 0
                                           : role == "rdma"    ? kRdma
                                           : role == "flood"   ? kFlood
                                           : role == "checked" ? total | kChecked
                                                               : total};
  (void)must(stream.send(std::as_bytes(std::span(request))));
  const std::uint64_t begin = clan::monotonic_ns();
  const std::uint64_t end = begin + static_cast<std::uint64_t>(seconds * 1e9);
  if (role == "rdma") return run_rdma(context, stream, bytes, end);
  if (role != "ping") {
    std::uint64_t sent = 0;
    while (role == "flood" ? clan::monotonic_ns() < end : sent < total) {
      if (role == "checked") fill(buffer, sent);
      sent += must(stream.send(buffer));
    }
    if (role != "flood" && !read_all(stream, std::span(buffer).first(1)))
      fail({EPROTO, "no answer"});
    if (role != "flood" && buffer[0] != std::byte{1}) fail({EBADMSG, "bytes were wrong"});
    return print_rate(sent, begin);
  }
  std::vector<std::uint64_t> trips;
  for (std::uint64_t now = begin; now < end;) {
    (void)must(stream.send(buffer));
    if (!read_all(stream, buffer)) fail({EPROTO, "no answer"});
    const std::uint64_t then = std::exchange(now, clan::monotonic_ns());
    trips.push_back(now - then);
  }
  std::sort(trips.begin(), trips.end());
  const auto us = [&](std::size_t i) { return static_cast<double>(trips[i]) / 1e3; };
  std::printf("%zu round trips: min %.2f p50 %.2f p99 %.2f us\n", trips.size(), us(0),
              us(trips.size() / 2), us(trips.size() * 99 / 100));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s serve|ping|bulk|flood|rdma PATH HOST:PORT [BYTES [SECONDS]]\n",
                 argv[0]);
    return 2;
  }
  const std::string role = argv[1];
  if (role == "serve") serve(argv[2], argv[3]);
  const std::size_t standard = role == "ping" ? 64 : 1 << 20;
  const std::size_t bytes = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : standard;
  run(role, argv[2], argv[3], std::max<std::size_t>(bytes, 1), argc > 5 ? std::atof(argv[5]) : 1);
  rusage use;
  (void)::getrusage(RUSAGE_SELF, &use);
  const auto s = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  std::printf("  %.2f s of processor, %.2f of it in the kernel\n",
              s(use.ru_utime) + s(use.ru_stime), s(use.ru_stime));
  return 0;
}
