#include "plugins/mpi/channel/channel.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "plugins/mpi/channel/channel_receiver.h"
#include "plugins/mpi/channel/channel_sender.h"

namespace clan::mpi {
namespace {

constexpr std::uint32_t kBulk = 64 * 1024;

/// A channel in memory of this process; both ends, and what a hostile sender would write to.
class Channel : public ::testing::Test {
 protected:
  Channel() {
    constexpr std::size_t kBytes = sizeof(ChannelControl) + kSlots * sizeof(Slot) + kBulk;
    memory_ = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bytes_ = kBytes;
    auto* base = static_cast<std::byte*>(memory_);
    view_ = {reinterpret_cast<ChannelControl*>(base),
             reinterpret_cast<Slot*>(base + sizeof(ChannelControl)),
             base + sizeof(ChannelControl) + kSlots * sizeof(Slot), kBulk};
    sender_.attach(view_);
    receiver_.attach(view_);
  }
  ~Channel() override { ::munmap(memory_, bytes_); }

  static std::vector<std::byte> pattern(std::size_t n, unsigned seed) {
    std::vector<std::byte> bytes(n);
    for (std::size_t i = 0; i < n; ++i)
      bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + seed * 7);
    return bytes;
  }

  bool send(std::size_t n, unsigned seed, std::size_t header_bytes = 14) {
    const auto bytes = pattern(header_bytes + n, seed);
    const auto tag = static_cast<std::uint8_t>(seed);
    if (header_bytes + n <= kInlineBytes &&
        sender_.send_inline(tag, bytes.data(), header_bytes, bytes.data() + header_bytes, n)) {
      return true;
    }
    std::byte* room = sender_.reserve(header_bytes, n);
    if (room == nullptr) return false;
    std::memcpy(room, bytes.data(), bytes.size());
    sender_.commit(tag, bytes.size());
    return true;
  }

  void expect(std::size_t n, unsigned seed, std::size_t header_bytes = 14) {
    Record record;
    ASSERT_EQ(receiver_.next(&record), ChannelReceiver::Next::kRecord);
    EXPECT_EQ(record.tag, static_cast<std::uint8_t>(seed));
    const auto bytes = pattern(header_bytes + n, seed);
    ASSERT_EQ(record.bytes, bytes.size());
    EXPECT_EQ(std::memcmp(record.data, bytes.data(), bytes.size()), 0) << n << " bytes";
  }

  void* memory_;
  std::size_t bytes_;
  ChannelView view_;
  ChannelSender sender_;
  ChannelReceiver receiver_;
};

TEST_F(Channel, IsEmptyAtFirst) {
  Record record;
  EXPECT_FALSE(receiver_.ready());
  EXPECT_EQ(receiver_.next(&record), ChannelReceiver::Next::kNone);
}

TEST_F(Channel, DeliversRecordsOfEverySizeInTheOrderSentOverManyLaps) {
  unsigned seed = 0;
  for (int round = 0; round < 300; ++round) {
    for (const std::size_t n : {0, 1, 8, 41, 42, 43, 56, 57, 63, 64, 65, 500, 1000, 8192, 16384}) {
      ASSERT_TRUE(send(n, ++seed));
      expect(n, seed);
      receiver_.publish(round % 3 == 0);
    }
  }
}

TEST_F(Channel, AnnouncesWhatIsNoRecordBeforeItIsComplete) {
  for (const bool far : {false, true}) {
    sender_.set_far(far);
    for (unsigned round = 0; round < 2000; ++round) {
      const auto bytes = pattern(14 + 9000, round);
      std::byte* room = sender_.reserve(14, 9000);
      ASSERT_NE(room, nullptr);
      for (std::size_t at = 0; at < bytes.size(); at += 3000) {
        const std::size_t more = std::min<std::size_t>(bytes.size() - at, 3000);
        std::memcpy(room + at, bytes.data() + at, more);
        Record record;
        ASSERT_EQ(receiver_.next(&record), ChannelReceiver::Next::kNone);
        sender_.announce(at + more);
        ASSERT_EQ(receiver_.next(&record), ChannelReceiver::Next::kNone);
      }
      // It may even be given up for another.
      if (round % 3 == 0) {
        ASSERT_TRUE(send(8, round));
        expect(8, round);
      } else {
        sender_.commit(static_cast<std::uint8_t>(round), bytes.size());
        expect(9000, round);
      }
      receiver_.publish(true);
    }
  }
}

TEST_F(Channel, UsesTheSameLinesAgainWhereItsReceiverKeepsUp) {
  for (const std::size_t n : {8, 300, 1000, 5000}) {
    for (unsigned i = 0; i < 5000; ++i) {
      ASSERT_TRUE(send(n, i));
      Record record, none;
      ASSERT_EQ(receiver_.next(&record), ChannelReceiver::Next::kRecord);
      ASSERT_EQ(receiver_.next(&none), ChannelReceiver::Next::kNone);
      receiver_.publish(true);
      ASSERT_TRUE(sender_.drained()) << "the end of a lap counts as read";
      if (n > kInlineBytes || i < kSlots) continue;
      const auto* first = reinterpret_cast<const std::byte*>(view_.slots);
      ASSERT_LT(record.data - first, std::ptrdiff_t{kShortLap * sizeof(Slot)})
          << n << " bytes, record " << i;
    }
  }
}

TEST_F(Channel, GoesOnBehindItsShortLapsWhereItsReceiverFallsBehind) {
  unsigned sent = 0, read = 0;
  for (unsigned round = 0; round < 4000; ++round) {
    const unsigned burst = round % 50 == 49 ? kSlots / 4 : round % 7;
    for (unsigned i = 0; i < burst; ++i, ++sent) {
      if (!send(sent * 13 % 90, sent)) break;
    }
    for (; read < sent; ++read) expect(read * 13 % 90, read);
    Record record;
    ASSERT_EQ(receiver_.next(&record), ChannelReceiver::Next::kNone) << "round " << round;
    receiver_.publish(true);
  }
  EXPECT_GT(sent, 12'000u);
}

// The lap in a head has 16 bits. Slots that short laps leave out keep heads of laps long ago.
TEST_F(Channel, TakesNoHeadOfALapThatHadTheSameNumber) {
  for (unsigned i = 0; i < kSlots; ++i) ASSERT_TRUE(send(8, i));
  for (unsigned i = 0; i < kSlots; ++i) expect(8, i);
  receiver_.publish(true);
  const std::byte bytes[16] = {};
  const auto lap = [&] { return receiver_.cursor() / kSlots; };
  const std::uint64_t first = lap() - 1;
  Record record;
  while (lap() < first + 0xffff) {
    ASSERT_TRUE(sender_.send_inline(1, bytes, 16, nullptr, 0));
    ASSERT_EQ(receiver_.next(&record), ChannelReceiver::Next::kRecord);
    (void)receiver_.next(&record);  // past kRestart
    receiver_.publish(true);
  }
  ASSERT_EQ(lap_of(receiver_.cursor()), lap_of(first * kSlots));
  for (unsigned i = 0; i < 100; ++i) ASSERT_TRUE(send(8, i));
  for (unsigned i = 0; i < 100; ++i) expect(8, i);
  EXPECT_EQ(receiver_.next(&record), ChannelReceiver::Next::kNone);
}

TEST_F(Channel, ALapThatEndsWhereItBeginsIsNonsense) {
  view_.slots[0].head.store(head_of(0, RecordKind::kRestart, 0, 0));
  Record record;
  EXPECT_EQ(receiver_.next(&record), ChannelReceiver::Next::kNonsense);
  EXPECT_TRUE(receiver_.broken());
}

TEST_F(Channel, RefusesWhatHasNoSlotUntilOneIsGivenBack) {
  for (unsigned i = 0; i < kSlots; ++i) ASSERT_TRUE(send(8, i));
  EXPECT_FALSE(send(8, 1000));
  EXPECT_FALSE(send(5000, 1000));
  expect(8, 0);
  EXPECT_FALSE(send(8, 1000)) << "taken, and not yet given back";
  receiver_.publish(true);
  EXPECT_TRUE(send(8, 1000));
  for (unsigned i = 1; i < kSlots; ++i) expect(8, i);
  expect(8, 1000);
}

TEST_F(Channel, RefusesWhatHasNoRoomInTheBulkAreaUntilSomeIsGivenBack) {
  unsigned sent = 0, taken = 0;
  while (send(10'000, sent)) ++sent;
  EXPECT_GE(sent, 5u);
  EXPECT_TRUE(send(8, 200)) << "a short one needs none";
  for (; taken < sent; ++taken) expect(10'000, taken);
  expect(8, 200);
  receiver_.publish(true);
  EXPECT_TRUE(send(10'000, 7));
  expect(10'000, 7);
}

TEST_F(Channel, BytesOfARecordAreNeverTakenForTheHeadOfAnother) {
  // Records whose bytes are heads of the lap to come, of all places.
  unsigned seed = 0;
  for (std::uint64_t lap = 0; lap < 20; ++lap) {
    for (unsigned i = 0; i < 200; ++i) {
      std::vector<std::byte> forged(300);
      const std::uint64_t head = head_of((lap + i % 3) * kSlots, RecordKind::kInline, 65, 8);
      for (std::size_t at = 0; at + 8 <= forged.size(); at += 8)
        std::memcpy(forged.data() + at, &head, 8);
      const std::size_t n = i % 5 == 0 ? 30 : 260 + i % 40;
      if (!sender_.send_inline(1, forged.data(), 0, forged.data(), n)) {
        ASSERT_TRUE(send(20, ++seed));
        expect(20, seed);
      } else {
        Record record;
        ASSERT_EQ(receiver_.next(&record), ChannelReceiver::Next::kRecord);
        ASSERT_EQ(record.bytes, n);
      }
      Record none;
      ASSERT_EQ(receiver_.next(&none), ChannelReceiver::Next::kNone) << "nothing else is sent";
      receiver_.publish(true);
    }
  }
}

TEST_F(Channel, NeverOverwritesWhatIsStillBeingRead) {
  Record first;
  ASSERT_TRUE(send(20'000, 1));
  ASSERT_EQ(receiver_.next(&first), ChannelReceiver::Next::kRecord);
  for (unsigned i = 2; i < 100; ++i) (void)send(20'000, i);
  const auto bytes = pattern(20'014, 1);
  EXPECT_EQ(std::memcmp(first.data, bytes.data(), bytes.size()), 0);
}

TEST_F(Channel, GivesBackWhatWasTakenWithinAReadWhenThatEnds) {
  for (unsigned i = 0; i < kSlots; ++i) ASSERT_TRUE(send(8, i));
  Record first;
  ASSERT_EQ(receiver_.next(&first), ChannelReceiver::Next::kRecord);
  receiver_.read(first, [&](const Record&) {
    Record second;
    ASSERT_EQ(receiver_.next(&second), ChannelReceiver::Next::kRecord);
    receiver_.read(second, [&](const Record&) {});
    for (unsigned i = 2; i < kSlots; ++i) expect(8, i);
    receiver_.publish(true);
    EXPECT_FALSE(send(8, 1000)) << "the first is still being read";
  });
  receiver_.publish(true);
  for (unsigned i = 0; i < kSlots; ++i) ASSERT_TRUE(send(8, i));
}

TEST_F(Channel, UsesTheSameLinesAgainWhenAllHasBeenTaken) {
  const std::byte* first = sender_.reserve(14, 9000);
  for (unsigned i = 0; i < 20; ++i) {
    ASSERT_TRUE(send(9000, i));
    expect(9000, i);
    receiver_.publish(true);
  }
  EXPECT_EQ(sender_.reserve(14, 9000), first);
}

TEST_F(Channel, HasRoomBehindTheFirstRecordThatUsesOldLinesAgain) {
  ASSERT_TRUE(send(9000, 1));
  expect(9000, 1);
  receiver_.publish(true);
  for (unsigned i = 2; i < 8; ++i) EXPECT_TRUE(send(9000, i)) << "nothing is taken meanwhile";
  for (unsigned i = 2; i < 8; ++i) expect(9000, i);
}

TEST_F(Channel, AReservationThatIsNotCommittedIsForgotten) {
  ASSERT_NE(sender_.reserve(14, 1000), nullptr);
  EXPECT_FALSE(receiver_.ready());
  ASSERT_TRUE(send(8, 1));
  ASSERT_TRUE(send(3000, 2));
  expect(8, 1);
  expect(3000, 2);
}

TEST_F(Channel, TheNextOwnerGoesOnWhereTheLastHasLeftOff) {
  for (unsigned i = 0; i < kSlots + 37; ++i) {
    ASSERT_TRUE(send(i, i));
    expect(i, i);
    receiver_.publish(true);
  }
  ChannelSender next;
  next.attach(view_);
  sender_ = next;
  for (unsigned i = 0; i < 2 * kSlots; ++i) {
    ASSERT_TRUE(send(i * 20, i));
    expect(i * 20, i);
    receiver_.publish(false);
  }
}

TEST_F(Channel, AReceiverThatGivesBackWhatWasNeverSentIsNotBelieved) {
  ASSERT_TRUE(send(8, 1));
  view_.control->consumed.store(1000);
  EXPECT_FALSE(sender_.drained());
  EXPECT_TRUE(sender_.broken());
}

TEST_F(Channel, RecordsThatReachBeyondTheChannelAreNonsense) {
  const auto forge = [&](std::uint64_t head, std::uint32_t offset) {
    receiver_.attach(view_);
    std::memcpy(view_.slots[0].data, &offset, sizeof offset);
    view_.slots[0].head.store(head);
    Record record;
    return receiver_.next(&record);
  };
  using Next = ChannelReceiver::Next;
  EXPECT_EQ(forge(head_of(0, RecordKind::kInline, 65, kInlineBytes + 1), 0), Next::kNonsense);
  EXPECT_EQ(forge(head_of(0, RecordKind::kInline, 65, 0xffff'ffff), 0), Next::kNonsense);
  EXPECT_EQ(forge(head_of(0, RecordKind::kBulk, 65, kBulk + 1), 0), Next::kNonsense);
  EXPECT_EQ(forge(head_of(0, RecordKind::kBulk, 65, 100), kBulk - 99), Next::kNonsense);
  EXPECT_EQ(forge(head_of(0, RecordKind::kBulk, 65, 100), 0xffff'fff0), Next::kNonsense);
  EXPECT_EQ(forge(head_of(0, static_cast<RecordKind>(9), 65, 10), 0), Next::kNonsense);
  constexpr std::uint32_t kLines = kBulk / kCacheLine;
  EXPECT_EQ(forge(coming_head_of(0, 1, kLines), 0), Next::kNonsense);
  EXPECT_EQ(forge(coming_head_of(0, 0xff'ffff, 0xffff), 0), Next::kNonsense);
  EXPECT_EQ(forge(coming_head_of(0, 1, kLines - 1), 0), Next::kNone);
  EXPECT_EQ(forge(head_of(0, RecordKind::kBulk, 65, 100), kBulk - 100), Next::kRecord);
}

TEST_F(Channel, WithNonsenseInItIsTakenFromNoMore) {
  view_.slots[0].head.store(head_of(0, RecordKind::kBulk, 65, kBulk + 1));
  EXPECT_TRUE(receiver_.ready());
  Record record;
  EXPECT_EQ(receiver_.next(&record), ChannelReceiver::Next::kNonsense);
  EXPECT_TRUE(receiver_.broken());
  EXPECT_FALSE(receiver_.ready());
  ASSERT_TRUE(send(8, 1)) << "the sender does not know yet";
  EXPECT_EQ(receiver_.next(&record), ChannelReceiver::Next::kNone);
}

TEST_F(Channel, CarriesAStreamBetweenTwoThreads) {
  constexpr unsigned kRecords = 200'000;
  const auto size_of = [](unsigned i) { return i % 97 == 0 ? i % 30'000 : i % 120; };
  std::thread writer([&] {
    for (unsigned i = 0; i < kRecords; ++i) {
      while (!send(size_of(i), i, 8)) std::this_thread::yield();
    }
  });
  unsigned wrong = 0;
  for (unsigned i = 0; i < kRecords; ++i) {
    Record record;
    while (receiver_.next(&record) == ChannelReceiver::Next::kNone) {
      receiver_.publish(true);
      std::this_thread::yield();
    }
    const auto bytes = pattern(8 + size_of(i), i);
    if (record.bytes != bytes.size() || std::memcmp(record.data, bytes.data(), bytes.size()) != 0)
      ++wrong;
    receiver_.publish(false);
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace clan::mpi
