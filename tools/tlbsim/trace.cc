#include "trace.h"

#include <fmt/format.h>

#include <charconv>
#include <istream>

namespace clan::tlbsim {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::string_view next_word(std::string_view& line) {
  std::size_t start = line.find_first_not_of(kBlanks);
  if (start == std::string_view::npos) return {};
  line.remove_prefix(start);
  std::string_view word = line.substr(0, line.find_first_of(kBlanks));
  line.remove_prefix(word.size());
  return word;
}

template <typename Number>
bool parse(std::string_view word, Number& number) {
  int base = 10;
  if (word.starts_with("0x") || word.starts_with("0X")) {
    word.remove_prefix(2);
    base = 16;
  }
  auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number, base);
  return error == std::errc() && end == word.data() + word.size() && !word.empty();
}

bool parse(std::string_view word, Op& op) {
  for (Op candidate : {Op::kRead, Op::kWrite, Op::kReceive}) {
    if (word != to_string(candidate)) continue;
    op = candidate;
    return true;
  }
  return false;
}

}  // namespace

std::string_view to_string(Op op) {
  switch (op) {
    case Op::kRead: return "r";
    case Op::kWrite: return "w";
    case Op::kReceive: return "recv";
  }
  return "?";
}

Result<std::optional<Access>> parse_line(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::string_view pid = next_word(line);
  if (pid.empty()) return std::optional<Access>();
  Access access;
  bool good = parse(pid, access.pid);
  good = parse(next_word(line), access.op) && good;
  good = parse(next_word(line), access.vaddr) && good;
  good = parse(next_word(line), access.length) && good;
  if (!good || !next_word(line).empty()) return Error{EINVAL, "expected: pid r|w|recv vaddr len"};
  if (access.length == 0 || access.length > kLongestAccess ||
      access.vaddr + (access.length - 1) < access.vaddr) {
    return Error{EINVAL, "length must be 1 to 2^30 and end within the address space"};
  }
  return std::optional<Access>(access);
}

Status read_trace(std::istream& in, const Sink& sink, std::size_t& line) {
  std::string text;
  for (line = 1; std::getline(in, text); ++line) {
    Result<std::optional<Access>> access = parse_line(text);
    if (!access) return access.error();
    if (access->has_value()) sink(**access);
  }
  return {};
}

std::string to_line(const Access& access) {
  return fmt::format("{} {} {:#x} {}", access.pid, to_string(access.op), access.vaddr,
                     access.length);
}

}  // namespace clan::tlbsim
