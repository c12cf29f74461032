// Zero-copy receiving with a cookie queue: the parent posts buffers, the child's messages land in
// them. The two cookies of each side travel through an out-of-band message.
#include <clan/endpoint.h>
#include <clan/zero_copy.h>
#include <sys/wait.h>
#include <unistd.h>

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

constexpr std::size_t kBufferBytes = 256 * 1024;
constexpr std::uint64_t kMessages = 64, kBuffers = 4;

static std::span<const std::byte> bytes(const clan::QueueEnds& ends) {
  return std::as_bytes(std::span(&ends, 1));
}
static clan::QueueEnds ends_in(const clan::OobArrival& m) {
  clan::QueueEnds ends;
  std::memcpy(&ends, m.payload.data(), sizeof ends);
  return ends;
}

static int sender(int pipe) {
  clan::Address receiver;
  if (::read(pipe, &receiver, sizeof receiver) != sizeof receiver) return 1;
  auto context = must(clan::Context::create());
  auto oob = must(clan::OobEndpoint::create(context));
  auto out = must(clan::ZeroCopySender::create(context));
  if (!oob.send(receiver, 1, bytes(out.ends()), 5000)) return 1;
  if (!out.attach(ends_in(must(oob.recv(5000))), 5000)) return 1;
  std::vector<std::byte> message(kBufferBytes);
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    std::memset(message.data(), static_cast<int>(i + 1), message.size());
    if (!out.send(std::span(message).first(kBufferBytes - i), 10'000)) return 1;
  }
  (void)oob.recv(10'000);  // stay until everything has been taken
  return 0;
}

int main() {
  ::alarm(50);
  int pipe[2];
  if (::pipe(pipe) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(sender(pipe[0]));

  auto context = must(clan::Context::create());
  auto oob = must(clan::OobEndpoint::create(context));
  auto in = must(clan::ZeroCopyReceiver::create(context));
  const clan::Address here = oob.address();
  if (::write(pipe[1], &here, sizeof here) < 0) return 1;
  auto hello = must(oob.recv(10'000));
  if (!in.attach(ends_in(hello), 5000)) return 1;
  if (!oob.send(hello.from, 2, bytes(in.ends()), 5000)) return 1;

  std::vector<std::vector<std::byte>> buffers(kBuffers, std::vector<std::byte>(kBufferBytes));
  for (std::uint64_t i = 0; i < kBuffers; ++i) {
    if (!in.post(buffers[i], i)) return 1;
  }
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    auto m = must(in.receive(10'000));
    const bool in_place = m.data.data() == buffers[m.id].data();  // where it was asked for
    if (m.status != 0 || !in_place || m.data.size() != kBufferBytes - i) return 1;
    for (std::byte b : m.data) {
      if (b != static_cast<std::byte>(i + 1)) return 1;
    }
    if (!in.post(buffers[m.id], m.id)) return 1;
  }
  std::printf("%llu messages landed in %llu buffers, with one copy each and none by this program\n",
              static_cast<unsigned long long>(kMessages),
              static_cast<unsigned long long>(kBuffers));
  if (!oob.send(hello.from, 3, {}, 5000)) return 1;
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
