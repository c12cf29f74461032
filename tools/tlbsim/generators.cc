#include "generators.h"

#include <clan/result.h>

#include <algorithm>
#include <array>
#include <queue>
#include <utility>
#include <vector>

namespace clan::tlbsim {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kBase = 0x10000000;
constexpr std::size_t kReceiveBuffers = 64;  // of one page
constexpr std::size_t kSmallMessage = 64;    // small messages are sent from one page of these
constexpr std::size_t kMostKeys = std::size_t{1} << 26;
using Key = std::uint32_t;

// splitmix64: the same on every machine, which the standard's distributions are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) {
    return least + below(most - least + 1);
  }

 private:
  std::uint64_t state_;
};

// One process's memory as its NIC knows it: receive buffers, a page of small message buffers, then
// the program's own arrays. Silent for the nodes that are not recorded.
class Endpoint {
 public:
  Endpoint(std::uint32_t pid, const Sink* sink) : pid_(pid), sink_(sink) {}

  /// Where the next array lies; arrays follow each other, on page boundaries.
  std::uint64_t place(std::uint64_t bytes) {
    return std::exchange(free_, free_ + (bytes + kPage - 1) / kPage * kPage);
  }
  void send_small(std::uint64_t bytes = kSmallMessage) {
    std::uint64_t slot = small_++ % (kPage / kSmallMessage);
    emit(Op::kRead, kSmallBase + slot * kSmallMessage, bytes);
  }
  /// From where the data lies, in messages that fit a receive buffer. Returns how many.
  std::uint64_t send(std::uint64_t vaddr, std::uint64_t bytes) {
    std::uint64_t messages = 0;
    for (std::uint64_t done = 0; done < bytes; done += kPage, ++messages) {
      emit(Op::kRead, vaddr + done, std::min(kPage, bytes - done));
    }
    return messages;
  }
  void receive(std::uint64_t messages = 1) {
    for (; messages != 0; --messages) {
      emit(Op::kReceive, kBase + received_++ % kReceiveBuffers * kPage, kPage);
    }
  }

 private:
  static constexpr std::uint64_t kSmallBase = kBase + kReceiveBuffers * kPage;
  void emit(Op op, std::uint64_t vaddr, std::uint64_t bytes) {
    if (sink_ != nullptr) (*sink_)({pid_, op, vaddr, bytes});
  }
  std::uint32_t pid_;
  const Sink* sink_;
  std::uint64_t free_ = kSmallBase + kPage;
  std::uint64_t small_ = 0;
  std::uint64_t received_ = 0;
};

// The nodes of a parallel program; node 0 is recorded.
std::vector<Endpoint> make_nodes(std::size_t count, const Sink& sink) {
  std::vector<Endpoint> nodes;
  for (std::size_t n = 0; n < count; ++n) {
    nodes.emplace_back(static_cast<std::uint32_t>(n), n == 0 ? &sink : nullptr);
  }
  return nodes;
}

using Keys = std::vector<std::vector<Key>>;  // of each node

Keys random_keys(const Workload& workload) {
  Random random(workload.seed);
  Keys keys(workload.nodes);
  for (auto& mine : keys) {
    mine.resize(workload.keys_per_node);
    for (Key& key : mine) key = static_cast<Key>(random.next());
  }
  return keys;
}

// Sorted, and the same keys: sums tell (a collision of both is no practical matter).
bool is_sorted_version_of(const Keys& keys, const Keys& original) {
  auto sums = [](const Keys& all) {
    std::array<std::uint64_t, 3> sum{};
    for (const auto& mine : all) {
      for (std::uint64_t key : mine) {
        ++sum[0];
        sum[1] += key;
        sum[2] += key * key;
      }
    }
    return sum;
  };
  Key last = 0;
  for (const auto& mine : keys) {
    for (Key key : mine) {
      if (key < last) return false;
      last = key;
    }
  }
  return sums(keys) == sums(original);
}

// ---- radix sort: 3 passes of 11 bits ----

class RadixSort {
 public:
  RadixSort(const Workload& workload, const Sink& sink)
      : nodes_(make_nodes(workload.nodes, sink)),
        per_node_(workload.keys_per_node),
        keys_(random_keys(workload)),
        sorted_(keys_) {
    for (Endpoint& node : nodes_) {
      // The same on every node, as in any SPMD program.
      source_ = node.place(per_node_ * sizeof(Key));
      target_ = node.place(per_node_ * sizeof(Key));
    }
  }

  bool run(bool bulk) {
    const Keys original = keys_;
    for (int pass = 0; pass < kPasses; ++pass) {
      shift_ = pass * kBits;
      rank();
      bulk ? distribute_in_bulk() : distribute_one_by_one();
      keys_.swap(sorted_);
      // In bulk the second array is where runs are gathered before they are sent.
      if (!bulk) std::swap(source_, target_);
    }
    return is_sorted_version_of(keys_, original);
  }

 private:
  static constexpr int kBits = 11, kPasses = 3;
  static constexpr std::size_t kBins = std::size_t{1} << kBits;
  std::size_t digit(Key key) const { return (key >> shift_) & (kBins - 1); }

  // first_[node][bin]: global position of that node's first key of the bin. The counts travel round
  // the nodes in small messages.
  void rank() {
    first_.assign(nodes_.size(), std::vector<std::size_t>(kBins));
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      for (Key key : keys_[n]) ++first_[n][digit(key)];
    }
    for (std::size_t message = 0; message < kBins * sizeof(Key) / kSmallMessage; ++message) {
      for (std::size_t n = 0; n < nodes_.size(); ++n) {
        nodes_[n].send_small();
        nodes_[(n + 1) % nodes_.size()].receive();
      }
    }
    std::size_t position = 0;
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      for (auto& first : first_) position += std::exchange(first[bin], position);
    }
  }

  // A put per key, straight from the array.
  void distribute_one_by_one() {
    for (std::size_t i = 0; i < per_node_; ++i) {
      for (std::size_t n = 0; n < nodes_.size(); ++n) {
        Key key = keys_[n][i];
        std::size_t position = first_[n][digit(key)]++;
        std::size_t to = position / per_node_;
        sorted_[to][position % per_node_] = key;
        if (to == n) continue;
        nodes_[n].send(source_ + i * sizeof(Key), sizeof(Key));
        nodes_[to].receive();
      }
    }
  }

  // Each node gathers its keys by bin, and sends each bin's run where it belongs.
  void distribute_in_bulk() {
    Keys gathered(nodes_.size());
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      gathered[n] = keys_[n];
      std::stable_sort(gathered[n].begin(), gathered[n].end(),
                       [this](Key a, Key b) { return digit(a) < digit(b); });
    }
    std::vector<std::size_t> at(nodes_.size());
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      for (std::size_t n = 0; n < nodes_.size(); ++n) send_run(n, bin, gathered[n], at[n]);
    }
  }

  void send_run(std::size_t n, std::size_t bin, const std::vector<Key>& gathered, std::size_t& at) {
    std::size_t end = at;
    while (end < gathered.size() && digit(gathered[end]) == bin) ++end;
    std::size_t position = first_[n][bin];
    while (at < end) {
      std::size_t to = position / per_node_;
      std::size_t count = std::min(end - at, per_node_ - position % per_node_);
      for (std::size_t i = 0; i < count; ++i) {
        sorted_[to][position % per_node_ + i] = gathered[at + i];
      }
      if (to != n) {
        nodes_[to].receive(nodes_[n].send(target_ + at * sizeof(Key), count * sizeof(Key)));
      }
      at += count;
      position += count;
    }
  }

  std::vector<Endpoint> nodes_;
  std::size_t per_node_;
  Keys keys_, sorted_;
  std::uint64_t source_ = 0, target_ = 0;
  int shift_ = 0;
  std::vector<std::vector<std::size_t>> first_;
};

// ---- sample sort ----

class SampleSort {
 public:
  SampleSort(const Workload& workload, const Sink& sink)
      : nodes_(make_nodes(workload.nodes, sink)),
        random_(workload.seed + 1),
        keys_(random_keys(workload)),
        received_(workload.nodes) {
    for (Endpoint& node : nodes_) {
      node.place(workload.keys_per_node * sizeof(Key));  // the keys
      gathered_ = node.place(workload.keys_per_node * sizeof(Key));
    }
  }

  bool run(bool bulk) {
    choose_splitters();
    bulk ? distribute_in_bulk() : distribute_in_small_messages();
    for (auto& mine : received_) std::sort(mine.begin(), mine.end());
    return is_sorted_version_of(received_, keys_);
  }

 private:
  static constexpr std::size_t kSamples = 256;  // of each node
  static constexpr std::size_t kKeysInSmallMessage = (kSmallMessage - 8) / sizeof(Key);

  std::size_t destination(Key key) const {
    return static_cast<std::size_t>(std::upper_bound(splitters_.begin(), splitters_.end(), key) -
                                    splitters_.begin());
  }

  // Samples go to node 0, splitters come back, in small messages.
  void choose_splitters() {
    std::vector<Key> samples;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      for (std::size_t i = 0; i < kSamples; ++i) {
        samples.push_back(keys_[n][random_.below(keys_[n].size())]);
        if (n == 0 || i % kKeysInSmallMessage != 0) continue;
        nodes_[n].send_small();
        nodes_[0].receive();
      }
    }
    std::sort(samples.begin(), samples.end());
    for (std::size_t n = 1; n < nodes_.size(); ++n) {
      splitters_.push_back(samples[n * kSamples]);
      nodes_[0].send_small();
      nodes_[n].receive();
    }
  }

  // Keys are packed in 64-byte messages, one being filled for each destination.
  void distribute_in_small_messages() {
    std::vector<std::vector<std::size_t>> packed(nodes_.size(),
                                                 std::vector<std::size_t>(nodes_.size()));
    for (std::size_t i = 0; i < keys_[0].size(); ++i) {
      for (std::size_t n = 0; n < nodes_.size(); ++n) {
        std::size_t to = destination(keys_[n][i]);
        received_[to].push_back(keys_[n][i]);
        if (to == n || ++packed[n][to] < kKeysInSmallMessage) continue;
        packed[n][to] = 0;
        nodes_[n].send_small();
        nodes_[to].receive();
      }
    }
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      for (std::size_t to = 0; to < nodes_.size(); ++to) {
        if (packed[n][to] == 0) continue;
        nodes_[n].send_small(8 + packed[n][to] * sizeof(Key));
        nodes_[to].receive();
      }
    }
  }

  // Keys are gathered by destination; in round r each node sends to the one r further on, a message
  // at a time, while it receives.
  void distribute_in_bulk() {
    std::vector<std::vector<std::size_t>> start(nodes_.size());
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      std::vector<std::size_t> count(nodes_.size());
      for (Key key : keys_[n]) {
        std::size_t to = destination(key);
        received_[to].push_back(key);
        ++count[to];
      }
      start[n].push_back(0);
      for (std::size_t c : count) start[n].push_back(start[n].back() + c * sizeof(Key));
    }
    for (std::size_t round = 1; round < nodes_.size(); ++round) {
      bool more = true;
      for (std::uint64_t done = 0; more; done += kPage) {
        more = false;
        for (std::size_t n = 0; n < nodes_.size(); ++n) {
          std::size_t to = (n + round) % nodes_.size();
          std::uint64_t bytes = start[n][to + 1] - start[n][to];
          if (done >= bytes) continue;
          nodes_[n].send(gathered_ + start[n][to] + done, std::min(kPage, bytes - done));
          nodes_[to].receive();
          more = true;
        }
      }
    }
  }

  std::vector<Endpoint> nodes_;
  Random random_;
  Keys keys_, received_;
  std::vector<Key> splitters_;
  std::uint64_t gathered_ = 0;
};

// ---- blocked matrix multiplication ----

// n x n blocks of b x b doubles on a grid of g x g nodes; block (i, j) lives on node (i mod g, j
// mod g). For each of its blocks of C a node gets the blocks of A and B it needs, one after the
// other.
class MatrixMultiply {
 public:
  MatrixMultiply(std::size_t n, std::size_t b, std::size_t grid, std::uint64_t seed,
                 const Sink& sink)
      : n_(n), b_(b), grid_(grid), nodes_(make_nodes(grid * grid, sink)) {
    for (Endpoint& node : nodes_) {
      std::uint64_t bytes = (n / grid) * (n / grid) * block_bytes();
      base_a_ = node.place(bytes);
      base_b_ = node.place(bytes);
    }
    Random random(seed);
    // Where data goes does not depend on what it is; the larger product would take seconds.
    if (n * b > kLargestComputed) return;
    for (auto* matrix : {&a_, &b_matrix_, &c_}) matrix->resize(n * b * n * b);
    for (double& x : a_) x = static_cast<double>(random.below(64));
    for (double& x : b_matrix_) x = static_cast<double>(random.below(64));
  }

  bool run() {
    const std::size_t mine = n_ / grid_;
    for (std::size_t block = 0; block < mine * mine; ++block) {
      for (std::size_t k = 0; k < n_; ++k) {
        for (std::size_t node = 0; node < nodes_.size(); ++node) {
          std::size_t i = block / mine * grid_ + node / grid_;
          std::size_t j = block % mine * grid_ + node % grid_;
          get(node, base_a_, i, k);
          get(node, base_b_, k, j);
          multiply(i, j, k);
        }
      }
    }
    return product_is_right();
  }

 private:
  static constexpr std::size_t kLargestComputed = 256;
  std::uint64_t block_bytes() const { return b_ * b_ * sizeof(double); }

  void get(std::size_t node, std::uint64_t base, std::size_t i, std::size_t j) {
    std::size_t owner = i % grid_ * grid_ + j % grid_;
    if (owner == node) return;
    nodes_[node].send_small();
    nodes_[owner].receive();
    std::size_t index = i / grid_ * (n_ / grid_) + j / grid_;
    nodes_[node].receive(nodes_[owner].send(base + index * block_bytes(), block_bytes()));
  }

  void multiply(std::size_t i, std::size_t j, std::size_t k) {
    if (c_.empty()) return;
    const std::size_t row = n_ * b_;
    for (std::size_t y = i * b_; y < (i + 1) * b_; ++y) {
      for (std::size_t z = k * b_; z < (k + 1) * b_; ++z) {
        double factor = a_[y * row + z];
        for (std::size_t x = j * b_; x < (j + 1) * b_; ++x) {
          c_[y * row + x] += factor * b_matrix_[z * row + x];
        }
      }
    }
  }

  // C·v = A·(B·v), exact: all numbers are small integers.
  bool product_is_right() const {
    const std::size_t row = n_ * b_;
    auto times = [row](const std::vector<double>& m, const std::vector<double>& v) {
      std::vector<double> out(row);
      for (std::size_t y = 0; y < row; ++y) {
        for (std::size_t x = 0; x < row; ++x) out[y] += m[y * row + x] * v[x];
      }
      return out;
    };
    if (c_.empty()) return true;
    std::vector<double> v(row);
    for (std::size_t i = 0; i < row; ++i) v[i] = static_cast<double>(i % 7);
    return times(c_, v) == times(a_, times(b_matrix_, v));
  }

  std::size_t n_, b_, grid_;
  std::vector<Endpoint> nodes_;
  std::uint64_t base_a_ = 0, base_b_ = 0;
  std::vector<double> a_, b_matrix_, c_;
};

// ---- socket servers ----

// Login and file transfer servers, a process each, on one host with one NIC. Sessions overlap; each
// follows a script of keystrokes, echoes, screens of output, files up and files down.
class Sessions {
 public:
  Sessions(const Workload& workload, const Sink& sink)
      : workload_(workload), sink_(sink), random_(workload.seed) {}

  void run() {
    using Event = std::pair<std::uint64_t, std::size_t>;  // when (ms), who
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
    for (std::size_t s = 0; s < workload_.processes; ++s) {
      servers_.emplace_back(static_cast<std::uint32_t>(s + 1), &sink_, s % 2 == 1);
      if (s < workload_.concurrent) events.emplace(random_.below(1000), s);
    }
    // Who has said all takes leave when the first of those beside it does, and a new one logs in:
    // sessions begin in order and last about equally long.
    std::size_t next = workload_.concurrent;
    std::size_t oldest = 0;
    while (!events.empty()) {
      auto [now, who] = events.top();
      events.pop();
      Server& server = servers_[who];
      step(server);
      if (++server.steps < kSteps || who != oldest) {
        events.emplace(now + random_.between(50, 400), who);
        continue;
      }
      ++oldest;
      if (next < servers_.size()) events.emplace(now + random_.below(1000), next++);
    }
  }

 private:
  static constexpr std::size_t kSteps = 150;
  static constexpr std::uint64_t kFileBuffer = 16 * kPage;

  struct Server {
    Server(std::uint32_t pid, const Sink* sink, bool is_ftp)
        : endpoint(pid, sink), ftp(is_ftp), output(endpoint.place(kPage)) {
      if (ftp) file = endpoint.place(kFileBuffer);
    }
    Endpoint endpoint;
    bool ftp;
    std::uint64_t output;  // stdio's
    std::uint64_t file = 0;
    std::size_t steps = 0;
  };

  void step(Server& server) { server.ftp ? transfer(server) : type_line(server); }

  // Characters arrive and are echoed one by one; then the command's output.
  void type_line(Server& server) {
    for (std::uint64_t left = random_.between(2, 30); left != 0; --left) {
      server.endpoint.receive();
      server.endpoint.send_small(1);
    }
    std::uint64_t bytes = random_.between(40, 2000);
    server.endpoint.send(server.output, bytes);
  }

  // A command, a reply, and for some of them a file either way.
  void transfer(Server& server) {
    server.endpoint.receive();
    server.endpoint.send_small(random_.between(20, 60));
    std::uint64_t what = random_.below(4);
    std::uint64_t chunks = random_.between(1, 6);
    for (; what < 2 && chunks != 0; --chunks) {
      if (what == 0) {
        server.endpoint.send(server.file, random_.between(1, kFileBuffer));
      } else {
        server.endpoint.receive(random_.between(1, kFileBuffer / kPage));
      }
    }
  }

  const Workload& workload_;
  const Sink& sink_;
  Random random_;
  std::vector<Server> servers_;
};

constexpr Kind kKinds[] = {
    {"radix-small", "radix sort, a message for each key"},
    {"radix-bulk", "radix sort, runs of keys gathered and sent"},
    {"sample-small", "sample sort, 64-byte messages from one page"},
    {"sample-bulk", "sample sort, keys gathered and sent by destination"},
    {"matmul-128", "matrix product, 8x8 blocks of 128x128 doubles, 64 nodes"},
    {"matmul-16", "matrix product, 16x16 blocks of 16x16 doubles, 16 nodes"},
    {"sockets", "32 login and file transfer servers, 64 receive buffers of 4 KB each"},
};

}  // namespace

std::span<const Kind> kinds() { return kKinds; }

Status run_workload(std::string_view kind, const Workload& workload, const Sink& sink) {
  if (workload.nodes < 2 || workload.nodes > 1024 || workload.keys_per_node == 0 ||
      workload.keys_per_node > kMostKeys / workload.nodes || workload.processes == 0 ||
      workload.processes > 65536 || workload.concurrent == 0) {
    return Error{EINVAL, "nodes 2 to 1024, 2^26 keys together, processes 1 to 65536"};
  }
  bool right = true;
  if (kind == "radix-small" || kind == "radix-bulk") {
    right = RadixSort(workload, sink).run(kind == "radix-bulk");
  } else if (kind == "sample-small" || kind == "sample-bulk") {
    right = SampleSort(workload, sink).run(kind == "sample-bulk");
  } else if (kind == "matmul-128") {
    right = MatrixMultiply(8, 128, 8, workload.seed, sink).run();
  } else if (kind == "matmul-16") {
    right = MatrixMultiply(16, 16, 4, workload.seed, sink).run();
  } else if (kind == "sockets") {
    Sessions(workload, sink).run();
  } else {
    return Error{ENOENT, "no such workload"};
  }
  if (!right) return Error{EPROTO, "the program computed a wrong result"};
  return {};
}

}  // namespace clan::tlbsim
