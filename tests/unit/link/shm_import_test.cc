// The memory of the peer, step by step: what is asked for, mapped and given back.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "link/shm_pair.h"
#include "support/pattern.h"

namespace clan::link {
namespace {

using test::must;

struct Import : test::ShmPair {
  /// As a thread that waits for the peer's driver, which this one is.
  Result<nic::RemoteHandle> imported(const RdmaCookie& cookie) {
    std::atomic<bool> done{false};
    std::optional<Result<nic::RemoteHandle>> result;
    std::thread waits([&] {
      result.emplace(a->import(cookie, true));
      done = true;
    });
    while (!done) {
      exchange();
      std::this_thread::yield();
    }
    waits.join();
    return *result;
  }
};

TEST_F(Import, OfMemoryThatHasNotBeenSentAsksItsOwner) {
  const RdmaCookie cookie = export_block();
  EXPECT_ERR(a->import(cookie, false), EAGAIN);
  const nic::RemoteHandle handle = must(imported(cookie));
  ASSERT_NE(handle.mapped, nullptr);
  test::fill_pattern({handle.mapped, 8192}, 1, 0);
  EXPECT_TRUE(test::is_pattern({block->data(), 8192}, 1, 0)) << "it is the owner's own memory";
  EXPECT_OK(a->import(cookie, false));
}

TEST_F(Import, OfMemoryThatWasGrantedNeedsNoQuestion) {
  const RdmaCookie cookie = export_block();
  ASSERT_OK(b->grant(cookie));
  ASSERT_OK(b->grant(cookie));                   // once is enough
  EXPECT_ERR(a->import(cookie, false), EAGAIN);  // it has not been read yet
  exchange();
  EXPECT_OK(a->import(cookie, false));
}

TEST_F(Import, OfTheProgramsOwnMemoryMapsNothing) {
  const nic::RemoteHandle handle = must(a->import(export_own(), false));
  EXPECT_EQ(handle.mapped, nullptr);
  EXPECT_EQ(handle.length, own.size());
}

TEST_F(Import, TakesTheOwnersTableForEachWordOfACookie) {
  const RdmaCookie good = export_own();
  RdmaCookie bad = good;
  bad.key ^= 1;
  EXPECT_ERR(a->import(bad, false), EACCES);
  bad = good;
  bad.generation += 2;
  EXPECT_ERR(a->import(bad, false), ESTALE);
  bad = good;
  bad.aperture = shm::kMaxApertures;
  EXPECT_ERR(a->import(bad, false), ESTALE);
  bad = good;
  bad.node = client.node;
  EXPECT_ERR(a->import(bad, false), ESTALE);
  server.nic->retire(good.aperture);
  EXPECT_ERR(a->import(good, false), ESTALE);
}

TEST_F(Import, OfReadOnlyMemoryGivesNoRightToWrite) {
  const RdmaCookie cookie = export_block(Rights::kRead);
  const nic::RemoteHandle handle = must(imported(cookie));
  EXPECT_EQ(handle.rights, Rights::kRead);
  test::fill_pattern({block->data(), 100}, 2, 0);
  EXPECT_TRUE(test::is_pattern({handle.mapped, 100}, 2, 0));
}

TEST_F(Import, KeepsWhatWasAskedForAsLongAsAHandleRefersToIt) {
  const RdmaCookie cookie = export_block();
  const nic::RemoteHandle first = must(imported(cookie));
  const nic::RemoteHandle second = must(a->import(cookie, false));
  a->release(first);
  EXPECT_OK(a->import(cookie, false));
  a->release(second);
  a->release(second);                            // the third
  EXPECT_ERR(a->import(cookie, false), EAGAIN);  // it is asked for anew
}

TEST_F(Import, KeepsWhatWasGrantedAsItIsNotSentAgain) {
  const RdmaCookie cookie = export_block();
  ASSERT_OK(b->grant(cookie));
  exchange();
  a->release(must(a->import(cookie, false)));
  EXPECT_OK(a->import(cookie, false));
}

TEST_F(Import, KeepsWhatWasAskedForAndThenGranted) {
  const RdmaCookie cookie = export_block();
  const nic::RemoteHandle asked_for = must(imported(cookie));
  ASSERT_OK(b->grant(cookie));
  exchange();
  a->release(asked_for);
  ASSERT_OK(b->grant(cookie));  // it has been sent, its owner believes
  exchange();
  EXPECT_OK(a->import(cookie, false));
}

/// Runs `work` in a thread that may not exceed limits, while the process may pass no descriptor
/// more.
template <typename Work>
void where_no_descriptor_passes(Work&& work) {
  Fd ends[2];
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  for (int i : {0, 1}) ends[i] = Fd(pair[i]);
  const std::byte byte{1};
  ASSERT_OK(send_datagram(ends[0].get(), {&byte, 1}, {&pair[1], 1}));  // one is under way
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  std::thread thread([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct nothing[2] = {};
    EXPECT_EQ(::syscall(SYS_capset, &header, nothing), 0);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    work();
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  });
  thread.join();
}

TEST_F(Import, OfMemoryWhoseDescriptorFoundNoRoomAndThenCouldNotBePassedNeedsAnotherGrant) {
  OobMessage filler, last;
  filler.type = 1;
  last.type = kOobInternal | 5;
  while (b->send_oob(filler).ok()) continue;  // the socket is full
  const RdmaCookie cookie = export_block();
  ASSERT_OK(b->grant(cookie));  // and so it is kept
  ASSERT_OK(b->send_oob(last));
  a->on_ready(EPOLLIN);
  where_no_descriptor_passes([&] { b->on_ready(EPOLLOUT); });
  const auto& heard = a_notes.messages;
  for (int k = 0; k < 1000 && (heard.empty() || heard.back().type != last.type); ++k) exchange();
  ASSERT_FALSE(heard.empty());
  EXPECT_EQ(heard.back().type, last.type) << "what was behind it has not been sent";
  EXPECT_ERR(a->import(cookie, false), EAGAIN);
  ASSERT_OK(b->grant(cookie));
  exchange();
  EXPECT_OK(a->import(cookie, false));
}

TEST_F(Import, IsRefusedByAnOwnerWhoHasTakenTheApertureAway) {
  const RdmaCookie cookie = export_block();
  std::optional<Result<nic::RemoteHandle>> result;
  std::atomic<bool> done{false};
  std::thread waits([&] {
    result.emplace(a->import(cookie, true));
    done = true;
  });
  ::usleep(1000);  // it asks, most often, before its owner takes it away
  server.nic->retire(cookie.aperture);
  while (!done) {
    exchange();
    std::this_thread::yield();
  }
  waits.join();
  ASSERT_FALSE(result->ok());
  EXPECT_EQ(result->error().err, ESTALE);
}

// Or the thread there would wait for as long as for a peer that is stopped.
TEST_F(Import, IsToldOfADescriptorThatCannotBePassed) {
  OobMessage filler;
  filler.type = 1;
  while (b->send_oob(filler).ok()) continue;  // the socket is full
  std::vector<std::shared_ptr<nic::MemoryBlock>> blocks;
  Status granted;
  while (granted && blocks.size() < 1000) {  // and so is what is kept for it
    granted = b->grant(export_block());
    blocks.push_back(block);
  }
  ASSERT_FALSE(granted);
  const RdmaCookie cookie = export_block();
  std::atomic<bool> done{false};
  std::optional<Result<nic::RemoteHandle>> result;
  std::thread waits([&] {
    result.emplace(a->import(cookie, true));
    done = true;
  });
  for (bool asked = false; !done; std::this_thread::yield()) {
    b->on_ready(asked ? EPOLLIN | EPOLLOUT : EPOLLIN);
    asked = asked || b->settled();  // by a's question, the first that it says
    if (asked) a->on_ready(EPOLLIN);
  }
  waits.join();
  EXPECT_ERR(*result, granted.error().err);
}

TEST_F(Import, EndsWithThePeer) {
  const RdmaCookie cookie = export_block();
  b->shut_down();
  a->on_ready(EPOLLIN);
  EXPECT_ERR(a->import(cookie, true), ECONNRESET);
}

}  // namespace
}  // namespace clan::link
