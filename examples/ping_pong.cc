// A stream between two processes, and how long a message takes there and back.
#include <clan/stream.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

template <typename T>
T must(clan::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message().c_str());
    std::_Exit(1);
  }
  return std::move(*result);
}

constexpr int kRounds = 20'000;

static bool receive_all(clan::Stream& stream, std::span<std::byte> buffer) {
  while (!buffer.empty()) {
    auto n = stream.recv(buffer, 10'000);
    if (!n || *n == 0) return false;
    buffer = buffer.subspan(*n);
  }
  return true;
}

static int client(int ready, const std::string& service) {
  char go;
  if (::read(ready, &go, 1) != 1) return 1;
  auto context = must(clan::Context::create());
  auto stream = must(clan::Stream::connect(context, service, 5000));
  std::byte message[64];
  while (receive_all(stream, message)) {
    if (!stream.send(message, 10'000)) return 1;
  }
  return 0;  // the server has closed
}

int main() {
  ::alarm(50);
  const std::string service = "example-ping-pong-" + std::to_string(::getpid());
  int ready[2];
  if (::pipe(ready) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(client(ready[0], service));

  auto context = must(clan::Context::create());
  auto listener = must(clan::Listener::create(context, service));
  if (::write(ready[1], "g", 1) != 1) return 1;
  auto stream = must(listener.accept(10'000));

  std::vector<double> times;
  std::byte out[64], back[64];
  const auto start = std::chrono::steady_clock::now();
  while (times.size() < kRounds &&
         std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) {
    std::fill(std::begin(out), std::end(out), static_cast<std::byte>(times.size()));
    const auto before = std::chrono::steady_clock::now();
    if (!stream.send(out, 10'000) || !receive_all(stream, back)) return 1;
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before)
            .count());
    if (!std::equal(std::begin(out), std::end(out), std::begin(back))) return 1;
  }
  stream.close();
  std::sort(times.begin(), times.end());
  std::printf("64 bytes there and back over %s: median %.2f us, 99 %% below %.2f us (%zu rounds)\n",
              stream.peer().path, times[times.size() / 2], times[times.size() * 99 / 100],
              times.size());
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
