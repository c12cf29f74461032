#include "wait/event_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "wait/epoll_set.h"

namespace clan::preload {
namespace {

Interest some_interest;

// Times count from here, in the units of order_stamp().
std::uint64_t base() {
  static const std::uint64_t start = order_stamp() & PipeStamp::kTimeMask;
  return start - 1'000'000;
}

epoll_event event_of(std::uint64_t data) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = data;
  return event;
}

ReadyEvent moved(std::uint64_t data, std::uint64_t written, std::uint64_t kernel_write = 0) {
  ReadyEvent found;
  found.interest = &some_interest;
  found.event = event_of(data);
  found.since = base() + written;
  found.last_kernel_write =
      PipeStamp::make(base() + written, kernel_write == 0 ? 0 : base() + kernel_write);
  return found;
}

std::vector<std::uint64_t> order_of(std::vector<ReadyEvent> found, std::uint64_t low = 0) {
  put_in_order(found.data(), static_cast<std::uint32_t>(found.size()), base() + low);
  std::vector<std::uint64_t> order;
  for (const ReadyEvent& one : found) {
    const std::uint64_t data = one.event.data.u64;  // of a packed structure: no reference to it
    order.push_back(data);
  }
  return order;
}

using Data = std::vector<std::uint64_t>;

TEST(EventOrder, OfWhatHasMovedIsThatOfTheWrites) {
  EXPECT_EQ(order_of({moved(1, 300), moved(2, 100), moved(3, 200)}), (Data{2, 3, 1}));
}

TEST(EventOrder, OfOneTimeIsThatInWhichTheyWereFound) {
  EXPECT_EQ(order_of({moved(1, 100), moved(2, 100), moved(3, 100)}), (Data{1, 2, 3}));
}

TEST(EventOrder, PutsPlainOnesLastWhereNothingIsKnownAndKeepsTheirOwn) {
  const KernelOrder kernel(base() + 900);
  EXPECT_EQ(order_of({kernel.plain(event_of(7)), kernel.plain(event_of(8)), moved(1, 500)}),
            (Data{1, 7, 8}));
}

TEST(EventOrder, PutsAPlainOneWhereTheWriterOfARecordWroteBefore) {
  const KernelOrder kernel(base() + 90000);
  // Written to 2, then past pipes, then to 1.
  EXPECT_EQ(order_of({moved(1, 50000, 40000), moved(2, 20000), kernel.plain(event_of(7))}),
            (Data{2, 7, 1}));
}

TEST(EventOrder, PutsAPlainOneInFrontHoweverShortlyBeforeTheRecordItWasWritten) {
  const KernelOrder kernel(base() + 90000);
  EXPECT_EQ(order_of({moved(1, 50000, 49999), kernel.plain(event_of(7))}), (Data{7, 1}));
}

TEST(EventOrder, PutsAPlainOneInFrontOfARecordThatWasWrittenLongAfterIt) {
  // The thread computed for half a second in between.
  constexpr std::uint64_t kPause = 1'000'000'000;
  const KernelOrder kernel(base() + 90000);
  EXPECT_EQ(order_of({moved(1, 50000, 50000 - kPause), kernel.plain(event_of(7))}, 0 - 2 * kPause),
            (Data{7, 1}));
}

TEST(EventOrder, PutsAPlainOneTooEarlyRatherThanTooLate) {
  const KernelOrder kernel(base() + 90000);
  // Written past pipes, then to 1, then to 7 (docs/interposition.md, "Limit of the order").
  EXPECT_EQ(order_of({moved(1, 50000, 40000), kernel.plain(event_of(7))}), (Data{7, 1}));
}

TEST(EventOrder, ForgetsWritesFromBeforeTheKernelWasLastAsked) {
  const KernelOrder kernel(base() + 90000);
  EXPECT_EQ(order_of({moved(1, 50000, 10000), kernel.plain(event_of(7))}, 30000), (Data{1, 7}));
}

TEST(EventOrder, KeepsThePlaceOfARingInTheKernelsAnswer) {
  KernelOrder kernel(base() + 90000);
  std::vector<ReadyEvent> found{kernel.plain(event_of(7))};
  kernel.ring(found.data(), found.data() + 1, base() + 50000);  // of 1
  found.push_back(kernel.plain(event_of(8)));
  // What the writer says of its writes past pipes is 7, as 8 came behind the ring.
  found.push_back(moved(1, 50000, 40000));
  EXPECT_EQ(order_of(found), (Data{7, 1, 8}));
}

TEST(EventOrder, IsSomeOrderWhateverWritersSay) {
  std::vector<ReadyEvent> found;
  std::uint64_t seed = 1;
  for (std::uint64_t k = 0; k < 500; ++k) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    ReadyEvent one;
    one.interest = k % 3 == 0 ? nullptr : &some_interest;
    one.event = event_of(k);
    one.since = seed & PipeStamp::kTimeMask;
    one.edge = one.interest == nullptr ? seed >> 7 & PipeStamp::kTimeMask : 0;
    one.last_kernel_write.word = seed * 31;
    found.push_back(one);
  }
  Data order = order_of(found, seed >> 20);
  std::sort(order.begin(), order.end());
  for (std::uint64_t k = 0; k < 500; ++k) ASSERT_EQ(order[k], k);
}

TEST(PipeStamp, KnowsNothingOfWritesLongAgo) {
  const std::uint64_t now = order_stamp();
  EXPECT_FALSE(PipeStamp::make(now, 0).has_kernel_write());
  EXPECT_TRUE(PipeStamp::make(now, now - 1000).has_kernel_write());
  EXPECT_TRUE(
      PipeStamp::before(PipeStamp::make(now, now).last_kernel_write(), now & PipeStamp::kTimeMask));
}

TEST(PipeStamp, SaysHowLongAgoToATwoThousandthAndNeverTooLate) {
  const std::uint64_t now = std::uint64_t{1} << 40;
  for (std::uint64_t ago = 1; ago < 2'000'000'000; ago += ago / 7 + 1) {
    const PipeStamp stamp = PipeStamp::make(now, now - ago);
    ASSERT_TRUE(stamp.has_kernel_write()) << ago;
    const std::uint64_t said = now - stamp.last_kernel_write();
    ASSERT_GE(said, ago);
    ASSERT_LE(said, ago + ago / 2000 + 32);
  }
  EXPECT_FALSE(PipeStamp::make(now, now - 3'000'000'000).has_kernel_write());
}

TEST(PipeStamp, ComparesTimesThatWrap) {
  EXPECT_TRUE(PipeStamp::before(PipeStamp::kTimeMask, 1));
  EXPECT_FALSE(PipeStamp::before(1, PipeStamp::kTimeMask));
  EXPECT_FALSE(PipeStamp::before(5, 5));
}

}  // namespace
}  // namespace clan::preload
