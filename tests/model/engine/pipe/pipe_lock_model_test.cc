// The lock of one direction of an end (engine/pipe/pipe_lock.h) under every interleaving of two
// processes that share the end, of which one may be killed at any step, and the peer. Broken
// versions show that the checker would notice.
//
// The model has the words of the ring that matter for it: where the next record goes (the tail) or
// comes from (the head), and for each record its first word, which publishes it.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "clan/detail/words.h"
#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan {
namespace {

using testing::expect_caught;
using testing::expect_safe;
using testing::Ghost;
using testing::Model;
using testing::model_await;
using testing::model_restart;
using testing::ModelAtomic;
using testing::Report;

using Word = ModelAtomic<std::uint32_t>;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kRecords = 2;

struct Options {
  bool finishes = true;        ///< one that takes the lock over finishes the record
  bool tail_behind = true;     ///< the tail moves behind the record
  bool keeps_lock = true;      ///< until the tail has moved
  bool looks_at_owner = true;  ///< only the lock of a process that has been killed is taken over
};

// The lock of a direction, with a word that says whether process 1 has been killed.
struct Direction {
  Model m;
  Word lock = m.word<std::uint32_t>("lock"), killed = m.word<std::uint32_t>("killed");
  Word place = m.word<std::uint32_t>("tail or head");
  std::array<Word, kRecords + 1> heads, payloads;
  Options options;

  Direction() {
    for (int i = 0; i <= kRecords; ++i) {
      heads[i] = m.word<std::uint32_t>("record " + std::to_string(i));
      payloads[i] = m.word<std::uint32_t>("payload " + std::to_string(i));
    }
  }

  // As Pipe::Locked and Pipe::wait_for_lock(). True: from a process that has been killed.
  bool take(std::uint32_t me) const {
    std::uint32_t owner = 0;
    if (words::cas(lock, owner, me)) return false;
    const bool died = owner == 1 && killed.load(std::memory_order_acquire) != 0;
    if ((died || !options.looks_at_owner) && words::cas(lock, owner, me)) return true;
    model_restart(0);
  }
  void let_go() const { words::store_release(lock, 0); }
};

/// Two processes send a record each.
struct Senders : Direction {
  Ghost torn = m.ghost("payloads that the peer has read too early");

  void send(std::uint32_t me) const {
    // As Pipe::finish_record().
    if (take(me) && options.finishes) {
      const std::uint32_t tail = place.load(kRelaxed);
      if (words::load_acquire(heads[tail]) != 0) words::store_release(place, tail + 1);
    }
    const std::uint32_t tail = place.load(kRelaxed);
    if (!options.tail_behind) words::store_release(place, tail + 1);
    payloads[tail].store(me, kRelaxed);
    if (!options.keeps_lock) let_go();
    words::store_release(heads[tail], me);
    if (options.tail_behind) words::store_release(place, tail + 1);
    if (options.keeps_lock) let_go();
  }

  Report run(Options o) {
    options = o;
    const std::size_t one = m.thread("process 1", [this](auto) { send(1); });
    const std::size_t two = m.thread("process 2", [this](auto) { send(2); });
    m.may_stop(one, killed);
    m.thread("peer", [this](std::uint64_t at) {
      if (at == kRecords) return;
      model_await(heads[at]);
      if (payloads[at].load(kRelaxed) != words::load_acquire(heads[at])) torn.add(1);
      model_restart(at + 1);
    });
    m.at_end([=, this](const Model::End& end) -> std::string {
      std::uint32_t published = 0, times[3] = {0, 0, 0};
      for (const Word& head : heads) {
        const std::uint32_t sender = end.value(head);
        published += sender != 0 ? 1 : 0;
        ++times[sender];
      }
      if (end.value(torn) != 0) return "the peer has read a record before it was there";
      if (!end.done(two)) return "process 2 waits for one that has been killed";
      if (times[2] != 1)
        return "process 2's record is there " + std::to_string(times[2]) + " times";
      if (times[1] > 1) return "process 1's record is there twice";
      if (!end.stopped(one) && times[1] != 1) return "process 1's record is lost";
      for (std::uint32_t i = 0; i < published; ++i) {
        if (end.value(heads[i]) == 0) return "the peer waits for a record in front of another";
      }
      // What one that was killed last has published is the next one's to finish.
      const std::uint32_t left = end.stopped(one) ? published - end.value(place) : 0;
      return left <= 1 && end.value(place) + left == published ? "" : "the tail is at no record";
    });
    return m.run();
  }
};

TEST(PipeLockModel, EverySentRecordIsThereOnceWhereverAProcessIsKilled) {
  expect_safe(Senders{}.run({}));
}
TEST(PipeLockModel, CatchesARecordThatIsNotFinishedForAProcessThatWasKilled) {
  expect_caught(Senders{}.run({.finishes = false}));
}
TEST(PipeLockModel, CatchesATailThatMovesInFrontOfItsRecord) {
  expect_caught(Senders{}.run({.tail_behind = false}));
}
TEST(PipeLockModel, CatchesALockThatIsLetGoTooEarly) {
  expect_caught(Senders{}.run({.keeps_lock = false}));
}
TEST(PipeLockModel, CatchesALockThatIsTakenFromAProcessThatLives) {
  expect_caught(Senders{}.run({.looks_at_owner = false}));
}

/// Two processes receive a record each, of two that are there.
struct Receivers : Direction {
  std::array<Ghost, kRecords> read{m.ghost("records that process 1 has returned"),
                                   m.ghost("records that process 2 has returned")};

  void receive(std::uint32_t me) const {
    (void)take(me);
    const std::uint32_t head = place.load(kRelaxed);
    if (!options.keeps_lock) let_go();
    const std::uint32_t record = words::load_acquire(heads[head]);  // copied out
    words::store_release(place, head + 1);
    if (options.keeps_lock) let_go();
    read[me - 1].set_bits(std::uint64_t{1} << record);
  }

  Report run(Options o) {
    options = o;
    const std::size_t writer = m.thread("writer", [this](auto) {
      for (std::uint32_t i = 0; i < kRecords; ++i) words::store_release(heads[i], i + 1);
    });
    const auto reader = [this](std::uint32_t me) {
      return [this, me](auto) {
        model_await(heads[kRecords - 1]);
        receive(me);
      };
    };
    const std::size_t one = m.thread("process 1", reader(1));
    const std::size_t two = m.thread("process 2", reader(2));
    m.may_stop(one, killed);
    m.at_end([=, this](const Model::End& end) -> std::string {
      const std::uint64_t first = end.value(read[0]), second = end.value(read[1]);
      if (!end.done(writer) || !end.done(two))
        return "process 2 waits for one that has been killed";
      if ((first & second) != 0) return "both have got one record";
      if ((second & 6) == 0) return "process 2 has got none";
      if (!end.stopped(one) && (first | second) != 6) return "a record is lost";
      return "";
    });
    return m.run();
  }
};

TEST(PipeLockModel, EveryRecordIsReceivedOnceWhereverAProcessIsKilled) {
  expect_safe(Receivers{}.run({}));
}
TEST(PipeLockModel, CatchesAReaderThatLetsGoTooEarly) {
  expect_caught(Receivers{}.run({.keeps_lock = false}));
}

}  // namespace
}  // namespace clan
