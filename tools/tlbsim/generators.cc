#include "generators.h"

#include <clan/result.h>

#include <cerrno>

#include "programs.h"

namespace clan::tlbsim {
namespace {

constexpr std::size_t kMostKeys = std::size_t{1} << 26;

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
    right = radix_sort(workload, sink, kind == "radix-bulk");
  } else if (kind == "sample-small" || kind == "sample-bulk") {
    right = sample_sort(workload, sink, kind == "sample-bulk");
  } else if (kind == "matmul-128") {
    right = matrix_multiply(8, 128, 8, workload.seed, sink);
  } else if (kind == "matmul-16") {
    right = matrix_multiply(16, 16, 4, workload.seed, sink);
  } else if (kind == "sockets") {
    socket_sessions(workload, sink);
  } else {
    return Error{ENOENT, "no such workload"};
  }
  if (!right) return Error{EPROTO, "the program computed a wrong result"};
  return {};
}

}  // namespace clan::tlbsim
