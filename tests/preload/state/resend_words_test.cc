// Runs a step of sending again (state/resend_words.h) under every interleaving of an x86 machine,
// and broken versions of it to show that the checker would notice.
//
// Two threads; one sends two bytes again, the other one takes that from it at any time. A process
// that is stopped is one that takes its next step late; the first may be killed before any. What
// the model has beside that code are the kernel and the taking over of migrate/resend.cc.
#include "state/resend_words.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::preload {
namespace {

using testing::Model;
using testing::model_restart;
using testing::ModelAtomic;
using testing::ModelFence;
using testing::Report;

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kSeqCst = std::memory_order_seq_cst;

using Word = ModelAtomic<std::uint64_t>;

struct Options {
  bool asks_the_kernel = true;  ///< else each relies on what has been counted
  bool refuses = true;          ///< a call whose length has been taken
  bool waits = true;            ///< for one that is in its call
  bool fences = true;
  bool takes_back = false;  ///< the first one, when it goes on
};

constexpr std::uint64_t kBytes = 2;

std::int32_t closer_of(std::uint64_t number) {
  return going_back::kSendsAgain | static_cast<std::int32_t>(number + 1);
}

struct Sharers {
  struct Place {
    Word owner, length, in_call;
  };
  struct Progress {
    Word base, resent;
  };
  Model m;
  Word sends = m.word<std::uint64_t>("sends", Slot::closed_by(closer_of(0)));
  Progress progress{m.word<std::uint64_t>("base"), m.word<std::uint64_t>("resent")};
  Word sent = m.word<std::uint64_t>("sent", 5);
  ModelAtomic<std::uint32_t> killed = m.word<std::uint32_t>("killed");
  testing::Ghost wrong_place = m.ghost("wrong place"), broken = m.ghost("broken"),
                 too_early = m.ghost("shut too early");
  std::array<Place, 2> places;
  Options options;

  /// As ResendSource.
  struct Kernel {
    static constexpr std::uint64_t kControl = 16;
    Sharers& all;
    bool runs(std::uint64_t owner) const {
      const std::uint64_t number = (owner & Slot::kId) - 1;
      std::uint64_t outside = 0;  // a system call: what was stored before is in memory
      const bool is_in_it =
          !all.places[all.place_of(number)].in_call.compare_exchange_strong(outside, 0, kSeqCst);
      return all.options.waits && is_in_it && all.killed.load(kSeqCst) == 0;
    }
    bool sent(std::uint64_t* bytes) const {
      *bytes = all.options.asks_the_kernel ? all.sent.load(kSeqCst)
                                           : 5 + all.progress.resent.load(kSeqCst);
      return true;
    }
    SentAgain send(std::uint64_t at, const Place& place) const {
      if (at >= kBytes) return SentAgain::kAll;
      place.in_call.exchange(1, kSeqCst);
      const bool goes = !all.options.refuses || place.length.load(kRelaxed) != 0;
      std::uint64_t now = all.sent.load(kSeqCst);
      while (goes && !all.sent.compare_exchange_strong(now, now + 1, kSeqCst)) {
      }
      if (goes && now != 5 + at) all.wrong_place.add(1);
      place.in_call.exchange(0, kSeqCst);
      return goes ? SentAgain::kSome : SentAgain::kLater;
    }
    std::uint64_t count() const { return 1; }
  };

  // The one that has it by now, or had it when it was stopped.
  std::size_t place_of(std::uint64_t number) const {
    for (std::size_t i = 0; i < places.size(); ++i) {
      if ((places[i].owner.load(kRelaxed) & Slot::kId) == number + 1) return i;
    }
    return 0;
  }
  // `key`: of the first one, 1: it is about to take it back, 2: it has.
  void go(std::uint64_t number, std::uint64_t key) {
    const std::int32_t closer = closer_of(number);
    std::uint64_t now = sends.load(kSeqCst);
    if (!going_back::is_resend(now)) return;
    if (!going_back::is_closed_by(now, closer)) {
      if (number == 0 && key != 1) return;
      const bool has_it = take_resend(sends, now, closer);
      model_restart(number == 0 && has_it ? 2 : key);
    }
    Kernel kernel{*this};
    const auto step = [&]<typename Fence>(Fence) {
      return send_some_again<Fence>(sends, closer, progress, places, number + 1, 1, kernel);
    };
    switch (options.fences ? step(ModelFence()) : step(testing::Unfenced())) {
      case SentAgain::kSome:
      case SentAgain::kLater:
      case SentAgain::kNoRoom: model_restart(key);
      case SentAgain::kAll:
        if (sent.load(kSeqCst) != 5 + kBytes) too_early.add(1);
        now = Slot::closed_by(closer);
        sends.compare_exchange_strong(now, 0, kSeqCst);
        break;
      case SentAgain::kBroken: broken.add(1); break;
      case SentAgain::kTaken:
        if (number == 1) model_restart(key);
        if (options.takes_back && key == 0) model_restart(1);
        break;
      case SentAgain::kNobody: break;
    }
  }
  std::string wrong(const Model::End& end) const {
    if (end.value(broken) != 0) return "it is given up";
    if (end.value(too_early) != 0) return "TCP is shut down before all is sent";
    if (end.value(wrong_place) != 0) return "a byte comes twice, or out of its order";
    if (end.value(sent) != 5 + kBytes) return "a byte is lost";
    return end.value(sends) == 0 ? "" : "it stays closed";
  }
  Report run(Options o) {
    options = o;
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::string name = " of " + std::to_string(i);
      places[i] = {m.word<std::uint64_t>("owner" + name), m.word<std::uint64_t>("length" + name),
                   m.word<std::uint64_t>("in the call" + name)};
    }
    const std::size_t first =
        m.thread("one that is stopped", [this](std::uint64_t key) { go(0, key); });
    if (!options.takes_back) m.may_stop(first, killed);
    m.thread("one that takes it over", [this](std::uint64_t key) { go(1, key); });
    m.at_end([this](const Model::End& end) { return wrong(end); });
    return m.run();
  }
};

Report send_again(Options options = {}) { return Sharers{}.run(options); }

TEST(ResendWords, SendEachByteOnceAndInItsOrderWhereverTheOtherStands) {
  expect_safe(send_again());
}
TEST(ResendWords, SendEachByteOnceWhereTheOtherOneTakesItBack) {
  expect_safe(send_again({.takes_back = true}));
}
TEST(ResendWords, WouldSendAByteTwiceWithoutAFence) {
  expect_caught(send_again({.fences = false}));
}
TEST(ResendWords, WouldSendAByteTwiceIfTheKernelWereNotAsked) {
  expect_caught(send_again({.asks_the_kernel = false}));
}
TEST(ResendWords, WouldSendAByteTwiceIfACallThatWasTakenWereMade) {
  expect_caught(send_again({.refuses = false}));
}
TEST(ResendWords, WouldSendAByteTwiceIfOneInItsCallWereNotWaitedFor) {
  expect_caught(send_again({.waits = false}));
}

// Two processes of one slot, and one that has another slot.
TEST(ResendWords, AreSentAgainByTheProcessesOfOneSlot) {
  Model m;
  Word state = m.word<std::uint64_t>("state", socket_face::kGone);
  std::array names{m.word<std::uint32_t>("name of 0"), m.word<std::uint32_t>("name of 1")};
  std::array<testing::Ghost, 3> claims{m.ghost("0"), m.ghost("1"), m.ghost("2")};
  for (std::size_t i = 0; i < claims.size(); ++i) {
    m.thread("process " + std::to_string(i), [&, i](std::uint64_t) {
      if (claims_resend(state, names[i / 2], static_cast<std::uint32_t>(i + 1))) claims[i].add(1);
    });
  }
  m.at_end([&](const Model::End& end) -> std::string {
    const bool first = end.value(claims[0]) != 0;
    if (first != (end.value(claims[1]) != 0)) return "those of a slot are not answered the same";
    if (first == (end.value(claims[2]) != 0)) return "both slots send, or none";
    return (end.value(state) & socket_face::kGone) != 0 ? "" : "a bit is lost";
  });
  expect_safe(m.run());
}

TEST(ResendWords, HandTheTurnOnWhileCallsComeAndStepBack) {
  Model m;
  Word sends = m.word<std::uint64_t>("sends", Slot::closed_by(closer_of(0)));
  testing::Ghost lost = m.ghost("lost");
  m.thread("one that hands it on", [&](std::uint64_t) {
    if (!hand_resend_on(sends, closer_of(0), closer_of(1))) lost.add(1);
  });
  m.thread("a call", [&](std::uint64_t) {
    sends.fetch_add(1, kSeqCst);
    sends.fetch_sub(1, kSeqCst);
  });
  m.at_end([&](const Model::End& end) -> std::string {
    return end.value(lost) == 0 && end.value(sends) == Slot::closed_by(closer_of(1))
               ? ""
               : "nobody has the turn";
  });
  expect_safe(m.run());
}

}  // namespace
}  // namespace clan::preload
