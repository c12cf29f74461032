// Messages that land in buffers which their receiver has posted.
#include <clan/zero_copy.h>
#include <gtest/gtest.h>

#include <csignal>
#include <thread>
#include <vector>

#include "support/streams.h"

namespace clan {
namespace {

using namespace test;

struct ZeroCopyPair {
  Context sender_context, receiver_context;
  ZeroCopySender out;
  ZeroCopyReceiver in;
  explicit ZeroCopyPair(const ContextOptions& options = {})
      : sender_context(must(Context::create(options))),
        receiver_context(must(Context::create(options))),
        out(must(ZeroCopySender::create(sender_context))),
        in(must(ZeroCopyReceiver::create(receiver_context))) {
    EXPECT_OK(out.attach(in.ends()));
    EXPECT_OK(in.attach(out.ends()));
  }
};

TEST(ZeroCopy, DeliversIntoThePostedBuffersInOrder) {
  for (bool direct : {true, false}) {
    ContextOptions options;
    options.direct_copy = direct;
    ZeroCopyPair z(options);
    constexpr int kMessages = 200;
    const std::size_t most = 300'000;
    std::vector<std::vector<std::byte>> buffers(4, std::vector<std::byte>(most));
    for (std::uint64_t i = 0; i < 4; ++i) ASSERT_OK(z.in.post(buffers[i], i));
    EXPECT_ERR(z.in.post(buffers[0], 0), EEXIST);
    std::thread sender([&] {
      Random random(8);
      for (std::uint64_t i = 0; i < kMessages; ++i) {
        ASSERT_OK(z.out.send(pattern(random.size_up_to(most), i), 20'000));
      }
    });
    Random random(8);
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      auto m = z.in.receive(20'000);
      ASSERT_OK(m);
      ASSERT_EQ(m->status, 0);
      ASSERT_EQ(m->id, i % 4);
      ASSERT_EQ(m->data.size(), random.size_up_to(most));
      ASSERT_EQ(m->data.data(), buffers[m->id].data());  // no copy
      ASSERT_TRUE(is_pattern(m->data, i, 0));
      ASSERT_OK(z.in.post(buffers[m->id], m->id));
    }
    sender.join();
    EXPECT_ERR(z.in.try_receive(), EAGAIN);
  }
}

TEST(ZeroCopy, PassesOverBuffersThatWereWithdrawn) {
  ZeroCopyPair z;
  std::vector<std::byte> first(100), second(100);
  ASSERT_OK(z.in.post(first, 1));
  ASSERT_OK(z.in.post(second, 2));
  auto back = z.in.withdraw(1);
  ASSERT_OK(back);
  EXPECT_EQ(back->data(), first.data());
  EXPECT_ERR(z.in.withdraw(1), ENOENT);
  ASSERT_OK(z.out.send(text("to the second"), 5000));
  auto m = z.in.receive(5000);
  ASSERT_OK(m);
  EXPECT_EQ(m->id, 2u);
  EXPECT_EQ(m->data.size(), 13u);
  EXPECT_EQ(first, std::vector<std::byte>(100));
}

TEST(ZeroCopy, KeepsTheBufferWhenAMessageDoesNotFit) {
  ZeroCopyPair z;
  EXPECT_ERR(z.out.send(text("nowhere to go"), 20), ETIMEDOUT);
  std::vector<std::byte> buffer(10);
  ASSERT_OK(z.in.post(buffer, 1));
  EXPECT_ERR(z.out.send(pattern(11, 1), 5000), EMSGSIZE);
  ASSERT_OK(z.out.send(pattern(10, 1), 5000));
  ASSERT_OK(z.in.receive(5000));
}

TEST(ZeroCopy, HandsABufferBackOnlyWhenThePeerCannotWriteItAnyMore) {
  auto out_context = must(Context::create());
  auto in_context = must(Context::create());
  auto cookies_in = must(CookieSender::create(out_context, 4096));
  auto cookies_out = must(CookieReceiver::create(in_context));
  ASSERT_OK(cookies_out.attach(cookies_in.cookie()));
  ASSERT_OK(cookies_in.attach(cookies_out.cookie()));
  std::vector<std::byte> buffer(4096);
  ASSERT_OK(cookies_out.post(buffer, 7));
  ASSERT_OK(cookies_in.wait(5000));
  auto posted = must(cookies_in.take());
  EXPECT_EQ(posted.id, 7u);
  EXPECT_ERR(cookies_in.take(), EAGAIN);
  auto remote = must(RemoteAperture::import(out_context, posted.cookie));
  const auto before = pattern(4096, 1);
  ASSERT_OK(remote.write(0, before.data(), before.size()));
  ASSERT_OK(cookies_out.take_back(7));
  const auto late = pattern(4096, 2);
  EXPECT_ERR(remote.write(0, late.data(), late.size()), ESTALE);
  EXPECT_TRUE(is_pattern(buffer, 1, 0));
}

TEST(ZeroCopy, RefusesCompletionsOfBuffersThatAreNotPosted) {
  auto out_context = must(Context::create());
  auto in_context = must(Context::create());
  auto in = must(ZeroCopyReceiver::create(in_context));
  auto hostile = must(QueueSender::create(out_context, in.ends().ring));
  auto cookies = must(QueueReceiver::create(out_context, 4096));
  ASSERT_OK(in.attach({cookies.cookie(), hostile.cookie()}));
  std::vector<std::byte> buffer(64);
  ASSERT_OK(in.post(buffer, 1));
  struct {
    std::uint64_t id = 1, length = 65, status = 0;
  } record;
  ASSERT_OK(hostile.try_send(std::as_bytes(std::span(&record, 1))));
  EXPECT_ERR(in.receive(1000), EPROTO);
  EXPECT_ERR(in.try_receive(), EPROTO);
  ASSERT_OK(in.withdraw(1));
}

struct ZeroCopyNotes {
  QueueEnds sender, receiver;
};

TEST(ZeroCopy, WorksBetweenProcessesAndNoticesDeath) {
  Shared<ZeroCopyNotes> shared;
  ZeroCopyNotes& notes = *shared;
  Gate receiver_known, sender_known;
  auto sender = Process::start([&] {
    auto context = must(Context::create());
    auto out = must(ZeroCopySender::create(context));
    notes.sender = out.ends();
    sender_known.open();
    CHILD_CHECK(receiver_known.wait());
    auto attached = out.attach(notes.receiver);
    CHILD_OK(attached);
    for (std::uint64_t i = 0; i < 50; ++i) {
      auto s = out.send(pattern(100'000, i), 20'000);
      CHILD_OK(s);
    }
    ::raise(9);
    return 0;
  });
  auto context = must(Context::create());
  auto in = must(ZeroCopyReceiver::create(context));
  notes.receiver = in.ends();
  ASSERT_TRUE(sender_known.wait());
  receiver_known.open();
  ASSERT_OK(in.attach(notes.sender));
  std::vector<std::byte> buffers[2] = {std::vector<std::byte>(100'000),
                                       std::vector<std::byte>(100'000)};
  for (std::uint64_t i = 0; i < 2; ++i) ASSERT_OK(in.post(buffers[i], i));
  for (std::uint64_t i = 0; i < 50; ++i) {
    auto m = in.receive(20'000);
    ASSERT_OK(m);
    ASSERT_TRUE(is_pattern(m->data, i, 0));
    if (i < 48) {
      ASSERT_OK(in.post(buffers[m->id], m->id));
    }
  }
  EXPECT_ERR(in.receive(10'000), ECONNRESET);
}

}  // namespace
}  // namespace clan
