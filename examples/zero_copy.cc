// Zero-copy receiving with a cookie queue (clan-distributed-computing section 2.2): the receiver
// exports buffers and sends their cookies in out-of-band messages; the sender writes each message
// into the next buffer by RDMA and says so.
//
//      sender                                  receiver
//                  kBuffer {cookie, id}  <---- exports the buffer
//      RDMA write  ------------------------->  [ buffer ]
//                  kFilled {id, length}  ----> revokes the export: no late write can be seen there
#include <clan/endpoint.h>
#include <clan/rdma.h>
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

static void must(const clan::Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().message().c_str());
  std::_Exit(1);
}

constexpr std::size_t kBufferBytes = 256 * 1024;
constexpr std::uint64_t kMessages = 64, kBuffers = 4;

enum Type : std::uint32_t { kHello, kBuffer, kFilled };
struct Posted {
  clan::RdmaCookie cookie;
  std::uint64_t id;
};
struct Filled {
  std::uint64_t id, length;
};

template <typename T>
void send(clan::OobEndpoint& oob, const clan::Address& to, Type type, const T& what) {
  must(oob.send(to, type, std::as_bytes(std::span(&what, 1)), 5000));
}
template <typename T>
T receive(clan::OobEndpoint& oob) {
  const auto m = must(oob.recv(10'000));
  if (m.length != sizeof(T)) std::_Exit(1);
  T what;
  std::memcpy(&what, m.payload.data(), sizeof what);
  return what;
}

static int sender(int pipe) {
  clan::Address receiver;
  if (::read(pipe, &receiver, sizeof receiver) != sizeof receiver) return 1;
  auto context = must(clan::Context::create());
  auto oob = must(clan::OobEndpoint::create(context));
  auto rdma = must(clan::RdmaQueue::create(context));
  send(oob, receiver, kHello, 0);
  std::vector<std::byte> message(kBufferBytes);
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    const auto buffer = receive<Posted>(oob);
    const std::size_t length = kBufferBytes - i;
    std::memset(message.data(), static_cast<int>(i + 1), length);
    auto remote = must(clan::RemoteAperture::import(context, buffer.cookie, 5000));
    must(rdma.write(remote, 0, message.data(), length));
    clan::RdmaCompletion done;
    if (must(rdma.wait({&done, 1}, 10'000)) != 1 || done.status != 0) return 1;
    send(oob, receiver, kFilled, Filled{buffer.id, length});
  }
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
  const clan::Address here = oob.address();
  if (::write(pipe[1], &here, sizeof here) < 0) return 1;
  const clan::Address peer = must(oob.recv(10'000)).from;

  std::vector<std::vector<std::byte>> buffers(kBuffers, std::vector<std::byte>(kBufferBytes));
  std::vector<clan::Aperture> exported;
  for (std::uint64_t i = 0; i < kMessages + kBuffers; ++i) {
    if (i >= kBuffers) {  // a buffer comes back
      const auto filled = receive<Filled>(oob);
      must(exported[i - kBuffers].revoke());
      const auto& buffer = buffers[filled.id];
      if (filled.length != kBufferBytes - (i - kBuffers)) return 1;
      for (std::size_t at = 0; at < filled.length; ++at) {
        if (buffer[at] != static_cast<std::byte>(i - kBuffers + 1)) return 1;
      }
    }
    if (i >= kMessages) continue;
    exported.push_back(
        must(clan::Aperture::export_region(context, buffers[i % kBuffers], clan::Rights::kWrite)));
    send(oob, peer, kBuffer, Posted{exported.back().cookie(), i % kBuffers});
  }
  std::printf("%llu messages landed in %llu buffers, with one copy each and none by this program\n",
              static_cast<unsigned long long>(kMessages),
              static_cast<unsigned long long>(kBuffers));
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
