// The client of a pair, for two terminals: echo_client [SERVICE [TEXT]]; see echo_server.cc. Sends
// the text, or the lines of standard input, and prints what comes back.
#include <clan/stream.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

template <typename T>
T must(clan::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "echo_client: %s\n", result.error().message().c_str());
    std::exit(1);
  }
  return std::move(*result);
}

// There and back. recv() answers with what is there, so it takes as many calls as it takes.
static std::string echo(clan::Stream& stream, const std::string& line) {
  must(stream.send(std::as_bytes(std::span(line)), 10'000));
  std::string back(line.size(), '\0');
  for (std::size_t at = 0; at < back.size();) {
    const std::size_t n =
        must(stream.recv(std::as_writable_bytes(std::span(back)).subspan(at), 10'000));
    if (n == 0) {
      std::fprintf(stderr, "echo_client: the server has closed\n");
      std::exit(1);
    }
    at += n;
  }
  return back;
}

int main(int argc, char** argv) {
  const std::string service = argc > 1 ? argv[1] : "echo";
  auto context = must(clan::Context::create());
  auto stream = must(clan::Stream::connect(context, service, 10'000));
  if (argc > 2) {
    std::puts(echo(stream, argv[2]).c_str());
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) std::puts(echo(stream, line).c_str());
}
