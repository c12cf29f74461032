#include "base/mapping.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "support/process.h"

namespace clan {
namespace {

TEST(Mapping, ShowsTheSameBytesAsAnotherMappingOfTheFile) {
  auto memfd = create_memfd("clan-test", 3 * kPageSize);
  ASSERT_OK(memfd);
  auto a = Mapping::map(memfd->get(), 3 * kPageSize, Mapping::Access::kReadWrite);
  auto b = Mapping::map(memfd->get(), 2 * kPageSize, Mapping::Access::kRead);
  ASSERT_OK(a);
  ASSERT_OK(b);
  EXPECT_EQ(b->size(), 2 * kPageSize);
  a->data()[kPageSize + 17] = std::byte{42};
  EXPECT_EQ(b->data()[kPageSize + 17], std::byte{42});
}

TEST(Mapping, OfAFileShorterThanAnnouncedIsRefused) {
  auto memfd = create_memfd("clan-test", kPageSize);
  ASSERT_OK(memfd);
  EXPECT_ERR(Mapping::map(memfd->get(), kPageSize + 1, Mapping::Access::kRead), EINVAL);
  EXPECT_ERR(Mapping::map(memfd->get(), 0, Mapping::Access::kRead), EINVAL);
  EXPECT_ERR(Mapping::map(memfd->get(), ~std::size_t{0}, Mapping::Access::kRead), EINVAL);
}

TEST(Mapping, OfAFileThatCouldShrinkIsRefused) {
  Fd unsealed(::memfd_create("clan-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_TRUE(unsealed);
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_ERR(Mapping::map(unsealed.get(), 4096, Mapping::Access::kReadWrite), EPERM);
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  Fd r(fds[0]), w(fds[1]);
  EXPECT_FALSE(Mapping::map(r.get(), 4096, Mapping::Access::kRead).ok());
  EXPECT_ERR(Mapping::map(-1, 4096, Mapping::Access::kRead), EBADF);
}

TEST(Mapping, OfHugePagesIsRefused) {
  constexpr std::size_t kBytes = 64 << 20;
  const int huge = ::memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (huge < 0 || ::ftruncate(huge, kBytes) != 0 ||
      ::fcntl(huge, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    if (huge >= 0) ::close(huge);
    GTEST_SKIP() << "no memory of huge pages can be made here";
  }
  auto mapping = Mapping::map(huge, kBytes, Mapping::Access::kReadWrite);
  ASSERT_FALSE(mapping.ok());
  EXPECT_EQ(mapping.error().err, EPERM);
  ::close(huge);
}

TEST(Mapping, OfOurOwnMemfdsCanNeverRaiseSigbus) {
  auto memfd = create_memfd("clan-test", kPageSize);
  ASSERT_OK(memfd);
  EXPECT_NE(::ftruncate(memfd->get(), 0), 0);
  EXPECT_NE(::ftruncate(memfd->get(), 2 * kPageSize), 0);
}

TEST(Mapping, WritableIsImpossibleAfterTheSealButEarlierOnesStayWritable) {
  auto memfd = create_memfd("clan-test", kPageSize);
  ASSERT_OK(memfd);
  auto own = Mapping::map(memfd->get(), kPageSize, Mapping::Access::kReadWrite);
  ASSERT_OK(own);
  if (auto s = seal_future_write(memfd->get()); !s) GTEST_SKIP() << s.error().message();
  EXPECT_ERR(Mapping::map(memfd->get(), kPageSize, Mapping::Access::kReadWrite), EPERM);
  auto peer = Mapping::map(memfd->get(), kPageSize, Mapping::Access::kRead);
  ASSERT_OK(peer);
  own->data()[5] = std::byte{7};
  EXPECT_EQ(peer->data()[5], std::byte{7});
  EXPECT_NE(::mprotect(peer->data(), kPageSize, PROT_READ | PROT_WRITE), 0);
}

TEST(Mapping, UnmapsOnceWhenItGoes) {
  auto memfd = create_memfd("clan-test", kPageSize);
  ASSERT_OK(memfd);
  const std::uint64_t before = test::mapped_bytes();
  {
    auto a = Mapping::map(memfd->get(), kPageSize, Mapping::Access::kRead);
    ASSERT_OK(a);
    Mapping b = std::move(*a);
    EXPECT_FALSE(*a);
    Mapping c;
    c = std::move(b);
    EXPECT_TRUE(c);
    c.reset();
    EXPECT_FALSE(c);
  }
  EXPECT_LE(test::mapped_bytes(), before + (1u << 20));
}

TEST(Mapping, RoundsToWholePages) {
  EXPECT_EQ(round_to_pages(0), 0u);
  EXPECT_EQ(round_to_pages(1), 4096u);
  EXPECT_EQ(round_to_pages(4096), 4096u);
  EXPECT_EQ(round_to_pages(4097), 8192u);
}

}  // namespace
}  // namespace clan
