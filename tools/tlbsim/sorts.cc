// Parallel sorts: radix and sample.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "endpoint.h"
#include "programs.h"

namespace clan::tlbsim {
namespace {

using Key = std::uint32_t;
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

}  // namespace

bool radix_sort(const Workload& workload, const Sink& sink, bool bulk) {
  return RadixSort(workload, sink).run(bulk);
}

bool sample_sort(const Workload& workload, const Sink& sink, bool bulk) {
  return SampleSort(workload, sink).run(bulk);
}

}  // namespace clan::tlbsim
