#include "transport/far_receives.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "libfabric/transport/two_domains.h"
#include "transport/far_message.h"

namespace clan::ofi {
namespace {

class FarReceivesTest : public TwoDomains {
 protected:
  FarReceivesTest() {
    receives_ = std::make_unique<FarReceives>(domain(*ours_));
    posted_.pieces = 2;
    posted_.iov[0] = {buffer_.data(), 30};
    posted_.iov[1] = {buffer_.data() + 50, 50};
    posted_.length = 80;
    posted_.used = 10;
  }
  Context& sender() { return domain(*theirs_).context(); }

  std::vector<char> buffer_ = std::vector<char>(100, '-');
  std::unique_ptr<FarReceives> receives_;
  Posted posted_;
};

TEST_F(FarReceivesTest, AReceiveIsOpenForTheBytesOfItsMessageAndNoOthers) {
  FarReceive& receive = receives_->add();
  receive.posted = &posted_;
  PlaceMessage message;
  ASSERT_EQ(receives_->open(receive, 40, &message), 0);
  EXPECT_EQ(message.reply.receive, receive.number);
  ASSERT_EQ(message.reply.count, 2u);
  EXPECT_EQ(message.cookies[0].length, 20u) << "behind what earlier messages have used";
  EXPECT_EQ(message.cookies[1].length, 20u);
  auto second = RemoteAperture::import(sender(), message.cookies[1]);
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(second->write(0, "abcdefghijklmnopqrst", 20));
  EXPECT_FALSE(second->write(1, "abcdefghijklmnopqrst", 20));
  char back[4];
  EXPECT_FALSE(second->read(0, back, 4)) << "it is for writing";
  EXPECT_EQ(std::string(buffer_.begin() + 48, buffer_.begin() + 72), "--abcdefghijklmnopqrst--");
}

TEST_F(FarReceivesTest, OneThatIsTakenCannotBeWrittenAnyMore) {
  FarReceive& receive = receives_->add();
  receive.posted = &posted_;
  PlaceMessage message;
  ASSERT_EQ(receives_->open(receive, 40, &message), 0);
  auto place = RemoteAperture::import(sender(), message.cookies[0]);
  ASSERT_TRUE(place.ok());
  int ended = 0;
  receives_->take([](const FarReceive& one) { return one.number == 2; },
                  [&](FarReceive&) { ++ended; });
  EXPECT_EQ(ended, 0);
  EXPECT_TRUE(place->write(0, "x", 1));
  receives_->take([](const FarReceive& one) { return one.number == 1; },
                  [&](FarReceive& one) {
                    ++ended;
                    EXPECT_TRUE(receives_->empty());
                    EXPECT_EQ(one.posted, &posted_);
                    const Status late = place->write(0, "y", 1);
                    EXPECT_FALSE(late);
                    EXPECT_EQ(late.error().err, ESTALE);
                  });
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(buffer_[10], 'x');
  EXPECT_EQ(receives_->add().number, 2u) << "numbers are not used again";
}

}  // namespace
}  // namespace clan::ofi
