#include <sys/resource.h>

#include <algorithm>
#include <fstream>

#include "libfabric/node.h"

namespace clan::test {
namespace {

TEST(FabricMessages, OfAnySizeArriveWhole) {
  Two two;
  for (const std::size_t n : {0, 1, 8, 32, 33, 4096, 4097, 8192, 100'000, 3'000'000}) {
    const auto sent = pattern(n, 1);
    std::vector<char> got(n + 1, 'x');
    int send_context = 0, receive_context = 0;
    ASSERT_EQ(fi_recv(two.b.ep.get(), got.data(), n, nullptr, FI_ADDR_UNSPEC, &receive_context), 0);
    ASSERT_EQ(fi_send(two.a.ep.get(), sent.data(), n, nullptr, two.to_b, &send_context), 0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two.completes(two.b, &entry));
    EXPECT_EQ(entry.op_context, &receive_context);
    EXPECT_EQ(entry.len, n);
    EXPECT_EQ(entry.flags, FI_RECV | FI_MSG);
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), got.begin())) << n;
    EXPECT_EQ(got[n], 'x');
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_EQ(entry.op_context, &send_context);
    EXPECT_EQ(entry.flags, FI_SEND | FI_MSG);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // their allocators do not answer null
TEST(FabricMessages, WaitAtTheirSenderWhileThereIsNoMemoryForThem) {
  Two two;
  constexpr std::size_t kBytes = 4000;
  std::uint64_t message[kBytes / 8] = {};
  std::uint64_t sent = 0;
  const auto send = [&] {
    message[0] = message[kBytes / 8 - 1] = sent;
    const ssize_t rc = fi_inject(two.a.ep.get(), message, kBytes, two.to_b);
    if (rc == 0) ++sent;
    return rc;
  };
  ASSERT_EQ(send(), 0);
  two.idle();
  // From now on the program gets no more memory from the system.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlimit none{pages * 4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &none), 0);
  int in_vain = 0;
  while (in_vain < 200 && sent < 100'000) {
    in_vain = send() == -FI_EAGAIN ? in_vain + 1 : 0;
    fi_cq_tagged_entry nothing;
    (void)fi_cq_read(two.b.cq.get(), &nothing, 0);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_EQ(in_vain, 200) << "memory without end";
  for (std::uint64_t i = 0; i < sent; ++i) {
    std::uint64_t got[kBytes / 8] = {};
    ASSERT_EQ(fi_recv(two.b.ep.get(), got, kBytes, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two.completes(two.b, &entry)) << i;
    ASSERT_EQ(entry.len, kBytes);
    ASSERT_EQ(got[0], i);
    ASSERT_EQ(got[kBytes / 8 - 1], i);
  }
  ASSERT_EQ(send(), 0);
}
#endif

TEST(FabricMessages, ThatNobodyWaitsForAreKept) {
  Two two;
  constexpr std::size_t kSizes[] = {100, 50'000, 0, 200'000, 7};
  std::vector<std::vector<char>> sent;
  for (std::size_t i = 0; i < std::size(kSizes); ++i) {
    sent.push_back(pattern(kSizes[i], static_cast<unsigned>(i)));
    ASSERT_EQ(fi_tsend(two.a.ep.get(), sent[i].data(), kSizes[i], nullptr, two.to_b, i, nullptr),
              0);
  }
  two.idle();
  // Taken out of order, by their tags.
  for (const std::size_t i : {3u, 0u, 4u, 1u, 2u}) {
    std::vector<char> got(kSizes[i]);
    ASSERT_EQ(
        fi_trecv(two.b.ep.get(), got.data(), got.size(), nullptr, FI_ADDR_UNSPEC, i, 0, nullptr),
        0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two.completes(two.b, &entry));
    EXPECT_EQ(entry.tag, i);
    EXPECT_EQ(got, sent[i]);
  }
}

TEST(FabricMessages, ManyLargeOnesWithoutReceiversDoNotHoldUpLaterOnes) {
  Two two;
  constexpr std::size_t kMessages = 200, kBytes = 40'000;
  const auto sent = pattern(kBytes, 3);
  for (std::size_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(fi_tsend(two.a.ep.get(), sent.data(), kBytes, nullptr, two.to_b, i, nullptr), 0) << i;
  }
  int last = 42;
  ASSERT_TRUE(eventually([&] {
    two.idle(1);
    return fi_tinject(two.a.ep.get(), &last, sizeof last, two.to_b, 1000) == 0;
  }));
  int got_last = 0;
  ASSERT_EQ(fi_trecv(two.b.ep.get(), &got_last, sizeof got_last, nullptr, FI_ADDR_UNSPEC, 1000, 0,
                     nullptr),
            0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two.completes(two.b, &entry));
  EXPECT_EQ(got_last, 42);
  std::vector<char> got(kBytes);
  for (std::size_t i = kMessages; i-- > 0;) {
    std::fill(got.begin(), got.end(), 0);
    ASSERT_EQ(fi_trecv(two.b.ep.get(), got.data(), kBytes, nullptr, FI_ADDR_UNSPEC, i, 0, nullptr),
              0);
    ASSERT_TRUE(two.completes(two.b, &entry));
    ASSERT_EQ(got, sent) << i;
  }
  for (std::size_t i = 0; i < kMessages; ++i) ASSERT_TRUE(two.completes(two.a, &entry)) << i;
}

TEST(FabricMessages, WithOneTagKeepTheirOrderWhateverTheirSize) {
  Two two;
  std::vector<std::vector<char>> sent;
  for (unsigned i = 0; i < 40; ++i) {
    sent.push_back(pattern(i % 3 == 0 ? 30'000 : i * 10, i));
    ASSERT_EQ(
        fi_tsend(two.a.ep.get(), sent[i].data(), sent[i].size(), nullptr, two.to_b, 5, nullptr), 0);
  }
  for (unsigned i = 0; i < 40; ++i) {
    std::vector<char> got(30'000);
    ASSERT_EQ(
        fi_trecv(two.b.ep.get(), got.data(), got.size(), nullptr, FI_ADDR_UNSPEC, 5, 0, nullptr),
        0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two.completes(two.b, &entry));
    ASSERT_EQ(entry.len, sent[i].size()) << i;
    got.resize(entry.len);
    ASSERT_EQ(got, sent[i]) << i;
  }
}

TEST(FabricMessages, MatchTagsUnderTheirMasks) {
  Two two;
  int buffers[3] = {};
  ASSERT_EQ(
      fi_trecv(two.b.ep.get(), &buffers[0], 4, nullptr, FI_ADDR_UNSPEC, 0x100, 0, &buffers[0]), 0);
  ASSERT_EQ(
      fi_trecv(two.b.ep.get(), &buffers[1], 4, nullptr, FI_ADDR_UNSPEC, 0x200, 0xff, &buffers[1]),
      0);
  ASSERT_EQ(fi_recv(two.b.ep.get(), &buffers[2], 4, nullptr, FI_ADDR_UNSPEC, &buffers[2]), 0);
  const int values[] = {7, 8, 9};
  ASSERT_EQ(fi_inject(two.a.ep.get(), &values[2], 4, two.to_b), 0);
  ASSERT_EQ(fi_tinject(two.a.ep.get(), &values[1], 4, two.to_b, 0x2ab), 0);
  ASSERT_EQ(fi_tinject(two.a.ep.get(), &values[0], 4, two.to_b, 0x100), 0);
  for (int i = 2; i >= 0; --i) {
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two.completes(two.b, &entry));
    EXPECT_EQ(entry.op_context, &buffers[i]);
    EXPECT_EQ(buffers[i], values[i]);
  }
}

TEST(FabricMessages, CarryDataAndTellTheirSource) {
  Two two;
  char buffer[8];
  ASSERT_EQ(fi_trecv(two.b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr),
            0);
  ASSERT_EQ(
      fi_tsenddata(two.a.ep.get(), "abc", 3, nullptr, 0x1122334455667788, two.to_b, 1, nullptr), 0);
  fi_cq_tagged_entry entry;
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  ASSERT_TRUE(two.completes(two.b, &entry, &source));
  EXPECT_EQ(entry.flags, FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
  EXPECT_EQ(entry.data, 0x1122334455667788u);
  EXPECT_EQ(source, two.to_a);
}

TEST(FabricMessages, OfUnknownSendersNameTheirAddressToWhoAsks) {
  Node a;
  {
    // A receiver that does not ask gets the message, of no known sender.
    Two two;
    Node stranger;
    stranger.enable();
    const fi_addr_t to = stranger.insert(two.b.name());
    char buffer[8];
    ASSERT_EQ(fi_recv(two.b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    ASSERT_EQ(sent([&] { return fi_inject(stranger.ep.get(), "x", 1, to); }, stranger), 0);
    fi_cq_tagged_entry entry;
    fi_addr_t source = 0;
    ASSERT_TRUE(
        eventually([&] { return fi_cq_readfrom(two.b.cq.get(), &entry, 1, &source) == 1; }));
    EXPECT_EQ(source, FI_ADDR_NOTAVAIL);
    EXPECT_EQ(buffer[0], 'x');
  }
  NodeOptions options;
  options.caps = FI_MSG | FI_SOURCE | FI_SOURCE_ERR;
  Node b(options);
  a.enable();
  b.enable();
  const fi_addr_t to_b = a.insert(b.name());
  char buffer[8];
  ASSERT_EQ(fi_recv(b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ASSERT_EQ(sent([&] { return fi_inject(a.ep.get(), "x", 1, to_b); }, a), 0);
  fi_cq_tagged_entry entry;
  ssize_t n = 0;
  ASSERT_TRUE(eventually([&] { return (n = fi_cq_read(b.cq.get(), &entry, 1)) != -FI_EAGAIN; }));
  ASSERT_EQ(n, -FI_EAVAIL);
  fi_cq_err_entry error{};
  char raw[64];
  error.err_data = raw;
  error.err_data_size = sizeof raw;
  ASSERT_EQ(fi_cq_readerr(b.cq.get(), &error, 0), 1);
  EXPECT_EQ(error.err, FI_EADDRNOTAVAIL);
  const auto name = a.name();
  ASSERT_EQ(error.err_data_size, name.size());
  EXPECT_EQ(std::memcmp(raw, name.data(), name.size()), 0);
}

TEST(FabricMessages, TooLongForTheirReceiveAreCutAndSaySo) {
  Two two;
  for (const std::size_t n : {100u, 100'000u}) {
    const auto sent = pattern(n, 2);
    std::vector<char> got(60);
    ASSERT_EQ(fi_recv(two.b.ep.get(), got.data(), got.size(), nullptr, FI_ADDR_UNSPEC, &got), 0);
    ASSERT_EQ(fi_send(two.a.ep.get(), sent.data(), n, nullptr, two.to_b, nullptr), 0);
    fi_cq_err_entry error;
    ASSERT_TRUE(two.fails(two.b, &error));
    EXPECT_EQ(error.err, FI_ETRUNC);
    EXPECT_EQ(error.op_context, &got);
    EXPECT_EQ(error.len, 60u);
    EXPECT_EQ(error.olen, n - 60);
    EXPECT_EQ(std::memcmp(got.data(), sent.data(), 60), 0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two.completes(two.a, &entry));
  }
}

TEST(FabricMessages, InPiecesGoToReceivesInPieces) {
  Two two;
  for (const std::size_t n : {1000u, 60'000u}) {
    const auto sent = pattern(n, 4);
    std::vector<char> got(n);
    char* s = const_cast<char*>(sent.data());
    const iovec out[] = {{s, 10}, {s + 10, 0}, {s + 10, n / 2}, {s + 10 + n / 2, n - 10 - n / 2}};
    const iovec in[] = {
        {got.data(), n / 3}, {got.data() + n / 3, 1}, {got.data() + n / 3 + 1, n - n / 3 - 1}};
    ASSERT_EQ(fi_recvv(two.b.ep.get(), in, nullptr, 3, FI_ADDR_UNSPEC, nullptr), 0);
    ASSERT_EQ(fi_sendv(two.a.ep.get(), out, nullptr, 4, two.to_b, nullptr), 0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two.completes(two.b, &entry));
    EXPECT_EQ(entry.len, n);
    EXPECT_EQ(got, sent);
    ASSERT_TRUE(two.completes(two.a, &entry));
  }
}

TEST(FabricMessages, FillOneBufferAfterTheOtherWithMultiReceive) {
  Two two;
  std::size_t least = 100;
  ASSERT_EQ(fi_setopt(&two.b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least),
            0);
  std::vector<char> buffer(1000);
  const iovec iov{buffer.data(), buffer.size()};
  fi_msg msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = FI_ADDR_UNSPEC;
  msg.context = &buffer;
  ASSERT_EQ(fi_recvmsg(two.b.ep.get(), &msg, FI_MULTI_RECV), 0);
  std::size_t at = 0;
  for (unsigned i = 0; i < 3; ++i) {
    const auto sent = pattern(310, i);
    ASSERT_EQ(fi_inject(two.a.ep.get(), sent.data(), sent.size(), two.to_b), 0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two.completes(two.b, &entry));
    EXPECT_EQ(entry.op_context, &buffer);
    EXPECT_EQ(entry.buf, buffer.data() + at);
    EXPECT_EQ(std::memcmp(entry.buf, sent.data(), 310), 0);
    EXPECT_EQ((entry.flags & FI_MULTI_RECV) != 0, i == 2);
    at += 310;
  }
}

TEST(FabricMessages, GoToReceivesDirectedAtTheirSender) {
  Node a, b, c;
  for (Node* n : {&a, &b, &c}) n->enable();
  const fi_addr_t c_from_a = a.insert(c.name()), c_from_b = b.insert(c.name());
  const fi_addr_t a_at_c = c.insert(a.name()), b_at_c = c.insert(b.name());
  int from_b = 0, from_a = 0;
  ASSERT_EQ(fi_trecv(c.ep.get(), &from_b, 4, nullptr, b_at_c, 1, 0, &from_b), 0);
  ASSERT_EQ(fi_trecv(c.ep.get(), &from_a, 4, nullptr, a_at_c, 1, 0, &from_a), 0);
  const int one = 1, two = 2;
  ASSERT_EQ(fi_tinject(a.ep.get(), &one, 4, c_from_a, 1), 0);
  ASSERT_EQ(fi_tinject(b.ep.get(), &two, 4, c_from_b, 1), 0);
  for (int i = 0; i < 2; ++i) {
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(eventually([&] { return fi_cq_read(c.cq.get(), &entry, 1) == 1; }));
  }
  EXPECT_EQ(from_a, 1);
  EXPECT_EQ(from_b, 2);
}

TEST(FabricMessages, ToOneselfArrive) {
  Node a;
  a.enable();
  const fi_addr_t self = a.insert(a.name());
  for (const std::size_t n : {8u, 300'000u}) {
    const auto sent = pattern(n, 6);
    std::vector<char> got(n);
    ASSERT_EQ(fi_recv(a.ep.get(), got.data(), n, nullptr, self, nullptr), 0);
    ASSERT_EQ(fi_send(a.ep.get(), sent.data(), n, nullptr, self, nullptr), 0);
    for (int i = 0; i < 2; ++i) {
      fi_cq_tagged_entry entry;
      ASSERT_TRUE(eventually([&] { return fi_cq_read(a.cq.get(), &entry, 1) == 1; }));
    }
    EXPECT_EQ(got, sent);
  }
}

TEST(FabricMessages, AreDeliveredWhenDeliveryCompleteSaysSo) {
  Two two;
  const auto sent = pattern(100, 1);
  const iovec iov{const_cast<char*>(sent.data()), sent.size()};
  fi_msg_tagged msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = two.to_b;
  msg.tag = 3;
  ASSERT_EQ(fi_tsendmsg(two.a.ep.get(), &msg, FI_DELIVERY_COMPLETE), 0);
  two.idle();
  fi_cq_tagged_entry entry;
  EXPECT_EQ(fi_cq_read(two.a.cq.get(), &entry, 1), -FI_EAGAIN);
  std::vector<char> got(100);
  ASSERT_EQ(fi_trecv(two.b.ep.get(), got.data(), 100, nullptr, FI_ADDR_UNSPEC, 3, 0, nullptr), 0);
  ASSERT_TRUE(two.completes(two.a, &entry));
  EXPECT_EQ(got, sent);
  ASSERT_TRUE(two.completes(two.b, &entry));
}

TEST(FabricMessages, OfSelectiveSendersCompleteOnlyWhenAsked) {
  Two two({.send_bind = FI_TRANSMIT | FI_SELECTIVE_COMPLETION});
  int value = 1;
  const iovec iov{&value, sizeof value};
  fi_msg msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = two.to_b;
  msg.context = &value;
  ASSERT_EQ(fi_sendmsg(two.a.ep.get(), &msg, 0), 0);
  ASSERT_EQ(fi_sendmsg(two.a.ep.get(), &msg, FI_COMPLETION), 0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two.completes(two.a, &entry));
  EXPECT_EQ(entry.op_context, &value);
  two.idle();
  EXPECT_EQ(fi_cq_read(two.a.cq.get(), &entry, 1), -FI_EAGAIN);
}

TEST(FabricMessages, FillTheRingAndGoOnWhenThereIsRoom) {
  Two two;
  std::vector<char> data(4096);
  std::size_t sent = 0;
  ssize_t rc = 0;
  for (; sent < 100'000; ++sent) {
    std::memcpy(data.data(), &sent, sizeof sent);
    rc = fi_inject(two.a.ep.get(), data.data(), data.size(), two.to_b);
    if (rc != 0) break;
  }
  EXPECT_EQ(rc, -FI_EAGAIN);
  ASSERT_TRUE(eventually([&] {
    two.idle(1);
    std::memcpy(data.data(), &sent, sizeof sent);
    return fi_inject(two.a.ep.get(), data.data(), data.size(), two.to_b) == 0;
  }));
  for (std::size_t i = 0; i <= sent; ++i) {
    ASSERT_EQ(fi_recv(two.b.ep.get(), data.data(), data.size(), nullptr, FI_ADDR_UNSPEC, nullptr),
              0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two.completes(two.b, &entry));
    std::size_t number;
    std::memcpy(&number, data.data(), sizeof number);
    ASSERT_EQ(number, i);
  }
}

TEST(FabricReceives, AreCancelled) {
  Two two;
  int first = 0, second = 0;
  ASSERT_EQ(fi_trecv(two.b.ep.get(), &first, 4, nullptr, FI_ADDR_UNSPEC, 1, 0, &first), 0);
  ASSERT_EQ(fi_trecv(two.b.ep.get(), &second, 4, nullptr, FI_ADDR_UNSPEC, 1, 0, &second), 0);
  EXPECT_EQ(fi_cancel(&two.b.ep->fid, &first), 0);
  EXPECT_EQ(fi_cancel(&two.b.ep->fid, &two), -FI_ENOENT);
  fi_cq_err_entry error;
  ASSERT_TRUE(two.fails(two.b, &error));
  EXPECT_EQ(error.err, FI_ECANCELED);
  EXPECT_EQ(error.op_context, &first);
  const int value = 9;
  ASSERT_EQ(fi_tinject(two.a.ep.get(), &value, 4, two.to_b, 1), 0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two.completes(two.b, &entry));
  EXPECT_EQ(entry.op_context, &second);
  EXPECT_EQ(first, 0);
}

class FabricPeeks : public testing::Test {
 protected:
  // Once they have met, what one has sent is there when the other looks.
  void SetUp() override {
    int met = 0;
    ASSERT_EQ(fi_trecv(two_.b.ep.get(), &met, sizeof met, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr),
              0);
    ASSERT_EQ(fi_tinject(two_.a.ep.get(), &met, sizeof met, two_.to_b, 1), 0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two_.completes(two_.b, &entry));
  }
  ssize_t peek(std::uint64_t flags, void* context, void* buffer = nullptr, std::size_t length = 0) {
    iov_ = {buffer, length};
    fi_msg_tagged msg{};
    msg.msg_iov = &iov_;
    msg.iov_count = length > 0 ? 1 : 0;
    msg.addr = FI_ADDR_UNSPEC;
    msg.tag = 7;
    msg.context = context;
    return fi_trecvmsg(two_.b.ep.get(), &msg, flags);
  }
  void send(int value) {
    ASSERT_EQ(fi_tinject(two_.a.ep.get(), &value, sizeof value, two_.to_b, 7), 0);
    two_.idle(10);
  }
  Two two_;
  iovec iov_{};
  fi_context context_[2];
};

TEST_F(FabricPeeks, SayWhenThereIsNothing) {
  ASSERT_EQ(peek(FI_PEEK, &context_[0]), 0);
  fi_cq_err_entry error;
  ASSERT_TRUE(two_.fails(two_.b, &error));
  EXPECT_EQ(error.err, FI_ENOMSG);
  EXPECT_EQ(error.op_context, &context_[0]);
}

TEST_F(FabricPeeks, ShowAMessageAndLeaveIt) {
  send(5);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(peek(FI_PEEK, &context_[0]), 0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two_.completes(two_.b, &entry));
    EXPECT_EQ(entry.len, sizeof(int));
    EXPECT_EQ(entry.tag, 7u);
  }
  int got = 0;
  ASSERT_EQ(fi_trecv(two_.b.ep.get(), &got, sizeof got, nullptr, FI_ADDR_UNSPEC, 7, 0, nullptr), 0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two_.completes(two_.b, &entry));
  EXPECT_EQ(got, 5);
}

TEST_F(FabricPeeks, ClaimAMessageForWhoAsked) {
  send(5);
  send(6);
  ASSERT_EQ(peek(FI_PEEK | FI_CLAIM, &context_[0]), 0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two_.completes(two_.b, &entry));
  int other = 0, mine = 0;
  ASSERT_EQ(fi_trecv(two_.b.ep.get(), &other, sizeof other, nullptr, FI_ADDR_UNSPEC, 7, 0, nullptr),
            0);
  ASSERT_TRUE(two_.completes(two_.b, &entry));
  EXPECT_EQ(other, 6);
  ASSERT_EQ(peek(FI_CLAIM, &context_[0], &mine, sizeof mine), 0);
  ASSERT_TRUE(two_.completes(two_.b, &entry));
  EXPECT_EQ(entry.op_context, &context_[0]);
  EXPECT_EQ(mine, 5);
  EXPECT_EQ(peek(FI_CLAIM, &context_[0], &mine, sizeof mine), -FI_EINVAL);
}

TEST_F(FabricPeeks, ClaimAMessageThatCannotBeHadAnyMoreAndSaySo) {
  const auto data = pattern(500'000, 1);
  ASSERT_EQ(fi_tsend(two_.a.ep.get(), data.data(), data.size(), nullptr, two_.to_b, 7, nullptr), 0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(eventually([&] {
    EXPECT_EQ(peek(FI_PEEK | FI_CLAIM, &context_[0]), 0);
    const ssize_t n = fi_cq_read(two_.b.cq.get(), &entry, 1);
    fi_cq_err_entry none{};
    if (n == -FI_EAVAIL) (void)fi_cq_readerr(two_.b.cq.get(), &none, 0);
    return n == 1;
  }));
  two_.a.ep.reset();
  for (int i = 0; i < 100; ++i) {  // until it has been heard
    ::usleep(1000);
    two_.idle(10);
  }
  std::vector<char> got(data.size());
  ASSERT_EQ(peek(FI_CLAIM, &context_[0], got.data(), got.size()), 0);
  fi_cq_err_entry error;
  ASSERT_TRUE(two_.fails(two_.b, &error));
  EXPECT_EQ(error.err, ECONNRESET);
  EXPECT_EQ(error.op_context, &context_[0]);
}

TEST_F(FabricPeeks, DiscardWhatIsNotWanted) {
  send(5);
  send(6);
  ASSERT_EQ(peek(FI_PEEK | FI_DISCARD, &context_[0]), 0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two_.completes(two_.b, &entry));
  int got = 0;
  ASSERT_EQ(fi_trecv(two_.b.ep.get(), &got, sizeof got, nullptr, FI_ADDR_UNSPEC, 7, 0, nullptr), 0);
  ASSERT_TRUE(two_.completes(two_.b, &entry));
  EXPECT_EQ(got, 6);
}

}  // namespace
}  // namespace clan::test
