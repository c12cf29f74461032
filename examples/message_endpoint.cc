// Message endpoints: one endpoint talks to several processes. Small messages pass through rings,
// large ones are copied once, straight from the sender's memory; the code is the same.
#include <clan/message.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

template <typename T>
T must(clan::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message().c_str());
    std::_Exit(1);
  }
  return std::move(*result);
}

constexpr int kWorkers = 3;
constexpr std::size_t kNumbers[] = {10, 1000, 1'000'000};  // of a job; the last one is 8 MB

// Sums what it is sent until an empty message comes.
static int worker(int ready, const std::string& service) {
  char go;
  if (::read(ready, &go, 1) != 1) return 1;
  auto context = must(clan::Context::create());
  auto endpoint = must(clan::MessageEndpoint::create(context));
  auto to = must(endpoint.connect(service, 10'000));
  if (!endpoint.send(to, {}, 10'000)) return 1;  // "here I am"
  std::vector<std::uint64_t> numbers(kNumbers[2]);
  for (;;) {
    auto m = must(endpoint.recv(std::as_writable_bytes(std::span(numbers)), 10'000));
    if (m.size == 0) return 0;
    std::uint64_t sum =
        std::accumulate(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(m.size / 8),
                        std::uint64_t{0});
    if (!endpoint.send(to, std::as_bytes(std::span(&sum, 1)), 10'000)) return 1;
  }
}

int main() {
  ::alarm(50);
  const std::string service = "example-messages-" + std::to_string(::getpid());
  int ready[2];
  if (::pipe(ready) != 0) return 1;
  for (int i = 0; i < kWorkers; ++i) {
    if (::fork() == 0) std::_Exit(worker(ready[0], service));
  }
  auto context = must(clan::Context::create());
  auto endpoint = must(clan::MessageEndpoint::create(context, service));
  if (::write(ready[1], "gogogo", kWorkers) != kWorkers) return 1;

  std::vector<clan::PeerIndex> workers;
  while (workers.size() < kWorkers) workers.push_back(must(endpoint.recv({}, 10'000)).from);
  bool right = true;
  for (std::size_t n : kNumbers) {
    std::vector<std::uint64_t> numbers(n);
    std::iota(numbers.begin(), numbers.end(), 1);
    for (clan::PeerIndex to : workers) {
      if (!endpoint.send(to, std::as_bytes(std::span(numbers)), 10'000)) return 1;
    }
    for (int i = 0; i < kWorkers; ++i) {
      std::uint64_t sum = 0;
      auto m = must(endpoint.recv(std::as_writable_bytes(std::span(&sum, 1)), 10'000));
      right = right && m.size == 8 && sum == n * (n + 1) / 2;
      std::printf("worker %u: the sum of 1 to %zu is %llu\n", m.from, n,
                  static_cast<unsigned long long>(sum));
    }
  }
  for (clan::PeerIndex to : workers) {
    if (!endpoint.send(to, {}, 10'000)) return 1;
  }
  for (int i = 0; i < kWorkers; ++i) {
    int status = 0;
    ::wait(&status);
    right = right && status == 0;
  }
  return right ? 0 : 1;
}
