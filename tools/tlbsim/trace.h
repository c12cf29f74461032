// A trace: what a NIC did to which memory, in order. One access per line:
//
//     pid op vaddr len        # op: r = sent from there, w = written there by RDMA,
//     3 recv 0x10004000 4096  #     recv = a receive buffer was filled
//
// Numbers are decimal or 0x hexadecimal; '#' starts a comment; empty lines are skipped.
#pragma once

#include <clan/result.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

namespace clan::tlbsim {

enum class Op : std::uint8_t { kRead, kWrite, kReceive };
constexpr std::size_t kOps = 3;
std::string_view to_string(Op op);

struct Access {
  std::uint32_t pid = 0;
  Op op = Op::kRead;
  std::uint64_t vaddr = 0;
  std::uint64_t length = 0;
  friend bool operator==(const Access&, const Access&) = default;
};

/// Takes the accesses of a trace one by one.
using Sink = std::function<void(const Access&)>;

/// A longer access is a mistake in the trace.
constexpr std::uint64_t kLongestAccess = std::uint64_t{1} << 30;

/// One line: an access, nothing (a comment), or EINVAL.
Result<std::optional<Access>> parse_line(std::string_view line);

/// A whole trace. On EINVAL `line` is the number of the bad one.
Status read_trace(std::istream& in, const Sink& sink, std::size_t& line);

std::string to_line(const Access& access);

}  // namespace clan::tlbsim
