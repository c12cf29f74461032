#include "os/cancel.h"

#include <gtest/gtest.h>
#include <pthread.h>

namespace clan::preload {
namespace {

int type_now() {
  int type = -1, none;
  ::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
  ::pthread_setcanceltype(type, &none);
  return type;
}

TEST(Cancel, IsDeferredForTheLengthOfACall) {
  EXPECT_FALSE(t_cancelled_at_once);
  cancel_at_once();
  EXPECT_EQ(type_now(), PTHREAD_CANCEL_ASYNCHRONOUS);
  defer_cancel();
  EXPECT_EQ(type_now(), PTHREAD_CANCEL_DEFERRED);
}

TEST(Cancel, EndsAThreadAtTheEndOfACall) {
  pthread_t thread;
  const auto runs = [](void*) -> void* {
    defer_cancel();
    ::pthread_cancel(::pthread_self());
    cancel_at_once();
    return nullptr;
  };
  ASSERT_EQ(::pthread_create(&thread, nullptr, runs, nullptr), 0);
  void* result = nullptr;
  ASSERT_EQ(::pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

}  // namespace
}  // namespace clan::preload
