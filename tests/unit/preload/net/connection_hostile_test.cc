// What a carrier makes of a stranger at the other end of its stream.
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <utility>

#include "preload/net/connection_fixture.h"

namespace clan::preload {
namespace {

using namespace socket_face;

class HostileCarrier : public CarrierConnection {
 protected:
  // What the stranger at the other end of the stream says.
  void say(const Frame& frame, std::span<const std::byte> behind = {}) {
    const auto head = encode(frame);
    ASSERT_TRUE(stream_->send(head, 1000));
    if (!behind.empty()) {
      ASSERT_TRUE(stream_->send(behind, 1000));
    }
    (void)ends_[0].carried->serve();
    (void)ends_[0].carried->serve();
  }
  CarrierStage stage() const { return ends_[0].carried->stage(); }
};

TEST_F(HostileCarrier, ThatNamesAnotherConnectionIsRefused) {
  Route names = names_of_end(false);
  names.local.port = 81;
  say({.type = FrameType::kHello, .length = kNamesBytes, .value = kCarrierWire}, encode(names));
  EXPECT_EQ(stage(), CarrierStage::kFailed);
}

TEST_F(HostileCarrier, OfAnotherVersionIsRefused) {
  say({.type = FrameType::kHello, .length = kNamesBytes, .value = kCarrierWire + 1},
      encode(names_of_end(false)));
  EXPECT_EQ(stage(), CarrierStage::kFailed);
}

TEST_F(HostileCarrier, ThatSaysAnythingBeforeHelloIsRefused) {
  say({.type = FrameType::kAttached});
  EXPECT_EQ(stage(), CarrierStage::kFailed);
}

TEST_F(HostileCarrier, ThatSendsBytesBeforeItsSwitchIsDropped) {
  say({.type = FrameType::kHello, .length = kNamesBytes, .value = kCarrierWire},
      encode(names_of_end(false)));
  ASSERT_EQ(stage(), CarrierStage::kMet);
  auto pipe = Pipe::create(kMemfdName, 64 * 1024, 0);
  ASSERT_TRUE(pipe);
  auto other = pipe->at_other_end();
  ASSERT_TRUE(ends_[0].carried->attach(std::move(*other)));
  const std::byte bytes[4] = {};
  say({.type = FrameType::kData, .length = sizeof bytes}, bytes);
  EXPECT_EQ(stage(), CarrierStage::kOver);
  EXPECT_EQ(pipe->front(), PipeFront::kNothing);
}

}  // namespace
}  // namespace clan::preload
