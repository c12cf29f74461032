// A distributed message queue, made of apertures and tripwires: records from one process into a
// ring in another's memory (clan-distributed-computing section 2). Streams and message endpoints
// are such queues with more: set-up, both directions, death, records of any size.
//
//        sender                                        receiver
//     +--------------+   record, then its number    +------------------+
//     |              | ---------------------------> | ring   (its      |
//     | credit (its  |                              |         memory)  |
//     |  memory)     | <--------------------------- |                  |
//     +--------------+   how many were read         +------------------+
//
// Each side exports its memory and needs the cookie of the other's. Here the cookies travel over a
// socket pair, but any channel will do.
#include <clan/tripwire.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

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

constexpr std::uint64_t kRecords = 10'000, kSlots = 64, kCreditEvery = kSlots / 4;

// A record: `size` numbers that begin with `number`, which is written last.
struct Slot {
  std::uint64_t number, size, values[100];
};

// One side: its own memory, the tripwire on it, and the other side's memory.
struct Side {
  Side(int channel, std::size_t bytes)
      : context(must(clan::Context::create())),
        memory(must(clan::Memory::allocate(bytes))),
        own(must(clan::Aperture::export_memory(context, memory, 0, bytes, clan::Rights::kWrite))),
        tripwire(must(clan::Tripwire::create(own, 0, bytes))),
        remote(must(clan::RemoteAperture::import(context, exchange(channel), 10'000))) {}

  // Gives the other process our cookie and takes its own.
  clan::RdmaCookie exchange(int channel) const {
    clan::RdmaCookie cookie = own.cookie();
    if (::write(channel, &cookie, sizeof cookie) != sizeof cookie) std::_Exit(1);
    if (::read(channel, &cookie, sizeof cookie) != sizeof cookie) std::_Exit(1);
    return cookie;
  }
  // Sleeps until the word at `offset` of our memory, which the other side publishes, is enough.
  void wait_for(std::size_t offset, std::uint64_t least) {
    const std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(memory.data() + offset));
    while (word.load(std::memory_order_acquire) < least) {
      tripwire.arm();
      if (word.load(std::memory_order_acquire) < least) must(tripwire.wait(10'000));
    }
  }

  clan::Context context;
  clan::Memory memory;
  clan::Aperture own;
  clan::Tripwire tripwire;
  clan::RemoteAperture remote;
};

static int sender(int channel) {
  Side side(channel, sizeof(std::uint64_t));
  for (std::uint64_t n = 1; n <= kRecords; ++n) {
    if (n > kSlots) side.wait_for(0, n - kSlots);  // until its slot has been read
    Slot record{n, 1 + n % 100, {}};
    std::iota(record.values, record.values + record.size, n);
    const std::uint64_t at = n % kSlots * sizeof(Slot);
    must(side.remote.write(at + sizeof n, &record.size, (1 + record.size) * 8));
    must(side.remote.publish(at, n));
  }
  side.wait_for(0, kRecords);  // the last have been read
  return 0;
}

int main() {
  ::alarm(50);
  int channel[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, channel) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(sender(channel[1]));

  Side side(channel[0], kSlots * sizeof(Slot));
  std::uint64_t right = 0, numbers = 0;
  for (std::uint64_t n = 1; n <= kRecords; ++n) {
    const std::uint64_t at = n % kSlots * sizeof(Slot);
    side.wait_for(at, n);
    const auto& record = *reinterpret_cast<const Slot*>(side.memory.data() + at);
    numbers += record.size;
    right += record.size == 1 + n % 100 && record.values[record.size - 1] == n + record.size - 1;
    if (n % kCreditEvery == 0 || n == kRecords) must(side.remote.publish(0, n));
  }
  std::printf("%llu of %llu records were right, %llu numbers\n",
              static_cast<unsigned long long>(right), static_cast<unsigned long long>(kRecords),
              static_cast<unsigned long long>(numbers));
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 && right == kRecords ? 0 : 1;
}
