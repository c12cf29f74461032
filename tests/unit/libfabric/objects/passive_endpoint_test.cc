// Passive endpoints: their names, what they refuse, and the requests that they show. Those of peers
// that mean no good: hostile_test.cc.
#include <netinet/in.h>

#include <cstring>
#include <string>

#include "libfabric/node.h"

namespace clan::test {
namespace {

struct Passive {
  Passive() : info(get_info(make_hints(FI_EP_MSG), "127.0.0.1", nullptr, FI_SOURCE)) {
    if (!info) MUST(-FI_ENODATA);
    fid_fabric* f;
    MUST(fi_fabric(info->fabric_attr, &f, nullptr));
    fabric.reset(f);
    fid_eq* q;
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    MUST(fi_eq_open(f, &attr, &q, nullptr));
    eq.reset(q);
    fid_pep* p;
    MUST(fi_passive_ep(f, info.get(), &p, nullptr));
    pep.reset(p);
  }
  int bind() { return fi_pep_bind(pep.get(), &eq->fid, 0); }
  int name(sockaddr_in* address) {
    std::size_t length = sizeof *address;
    return fi_getname(&pep->fid, address, &length);
  }
  Info info;
  Object<fid_fabric> fabric;
  Object<fid_eq> eq;
  Object<fid_pep> pep;
};

TEST(FabricPassiveEndpoint, ListensOnlyWhereThereIsAQueueToTell) {
  Passive passive;
  EXPECT_EQ(fi_listen(passive.pep.get()), -FI_ENOEQ);
  ASSERT_EQ(passive.bind(), 0);
  EXPECT_EQ(passive.bind(), -FI_EINVAL);
  EXPECT_EQ(fi_listen(passive.pep.get()), 0);
  EXPECT_EQ(fi_listen(passive.pep.get()), -FI_EINVAL);
}

TEST(FabricPassiveEndpoint, TakesTheNameThatItIsGivenBeforeItHasOne) {
  Passive first, second;
  sockaddr_in name{};
  ASSERT_EQ(first.name(&name), 0);
  EXPECT_NE(name.sin_port, 0);
  EXPECT_EQ(fi_setname(&first.pep->fid, &name, sizeof name), -FI_EBUSY);
  // One that has it already is in the way of another.
  ASSERT_EQ(fi_setname(&second.pep->fid, &name, sizeof name), 0);
  ASSERT_EQ(second.bind(), 0);
  EXPECT_NE(fi_listen(second.pep.get()), 0);
  first.pep.reset();
  Passive third;
  ASSERT_EQ(fi_setname(&third.pep->fid, &name, sizeof name), 0);
  ASSERT_EQ(third.bind(), 0);
  EXPECT_EQ(fi_listen(third.pep.get()), 0);
  sockaddr_in own{};
  ASSERT_EQ(third.name(&own), 0);
  EXPECT_EQ(own.sin_port, name.sin_port);
}

TEST(FabricPassiveEndpoint, SaysHowLongItsNameIsWhereThereIsNoRoomForIt) {
  Passive passive;
  char small[4] = {};
  std::size_t length = sizeof small;
  EXPECT_EQ(fi_getname(&passive.pep->fid, small, &length), -FI_ETOOSMALL);
  EXPECT_EQ(length, sizeof(sockaddr_in));
}

TEST(FabricPassiveEndpoint, SaysHowMuchDataAConnectionTakes) {
  Passive passive;
  std::size_t most = 0, length = sizeof most;
  ASSERT_EQ(fi_getopt(&passive.pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &most, &length), 0);
  EXPECT_GE(most, 256u);
  length = 1;
  EXPECT_EQ(fi_getopt(&passive.pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &most, &length),
            -FI_ETOOSMALL);
  EXPECT_EQ(fi_getopt(&passive.pep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &most, &length),
            -FI_ENOPROTOOPT);
}

TEST(FabricPassiveEndpoint, TakesNoBacklogBelowNothing) {
  Passive passive;
  int backlog = -1;
  EXPECT_EQ(fi_control(&passive.pep->fid, FI_BACKLOG, &backlog), -FI_EINVAL);
  backlog = 0;
  EXPECT_EQ(fi_control(&passive.pep->fid, FI_BACKLOG, &backlog), 0);
}

TEST(FabricPassiveEndpoint, RejectsOnlyRequestsOfItsOwn) {
  Passive passive, other;
  ASSERT_EQ(passive.bind(), 0);
  ASSERT_EQ(fi_listen(passive.pep.get()), 0);
  ASSERT_EQ(other.bind(), 0);
  sockaddr_in name{};
  ASSERT_EQ(passive.name(&name), 0);
  const std::string service = std::to_string(ntohs(name.sin_port));
  Info to = get_info(make_hints(FI_EP_MSG), "127.0.0.1", service.c_str(), 0);
  ASSERT_TRUE(to);
  fid_domain* d;
  MUST(fi_domain(other.fabric.get(), to.get(), &d, nullptr));
  const Object<fid_domain> domain(d);
  fid_cq* c;
  fi_cq_attr attr{};
  MUST(fi_cq_open(d, &attr, &c, nullptr));
  const Object<fid_cq> cq(c);
  fid_ep* e;
  MUST(fi_endpoint(d, to.get(), &e, nullptr));
  const Object<fid_ep> client(e);
  MUST(fi_ep_bind(e, &other.eq->fid, 0));
  MUST(fi_ep_bind(e, &c->fid, FI_TRANSMIT | FI_RECV));
  ASSERT_EQ(fi_connect(e, to->dest_addr, "hello", 5), 0);
  alignas(fi_eq_cm_entry) char buffer[256];
  std::uint32_t event = 0;
  const ssize_t n = fi_eq_sread(passive.eq.get(), &event, buffer, sizeof buffer, 10'000, 0);
  ASSERT_EQ(n, static_cast<ssize_t>(sizeof(fi_eq_cm_entry) + 5));
  ASSERT_EQ(event, static_cast<std::uint32_t>(FI_CONNREQ));
  const auto* entry = reinterpret_cast<const fi_eq_cm_entry*>(buffer);
  EXPECT_EQ(std::memcmp(buffer + sizeof *entry, "hello", 5), 0);
  const Info request(entry->info);
  EXPECT_EQ(fi_reject(passive.pep.get(), nullptr, nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(fi_reject(other.pep.get(), request->handle, nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(fi_reject(passive.pep.get(), request->handle, nullptr, 0), 0);
  request->handle = nullptr;
}

}  // namespace
}  // namespace clan::test
