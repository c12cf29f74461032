// What may be used of a Socket that another thread moves: ThreadSanitizer tells.
#include <gtest/gtest.h>

#include "state/socket.h"
#include "support/hand_over.h"

namespace clan::preload {
namespace {

Socket& fresh_socket() {
  static auto* socket = new Socket;
  static auto* slot = new OpenFileState;
  socket->slot = slot;
  return *socket;
}

// As attach/attach.cc publishes it.
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

}  // namespace
}  // namespace clan::preload
