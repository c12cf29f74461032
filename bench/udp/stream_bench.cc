// A stream of the engine between two contexts over the UDP link: ping-pong and bulk, beside the rows of
// clan-udp-transport.
//
//   clan-udp-stream serve PATH HOST:PORT
//   clan-udp-stream ping  PATH HOST:PORT [BYTES [SECONDS]]
//   clan-udp-stream bulk  PATH HOST:PORT [BYTES [SECONDS]]
//
// PATH: stream (both ends poll), stream-sleep (both sleep), stream-adaptive, stream-encrypt (poll; the key from
// CLAN_KEY_FILE). transport.py runs it.
#include <clan/clock.h>
#include <clan/context.h>
#include <clan/stream.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
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
  options.wait.mode = path == "stream-sleep"      ? clan::WaitOptions::Mode::kSleep
                      : path == "stream-adaptive" ? clan::WaitOptions::Mode::kAdaptive
                                                  : clan::WaitOptions::Mode::kPoll;
  options.network.enabled = true;
  options.network.directory_port = 0;
  options.network.address = address;
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

// A request's first 16 bytes: the length of each message, and 0 for ping or the number of bytes for bulk.
void serve(const std::string& path, const std::string& address) {
  auto context = make_context(path, address);
  auto listener = must(clan::Listener::create(context, "bench"));
  for (;;) {
    auto stream = must(listener.accept());
    std::uint64_t request[2];
    if (!read_all(stream, std::as_writable_bytes(std::span(request)))) continue;
    std::vector<std::byte> buffer(std::max<std::size_t>(request[0], 1));
    for (std::uint64_t got = 0; read_all(stream, buffer);) {
      got += buffer.size();
      if (request[1] == 0) {
        (void)stream.send(buffer);
      } else if (got >= request[1]) {
        (void)stream.send(std::span(buffer).first(1));
      }
    }
  }
}

void run(const std::string& role, const std::string& path, const std::string& address,
         std::size_t bytes, double seconds) {
  auto context = make_context(path, "");
  auto stream = must(clan::Stream::connect(context, "udp:" + address + "/bench", 10'000));
  std::vector<std::byte> buffer(bytes);
  const bool ping = role == "ping";
  const auto total = ping ? 0 : static_cast<std::uint64_t>(seconds * 1e9) / bytes * bytes;
  const std::uint64_t request[2] = {bytes, total};
  (void)must(stream.send(std::as_bytes(std::span(request))));
  const std::uint64_t begin = clan::monotonic_ns();
  if (!ping) {
    for (std::uint64_t sent = 0; sent < total; sent += bytes) (void)must(stream.send(buffer));
    if (!read_all(stream, std::span(buffer).first(1))) fail({EPROTO, "no answer"});
    const auto ns = static_cast<double>(clan::monotonic_ns() - begin);
    std::printf("%.3f GB/s\n", static_cast<double>(total) / ns);
    return;
  }
  std::vector<std::uint64_t> trips;
  const std::uint64_t end = begin + static_cast<std::uint64_t>(seconds * 1e9);
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
    std::fprintf(stderr, "usage: %s serve|ping|bulk PATH HOST:PORT [BYTES [SECONDS]]\n", argv[0]);
    return 2;
  }
  const std::string role = argv[1];
  if (role == "serve") serve(argv[2], argv[3]);
  const std::size_t standard = role == "bulk" ? 1 << 20 : 64;
  const std::size_t bytes = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : standard;
  run(role, argv[2], argv[3], std::max<std::size_t>(bytes, 1), argc > 5 ? std::atof(argv[5]) : 1);
  rusage use;
  (void)::getrusage(RUSAGE_SELF, &use);
  const auto s = [](const timeval& t) { return static_cast<double>(t.tv_sec) + t.tv_usec / 1e6; };
  std::printf("  %.2f s of processor, %.2f of it in the kernel\n", s(use.ru_utime) + s(use.ru_stime),
              s(use.ru_stime));
  return 0;
}
