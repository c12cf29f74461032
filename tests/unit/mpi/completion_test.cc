#include "plugins/mpi/completion.h"

#include <gtest/gtest.h>

#include <deque>
#include <span>

namespace clan::mpi {
namespace {

/// An RDMA queue that answers as the test orders.
struct Told {
  struct Answer {
    int error;  ///< of the wait; 0: a completion
    RdmaCompletion completion;
  };
  std::deque<Answer> answers;
  Result<std::size_t> wait(std::span<RdmaCompletion> completions) {
    const Answer answer = answers.front();
    answers.pop_front();
    if (answer.error != 0) return Error{answer.error, "told so"};
    completions[0] = answer.completion;
    return std::size_t{1};
  }
};

TEST(WaitFor, GoesOnWhenASignalArrives) {
  Told queue{{{EINTR, {}}, {EINTR, {}}, {0, {7, 0, 100}}}};
  EXPECT_TRUE(wait_for(queue, 7).ok());
  EXPECT_TRUE(queue.answers.empty()) << "the completion is not left for the next request";
}

TEST(WaitFor, TakesNoOtherRequestsCompletionForItsOwn) {
  Told queue{{{0, {6, 0, 100}}, {0, {7, EFAULT, 0}}, {0, {8, 0, 100}}}};
  const Status status = wait_for(queue, 7);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().err, EFAULT);
  EXPECT_EQ(queue.answers.size(), 1u);
}

TEST(WaitFor, OfAQueueThatIsOfNoUseEnds) {
  Told queue{{{EBADF, {}}}};
  EXPECT_EQ(wait_for(queue, 7).error().err, EBADF);
}

}  // namespace
}  // namespace clan::mpi
