// A distributed message queue (clan/queue.h): records of any size from one process into a ring in
// another's memory. Each side owns a piece of memory and needs the cookie of the other's; here the
// cookies travel over a socket pair, but any channel will do.
#include <clan/queue.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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

static void must(clan::Status status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().message().c_str());
  std::_Exit(1);
}

// Gives the other process our cookie and takes its own.
static clan::RdmaCookie exchange(int channel, const clan::RdmaCookie& ours) {
  clan::RdmaCookie theirs;
  if (::write(channel, &ours, sizeof ours) != sizeof ours) std::_Exit(1);
  if (::read(channel, &theirs, sizeof theirs) != sizeof theirs) std::_Exit(1);
  return theirs;
}

constexpr std::uint64_t kRecords = 10'000;

// Record n: n numbers, modulo 100, that begin with n.
static std::size_t numbers_in(std::uint64_t n) { return 1 + n % 100; }

static int sender(int channel) {
  auto context = must(clan::Context::create());
  auto queue = must(clan::QueueSender::create(context));
  must(queue.attach(exchange(channel, queue.cookie()), 10'000));
  for (std::uint64_t n = 0; n < kRecords; ++n) {
    if (n % 2 == 0) {  // from memory of our own
      std::vector<std::uint64_t> numbers(numbers_in(n));
      std::iota(numbers.begin(), numbers.end(), n);
      must(queue.send(std::as_bytes(std::span(numbers)), 10'000));
      continue;
    }
    const std::size_t bytes = numbers_in(n) * 8;  // or built in the receiver's ring: no copy
    must(queue.wait(bytes, 10'000));
    auto room = must(queue.reserve(bytes));
    auto* numbers = reinterpret_cast<std::uint64_t*>(room.data());
    std::iota(numbers, numbers + numbers_in(n), n);
    must(queue.commit(bytes));
  }
  return 0;  // the queue ends; what is in the ring can still be received
}

int main() {
  ::alarm(50);
  int channel[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, channel) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(sender(channel[1]));

  auto context = must(clan::Context::create());
  auto queue = must(clan::QueueReceiver::create(context, 64 * 1024));
  must(queue.attach(exchange(channel[0], queue.cookie()), 10'000));
  std::uint64_t right = 0, numbers = 0;
  std::uint64_t record[100];
  for (std::uint64_t n = 0; n < kRecords; ++n) {
    const std::size_t bytes =
        must(queue.receive(std::as_writable_bytes(std::span(record)), 10'000));
    numbers += bytes / 8;
    std::uint64_t expected = n;
    right +=
        bytes == numbers_in(n) * 8 &&
        std::all_of(record, record + bytes / 8, [&](std::uint64_t x) { return x == expected++; });
  }
  auto end = queue.receive(std::as_writable_bytes(std::span(record)), 10'000);
  std::printf("%llu of %llu records were right, %llu numbers; then: %s\n",
              static_cast<unsigned long long>(right), static_cast<unsigned long long>(kRecords),
              static_cast<unsigned long long>(numbers),
              end ? "one too many" : end.error().message().c_str());
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 && right == kRecords && !end && end.error().err == ESTALE ? 0 : 1;
}
