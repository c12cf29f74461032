// Notifications: handlers, the three states of a buffer, block, suspend, the descriptor.
#include <poll.h>

#include "ends.h"
#include "objects.h"

namespace clan::vmmc::testing {
namespace {

// An importer's first notification may come a moment after vmmc_notify() has returned, when the
// exporter has taken note of the connection; later ones do not.
void meet(Exported& to, Imported& from, Heard& heard) {
  ASSERT_EQ(vmmc_notify(from, 0, 0), 0);
  while (vmmc_poll(to.v) == 0) std::this_thread::yield();
  heard.forget();
}

TEST(VmmcNotify, CallsTheHandlerBehindTheData) {
  Heard heard;
  Exported to(1 << 20, 0, Of::kMapped, Heard::note, &heard);
  Imported from(to);
  for (const std::size_t bytes : {1u, 500u, 300'000u}) {
    const int before = heard.count();
    const std::vector<std::uint8_t> data(bytes, 0x5a);
    ASSERT_EQ(vmmc_send(from, 64, data.data(), bytes, VMMC_NOTIFY), 0);
    heard.await(before + 1);
    EXPECT_EQ(heard.buffer(), to.buffer);
    EXPECT_EQ(heard.last().offset, 64u);
    EXPECT_EQ(heard.last().size, bytes);
    EXPECT_EQ(heard.last().address, to.memory + 64);
    EXPECT_EQ(to.memory[64 + bytes - 1], 0x5a);
  }
  std::uint64_t handle = 0;
  ASSERT_EQ(vmmc_send_async(from, 0, "x", 1, VMMC_NOTIFY, &handle), 0);
  EXPECT_EQ(vmmc_wait(from.v, handle, kSoon), 0);
  ASSERT_EQ(vmmc_notify(from, 10, 20), 0) << "of an alias, say";
  heard.await(5);
  EXPECT_EQ(heard.last().offset, 10u);
  EXPECT_EQ(heard.last().size, 20u);
}

TEST(VmmcNotify, ComesFromManyImportersInTheOrderOfEach) {
  struct Order {
    std::vector<std::uint64_t> seen;
    std::atomic<int> calls{0};
  } order;
  const auto note = [](vmmc_buffer_t*, const vmmc_notification_t* what, void* self) {
    auto* const o = static_cast<Order*>(self);
    o->seen.push_back(what->offset);
    o->calls.fetch_add(1, std::memory_order_release);  // order: the test reads what was seen
  };
  constexpr int kEach = 300;
  Exported to(3 * kEach, 0, Of::kMapped, note, &order);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Imported from(to);
      for (unsigned i = 0; i < kEach; ++i)
        ASSERT_EQ(vmmc_send(from, t * kEach + i, "x", 1, VMMC_NOTIFY), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  while (order.calls.load(std::memory_order_acquire) < 3 * kEach) std::this_thread::yield();
  std::vector<unsigned> next(3, 0);
  for (const std::uint64_t offset : order.seen) EXPECT_EQ(offset % kEach, next[offset / kEach]++);
}

TEST(VmmcNotify, IsDroppedKeptOrDeliveredByTheStateOfTheBuffer) {
  Heard heard;
  Exported to(kPage, VMMC_HANDLERS_IN_POLL, Of::kMapped, Heard::note, &heard);
  Imported from(to);
  meet(to, from, heard);
  ASSERT_EQ(vmmc_notifications(to.buffer, VMMC_IGNORE), 0);
  ASSERT_EQ(vmmc_send(from, 0, "1", 1, VMMC_NOTIFY), 0);
  EXPECT_EQ(vmmc_poll(to.v), 0);
  ASSERT_EQ(vmmc_notifications(to.buffer, VMMC_QUEUE), 0);
  for (std::size_t i = 1; i < 4; ++i) ASSERT_EQ(vmmc_send(from, i, "2", 1, VMMC_NOTIFY), 0);
  EXPECT_EQ(vmmc_poll(to.v), 0);
  EXPECT_EQ(heard.count(), 0);
  ASSERT_EQ(vmmc_notifications(to.buffer, VMMC_DELIVER), 0);
  EXPECT_EQ(vmmc_poll(to.v), 3) << "those that were queued, not the one that was ignored";
  EXPECT_EQ(heard.last().offset, 3u);
  ASSERT_EQ(vmmc_send(from, 9, "3", 1, VMMC_NOTIFY), 0);
  EXPECT_EQ(vmmc_poll(to.v), 1);
  ASSERT_EQ(vmmc_notifications(to.buffer, VMMC_QUEUE), 0);
  ASSERT_EQ(vmmc_send(from, 1, "4", 1, VMMC_NOTIFY), 0);
  EXPECT_EQ(vmmc_poll(to.v), 0);
  ASSERT_EQ(vmmc_notifications(to.buffer, VMMC_IGNORE), 0);
  ASSERT_EQ(vmmc_notifications(to.buffer, VMMC_DELIVER), 0);
  EXPECT_EQ(vmmc_poll(to.v), 0) << "ignoring has dropped it";
  EXPECT_EQ(vmmc_notifications(to.buffer, 3), -EINVAL);
}

TEST(VmmcNotify, OfBytesOutsideTheBufferIsAnError) {
  Heard heard;
  Exported to(kPage, VMMC_HANDLERS_IN_POLL, Of::kMapped, Heard::note, &heard);
  Imported from(to);
  meet(to, from, heard);
  EXPECT_EQ(vmmc_notify(from, kPage - 1, 2), -ERANGE);
  EXPECT_EQ(vmmc_notify(from, ~std::size_t{0}, 2), -ERANGE);
  EXPECT_EQ(vmmc_notify(from, kPage, 0), 0) << "the end is inside";
  EXPECT_EQ(vmmc_poll(to.v), 1);
}

TEST(VmmcNotify, WithoutAHandlerTakesNoEffect) {
  Exported to(kPage, VMMC_HANDLERS_IN_POLL);
  Imported from(to);
  ASSERT_EQ(vmmc_send(from, 0, "1", 1, VMMC_NOTIFY), 0);
  EXPECT_EQ(to.memory[0], '1');
  EXPECT_EQ(vmmc_poll(to.v), 0);
}

TEST(VmmcNotify, IsHeldUpWhileTheProcessBlocksAll) {
  Heard one, two;
  Exported to(kPage, 0, Of::kMapped, Heard::note, &one);
  vmmc_buffer_t* second = nullptr;
  std::uint8_t own[64] = {};
  ASSERT_EQ(vmmc_export(to.v, "second", own, 64, nullptr, Heard::note, &two, &second), 0);
  Imported from(to), other("second");
  ASSERT_EQ(vmmc_block(to.v), 0);
  ASSERT_EQ(vmmc_send(from, 0, "1", 1, VMMC_NOTIFY), 0);
  ASSERT_EQ(vmmc_send(other, 0, "1", 1, VMMC_NOTIFY), 0);
  ASSERT_EQ(vmmc_suspend(to.buffer, kSoon), 0) << "it is queued";
  ASSERT_EQ(vmmc_suspend(second, kSoon), 0);
  EXPECT_EQ(one.count() + two.count(), 0);
  ASSERT_EQ(vmmc_unblock(to.v), 0);
  one.await(1);
  two.await(1);
  EXPECT_EQ(vmmc_unexport(second), 0);
}

TEST(VmmcNotify, ThatDoesNotFitIsLostAndSaid) {
  Heard heard;
  Exported to(kPage, VMMC_HANDLERS_IN_POLL, Of::kMapped, Heard::note, &heard);
  Imported from(to);
  meet(to, from, heard);
  ASSERT_EQ(vmmc_notifications(to.buffer, VMMC_QUEUE), 0);
  int sent = 0, refused = 0;
  while (refused == 0) {
    const int rc = vmmc_notify(from, 0, 1);
    rc == 0 ? ++sent : ++refused;
    EXPECT_TRUE(rc == 0 || rc == -EAGAIN) << rc;
  }
  EXPECT_EQ(vmmc_poll(to.v), 0);
  EXPECT_EQ(vmmc_notify(from, 0, 1), 0);
  EXPECT_EQ(vmmc_poll(to.v), 0);
  ASSERT_EQ(vmmc_notifications(to.buffer, VMMC_DELIVER), 0);
  const int delivered = vmmc_poll(to.v);
  EXPECT_GT(delivered, 0);
  EXPECT_GT(heard.lost(), 0u);
  EXPECT_EQ(static_cast<std::uint64_t>(delivered) + heard.lost(),
            static_cast<std::uint64_t>(sent) + 1);
}

TEST(VmmcNotify, ThatDoesNotFitBehindASendIsItsResult) {
  Heard heard;
  Exported to(kPage, VMMC_HANDLERS_IN_POLL, Of::kMapped, Heard::note, &heard);
  Imported from(to);
  meet(to, from, heard);
  ASSERT_EQ(vmmc_notifications(to.buffer, VMMC_QUEUE), 0);
  while (vmmc_notify(from, 0, 1) == 0) {
  }
  std::uint64_t handle = 0;
  ASSERT_EQ(vmmc_send_async(from, 0, "x", 1, VMMC_NOTIFY, &handle), 0);
  EXPECT_EQ(vmmc_wait(from.v, handle, kSoon), -ENOBUFS);
  EXPECT_EQ(to.memory[0], 'x');
  EXPECT_EQ(vmmc_wait(from.v, handle, kSoon), -ESRCH);
}

class VmmcSuspend : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Handlers, VmmcSuspend, ::testing::Values(0u, VMMC_HANDLERS_IN_POLL),
                         [](const auto& made) { return made.param == 0 ? "InThread" : "InPoll"; });

TEST_P(VmmcSuspend, WaitsUntilTheHandlerHasRun) {
  Heard heard;
  Exported to(kPage, GetParam(), Of::kMapped, Heard::note, &heard);
  EXPECT_EQ(vmmc_suspend(to.buffer, 1), -ETIMEDOUT);
  std::atomic<int> told{0};
  std::thread sender([&] {
    Imported from(to);
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(vmmc_send(from, 0, "x", 1, VMMC_NOTIFY), 0);
      while (told.load(std::memory_order_acquire) <= i) std::this_thread::yield();
    }
  });
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(vmmc_suspend(to.buffer, kSoon), 0);
    EXPECT_EQ(heard.count(), i + 1);
    told.fetch_add(1, std::memory_order_release);  // order: the next one is sent behind the look
  }
  EXPECT_EQ(vmmc_suspend(to.buffer, 0), -ETIMEDOUT) << "each is told once";
  sender.join();
}

TEST(VmmcSuspendInThread, OfAnotherBufferInTheThreadOfHandlersWouldStopIt) {
  struct Answer {
    vmmc_buffer_t* other = nullptr;
    std::atomic<int> suspended{0};
  } answer;
  const auto handler = [](vmmc_buffer_t*, const vmmc_notification_t*, void* self) {
    auto* const a = static_cast<Answer*>(self);
    a->suspended.store(vmmc_suspend(a->other, kSoon), std::memory_order_relaxed);
  };
  Heard heard;
  Exported to(kPage, 0, Of::kMapped, handler, &answer);
  std::uint8_t own[64] = {};
  ASSERT_EQ(vmmc_export(to.v, nullptr, own, 64, nullptr, Heard::note, &heard, &answer.other), 0);
  Imported from(to);
  ASSERT_EQ(vmmc_notify(from, 0, 0), 0);
  ASSERT_EQ(vmmc_suspend(to.buffer, 2 * kSoon), 0);
  EXPECT_EQ(answer.suspended.load(std::memory_order_relaxed), -EDEADLK);
  EXPECT_EQ(vmmc_unexport(answer.other), 0);
}

TEST_P(VmmcSuspend, OfAHandlerWouldWaitForItself) {
  struct Answers {
    std::atomic<int> suspended{0}, closed{0};
    vmmc_t* v = nullptr;
  } answers;
  const auto handler = [](vmmc_buffer_t* buffer, const vmmc_notification_t*, void* self) {
    auto* const a = static_cast<Answers*>(self);
    a->closed.store(vmmc_close(a->v), std::memory_order_relaxed);
    a->suspended.store(vmmc_suspend(buffer, kSoon), std::memory_order_relaxed);
  };
  Exported to(kPage, GetParam(), Of::kMapped, handler, &answers);
  answers.v = to.v;
  Imported from(to);
  ASSERT_EQ(vmmc_notify(from, 0, 0), 0);
  ASSERT_EQ(vmmc_suspend(to.buffer, kSoon), 0);
  EXPECT_EQ(answers.suspended.load(std::memory_order_relaxed), -EDEADLK);
  EXPECT_EQ(answers.closed.load(std::memory_order_relaxed), -EBUSY);
}

TEST_P(VmmcSuspend, EndsTheBufferInItsOwnHandler) {
  std::atomic<int> answer{1};
  const auto handler = [](vmmc_buffer_t* buffer, const vmmc_notification_t*, void* to) {
    static_cast<std::atomic<int>*>(to)->store(vmmc_unexport(buffer), std::memory_order_release);
  };
  Exported to(kPage, GetParam(), Of::kMapped, handler, &answer);
  Imported from(to);
  to.buffer = nullptr;  // the handler's
  ASSERT_EQ(vmmc_notify(from, 0, 0), 0);
  while (answer.load(std::memory_order_acquire) == 1) {
    if (GetParam() != 0) (void)vmmc_poll(to.v);
    std::this_thread::yield();
  }
  EXPECT_EQ(answer.load(std::memory_order_relaxed), 0);
}

TEST(VmmcPoll, HasADescriptorThatIsReadableWhenThereIsSomethingToDo) {
  Heard heard;
  Exported to(kPage, VMMC_HANDLERS_IN_POLL, Of::kMapped, Heard::note, &heard);
  Imported from(to);
  meet(to, from, heard);
  pollfd fd{vmmc_fd(to.v), POLLIN, 0};
  ASSERT_GE(fd.fd, 0);
  EXPECT_EQ(vmmc_poll(to.v), 0);
  EXPECT_EQ(::poll(&fd, 1, 0), 0);
  for (int i = 1; i <= 50; ++i) {
    std::thread sender([&] { EXPECT_EQ(vmmc_send(from, 0, "x", 1, VMMC_NOTIFY), 0); });
    ASSERT_EQ(::poll(&fd, 1, kSoon), 1);
    EXPECT_EQ(vmmc_poll(to.v), 1);
    sender.join();
  }
  EXPECT_EQ(vmmc_poll(to.v), 0);
  EXPECT_EQ(::poll(&fd, 1, 0), 0);
  ASSERT_EQ(vmmc_block(to.v), 0);
  ASSERT_EQ(vmmc_send(from, 0, "x", 1, VMMC_NOTIFY), 0);
  EXPECT_EQ(vmmc_poll(to.v), 0);
  ASSERT_EQ(vmmc_unblock(to.v), 0);
  ASSERT_EQ(::poll(&fd, 1, kSoon), 1) << "what was held up is due";
  EXPECT_EQ(vmmc_poll(to.v), 1);
}

TEST(VmmcNotify, WaitsForTheHandlerThatRunsBeforeUnexportReturns) {
  struct Slow {
    std::atomic<int> begun{0}, ended{0}, go{0};
  } slow;
  const auto handler = [](vmmc_buffer_t*, const vmmc_notification_t*, void* self) {
    auto* const s = static_cast<Slow*>(self);
    s->begun.store(1, std::memory_order_release);
    while (s->go.load(std::memory_order_acquire) == 0) std::this_thread::yield();
    s->ended.store(1, std::memory_order_release);
  };
  Exported to(kPage, 0, Of::kMapped, handler, &slow);
  Imported from(to);
  ASSERT_EQ(vmmc_notify(from, 0, 0), 0);
  while (slow.begun.load(std::memory_order_acquire) == 0) std::this_thread::yield();
  std::thread ender([&] {
    EXPECT_EQ(vmmc_unexport(std::exchange(to.buffer, nullptr)), 0);
    EXPECT_EQ(slow.ended.load(std::memory_order_acquire), 1);
  });
  while (vmmc_check(from) == 0) std::this_thread::yield();
  slow.go.store(1, std::memory_order_release);
  ender.join();
}

TEST(VmmcRedirect, MovesTheNextNotifiedTransferToAnotherPlace) {
  Heard heard;
  Exported to(kPage, VMMC_HANDLERS_IN_POLL, Of::kMapped, Heard::note, &heard);
  Imported from(to);
  meet(to, from, heard);
  char small[4] = {}, first[16] = {}, second[16] = {};
  ASSERT_EQ(vmmc_redirect(to.buffer, first, sizeof first), 0);
  ASSERT_EQ(vmmc_redirect(to.buffer, second, sizeof second), 0);
  ASSERT_EQ(vmmc_send(from, 100, "hello", 6, 0), 0) << "nobody is notified of it";
  ASSERT_EQ(vmmc_notify(from, 100, 0), 0) << "it has no data";
  EXPECT_EQ(vmmc_poll(to.v), 1);
  EXPECT_EQ(heard.last().address, to.memory + 100);
  for (const char* text : {"one", "two", "three"}) {
    ASSERT_EQ(vmmc_send(from, 8, text, std::strlen(text) + 1, VMMC_NOTIFY), 0);
    EXPECT_EQ(vmmc_poll(to.v), 1);
    EXPECT_STREQ(static_cast<const char*>(heard.last().address), text);
  }
  EXPECT_STREQ(first, "one");
  EXPECT_STREQ(second, "two");
  EXPECT_EQ(heard.last().address, to.memory + 8) << "the third stays in the buffer";
  ASSERT_EQ(vmmc_redirect(to.buffer, small, sizeof small), 0);
  ASSERT_EQ(vmmc_send(from, 8, "too long", 9, VMMC_NOTIFY), 0);
  EXPECT_EQ(vmmc_poll(to.v), 1);
  EXPECT_EQ(heard.last().address, to.memory + 8) << "it does not fit, and stays in the buffer";
  ASSERT_EQ(vmmc_send(from, 8, "fit", 4, VMMC_NOTIFY), 0);
  EXPECT_EQ(vmmc_poll(to.v), 1);
  EXPECT_STREQ(small, "fit");
}

// --- importers that lie --------------------------------------------------------------------------

TEST(VmmcHostile, NotificationsThatNoImporterSendsAreCountedAndDropped) {
  Heard heard;
  Exported to(kPage, VMMC_HANDLERS_IN_POLL, Of::kMapped, Heard::note, &heard);
  Imported from(to);
  meet(to, from, heard);
  const auto hostile = [] { return page().hostile.load(std::memory_order_relaxed); };
  const std::uint64_t before = hostile();
  const std::uint64_t key = from.remote->key;
  for (const NoticeRecord& lie :
       {NoticeRecord{0, 0, 1}, NoticeRecord{key, kPage + 1, 0}, NoticeRecord{key, 1, kPage},
        NoticeRecord{key, ~std::uint64_t{0}, 2}, NoticeRecord{key, 2, ~std::uint64_t{0}}}) {
    ASSERT_TRUE(from.v.v->bells.ring(*from.remote->bell, lie));
  }
  EXPECT_EQ(vmmc_poll(to.v), 0);
  EXPECT_EQ(hostile(), before + 5);
  ASSERT_TRUE(from.v.v->bells.ring(*from.remote->bell, {key + 1, 0, 1})) << "somebody else's key";
  EXPECT_EQ(vmmc_poll(to.v), 0);
  ASSERT_EQ(vmmc_notify(from, 1, 2), 0);
  EXPECT_EQ(vmmc_poll(to.v), 1);
}

}  // namespace
}  // namespace clan::vmmc::testing
