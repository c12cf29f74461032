// A path between two network namespaces that delays packets and loses some of them: where the
// kernel has no netem, and the same for every protocol.
//
//   clan-net-relay NAMESPACE ADDRESS NAMESPACE ADDRESS DELAY-US LOSS SEED
//
//   namespace 1, device r0 <--> [ queue: DELAY-US, LOSS of 10,000 packets ] <--> r0, namespace 2
//
// Each end is a TUN device with that IPv4 address of a network of 24 bits. Both directions are
// alike and keep the order; which packets are lost depends on SEED and on how many came before. A
// queue that is full drops what comes. Says "ready", and runs until its input ends. Root.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <array>
#include <string>

#include "support/load.h"

namespace {

constexpr std::size_t kMostBytes = 2048;
constexpr int kBatch = 64;  // of one direction, before the other has its turn

using clan::bench::now_ns;

int need(int result, const char* what) {
  if (result < 0) clan::bench::fail(what);
  return result;
}

struct Options {
  std::uint64_t delay_ns, loss;
};
constexpr std::size_t kQueue = 8192;  // packets

// The calling thread is left in the namespace.
int open_end(const char* name, const char* address) {
  const std::string path = std::string("/run/netns/") + name;
  const int netns = need(::open(path.c_str(), O_RDONLY | O_CLOEXEC), path.c_str());
  need(::setns(netns, CLONE_NEWNET), "setns");
  ::close(netns);
  const int tun = need(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun");
  ifreq request{};
  std::strcpy(request.ifr_name, "r0");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  need(::ioctl(tun, TUNSETIFF, &request), "TUNSETIFF");
  const int control = need(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
  request.ifr_qlen = 8192;
  need(::ioctl(control, SIOCSIFTXQLEN, &request), "SIOCSIFTXQLEN");
  auto& in = reinterpret_cast<sockaddr_in&>(request.ifr_addr);
  in = clan::bench::address_of(address, 0);
  need(::ioctl(control, SIOCSIFADDR, &request), "SIOCSIFADDR");
  in.sin_addr.s_addr = ::htonl(0xffff'ff00u);
  need(::ioctl(control, SIOCSIFNETMASK, &request), "SIOCSIFNETMASK");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  need(::ioctl(control, SIOCSIFFLAGS, &request), "SIOCSIFFLAGS");
  ::close(control);
  return tun;
}

/// Packets of one direction that are under way, in a ring.
class Direction {
 public:
  Direction(int from, int to, const Options& options, std::uint64_t seed)
      : from_(from), to_(to), options_(options), random_(seed), slots_(kQueue) {}

  /// Takes what has come.
  void take(std::uint64_t now) {
    for (int i = 0; i < kBatch; ++i) {
      Slot& slot = slots_[tail_ % slots_.size()];
      const bool full = tail_ - head_ == slots_.size();
      std::byte nowhere[kMostBytes];
      const ssize_t n = ::read(from_, full ? nowhere : slot.bytes.data(), kMostBytes);
      if (n <= 0) return;
      if (next() % 10'000 < options_.loss || full) continue;
      slot.size = static_cast<std::size_t>(n);
      slot.due = now + options_.delay_ns;
      ++tail_;
    }
  }
  void give(std::uint64_t now) {
    for (; head_ != tail_ && slots_[head_ % slots_.size()].due <= now; ++head_) {
      const Slot& slot = slots_[head_ % slots_.size()];
      (void)!::write(to_, slot.bytes.data(), slot.size);
    }
  }
  std::uint64_t due() const {
    return head_ == tail_ ? ~std::uint64_t{0} : slots_[head_ % slots_.size()].due;
  }

 private:
  struct Slot {
    std::uint64_t due = 0;
    std::size_t size = 0;
    std::array<std::byte, kMostBytes> bytes;
  };
  std::uint64_t next() {  // splitmix64
    std::uint64_t z = random_ += 0x9e37'79b9'7f4a'7c15u;
    z = (z ^ z >> 30) * 0xbf58'476d'1ce4'e5b9u;
    z = (z ^ z >> 27) * 0x94d0'49bb'1331'11ebu;
    return z ^ z >> 31;
  }

  const int from_, to_;
  const Options options_;
  std::uint64_t random_;
  std::vector<Slot> slots_;
  std::uint64_t head_ = 0, tail_ = 0;
};

void run(int a, int b, Direction& there, Direction& back) {
  for (;;) {
    const std::uint64_t due = std::min(there.due(), back.due());
    timespec left{};
    if (due != ~std::uint64_t{0}) {
      const std::uint64_t now = now_ns();
      left.tv_nsec =
          static_cast<long>(std::min<std::uint64_t>(due > now ? due - now : 0, 999'999'999));
    }
    pollfd fds[3] = {{a, POLLIN, 0}, {b, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    const int n = ::ppoll(fds, 3, due == ~std::uint64_t{0} ? nullptr : &left, nullptr);
    if (n < 0 && errno != EINTR) need(n, "ppoll");
    const std::uint64_t now = now_ns();
    if (n > 0 && fds[0].revents != 0) there.take(now);
    if (n > 0 && fds[1].revents != 0) back.take(now);
    if (n > 0 && fds[2].revents != 0) {
      char byte;
      if (::read(STDIN_FILENO, &byte, 1) <= 0) return;
    }
    there.give(now);
    back.give(now);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr, "usage: %s NAMESPACE ADDRESS NAMESPACE ADDRESS DELAY-US LOSS SEED\n",
                 argv[0]);
    return 2;
  }
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  const Options options{number(5) * 1000, number(6)};
  const std::uint64_t seed = number(7);
  const int a = open_end(argv[1], argv[2]), b = open_end(argv[3], argv[4]);
  Direction there(a, b, options, seed), back(b, a, options, seed + (1u << 20));
  std::puts("ready");
  std::fflush(stdout);
  run(a, b, there, back);
  return 0;
}
