// Descriptors that name addresses of the process: through the NIC's TLB.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <thread>

#include "ends.h"

namespace clan::unet::testing {
namespace {

constexpr std::size_t kPage = 4096;

struct Mapped {
  /// Untouched memory is shared: it has a file behind it, which the NIC does not wait for.
  explicit Mapped(std::size_t pages, bool touched = true)
      : bytes(pages * kPage),
        data(static_cast<char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                       (touched ? MAP_PRIVATE : MAP_SHARED) | MAP_ANONYMOUS, -1,
                                       0))) {
    if (touched) std::memset(data, 1, bytes);
  }
  ~Mapped() { unmap(); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  void unmap() {
    if (data != nullptr) ::munmap(data, bytes);
    data = nullptr;
  }
  std::uint64_t at(std::size_t offset = 0) const {
    return reinterpret_cast<std::uint64_t>(data) + offset;
  }
  std::size_t bytes;
  char* data;
};

unet_endpoint_options anywhere(std::uint32_t flags = 0) {
  unet_endpoint_options options{};
  options.mode = UNET_ANYWHERE;
  options.flags = flags;
  return options;
}

bool keeps() {
  Pair p(anywhere(), anywhere());
  Mapped m(1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(p.a.send_pieces(2, {{m.at(), 100, 0}}), 0);
  return p.a.counters().tlb_hits > 0;
}

TEST(UnetAnywhere, BuffersLieWhereTheProgramHasThem) {
  Pair p(anywhere(), anywhere());
  Mapped from(3), to(3);
  for (std::size_t i = 0; i < from.bytes; ++i) from.data[i] = static_cast<char>(i * 11);
  // Not at the beginnings of pages, either.
  ASSERT_TRUE(unet_free_push(p.b.e, to.at(100)));
  ASSERT_TRUE(unet_free_push(p.b.e, to.at(100 + kPage)));
  ASSERT_EQ(unet_doorbell(p.b.e), 0);
  EXPECT_EQ(p.a.send_pieces(2, {{from.at(50), 3000, 0}, {from.at(4000), 5000, 0}}), 0);
  const unet_receive d = p.b.receive();
  ASSERT_EQ(d.buffers, 2);
  EXPECT_EQ(p.b.text_of(d, false),
            std::string(from.data + 50, 3000) + std::string(from.data + 4000, 5000));
}

TEST(UnetAnywhere, APageIsTranslatedOnce) {
  if (!keeps()) GTEST_SKIP() << "unmaps cannot be watched here";
  Pair p(anywhere(), anywhere());
  Mapped from(1), to(1);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(unet_free_push(p.b.e, to.at()));
    EXPECT_EQ(p.a.send_pieces(2, {{from.at(), 1000, 0}}), 0);
    EXPECT_EQ(p.b.receive().bytes, 1000u);
  }
  EXPECT_EQ(p.a.counters().tlb_misses, 1u);
  EXPECT_EQ(p.a.counters().tlb_hits, 99u);
  EXPECT_EQ(p.b.counters().tlb_misses, 1u);
}

TEST(UnetAnywhere, MemoryThatIsNotThereIsAFaultInTheStatus) {
  Pair p(anywhere(), anywhere());
  Mapped from(1);
  EXPECT_EQ(p.a.send_pieces(2, {{0, 100, 0}}), EFAULT);
  EXPECT_EQ(p.a.send_pieces(2, {{from.at(), 100, 0}, {8, 100, 0}}), EFAULT);
  EXPECT_EQ(p.a.send_pieces(2, {{from.at(), 10, 0}}), 0);
  EXPECT_EQ(p.b.receive().bytes, 10u) << "nothing of those that failed has gone";
}

TEST(UnetAnywhere, ABufferThatMayNotBeWrittenComesBack) {
  Pair p(anywhere(), anywhere());
  Mapped from(1), readable(1), good(1);
  ASSERT_EQ(::mprotect(readable.data, kPage, PROT_READ), 0);
  ASSERT_TRUE(unet_free_push(p.b.e, readable.at()));
  ASSERT_TRUE(unet_free_push(p.b.e, good.at()));
  EXPECT_EQ(unet_doorbell(p.b.e), 0);
  EXPECT_EQ(p.a.send_pieces(2, {{from.at(), 100, 0}}), 0);
  const unet_receive bad = p.b.receive();
  EXPECT_EQ(bad.status, EFAULT);
  EXPECT_EQ(bad.u.buffer[0], readable.at());
  EXPECT_EQ(p.b.receive().u.buffer[0], good.at());
}

TEST(UnetAnywhere, ABufferThatIsUnmappedWhileQueuedComesBack) {
  Pair p(anywhere(), anywhere());
  Mapped from(1);
  for (int i = 0; i < 200; ++i) {
    Mapped to(1), good(1);
    const std::uint64_t was = to.at();
    ASSERT_TRUE(unet_free_push(p.b.e, was));
    ASSERT_TRUE(unet_free_push(p.b.e, good.at()));
    ASSERT_EQ(unet_doorbell(p.b.e), 0);
    to.unmap();
    EXPECT_EQ(p.a.send_pieces(2, {{from.at(), 100, 0}}), 0);
    const unet_receive bad = p.b.receive();
    ASSERT_EQ(bad.status, EFAULT);
    ASSERT_EQ(bad.u.buffer[0], was);
    ASSERT_EQ(p.b.receive().u.buffer[0], good.at());
  }
}

// And what is sent from there is a fault.
TEST(UnetAnywhere, ABufferBeyondTheEndOfItsFileComesBack) {
  Pair p(anywhere(), anywhere());
  Mapped from(1);
  const int fd = ::memfd_create("unet-test", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, kPage), 0);
  void* const map = ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const auto at = reinterpret_cast<std::uint64_t>(map);
  ASSERT_TRUE(unet_free_push(p.b.e, at + kPage));
  ASSERT_TRUE(unet_free_push(p.b.e, at));
  ASSERT_EQ(unet_doorbell(p.b.e), 0);
  EXPECT_EQ(p.a.send_pieces(2, {{from.at(), 100, 0}}), 0);
  EXPECT_NE(p.b.receive().status, 0) << "EAGAIN or EFAULT";
  EXPECT_EQ(p.b.receive().status, 0);
  ASSERT_TRUE(p.a.push_pieces(2, {{at + kPage, 100, 0}}));
  int status = UNET_PENDING;
  for (; status == UNET_PENDING; status = p.a.taken_status()) ASSERT_EQ(unet_doorbell(p.a.e), 0);
  EXPECT_EQ(status, EFAULT);
  ::munmap(map, 2 * kPage);
  ::close(fd);
}

// A page that was never touched is not in memory.
TEST(UnetAnywhere, AMissingPageDefersTheSendsOfOneEndpoint) {
  NodeEnd first, second;
  End a(first.node, anywhere()), other(first.node, anywhere()), b(second.node);
  ASSERT_EQ(unet_accept(b.e, 1, kKey), 0);
  ASSERT_EQ(unet_accept(b.e, 3, kKey), 0);
  const unet_address there = b.address();
  ASSERT_EQ(unet_connect(a.e, 2, &there, 1, kKey, kSoon), 0);
  ASSERT_EQ(unet_connect(other.e, 2, &there, 3, kKey, kSoon), 0);
  Mapped absent(1, false), present(1);
  ASSERT_TRUE(a.push_pieces(2, {{absent.at(), 40, 0}}));
  ASSERT_TRUE(a.push_pieces(2, {{present.at(), 40, 0}}));
  ASSERT_EQ(unet_doorbell(a.e), 0);
  EXPECT_EQ(a.taken_status(), UNET_PENDING);
  EXPECT_EQ(a.counters().deferrals, 1u);
  EXPECT_EQ(other.send_pieces(2, {{present.at(), 40, 0}}), 0);
  EXPECT_EQ(b.receive().tag, 3u);
  for (int i = 0; i < 2; ++i) {
    int status = UNET_PENDING;
    while ((status = a.taken_status()) == UNET_PENDING) ASSERT_EQ(unet_wait(a.e, kSoon), 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(b.receive().tag, 1u);
  }
}

TEST(UnetAnywhere, ABufferWhosePageIsNotThereInTimeComesBack) {
  Pair p(anywhere(), anywhere());
  Mapped from(1), absent(1, false), good(1);
  ASSERT_TRUE(unet_free_push(p.b.e, absent.at()));  // and no doorbell
  ASSERT_TRUE(unet_free_push(p.b.e, good.at()));
  EXPECT_EQ(p.a.send_pieces(2, {{from.at(), 100, 0}}), 0);
  EXPECT_EQ(p.b.receive().status, EAGAIN);
  EXPECT_EQ(p.b.receive().u.buffer[0], good.at());
}

TEST(UnetAnywhere, TheDoorbellHasFreeBuffersBroughtIn) {
  if (!keeps()) GTEST_SKIP() << "unmaps cannot be watched here";
  Pair p(anywhere(), anywhere());
  Mapped from(1), absent(64, false);
  for (std::size_t i = 0; i < 64; ++i) ASSERT_TRUE(unet_free_push(p.b.e, absent.at(i * kPage)));
  ASSERT_EQ(unet_doorbell(p.b.e), 0);
  const std::uint64_t misses = p.b.counters().tlb_misses;
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(p.a.send_pieces(2, {{from.at(), 100, 0}}), 0);
    EXPECT_EQ(p.b.receive().status, 0);
  }
  EXPECT_EQ(p.b.counters().tlb_misses, misses);
}

TEST(UnetAnywhere, AThousandIdleEndpointsPinNoMoreThanTheTlbHolds) {
  unet_node_options few{};
  few.tlb_entries = 64;
  few.tlb_victims = 4;
  few.lock_pages = 1;
  NodeEnd node(few);
  Mapped pages(1000);
  std::vector<std::unique_ptr<End>> ends;
  for (std::size_t i = 0; i < 1000; ++i) {
    ends.push_back(std::make_unique<End>(node.node, anywhere(UNET_EMULATED)));
    ASSERT_TRUE(unet_free_push(ends[i]->e, pages.at(i * kPage)));
    ASSERT_EQ(unet_doorbell(ends[i]->e), 0);
  }
  EXPECT_GE(ends[0]->counters().tlb_misses, 1000u);
  EXPECT_LE(ends[0]->counters().tlb_pinned, 68u);
}

TEST(UnetAnywhere, MessagesGoOnWhileOtherMemoryIsUnmapped) {
  Pair p(anywhere(), anywhere());
  std::atomic<bool> ends{false};
  std::thread unmapper([&] {
    while (!ends.load()) Mapped m(4);
  });
  Mapped from(1), to(1);
  for (int i = 0; i < 3000; ++i) {
    std::memcpy(from.data, &i, sizeof i);
    ASSERT_TRUE(unet_free_push(p.b.e, to.at()));
    ASSERT_EQ(unet_doorbell(p.b.e), 0);
    ASSERT_EQ(p.a.send_pieces(2, {{from.at(), 100, 0}}), 0);
    ASSERT_EQ(p.b.receive().status, 0);
    int got = -1;
    std::memcpy(&got, to.data, sizeof got);
    ASSERT_EQ(got, i);
  }
  ends.store(true);
  unmapper.join();
}

}  // namespace
}  // namespace clan::unet::testing
