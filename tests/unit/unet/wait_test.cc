// Waiting: by unet_wait(), by the descriptor, by a thread of the library.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "ends.h"

namespace clan::unet::testing {
namespace {

bool readable(int fd, int timeout_ms) {
  pollfd one{fd, POLLIN, 0};
  return ::poll(&one, 1, timeout_ms) == 1;
}

TEST(UnetWait, EndsWhenTheTimeIsOver) {
  Pair p;
  EXPECT_EQ(unet_wait(p.b.e, 0), ETIMEDOUT);
  EXPECT_EQ(unet_wait(p.b.e, 5), ETIMEDOUT);
}

TEST(UnetWait, EndsWhenAMessageArrives) {
  Pair p;
  for (int i = 0; i < 200; ++i) {
    std::thread sender([&] { EXPECT_EQ(p.a.send(2, std::to_string(i)), 0); });
    EXPECT_EQ(p.b.text_of(p.b.receive()), std::to_string(i));
    sender.join();
  }
}

TEST(UnetWait, EndsWhenAPendingSendIsDone) {
  unet_endpoint_options many = in_area();
  many.send_entries = 1024;
  Pair p(many);
  while (p.a.push_pieces(2, {{0, 4096, 0}})) EXPECT_EQ(unet_doorbell(p.a.e), 0);
  std::uint32_t done = 0;
  while (p.a.taken_status() == 0) ++done;
  ASSERT_LT(done, 1024u);
  EXPECT_EQ(unet_wait(p.a.e, 5), ETIMEDOUT);
  std::thread receiver([&] {
    while (p.b.counters().dropped_buffer < 1024) (void)unet_poll(p.b.e);
  });
  while (done < 1024) {
    if (p.a.taken_status() == 0) {
      ++done;
    } else if (unet_doorbell(p.a.e) == 0 && unet_send_done(p.a.e) == nullptr) {
      ASSERT_EQ(unet_wait(p.a.e, kSoon), 0);
    }
  }
  receiver.join();
}

TEST(UnetWait, TheDescriptorIsReadableWhenAMessageHasArrived) {
  Pair p;
  const int fd = unet_fd(p.b.e);
  ASSERT_GE(fd, 0);
  for (int i = 0; i < 50; ++i) {
    while (unet_arm(p.b.e) == EAGAIN) EXPECT_TRUE(p.b.poll_is_empty());
    EXPECT_EQ(p.a.send(2, "x"), 0);
    do {
      ASSERT_TRUE(readable(fd, static_cast<int>(kSoon)));
    } while (unet_poll(p.b.e) == EAGAIN && (unet_arm(p.b.e) == 0 || true));
    EXPECT_EQ(p.b.text_of(p.b.receive()), "x");
    EXPECT_EQ(unet_poll(p.b.e), EAGAIN);
  }
}

TEST(UnetWait, ACallbackNeedsAnEndpointForThreadsEmulatedOrNot) {
  const auto arrived = [](unet_endpoint*, void*) {};
  for (const bool emulated : {false, true}) {
    const std::uint32_t flags = emulated ? UNET_EMULATED : 0;
    NodeEnd node;
    End without(node.node, in_area(flags)), with(node.node, in_area(flags | UNET_THREADS));
    EXPECT_EQ(unet_on_receive(without.e, arrived, nullptr), EINVAL);
    EXPECT_EQ(unet_on_receive(with.e, arrived, nullptr), 0);
    EXPECT_EQ(unet_on_receive(with.e, nullptr, nullptr), 0);
  }
}

TEST(UnetWait, ACallbackIsCalledWhenMessagesArrive) {
  Pair p(in_area(), in_area(UNET_THREADS));
  std::atomic<int> received{0};
  const auto arrived = [](unet_endpoint* e, void* context) {
    while (unet_receive_next(e) != nullptr) {
      unet_receive_take(e);
      static_cast<std::atomic<int>*>(context)->fetch_add(1);
    }
  };
  ASSERT_EQ(unet_on_receive(p.b.e, arrived, &received), 0);
  for (int i = 0; i < 500; ++i) ASSERT_EQ(p.a.send(2, "x"), 0);
  while (received.load() < 500) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {  // and sends by the same endpoint meanwhile
    EXPECT_EQ(p.b.send(1, "y"), 0);
    EXPECT_EQ(p.a.text_of(p.a.receive()), "y");
    EXPECT_EQ(p.a.send(2, "z"), 0);
  }
  while (received.load() < 520) std::this_thread::yield();
  ASSERT_EQ(unet_on_receive(p.b.e, nullptr, nullptr), 0);
  EXPECT_EQ(p.a.send(2, "taken by the program"), 0);
  EXPECT_EQ(p.b.text_of(p.b.receive()), "taken by the program");
}

}  // namespace
}  // namespace clan::unet::testing
