// A model checker for small lock-free protocols: runs the threads of a scenario in every
// interleaving that a machine with store buffers (x86-TSO) can produce, and says how it went wrong,
// step by step.
//
//   Model m;
//   auto flag = m.word<std::uint32_t>("flag");
//   m.thread("sender", [=](std::uint64_t) { flag.store(1, std::memory_order_relaxed); });
//   m.thread("receiver", [=](std::uint64_t) { futex... });
//   m.at_end([=](const Model::End& end) { return end.asleep(1) ? "lost wake-up" : ""; });
//   Report r = m.run();
//
// Protocol code is run as it is: its words are ModelAtomics, its fence is ModelFence, its futex
// calls are model_futex_wait/wake. Thread bodies must otherwise be functions of what they read.
//
// How it works. There are no stacks to switch: what a body does next depends only on the values
// that its operations have returned so far, so a body is run again from its start with those
// values, until it asks for an operation that has no answer yet. Bodies are therefore nodes of a
// tree of answers, each run once, and a state of the machine is plain data: memory, store buffers,
// one node per thread. The search is depth first over all states; states already seen (128-bit
// hash) are not entered again, and the number of executions is the number of paths through the
// graph of states.
//
// The machine. A store that is not seq_cst goes into its thread's first-in-first-out buffer; taking
// the oldest one out is a step of its own that may happen at any time. Loads see their own buffer
// first. Read-modify-writes, seq_cst stores, full() and system calls wait until their thread's
// buffer is empty. heavy() (membarrier) begins, and ends once everything that was in any buffer
// when it began is in memory: weaker than one step that drains all, because the others see the
// buffers run dry one by one.
//
// A thread that may_stop can stop for ever before any of its operations (a crash; its buffer still
// drains). ghost() words are notes for the checks: they take no step and no thread of the protocol
// reads them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace clan::testing {

/// What a run found.
struct Report {
  bool failed = false;
  std::string trace;         ///< the steps that lead to the failure, one a line, and what failed
  double executions = 0;     ///< complete interleavings covered
  std::uint64_t states = 0;  ///< different states entered
  std::uint64_t steps = 0;   ///< steps taken between them
  /// some thread can run round for ever: executions counts without the rounds
  bool cyclic = false;
  bool exhausted = true;  ///< false: gave up at Model::kMostStates

  std::string summary() const;
};

namespace interleaving {

enum class OpKind : std::uint8_t {
  kLoad,
  kStore,  // buffered
  kStoreSeqCst,
  kExchange,
  kFetchOr,
  kFetchAnd,
  kFetchAdd,
  kCompareExchange,
  kFence,
  kHeavyBegin,
  kHeavyEnd,
  kFutexWait,
  kFutexWake,
  kAwait,
  kGhostOr,
  kGhostAdd,
  kRestart,
  kDone,
};

struct Op {
  OpKind kind = OpKind::kDone;
  std::uint8_t address = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t mask = ~std::uint64_t{0};
};

/// Asks the run in progress for the answer to an operation. Leaves the body by an exception when it
/// has none yet.
std::uint64_t perform(const Op& op);

template <typename T>
constexpr std::uint64_t mask_of() {
  return sizeof(T) == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * sizeof(T) % 64)) - 1;
}

}  // namespace interleaving

/// std::atomic's interface on a word of the model. Only names the word: copy freely.
template <typename T>
class ModelAtomic {
 public:
  using value_type = T;
  ModelAtomic() = default;
  explicit ModelAtomic(std::uint8_t address) : address_(address) {}

  T load(std::memory_order) const { return op(interleaving::OpKind::kLoad); }
  void store(T value, std::memory_order order) const {
    op(order == std::memory_order_seq_cst ? interleaving::OpKind::kStoreSeqCst
                                          : interleaving::OpKind::kStore,
       value);
  }
  T exchange(T value, std::memory_order) const {
    return op(interleaving::OpKind::kExchange, value);
  }
  // Without a result, which no protocol here wants: it would make more states.
  void fetch_or(T value, std::memory_order) const { op(interleaving::OpKind::kFetchOr, value); }
  void fetch_and(T value, std::memory_order) const { op(interleaving::OpKind::kFetchAnd, value); }
  void fetch_add(T value, std::memory_order) const { op(interleaving::OpKind::kFetchAdd, value); }
  void fetch_sub(T value, std::memory_order) const {
    op(interleaving::OpKind::kFetchAdd, static_cast<T>(-value));
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order) const {
    T seen = op(interleaving::OpKind::kCompareExchange, expected, desired);
    return seen == expected || (expected = seen, false);
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order order,
                               std::memory_order) const {
    return compare_exchange_strong(expected, desired, order);
  }
  // Never fails for nothing, which would be one round more.
  bool compare_exchange_weak(T& expected, T desired, std::memory_order order,
                             std::memory_order) const {
    return compare_exchange_strong(expected, desired, order);
  }
  std::uint8_t address() const { return address_; }

 private:
  T op(interleaving::OpKind kind, std::uint64_t a = 0, std::uint64_t b = 0) const {
    return static_cast<T>(
        interleaving::perform({kind, address_, a, b, interleaving::mask_of<T>()}));
  }
  std::uint8_t address_ = 0;
};

/// AsymmetricFence as the protocols see it.
struct ModelFence {
  static void light() {}
  static void heavy() {
    (void)interleaving::perform({interleaving::OpKind::kHeavyBegin});
    (void)interleaving::perform({interleaving::OpKind::kHeavyEnd});
  }
  static void full() { (void)interleaving::perform({interleaving::OpKind::kFence}); }
  static void even() { full(); }
};

/// Sleeps while the word holds `expected`. True when it slept and was woken.
template <typename T>
bool model_futex_wait(ModelAtomic<T> word, T expected) {
  return interleaving::perform({interleaving::OpKind::kFutexWait, word.address(), expected}) != 0;
}
/// Wakes all threads that sleep on the word.
template <typename T>
void model_futex_wake(ModelAtomic<T> word) {
  (void)interleaving::perform({interleaving::OpKind::kFutexWake, word.address()});
}
/// Goes on when the word is not 0. For threads that represent the outside world: a thread that
/// waits here at the end is no failure.
template <typename T>
void model_await(ModelAtomic<T> word) {
  (void)interleaving::perform({interleaving::OpKind::kAwait, word.address()});
}

/// Begins the body anew with another key: a loop whose state is the key does not remember its
/// rounds.
[[noreturn]] void model_restart(std::uint64_t key);

/// A word for the checks only.
class Ghost {
 public:
  Ghost() = default;
  explicit Ghost(std::uint8_t address) : address_(address) {}
  void set_bits(std::uint64_t bits) const {
    (void)interleaving::perform({interleaving::OpKind::kGhostOr, address_, bits});
  }
  void add(std::uint64_t n) const {
    (void)interleaving::perform({interleaving::OpKind::kGhostAdd, address_, n});
  }
  std::uint8_t address() const { return address_; }

 private:
  std::uint8_t address_ = 0;
};

class Model {
 public:
  static constexpr std::size_t kMostThreads = 6;
  static constexpr std::size_t kMostWords = 28;
  static constexpr std::size_t kMostBuffered = 8;
  static constexpr std::uint64_t kMostStates = 20'000'000;

  /// What the checks may read.
  class End {
   public:
    template <typename T>
    T value(ModelAtomic<T> word) const {
      return static_cast<T>(words_[word.address()]);
    }
    std::uint64_t value(Ghost word) const { return words_[word.address()]; }
    /// Thread i (in order of thread()) sleeps on a futex.
    bool asleep(std::size_t i) const { return (asleep_ >> i & 1) != 0; }
    bool stopped(std::size_t i) const { return (stopped_ >> i & 1) != 0; }
    bool done(std::size_t i) const { return (done_ >> i & 1) != 0; }

   private:
    friend class Model;
    const std::uint64_t* words_ = nullptr;
    std::uint32_t asleep_ = 0;
    std::uint32_t stopped_ = 0;
    std::uint32_t done_ = 0;
  };
  /// Empty = all is well; else what is wrong.
  using Check = std::function<std::string(const End&)>;
  using Body = std::function<void(std::uint64_t key)>;

  Model();
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  template <typename T>
  ModelAtomic<T> word(const std::string& name, T initial = 0) {
    return ModelAtomic<T>(add_word(name, initial));
  }
  Ghost ghost(std::string name) { return Ghost(add_word(std::move(name), 0)); }

  /// Adds a thread. Its body starts with key 0.
  std::size_t thread(std::string name, Body body);
  /// The thread may stop for ever before any of its operations, at most one of all threads that
  /// may; `stopped` then becomes 1, after what its store buffer held.
  void may_stop(std::size_t thread, ModelAtomic<std::uint32_t> stopped);

  /// Called where nothing can move any more. Without it: nobody may be asleep.
  void at_end(Check check) { at_end_ = std::move(check); }
  /// Called in every state.
  void always(Check check) { always_ = std::move(check); }

  Report run();

 private:
  struct State;
  struct Thread;
  struct Search;
  std::uint8_t add_word(std::string name, std::uint64_t initial);

  std::vector<std::pair<std::string, std::uint64_t>> words_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Check at_end_;
  Check always_;
};

}  // namespace clan::testing
