// Pairs of threads that exchange messages on a simulated machine, beside computations.
#pragma once

#include <clan/face/wait.h>

#include <algorithm>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "model/wait/machine.h"
#include "model/wait/policies.h"

namespace clan::sim {

constexpr Ns kMs = 1'000'000;

/// A word that cores share: a store is seen elsewhere one transfer of its cache line later.
class Word {
 public:
  std::uint64_t load() const {
    machine().spend(machine().costs().look);
    return core_ == machine().core() || machine().now() >= seen_at_ ? value_ : before_;
  }
  /// Loads behind a fence, as another thread may look at what this one wrote.
  std::uint64_t load_fenced() const {
    machine().spend(machine().costs().line);
    return value_;
  }
  void store(std::uint64_t value) {
    before_ = std::exchange(value_, value);
    core_ = machine().core();
    seen_at_ = machine().now() + machine().costs().line;
  }

 private:
  std::uint64_t value_ = 0, before_ = 0;
  int core_ = 0;
  Ns seen_at_ = 0;
};

enum class Where {
  kAnywhere,  ///< as the scheduler has it
  kOneCore,   ///< all threads are pinned to one core
  kApart,     ///< the ends of each pair are pinned to different cores
};

struct Case {
  int pairs = 1;
  Where where = Where::kAnywhere;
  Ns think = 0;          ///< what an answer takes
  Ns first = 0;          ///< what each thread computes before its first message
  int computations = 0;  ///< the weight of one on each core; 0: none
  Ns end = 0;            ///< what a computation takes; 0: it never ends
  Ns time = 400 * kMs;
  Kernel kernel = {};
  unsigned seed = 1;

  int cores() const { return where == Where::kOneCore ? 1 : kernel.cores; }
};

struct Measured {
  double trips_per_s = 0;
  double cpu_us = 0;    ///< of both ends, a trip
  double together = 0;  ///< the part of the trips that end with both ends on one core
  Ns median = 0, longest = 0;
};

template <typename Policy>
class PingPong {
 public:
  explicit PingPong(const Case& c)
      : case_(c), random_(c.seed), machine_(c.kernel, static_cast<Ns>(random_() % kMs)) {
    const int cores = c.cores();
    for (int i = 0; c.computations != 0 && i < cores; ++i)
      machine_.add(
          c.end == 0 ? nullptr : std::function<void()>([this] { machine_.spend(case_.end); }), i,
          true, c.computations);
    for (int i = 0; i < 2 * c.pairs; ++i) ends_.emplace_back();
    for (int i = 0; i < 2 * c.pairs; ++i) {
      const bool pinned = c.where != Where::kAnywhere;
      const int core = pinned ? i % cores : static_cast<int>(random_() % cores);
      ends_[i].thread =
          &machine_.add([this, i] { i % 2 == 0 ? asks(i) : answers(i); }, core, pinned);
    }
  }

  Measured run() {
    machine_.run_until(case_.time / 4);
    times_.clear();
    together_ = 0;
    Ns cpu = 0;
    for (const End& end : ends_) cpu -= end.thread->ran;
    machine_.run_until(case_.time);
    for (const End& end : ends_) cpu += end.thread->ran;
    const auto n = static_cast<double>(times_.size());
    Measured r{.trips_per_s = n / (static_cast<double>(case_.time) * 0.75e-9)};
    if (times_.empty()) return r;
    std::ranges::sort(times_);
    r.cpu_us = static_cast<double>(cpu) / 1e3 / n;
    r.together = together_ / n;
    r.median = times_[times_.size() / 2];
    r.longest = times_.back();
    return r;
  }

 private:
  struct End {
    Policy policy;
    Thread* thread = nullptr;
    Word in;
    bool asleep = false;    ///< is read behind a fence only
    bool rang = false;      ///< this end had to ring for its last message
    std::uint16_t cpu = 0;  ///< of its last send
  };

  void asks(int i) {
    machine_.spend(case_.first);
    for (std::uint64_t n = 1;; ++n) {
      const Ns before = machine_.now();
      send(i, n);
      receive(i, n);
      times_.push_back(machine_.now() - before);
      together_ += machine_.core() == ends_[i + 1].thread->core;
    }
  }
  void answers(int i) {
    machine_.spend(case_.first);
    for (std::uint64_t n = 1;; ++n) {
      receive(i, n);
      machine_.spend(case_.think);
      send(i, n);
    }
  }

  void send(int i, std::uint64_t n) {
    const Costs& c = machine_.costs();
    machine_.spend(kWork * static_cast<Ns>(75 + random_() % 50) / 100);
    End& me = ends_[i];
    End& peer = ends_[i ^ 1];
    me.cpu = current_cpu_tag();
    peer.in.store(n);
    if (Policy::kTcp) {
      machine_.spend(c.tcp);
      machine_.ring(*peer.thread, WakeHint::kSync);
      return;
    }
    machine_.spend(c.look);
    me.rang = std::exchange(peer.asleep, false);
    if (me.rang) machine_.ring(*peer.thread, WakeHint::kNone);
  }

  void receive(int i, std::uint64_t n) {
    End& me = ends_[i];
    auto ready = [&] { return me.in.load() >= n; };
    auto sleep = [&] {
      me.asleep = true;
      if (Policy::kTcp || me.in.load_fenced() < n) {
        if (!Policy::kTcp) machine_.spend(machine_.costs().call);  // takes the bell's edge
        machine_.sleep();
      }
      me.asleep = false;
      return true;
    };
    me.policy.wait(ready, {ends_[i ^ 1].cpu, me.rang}, sleep);
  }

  static constexpr Ns kWork = 250;

  const Case case_;
  std::minstd_rand random_;
  Machine machine_;
  std::deque<End> ends_;
  std::vector<Ns> times_;
  double together_ = 0;
};

template <typename Policy>
Measured measure(const Case& c) {
  return PingPong<Policy>(c).run();
}

}  // namespace clan::sim
