// Address vectors: insertion that answers by events, and by names of nodes and services.
#include "libfabric/node.h"

namespace clan::test {
namespace {

class FabricAv : public testing::Test {
 protected:
  void open(std::uint64_t flags) {
    fi_av_attr attr{};
    attr.type = FI_AV_TABLE;
    attr.flags = flags;
    fid_av* made;
    MUST(fi_av_open(node_.domain.get(), &attr, &made, nullptr));
    av_.reset(made);
  }
  std::vector<char> name_of_peer() {
    peer_.enable();
    return peer_.name();
  }

  Node node_, peer_;
  Object<fid_av> av_;
};

TEST_F(FabricAv, InsertsAsynchronouslyWithAnEventForTheCall) {
  fi_eq_attr attr{};
  attr.wait_obj = FI_WAIT_NONE;
  fid_eq* made;
  MUST(fi_eq_open(node_.fabric.get(), &attr, &made, nullptr));
  const Object<fid_eq> eq(made);
  open(FI_EVENT);
  const std::vector<char> name = name_of_peer();
  fi_addr_t address = FI_ADDR_NOTAVAIL;
  int context = 0;
  // nowhere to answer
  EXPECT_EQ(fi_av_insert(av_.get(), name.data(), 1, &address, 0, &context), -FI_ENOEQ);
  ASSERT_EQ(fi_av_bind(av_.get(), &eq->fid, 0), 0);
  ASSERT_EQ(fi_av_insert(av_.get(), name.data(), 1, &address, 0, &context), 0);
  std::uint32_t event = 0;
  fi_eq_entry entry{};
  ASSERT_TRUE(eventually(
      [&] { return fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0) != -FI_EAGAIN; }));
  EXPECT_EQ(event, static_cast<std::uint32_t>(FI_AV_COMPLETE));
  EXPECT_EQ(entry.fid, &av_->fid);
  EXPECT_EQ(entry.context, &context);
  EXPECT_EQ(entry.data, 1u);
  EXPECT_NE(address, FI_ADDR_NOTAVAIL);

  // One of two is no address: an error that says which, and then how many there are.
  std::vector<char> both(2 * name.size());
  std::copy(name.begin(), name.end(), both.begin());
  fi_addr_t addresses[2];
  ASSERT_EQ(fi_av_insert(av_.get(), both.data(), 2, addresses, 0, &context), 0);
  EXPECT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), -FI_EAVAIL);
  fi_eq_err_entry error{};
  ASSERT_GT(fi_eq_readerr(eq.get(), &error, 0), 0);
  EXPECT_EQ(error.data, 1u);
  EXPECT_NE(error.err, 0);
  ASSERT_GT(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), 0);
  EXPECT_EQ(entry.data, 1u);
  EXPECT_EQ(addresses[1], FI_ADDR_NOTAVAIL);
  av_.reset();  // before its queue
}

TEST_F(FabricAv, InsertsByNodeAndService) {
  open(0);
  peer_.enable();
  const std::vector<char> name = peer_.name();
  const auto* socket_name = reinterpret_cast<const sockaddr_in*>(name.data());
  const std::string service = std::to_string(ntohs(socket_name->sin_port));
  fi_addr_t address = FI_ADDR_NOTAVAIL;
  ASSERT_EQ(fi_av_insertsvc(av_.get(), "127.0.0.1", service.c_str(), &address, 0, nullptr), 1);
  std::vector<char> found(64);
  std::size_t length = found.size();
  ASSERT_EQ(fi_av_lookup(av_.get(), address, found.data(), &length), 0);
  found.resize(length);
  EXPECT_EQ(found, name);
  // Three nodes and two services, counted up: the first service of all nodes comes first, or of
  // each node.
  fi_addr_t six[6];
  ASSERT_EQ(fi_av_insertsym(av_.get(), "127.0.0.1", 3, "4000", 2, six, 0, nullptr), 6);
  for (const fi_addr_t one : six) {
    sockaddr_in there{};
    length = sizeof there;
    ASSERT_EQ(fi_av_lookup(av_.get(), one, &there, &length), 0);
    const std::uint32_t host = ntohl(there.sin_addr.s_addr) & 0xff;
    EXPECT_TRUE(host >= 1 && host <= 3) << host;
    EXPECT_TRUE(ntohs(there.sin_port) == 4000 || ntohs(there.sin_port) == 4001);
  }
}

TEST(FabricAddressVectors, KeepAddressesAndGiveThemBack) {
  Node node;
  sockaddr_in addresses[3] = {};
  for (int i = 0; i < 3; ++i) {
    addresses[i].sin_family = AF_INET;
    addresses[i].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    addresses[i].sin_port = htons(static_cast<std::uint16_t>(5000 + i));
  }
  fi_addr_t found[3] = {};
  ASSERT_EQ(fi_av_insert(node.av.get(), addresses, 3, found, 0, nullptr), 3);
  sockaddr_in back{};
  std::size_t length = sizeof back;
  ASSERT_EQ(fi_av_lookup(node.av.get(), found[2], &back, &length), 0);
  EXPECT_EQ(length, sizeof back);
  EXPECT_EQ(std::memcmp(&back, &addresses[2], sizeof back), 0);
  char text[64];
  length = sizeof text;
  EXPECT_STREQ(fi_av_straddr(node.av.get(), &addresses[2], text, &length),
               "fi_sockaddr_in://127.0.0.1:5002");
  ASSERT_EQ(fi_av_remove(node.av.get(), &found[1], 1, 0), 0);
  EXPECT_EQ(fi_av_lookup(node.av.get(), found[1], &back, &length), -FI_EINVAL);
  EXPECT_EQ(fi_av_remove(node.av.get(), &found[1], 1, 0), -FI_EINVAL);
}

TEST(FabricAddressVectors, SayWhichAddressesAreNone) {
  Node node;
  sockaddr_in addresses[2] = {};
  addresses[1].sin_family = AF_INET;
  fi_addr_t found[2] = {1, 1};
  int errors[2] = {-1, -1};
  EXPECT_EQ(fi_av_insert(node.av.get(), addresses, 2, found, FI_SYNC_ERR, errors), 1);
  EXPECT_EQ(found[0], FI_ADDR_NOTAVAIL);
  EXPECT_NE(errors[0], 0);
  EXPECT_EQ(errors[1], 0);
}

TEST(FabricAddressVectors, CountUpServices) {
  Node node;
  fi_addr_t found[4] = {};
  ASSERT_EQ(fi_av_insertsym(node.av.get(), "127.0.0.1", 2, "7000", 2, found, 0, nullptr), 4);
  const std::uint16_t ports[] = {7000, 7001, 7000, 7001};
  for (int i = 0; i < 4; ++i) {
    sockaddr_in back{};
    std::size_t length = sizeof back;
    ASSERT_EQ(fi_av_lookup(node.av.get(), found[i], &back, &length), 0);
    EXPECT_EQ(ntohs(back.sin_port), ports[i]);
    EXPECT_EQ(ntohl(back.sin_addr.s_addr), INADDR_LOOPBACK + (i / 2));
  }
}

}  // namespace
}  // namespace clan::test
