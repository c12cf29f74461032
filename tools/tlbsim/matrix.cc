// Blocked matrix multiplication.
#include <algorithm>
#include <utility>
#include <vector>

#include "endpoint.h"
#include "programs.h"

namespace clan::tlbsim {
namespace {

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

}  // namespace

bool matrix_multiply(std::size_t n, std::size_t b, std::size_t grid, std::uint64_t seed,
                     const Sink& sink) {
  return MatrixMultiply(n, b, grid, seed, sink).run();
}

}  // namespace clan::tlbsim
