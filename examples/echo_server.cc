// The server of a pair, for two terminals: echo_server [SERVICE [HOW MANY CLIENTS]]; see
// echo_client.cc.
#include <clan/stream.h>

#include <cstdio>
#include <cstdlib>
#include <string>

template <typename T>
T must(clan::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "echo_server: %s\n", result.error().message().c_str());
    std::exit(1);
  }
  return std::move(*result);
}

// Sends back what comes until the client closes.
static void serve(clan::Stream& stream) {
  std::byte buffer[4096];
  std::size_t bytes = 0;
  for (;;) {
    auto n = stream.recv(buffer);
    if (n && *n > 0) {
      bytes += *n;
      n = stream.send({buffer, *n});
      if (n) continue;
    }
    std::printf("process %d: %zu bytes, then %s\n", static_cast<int>(stream.peer().pid), bytes,
                n ? "the end" : n.error().message().c_str());
    return;
  }
}

int main(int argc, char** argv) {
  const std::string service = argc > 1 ? argv[1] : "echo";
  const long clients = argc > 2 ? std::atol(argv[2]) : -1;  // -1: until it is interrupted
  auto context = must(clan::Context::create());
  auto listener = must(clan::Listener::create(context, service));
  std::printf("serving \"%s\"\n", service.c_str());
  std::fflush(stdout);
  for (long n = 0; n != clients; ++n) {
    auto stream = must(listener.accept());
    serve(stream);
    std::fflush(stdout);
  }
}
