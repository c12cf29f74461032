// Two contexts of the engine over the UDP link, beside the rows of clan-net-transport. net.py runs
// it.
//
//   clan-net-stream serve|ping|bulk|checked|flood|rdma PATH HOST:PORT [BYTES [SECONDS]]
//
// rdma: writes of BYTES, four under way; the others: requests.h. PATH: stream (both ends poll),
// stream-sleep (both sleep), stream-adaptive, stream-encrypt (poll; the key from CLAN_KEY_FILE),
// stream-xdp (poll, by AF_XDP), stream-xdp-sleep.
#include <clan/aperture.h>
#include <clan/context.h>
#include <clan/detail/clock.h>
#include <clan/rdma.h>
#include <clan/stream.h>

#include "requests.h"

namespace {

using namespace clan::bench;

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

/// A stream, as requests.h has it.
struct End {
  clan::Stream& stream;

  bool read(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      auto n = stream.recv(bytes);
      if (!n || *n == 0) return false;
      bytes = bytes.subspan(*n);
    }
    return true;
  }
  bool write(std::span<const std::byte> bytes) { return stream.send(bytes).ok(); }
};

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
    End end{stream};
    Request request;
    if (!end.read(std::as_writable_bytes(std::span(&request, 1)))) continue;
    if (request.total == Request::kRdma) {
      serve_rdma(context, stream, request.bytes);
    } else {
      serve_request(end, request);
    }
  }
}

void run_rdma(clan::Context& context, clan::Stream& stream, std::size_t bytes, std::uint64_t end) {
  constexpr std::size_t kUnderWay = 4;
  clan::RdmaCookie cookie;
  if (!End{stream}.read(std::as_writable_bytes(std::span(&cookie, 1)))) fail({EPROTO, "no cookie"});
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
  const Request request = Request::of(role, bytes, seconds);
  (void)must(stream.send(std::as_bytes(std::span(&request, 1))));
  End end{stream};
  if (role != "rdma") return run_request(end, role, bytes, seconds);
  run_rdma(context, stream, bytes,
           clan::monotonic_ns() + static_cast<std::uint64_t>(seconds * 1e9));
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
  print_processor_time();
  return 0;
}
