#include "kernel/kernels_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "os/sys.h"

namespace clan::preload {
namespace {

using reasons::Why;

constexpr int kTxDelay = 37;  // TCP_TX_DELAY
constexpr auto kNone = KernelsOption::kNone;
constexpr long long kUnlimited = ~0u;

constexpr KernelsOption kOptions[] = {
    {SOL_SOCKET, SO_TIMESTAMP, Why::kTimestamp, false, kNone, true},
    {SOL_SOCKET, SO_TIMESTAMPNS, Why::kTimestamp, false, kNone, true},
    {SOL_SOCKET, SO_TIMESTAMPING, Why::kTimestamp, false, kNone, true},
    {SOL_SOCKET, SO_TIMESTAMP_NEW, Why::kTimestamp, false, kNone, true},
    {SOL_SOCKET, SO_TIMESTAMPNS_NEW, Why::kTimestamp, false, kNone, true},
    {SOL_SOCKET, SO_TIMESTAMPING_NEW, Why::kTimestamp, false, kNone, true},
    {SOL_SOCKET, SO_PEEK_OFF, Why::kPeekOff, true, kNone, false},
    {SOL_SOCKET, SO_ATTACH_FILTER, Why::kSocketFilter, false, kNone, true},
    {SOL_SOCKET, SO_ATTACH_BPF, Why::kSocketFilter, false, kNone, false},
    {SOL_SOCKET, SO_MAX_PACING_RATE, Why::kPacing, false, kUnlimited, true},
    {IPPROTO_TCP, TCP_INQ, Why::kInq, false, kNone, true},
    {IPPROTO_TCP, TCP_ULP, Why::kUlp, true, kNone, false},
    {IPPROTO_TCP, TCP_REPAIR, Why::kRepair, true, kNone, false},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, Why::kUserTimeout, false, 0, true},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP, Why::kWindowClamp, false, 0, false},
    {IPPROTO_TCP, kTxDelay, Why::kTxDelay, false, 0, true},
};

// Only a rate may have 64 bits. With all bits set, it is unlimited, too.
long long number_in(const void* value, socklen_t size) {
  std::uint64_t number = 0;
  if (value == nullptr || size < sizeof(std::uint32_t)) return kNone;
  std::memcpy(&number, value, size < sizeof number ? sizeof(std::uint32_t) : sizeof number);
  return number == ~std::uint64_t{0} ? kUnlimited : static_cast<long long>(number);
}

bool is_set(int fd, const KernelsOption& option) {
  const bool is_filter = option.why == Why::kSocketFilter;
  std::uint32_t value = 0;
  socklen_t size = is_filter ? 0 : sizeof value;  // the kernel returns a filter's length
  errno = 0;
  if (sys::getsockopt(fd, option.level, option.name, &value, &size) != 0)
    return is_filter && errno == EACCES;  // an eBPF filter
  if (is_filter) return size != 0;
  return value != (option.neutral == kNone ? 0 : option.neutral);
}

}  // namespace

const KernelsOption* kernels_option(int level, int name, const void* value, socklen_t size) {
  for (const KernelsOption& one : kOptions) {
    if (one.level != level || one.name != name) continue;
    const bool does_nothing = one.neutral != kNone && number_in(value, size) == one.neutral;
    return does_nothing ? nullptr : &one;
  }
  return nullptr;
}

reasons::Why why_by_option(int fd) {
  for (const KernelsOption& one : kOptions) {
    if (one.can_be_asked && is_set(fd, one)) return one.why;
  }
  return Why::kNone;
}

}  // namespace clan::preload
