// What may be used of a Socket that another thread moves: ThreadSanitizer tells.
#include <gtest/gtest.h>

#include "state/socket.h"
#include "support/hand_over.h"

namespace clan::preload {
namespace {

Socket& fresh_socket() {
  static auto* socket = new Socket;
  socket->slot.store(&socket->own_slot, std::memory_order_relaxed);
  return *socket;
}

// As fork moves it to where parent and child see it.
TEST(Socket, OneThatFindsItsSlotSeesTheCountersThere) {
  Socket& socket = fresh_socket();
  static Slot slot;
  int counters = 0;
  test::hand_over(
      [&] {
        counters = 1;
        socket.slot.store(&slot, std::memory_order_release);
      },
      [&] {
        EXPECT_EQ(&socket.open_file(), &slot);
        EXPECT_EQ(counters, 1);
      });
}

TEST(Socket, OneThatStaysOnTcpIsPinnedWhereItsCountersAre) {
  Socket& socket = fresh_socket();
  static Slot slot;
  slot.pinned.store(1, std::memory_order_relaxed);
  int counters = 0;
  socket.state.store(Socket::State::kKernel, std::memory_order_relaxed);
  socket.inherited.store(true, std::memory_order_relaxed);
  test::hand_over(
      [&] {
        counters = 1;
        socket.slot.store(&slot, std::memory_order_release);
      },
      [&] {
        EXPECT_TRUE(socket.stays_on_tcp());
        EXPECT_EQ(counters, 1);
      });
  socket.inherited.store(false, std::memory_order_relaxed);
}

// As migrate/attach.cc publishes it.
TEST(Socket, OneThatFindsItSharedSeesItsPipe) {
  Socket& socket = fresh_socket();
  int pipe = 0;
  test::hand_over(
      [&] {
        pipe = 1;
        socket.state.store(Socket::State::kShared, std::memory_order_release);
      },
      [&] {
        EXPECT_TRUE(socket.shared());
        EXPECT_EQ(pipe, 1);
      });
  socket.state.store(Socket::State::kTcp, std::memory_order_relaxed);
}

// Likewise, in another process.
TEST(Socket, OneThatFindsItMovedElsewhereSeesWhichPipeItIs) {
  Socket& socket = fresh_socket();
  socket.inherited.store(true, std::memory_order_relaxed);
  int pipe = 0;
  test::hand_over(
      [&] {
        pipe = 1;
        socket.own_slot.pipe_fd.store(3, std::memory_order_release);
      },
      [&] {
        EXPECT_TRUE(moved_elsewhere(socket));
        EXPECT_EQ(pipe, 1);
      });
}

}  // namespace
}  // namespace clan::preload
