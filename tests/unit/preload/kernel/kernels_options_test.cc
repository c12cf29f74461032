#include "kernel/kernels_options.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cstdint>

namespace clan::preload {
namespace {

using reasons::Why;

const KernelsOption* of_number(int level, int name, std::uint32_t value) {
  return kernels_option(level, name, &value, sizeof value);
}

TEST(KernelsOptions, AreThoseByWhichTcpDoesMoreThanCarryBytes) {
  const KernelsOption* timeout = of_number(IPPROTO_TCP, TCP_USER_TIMEOUT, 1000);
  ASSERT_NE(timeout, nullptr);
  EXPECT_EQ(timeout->why, Why::kUserTimeout);
  EXPECT_NE(kernels_option(SOL_SOCKET, SO_ATTACH_FILTER, nullptr, 0), nullptr);
  EXPECT_EQ(of_number(IPPROTO_TCP, TCP_NODELAY, 1), nullptr);
  EXPECT_EQ(of_number(SOL_SOCKET, TCP_USER_TIMEOUT, 1), nullptr) << "of another level";
}

TEST(KernelsOptions, WithValuesThatDoNothingAreNone) {
  EXPECT_EQ(of_number(IPPROTO_TCP, TCP_USER_TIMEOUT, 0), nullptr);
  EXPECT_EQ(of_number(SOL_SOCKET, SO_MAX_PACING_RATE, ~0u), nullptr);
  const std::uint64_t unlimited = ~std::uint64_t{0}, rate = std::uint64_t{1} << 40;
  EXPECT_EQ(kernels_option(SOL_SOCKET, SO_MAX_PACING_RATE, &unlimited, sizeof unlimited), nullptr);
  EXPECT_NE(kernels_option(SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate), nullptr);
}

TEST(KernelsOptions, OfASocketAreAsked) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(why_by_option(fd), Why::kNone);
  const int ms = 1000;
  ASSERT_EQ(::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms), 0);
  EXPECT_EQ(why_by_option(fd), Why::kUserTimeout);
  ::close(fd);
}

}  // namespace
}  // namespace clan::preload
