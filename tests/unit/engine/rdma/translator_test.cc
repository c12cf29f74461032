#include <clan/face/translator.h>
#include <clan/rdma.h>
#include <clan/tlb.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <vector>

namespace clan {
namespace {

ContextOptions keeping() {
  ContextOptions options;
  options.keep_translations = true;
  return options;
}

struct Mapped {
  explicit Mapped(std::size_t pages, int kind = MAP_PRIVATE)
      : bytes(pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
        data(static_cast<std::byte*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0))) {}
  ~Mapped() { ::munmap(data, bytes); }
  std::size_t bytes;
  std::byte* data;
};

// Shared memory has a file behind it.
TEST(Translator, TheDriverThreadBringsInWhatIsNotThere) {
  auto context = Context::create(keeping());
  ASSERT_TRUE(context.ok());
  auto translator = Translator::of(*context);
  if (!translator) GTEST_SKIP() << translator.error().message();
  Mapped fresh(1, MAP_SHARED);
  std::array<std::byte, 8> some{};
  int error = 0;
  do {
    error = translator->copy_to(fresh.data, some.data(), some.size());
    if (error == EAGAIN) ::sched_yield();
  } while (error == EAGAIN);
  EXPECT_EQ(error, 0);
  EXPECT_GE(translator->stats().deferred, 1u);
}

TEST(Translator, PreTranslatedMemoryIsHit) {
  auto context = Context::create(keeping());
  ASSERT_TRUE(context.ok());
  auto translator = Translator::of(*context);
  if (!translator) GTEST_SKIP() << translator.error().message();
  if (!translator->keeps()) GTEST_SKIP() << "unmaps cannot be watched here";
  Mapped memory(4);
  std::memset(memory.data, 1, memory.bytes);
  const Status made = context->pre_translate({memory.data, memory.bytes}, PageAccess::kWrite);
  EXPECT_TRUE(made.ok());
  const std::uint64_t misses = translator->stats().misses;
  std::array<std::byte, 8> some{};
  EXPECT_EQ(translator->copy_to(memory.data + 4090, some.data(), some.size()), 0);
  EXPECT_EQ(translator->stats().misses, misses);
  const Status none =
      context->pre_translate({static_cast<std::byte*>(nullptr), 1}, PageAccess::kWrite);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().err, EFAULT);
}

TEST(Translator, RdmaFindsTheEntriesOfEarlierRequests) {
  ContextOptions options = keeping();
  options.nic_translates = true;
  auto owner = Context::create(), peer = Context::create(options);
  ASSERT_TRUE(owner.ok() && peer.ok());
  auto translator = Translator::of(*peer);
  if (!translator) GTEST_SKIP() << translator.error().message();
  if (!translator->keeps()) GTEST_SKIP() << "unmaps cannot be watched here";
  std::vector<std::byte> own(4096);
  auto aperture = Aperture::export_region(*owner, own, Rights::kReadWrite);
  ASSERT_TRUE(aperture.ok());
  auto remote = RemoteAperture::import(*peer, aperture->cookie());
  auto queue = RdmaQueue::create(*peer);
  ASSERT_TRUE(remote.ok() && queue.ok());
  Mapped memory(1);
  std::memset(memory.data, 7, memory.bytes);
  const auto one = [&] {
    EXPECT_TRUE(queue->write(*remote, 0, memory.data, 4096).ok());
    RdmaCompletion c;
    EXPECT_TRUE(queue->wait({&c, 1}, 20'000).ok());
    return c.status;
  };
  for (int i = 0; i < 10; ++i) EXPECT_EQ(one(), 0);
  EXPECT_EQ(RdmaQueue::counters(*peer).tlb_misses, 1u);
  EXPECT_EQ(RdmaQueue::counters(*peer).tlb_hits, 9u);
  ASSERT_EQ(::munmap(memory.data, memory.bytes), 0);
  EXPECT_EQ(one(), EFAULT);
}

TEST(Translator, AnEndedContextAnswersAnError) {
  std::optional<Translator> translator;
  {
    auto context = Context::create(keeping());
    ASSERT_TRUE(context.ok());
    auto made = Translator::of(*context);
    if (!made) GTEST_SKIP() << made.error().message();
    translator.emplace(std::move(*made));
  }
  std::array<std::byte, 8> some{};
  EXPECT_EQ(translator->copy_to(some.data(), some.data(), 0), ESHUTDOWN);
  EXPECT_FALSE(translator->keeps());
}

}  // namespace
}  // namespace clan
