#include "support/interleaving.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>

namespace clan::testing {

using interleaving::Op;
using interleaving::OpKind;

namespace {

struct Suspended {};

// The body that is being run: the answers it gets, and the operation it stopped at.
struct Rerun {
  const std::vector<std::uint64_t>* answers = nullptr;
  std::size_t next = 0;
  Op pending;
};
thread_local Rerun* rerun = nullptr;

[[noreturn]] void misuse(const char* what) {
  std::fprintf(stderr, "interleaving: %s\n", what);
  std::abort();
}

struct Hash128 {
  std::uint64_t low, high;
  bool operator==(const Hash128&) const = default;
};
struct HashOfHash {
  std::size_t operator()(const Hash128& h) const { return h.low; }
};

std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
  return h ^ (h >> 29);
}

const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::kLoad: return "load";
    case OpKind::kStore: return "store (buffered)";
    case OpKind::kStoreSeqCst: return "store";
    case OpKind::kExchange: return "exchange";
    case OpKind::kFetchOr: return "fetch_or";
    case OpKind::kFetchAnd: return "fetch_and";
    case OpKind::kFetchAdd: return "fetch_add";
    case OpKind::kCompareExchange: return "compare_exchange";
    case OpKind::kFence: return "full fence";
    case OpKind::kHeavyBegin: return "heavy fence begins";
    case OpKind::kHeavyEnd: return "heavy fence ends";
    case OpKind::kFutexWait: return "futex_wait";
    case OpKind::kFutexWake: return "futex_wake";
    case OpKind::kAwait: return "await";
    default: return "?";
  }
}

}  // namespace

namespace interleaving {

std::uint64_t perform(const Op& op) {
  if (rerun == nullptr) misuse("operation outside a thread of the model");
  if (rerun->next < rerun->answers->size()) return (*rerun->answers)[rerun->next++];
  rerun->pending = op;
  throw Suspended{};
}

}  // namespace interleaving

void model_restart(std::uint64_t key) {
  (void)interleaving::perform({OpKind::kRestart, 0, key});
  misuse("restart returned");
}

std::string Report::summary() const {
  char line[160];
  std::snprintf(line, sizeof line, "%s%.4g executions, %llu states, %llu steps%s%s",
                failed ? "goes wrong after " : "", executions,
                static_cast<unsigned long long>(states), static_cast<unsigned long long>(steps),
                cyclic ? ", with cycles" : "", exhausted ? "" : ", NOT EXHAUSTIVE");
  return line;
}

// One thread's program, unfolded: a node is "these answers so far", and knows the operation that
// comes next.
struct Model::Thread {
  struct Node {
    std::uint32_t parent = 0;
    std::uint64_t key = 0;
    std::uint64_t answer = 0;  // that led here from the parent
    bool root = false;
    Op op;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> children;
  };

  std::string name;
  Body body;
  std::vector<Node> nodes;
  std::map<std::uint64_t, std::uint32_t> roots;
  bool may_stop = false;
  std::uint8_t stopped_word = 0;

  std::uint32_t root(std::uint64_t key) {
    auto it = roots.find(key);
    if (it != roots.end()) return it->second;
    auto id = static_cast<std::uint32_t>(nodes.size());
    nodes.push_back({0, key, 0, true, {}, {}});
    roots[key] = id;
    nodes[id].op = run(id);
    return id;
  }

  std::uint32_t child(std::uint32_t node, std::uint64_t answer) {
    for (auto [a, id] : nodes[node].children) {
      if (a == answer) return id;
    }
    auto id = static_cast<std::uint32_t>(nodes.size());
    nodes.push_back({node, nodes[node].key, answer, false, {}, {}});
    nodes[node].children.push_back({answer, id});
    Op op = run(id);
    nodes[id].op = op;
    return id;
  }

 private:
  Op run(std::uint32_t node) {
    std::vector<std::uint64_t> answers;
    for (std::uint32_t n = node; !nodes[n].root; n = nodes[n].parent) {
      answers.insert(answers.begin(), nodes[n].answer);
    }
    Rerun mine{&answers, 0, {}};
    Rerun* outer = std::exchange(rerun, &mine);
    try {
      body(nodes[node].key);
      mine.pending.kind = OpKind::kDone;
    } catch (const Suspended&) {
    }
    rerun = outer;
    return mine.pending;
  }
};

// Plain data, all of it hashed: unused parts must stay zero.
struct Model::State {
  struct Buffered {
    std::uint64_t value;
    std::uint64_t address;
  };
  enum Status : std::uint8_t { kRunning, kAsleep, kStopped };

  std::uint64_t words[kMostWords] = {};
  std::uint32_t node[kMostThreads] = {};
  std::uint8_t status[kMostThreads] = {};
  std::uint8_t buffered[kMostThreads] = {};
  Buffered buffer[kMostThreads][kMostBuffered] = {};
  // By caller of heavy(): how many of each thread's buffered stores it still waits for.
  std::uint8_t heavy[kMostThreads][kMostThreads] = {};
};

struct Model::Search {
  static constexpr double kOnPath = -1;
  struct Step {
    std::uint8_t thread;
    enum Kind : std::uint8_t { kOp, kFlush, kStop } kind;
    Op op;
    std::uint64_t result;
  };

  explicit Search(Model& m) : model(m) {}

  Model& model;
  Report report;
  std::unordered_map<Hash128, double, HashOfHash> seen;
  std::vector<Step> path;

  std::size_t threads() const { return model.threads_.size(); }
  Thread& thread(std::size_t i) const { return *model.threads_[i]; }

  Hash128 hash(const State& s) const {
    std::uint64_t a = 1, b = 2;
    auto add = [&](std::uint64_t v) {
      a = mix(a, v);
      b = mix(b, v + 0x632be59bd9b4e019u);
    };
    for (std::size_t i = 0; i < model.words_.size(); ++i) add(s.words[i]);
    for (std::size_t i = 0; i < threads(); ++i) {
      add(s.node[i] | std::uint64_t{s.status[i]} << 32 | std::uint64_t{s.buffered[i]} << 40);
      for (std::size_t k = 0; k < s.buffered[i]; ++k) {
        add(s.buffer[i][k].address);
        add(s.buffer[i][k].value);
      }
      std::uint64_t heavy = 0;
      for (std::size_t k = 0; k < threads(); ++k) heavy = heavy << 8 | s.heavy[i][k];
      add(heavy);
    }
    return {a, b};
  }

  std::uint64_t load(const State& s, std::size_t i, std::uint8_t address) const {
    for (std::size_t k = s.buffered[i]; k-- > 0;) {
      if (s.buffer[i][k].address == address) return s.buffer[i][k].value;
    }
    return s.words[address];
  }

  bool enabled(const State& s, std::size_t i) const {
    if (s.status[i] != State::kRunning) return false;
    const Op& op = thread(i).nodes[s.node[i]].op;
    switch (op.kind) {
      case OpKind::kDone: return false;
      case OpKind::kLoad:
      case OpKind::kStore: return true;
      case OpKind::kAwait: return s.words[op.address] != 0;
      case OpKind::kHeavyEnd:
        for (std::size_t k = 0; k < threads(); ++k) {
          if (s.heavy[i][k] != 0) return false;
        }
        return true;
      default: return s.buffered[i] == 0;
    }
  }

  // Moves thread i over the answer, and over operations that are no steps.
  void answer(State& s, std::size_t i, std::uint64_t value) {
    s.node[i] = thread(i).child(s.node[i], value);
    settle(s, i);
  }
  void settle(State& s, std::size_t i) {
    for (;;) {
      const Op op = thread(i).nodes[s.node[i]].op;
      if (op.kind == OpKind::kRestart) {
        s.node[i] = thread(i).root(op.a);
      } else if (op.kind == OpKind::kGhostOr || op.kind == OpKind::kGhostAdd) {
        if (op.kind == OpKind::kGhostOr) {
          s.words[op.address] |= op.a;
        } else {
          s.words[op.address] += op.a;
        }
        s.node[i] = thread(i).child(s.node[i], 0);
      } else {
        return;
      }
    }
  }

  std::uint64_t do_op(State& s, std::size_t i) {
    const Op op = thread(i).nodes[s.node[i]].op;
    std::uint64_t& word = s.words[op.address];
    std::uint64_t result = 0;
    switch (op.kind) {
      case OpKind::kLoad: result = load(s, i, op.address); break;
      case OpKind::kStore:
        if (s.buffered[i] == kMostBuffered) misuse("store buffer too small");
        s.buffer[i][s.buffered[i]++] = {op.a & op.mask, op.address};
        break;
      case OpKind::kStoreSeqCst: word = op.a & op.mask; break;
      case OpKind::kExchange: result = std::exchange(word, op.a & op.mask); break;
      case OpKind::kFetchOr: word |= op.a & op.mask; break;
      case OpKind::kFetchAnd: word &= op.a & op.mask; break;
      case OpKind::kFetchAdd: word = (word + op.a) & op.mask; break;
      case OpKind::kCompareExchange:
        result = word;
        if (word == op.a) word = op.b & op.mask;
        break;
      case OpKind::kHeavyBegin:
        for (std::size_t k = 0; k < threads(); ++k) s.heavy[i][k] = s.buffered[k];
        break;
      case OpKind::kFutexWait:
        if (word == op.a) {
          s.status[i] = State::kAsleep;
          return 1;
        }
        break;
      case OpKind::kFutexWake:
        for (std::size_t k = 0; k < threads(); ++k) {
          if (s.status[k] == State::kAsleep &&
              thread(k).nodes[s.node[k]].op.address == op.address) {
            s.status[k] = State::kRunning;
            answer(s, k, 1);
          }
        }
        break;
      default: break;
    }
    answer(s, i, result);
    return result;
  }

  void flush(State& s, std::size_t i) {
    s.words[s.buffer[i][0].address] = s.buffer[i][0].value;
    --s.buffered[i];
    std::memmove(&s.buffer[i][0], &s.buffer[i][1], s.buffered[i] * sizeof(State::Buffered));
    for (std::size_t k = 0; k < threads(); ++k) {
      if (s.heavy[k][i] != 0) --s.heavy[k][i];
    }
  }

  End view(const State& s) const {
    End end;
    end.words_ = s.words;
    for (std::size_t i = 0; i < threads(); ++i) {
      if (s.status[i] == State::kAsleep) end.asleep_ |= 1u << i;
      if (s.status[i] == State::kStopped) end.stopped_ |= 1u << i;
      if (thread(i).nodes[s.node[i]].op.kind == OpKind::kDone) end.done_ |= 1u << i;
    }
    return end;
  }

  void fail(const std::string& why) {
    report.failed = true;
    for (const Step& step : path) {
      char line[200];
      const char* who = thread(step.thread).name.c_str();
      const char* word = model.words_.empty() ? "" : model.words_[step.op.address].first.c_str();
      const auto a = static_cast<unsigned long long>(step.op.a);
      const auto result = static_cast<unsigned long long>(step.result);
      if (step.kind == Step::kFlush) {
        std::snprintf(line, sizeof line, "    %s: its buffered %s = %llu reaches memory\n", who,
                      word, a);
      } else if (step.kind == Step::kStop) {
        std::snprintf(line, sizeof line, "    %s: STOPS FOR EVER\n", who);
      } else if (step.op.kind == OpKind::kFutexWait) {
        std::snprintf(line, sizeof line, "    %s: futex_wait(%s, %llu): %s\n", who, word, a,
                      result != 0 ? "sleeps" : "value differs");
      } else if (step.op.kind >= OpKind::kFence && step.op.kind <= OpKind::kHeavyEnd) {
        std::snprintf(line, sizeof line, "    %s: %s\n", who, name_of(step.op.kind));
      } else {
        std::snprintf(line, sizeof line, "    %s: %s %s, %llu -> %llu\n", who,
                      name_of(step.op.kind), word, a, result);
      }
      report.trace += line;
    }
    report.trace += "    => " + why + "\n";
  }

  double next(State& s, std::size_t i, Step::Kind kind, const Op& op, std::uint64_t result) {
    ++report.steps;
    path.push_back({static_cast<std::uint8_t>(i), kind, op, result});
    double n = explore(s);
    path.pop_back();
    return n;
  }

  // The number of executions from here to an end.
  double explore(const State& s) {
    const Hash128 h = hash(s);
    auto [entry, fresh] = seen.try_emplace(h, kOnPath);
    if (!fresh) {
      if (entry->second == kOnPath) {
        report.cyclic = true;
        return 0;
      }
      return entry->second;
    }
    if (++report.states > kMostStates) {
      report.exhausted = false;
      return 0;
    }
    if (model.always_) {
      if (auto why = model.always_(view(s)); !why.empty()) {
        fail(why);
        return 0;
      }
    }
    double executions = 0;
    bool moved = false;
    for (std::size_t i = 0; i < threads() && !report.failed && report.exhausted; ++i) {
      if (s.buffered[i] != 0) {
        moved = true;
        State t = s;
        Op op;
        op.address = static_cast<std::uint8_t>(s.buffer[i][0].address);
        op.a = s.buffer[i][0].value;
        flush(t, i);
        executions += next(t, i, Step::kFlush, op, 0);
        if (report.failed) break;
      }
      if (enabled(s, i)) {
        moved = true;
        State t = s;
        const Op op = thread(i).nodes[s.node[i]].op;
        std::uint64_t result = do_op(t, i);
        executions += next(t, i, Step::kOp, op, result);
        if (report.failed) break;
      }
      if (thread(i).may_stop && s.status[i] == State::kRunning && s.buffered[i] == 0 &&
          s.words[thread(i).stopped_word] == 0 &&
          thread(i).nodes[s.node[i]].op.kind != OpKind::kDone) {
        State t = s;
        t.status[i] = State::kStopped;
        t.words[thread(i).stopped_word] = 1;
        executions += next(t, i, Step::kStop, {}, 0);
      }
    }
    if (!moved && !report.failed) {
      executions += 1;
      End end = view(s);
      std::string why;
      if (model.at_end_) {
        why = model.at_end_(end);
      } else if (end.asleep_ != 0) {
        why = "somebody sleeps for ever";
      }
      if (!why.empty()) fail(why);
    }
    seen[h] = executions;
    return executions;
  }
};

Model::Model() = default;
Model::~Model() = default;

std::uint8_t Model::add_word(std::string name, std::uint64_t initial) {
  if (words_.size() == kMostWords) misuse("too many words");
  words_.emplace_back(std::move(name), initial);
  return static_cast<std::uint8_t>(words_.size() - 1);
}

std::size_t Model::thread(std::string name, Body body) {
  if (threads_.size() == kMostThreads) misuse("too many threads");
  threads_.push_back(std::make_unique<Thread>());
  threads_.back()->name = std::move(name);
  threads_.back()->body = std::move(body);
  return threads_.size() - 1;
}

void Model::may_stop(std::size_t thread, ModelAtomic<std::uint32_t> stopped) {
  threads_[thread]->may_stop = true;
  threads_[thread]->stopped_word = stopped.address();
}

Report Model::run() {
  Search search(*this);
  State s;
  for (std::size_t i = 0; i < words_.size(); ++i) s.words[i] = words_[i].second;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    s.node[i] = threads_[i]->root(0);
    search.settle(s, i);
  }
  search.report.executions = search.explore(s);
  return search.report;
}

}  // namespace clan::testing
