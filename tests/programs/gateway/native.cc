// A native server for the tests of the gateway: gateway-native NAME. Echoes what its connections
// send, all of them in one thread, and ends each when the other end has. A connection by
// which a '!' comes alone is aborted.
#include <clan/event_queue.h>
#include <clan/stream.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

namespace {

int fail(const clan::Error& error) {
  std::fprintf(stderr, "gateway-native: %s\n", error.message().c_str());
  return 1;
}

/// False: it is done with.
bool echo(clan::Stream& stream, std::string& back) {
  for (;;) {
    while (!back.empty()) {
      const auto n =
          stream.try_send({reinterpret_cast<const std::byte*>(back.data()), back.size()});
      if (!n) return n.error().err == EAGAIN;
      back.erase(0, *n);
    }
    std::array<std::byte, 10'000> buffer;
    const auto n = stream.try_recv(buffer);
    if (!n) return n.error().err == EAGAIN;
    if (*n == 0) {
      (void)stream.shutdown_send();
      return false;
    }
    if (*n == 1 && buffer[0] == std::byte{'!'}) {
      stream.abort();
      return false;
    }
    back.assign(reinterpret_cast<const char*>(buffer.data()), *n);
  }
}

}  // namespace

int main(int, char** argv) {
  auto context = clan::Context::create();
  if (!context) return fail(context.error());
  auto queue = clan::EventQueue::create(*context);
  if (!queue) return fail(queue.error());
  auto listener = clan::Listener::create(*context, argv[1]);
  if (!listener) return fail(listener.error());
  (void)listener->register_with(*queue, 0);
  std::puts("ready");
  std::fflush(stdout);
  struct Served {
    clan::Stream stream;
    std::string back;
  };
  std::map<std::uint64_t, Served> served;
  for (std::uint64_t next = 1;;) {
    std::array<clan::Event, 16> events;
    const auto n = queue->wait(events);
    for (std::size_t i = 0; n && i < *n; ++i) {
      if (events[i].tag != 0) {
        const auto found = served.find(events[i].tag);
        if (found != served.end() && !echo(found->second.stream, found->second.back))
          served.erase(found);
        continue;
      }
      for (auto stream = listener->try_accept(); stream; stream = listener->try_accept()) {
        const auto [at, added] = served.emplace(next, Served{std::move(*stream), {}});
        (void)at->second.stream.register_with(*queue, next++);
        if (!echo(at->second.stream, at->second.back)) served.erase(at);
      }
    }
  }
}
