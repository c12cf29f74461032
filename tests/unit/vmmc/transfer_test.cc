// Export, import, and deliberate update.
#include <numeric>

#include "ends.h"
#include "support/waiting_child.h"

namespace clan::vmmc::testing {
namespace {

using test::WaitingChild;

std::vector<std::uint8_t> pattern(std::size_t bytes) {
  std::vector<std::uint8_t> data(bytes);
  std::iota(data.begin(), data.end(), static_cast<std::uint8_t>(1));
  return data;
}

class VmmcSend : public ::testing::TestWithParam<Of> {};
INSTANTIATE_TEST_SUITE_P(Memory, VmmcSend, ::testing::Values(Of::kMapped, Of::kOwn),
                         [](const auto& made) {
                           return made.param == Of::kMapped ? "Mapped" : "Own";
                         });

TEST_P(VmmcSend, BringsBytesToTheirPlaceAndLeavesTheOthersAlone) {
  Exported to(1 << 20, 0, GetParam());
  Imported from(to);
  EXPECT_EQ(vmmc_size(from), 1u << 20);
  for (const std::size_t bytes : {1u, 8u, 100u, 5000u, 300'000u}) {
    std::memset(to.memory, 0, 1 << 20);
    auto data = pattern(bytes);
    ASSERT_EQ(vmmc_send(from, 4093, data.data(), bytes, 0), 0) << bytes;
    std::memset(data.data(), 0xee, bytes);  // the source may be used again
    EXPECT_EQ(std::memcmp(to.memory + 4093, pattern(bytes).data(), bytes), 0) << bytes;
    EXPECT_EQ(to.memory[4092], 0);
    EXPECT_EQ(to.memory[4093 + bytes], 0);
  }
}

TEST_P(VmmcSend, StaysInsideTheBuffer) {
  Exported to(2 * kPage, 0, GetParam());
  Imported from(to);
  const auto data = pattern(2 * kPage + 1);
  EXPECT_EQ(vmmc_send(from, 0, data.data(), 2 * kPage, 0), 0);
  EXPECT_EQ(vmmc_send(from, 0, data.data(), 2 * kPage + 1, 0), -ERANGE);
  EXPECT_EQ(vmmc_send(from, 2 * kPage, data.data(), 1, 0), -ERANGE);
  EXPECT_EQ(vmmc_send(from, ~std::size_t{0}, data.data(), 2, 0), -ERANGE);
  EXPECT_EQ(vmmc_put_word(from, 2 * kPage - 4, 1), -EINVAL) << "not aligned";
  EXPECT_EQ(vmmc_put_word(from, 2 * kPage, 1), -ERANGE);
}

TEST_P(VmmcSend, WithoutWaitingEndsOnceAndAWordComesBehindIt) {
  constexpr std::size_t kBytes = 4 << 20;
  Exported to(kBytes + kPage, 0, GetParam());
  Imported from(to);
  auto data = pattern(kBytes);
  for (std::uint64_t round = 1; round <= 20; ++round) {
    data[kBytes - 1] = static_cast<std::uint8_t>(round);
    std::uint64_t handle = 0;
    ASSERT_EQ(vmmc_send_async(from, 0, data.data(), kBytes, 0, &handle), 0);
    ASSERT_EQ(vmmc_put_word(from, kBytes, round), 0);
    ASSERT_EQ(word_at(to.memory, kBytes), round);
    ASSERT_EQ(to.memory[kBytes - 1], round);
    EXPECT_EQ(vmmc_test(from.v, handle), 0) << "the word has waited for it";
    EXPECT_EQ(vmmc_test(from.v, handle), -ESRCH);
    ASSERT_EQ(vmmc_send_async(from, 0, data.data(), kBytes, 0, &handle), 0);
    EXPECT_EQ(vmmc_wait(from.v, handle, kSoon), 0);
  }
}

TEST_P(VmmcSend, OfManyThreadsAtOnceArrives) {
  constexpr std::size_t kEach = 200'000;
  Exported to(4 * kEach, 0, GetParam());
  Imported from(to);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        const std::vector<std::uint8_t> data(kEach, static_cast<std::uint8_t>(16 * t + 1));
        EXPECT_EQ(vmmc_send(from, t * kEach, data.data(), kEach, 0), 0);
        std::uint64_t handle = 0;
        EXPECT_EQ(vmmc_send_async(from, t * kEach, data.data(), kEach, 0, &handle), 0);
        EXPECT_EQ(vmmc_wait(from.v, handle, kSoon), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < 4; ++t)
    EXPECT_EQ(to.memory[(t + 1) * kEach - 1], static_cast<std::uint8_t>(16 * t + 1));
}

TEST_P(VmmcSend, WithAFlagThatDoesNotExistSendsNothing) {
  Exported to(kPage, 0, GetParam());
  Imported from(to);
  std::uint64_t handle = 0;
  for (const unsigned flags : {2u, 2u | VMMC_NOTIFY, ~0u}) {
    EXPECT_EQ(vmmc_send(from, 0, "x", 1, flags), -EINVAL);
    EXPECT_EQ(vmmc_send_async(from, 0, "x", 1, flags, &handle), -EINVAL);
  }
  EXPECT_EQ(to.memory[0], 0);
}

TEST_P(VmmcSend, ThroughACookieNeedsNoName) {
  Exported to(kPage, 0, GetParam());
  Open v;
  unsigned char cookie[VMMC_COOKIE_BYTES];
  ASSERT_EQ(vmmc_cookie(to.buffer, cookie), 0);
  vmmc_remote_t* remote = nullptr;
  ASSERT_EQ(vmmc_import_cookie(v, cookie, -1, kSoon, &remote), 0);
  EXPECT_EQ(vmmc_send(remote, 0, "hello", 5, 0), 0);
  EXPECT_EQ(std::memcmp(to.memory, "hello", 5), 0);
  EXPECT_EQ(vmmc_unimport(remote), 0);
  cookie[8] = static_cast<unsigned char>(cookie[8] + 1);  // the key
  EXPECT_EQ(vmmc_import_cookie(v, cookie, -1, kSoon, &remote), -EACCES);
}

TEST_P(VmmcSend, BehindUnexportReachesNothing) {
  Exported to(4 * kPage, 0, GetParam());
  Imported from(to);
  ASSERT_EQ(vmmc_send(from, 0, "one", 3, 0), 0);
  ASSERT_EQ(vmmc_unexport(to.buffer), 0);
  to.buffer = nullptr;
  (void)vmmc_send(from, 0, "two", 3, 0);
  EXPECT_EQ(std::memcmp(to.memory, "one", 3), 0);
  EXPECT_EQ(vmmc_check(from), -ESTALE);
  vmmc_remote_t* again = nullptr;
  EXPECT_EQ(vmmc_import(from.v, nullptr, to.name.c_str(), kSoon, &again), -ENOENT);
}

TEST(VmmcExport, ToItselfWorks) {
  Exported to(kPage);
  vmmc_remote_t* remote = nullptr;
  ASSERT_EQ(vmmc_import(to.v, nullptr, to.name.c_str(), kSoon, &remote), 0);
  EXPECT_EQ(vmmc_send(remote, 8, "self", 4, 0), 0);
  EXPECT_EQ(std::memcmp(to.memory + 8, "self", 4), 0);
  EXPECT_EQ(vmmc_unimport(remote), 0);
}

TEST(VmmcExport, ForReadingTakesNoSends) {
  const vmmc_permissions_t reading{-1, VMMC_READ};
  Exported to(kPage, 0, Of::kMapped, nullptr, nullptr, &reading);
  Imported from(to);
  EXPECT_EQ(vmmc_send(from, 0, "x", 1, 0), -EACCES);
  EXPECT_EQ(vmmc_put_word(from, 0, 1), -EACCES);
  EXPECT_EQ(to.memory[0], 0);
}

TEST(VmmcExport, ForAnotherUserIsNotThereForThisOne) {
  if (::geteuid() != 0) GTEST_SKIP() << "another user needs root";
  ::setenv("CLAN_UIDS", "65534", 1);
  {
    const vmmc_permissions_t other{65534, VMMC_WRITE};
    Exported to(kPage, 0, Of::kMapped, nullptr, nullptr, &other);
    Open v;
    vmmc_remote_t* remote = nullptr;
    EXPECT_EQ(vmmc_import(v, nullptr, to.name.c_str(), kSoon, &remote), -ENOENT);
    WaitingChild child([&](auto ready) {
      ::setenv("CLAN_UIDS", "0", 1);
      if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(1);
      vmmc_t* own = nullptr;
      vmmc_remote_t* there = nullptr;
      if (vmmc_open(0, &own) != 0) ::_exit(2);
      if (vmmc_import_of(own, nullptr, to.name.c_str(), 0, kSoon, &there) != 0) ::_exit(3);
      if (vmmc_send(there, 0, "other", 5, 0) != 0) ::_exit(4);
      ready();
    });
    child.await();
    EXPECT_EQ(std::memcmp(to.memory, "other", 5), 0);
  }
  ::unsetenv("CLAN_UIDS");
}

TEST(VmmcExport, ANameIsThatOfOneBufferAtATime) {
  Exported to(kPage);
  vmmc_buffer_t* second = nullptr;
  std::uint8_t own[64];
  EXPECT_EQ(vmmc_export(to.v, to.name.c_str(), own, 64, nullptr, nullptr, nullptr, &second),
            -EEXIST);
  Open v;
  EXPECT_EQ(vmmc_export(v, to.name.c_str(), own, 64, nullptr, nullptr, nullptr, &second),
            -EADDRINUSE);
  ASSERT_EQ(vmmc_unexport(to.buffer), 0);
  to.buffer = nullptr;
  EXPECT_EQ(vmmc_export(v, to.name.c_str(), own, 64, nullptr, nullptr, nullptr, &second), 0);
  EXPECT_EQ(vmmc_unexport(second), 0);
}

TEST(VmmcCalls, AnswerWrongArgumentsWithAnError) {
  Exported to(kPage);
  Imported from(to);
  vmmc_buffer_t* buffer = nullptr;
  vmmc_remote_t* remote = nullptr;
  const vmmc_permissions_t none{-1, 0}, unknown{-1, 8};
  EXPECT_EQ(vmmc_open(77, &from.v.v), -EINVAL);
  EXPECT_EQ(vmmc_open(0, nullptr), -EINVAL);
  EXPECT_EQ(vmmc_export(to.v, "x", nullptr, 1, nullptr, nullptr, nullptr, &buffer), -EINVAL);
  EXPECT_EQ(vmmc_export(to.v, "x", to.memory, 0, nullptr, nullptr, nullptr, &buffer), -EINVAL);
  EXPECT_EQ(vmmc_export(to.v, "x", to.memory, 1, &none, nullptr, nullptr, &buffer), -EINVAL);
  EXPECT_EQ(vmmc_export(to.v, "x", to.memory, 1, &unknown, nullptr, nullptr, &buffer), -EINVAL);
  EXPECT_EQ(vmmc_import(from.v, nullptr, "nobody has it", kSoon, &remote), -ENOENT);
  EXPECT_EQ(vmmc_import(from.v, nullptr, nullptr, kSoon, &remote), -EINVAL);
  EXPECT_EQ(vmmc_send(nullptr, 0, "x", 1, 0), -EINVAL);
  EXPECT_EQ(vmmc_send_async(from, 0, "x", 1, 0, nullptr), -EINVAL);
  EXPECT_EQ(vmmc_test(from.v, 12345), -ESRCH);
  EXPECT_EQ(vmmc_size(nullptr), 0u);
  EXPECT_EQ(vmmc_close(from.v), -EBUSY);
  EXPECT_EQ(vmmc_free(to.v, to.memory + 1), -EINVAL);
  EXPECT_EQ(vmmc_poll(to.v), -EOPNOTSUPP) << "handlers run in a thread";
  EXPECT_EQ(vmmc_fd(to.v), -EOPNOTSUPP);
}

}  // namespace
}  // namespace clan::vmmc::testing
