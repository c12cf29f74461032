#include "libfabric/node.h"

namespace clan::test {
namespace {

TEST(FabricInfo, NamesReliableDatagramsFirst) {
  const Info all = get_info(make_hints(FI_EP_UNSPEC));
  ASSERT_NE(all, nullptr);
  EXPECT_STREQ(all->fabric_attr->prov_name, "clan");
  EXPECT_EQ(all->ep_attr->type, FI_EP_RDM);
  ASSERT_NE(all->next, nullptr);
  EXPECT_EQ(all->next->ep_attr->type, FI_EP_MSG);
  ASSERT_NE(all->next->next, nullptr);
  EXPECT_EQ(all->next->next->ep_attr->type, FI_EP_DGRAM);
  EXPECT_EQ(all->next->next->next, nullptr);
}

TEST(FabricInfo, OffersOfDatagramsWhatTheyCanDo) {
  const Info all = get_info(make_hints(FI_EP_DGRAM));
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(all->next, nullptr);
  EXPECT_EQ(all->caps & (FI_TAGGED | FI_RMA | FI_ATOMIC), 0u);
  EXPECT_GE(all->ep_attr->max_msg_size, 4096u);
  EXPECT_LE(all->ep_attr->max_msg_size, 65536u);
  EXPECT_LE(all->tx_attr->inject_size, all->ep_attr->max_msg_size);
  EXPECT_EQ(all->tx_attr->rma_iov_limit, 0u);
  EXPECT_EQ(get_info(make_hints(FI_EP_DGRAM, FI_TAGGED)), nullptr);
  EXPECT_EQ(get_info(make_hints(FI_EP_DGRAM, FI_RMA)), nullptr);
  Info hints = make_hints(FI_EP_DGRAM);
  hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  EXPECT_EQ(get_info(hints), nullptr);
  hints = make_hints(FI_EP_DGRAM);
  hints->ep_attr->max_msg_size = all->ep_attr->max_msg_size + 1;
  EXPECT_EQ(get_info(hints), nullptr);
}

TEST(FabricInfo, IsNotLayeredUnlessAskedTo) {
  for (const fi_ep_type type : {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM}) {
    const Info all = get_info(make_hints(type));
    ASSERT_NE(all, nullptr);
    for (const fi_info* i = all.get(); i != nullptr; i = i->next)
      EXPECT_STREQ(i->fabric_attr->prov_name, "clan");
  }
}

TEST(FabricInfo, RequiresNothingOfPrograms) {
  const Info all = get_info(make_hints());
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(all->mode, 0u);
  EXPECT_EQ(all->domain_attr->mr_mode, 0);
  EXPECT_GE(all->tx_attr->inject_size, 4096u);
  EXPECT_NE(all->caps & FI_LOCAL_COMM, 0u);
  EXPECT_NE(all->caps & FI_REMOTE_COMM, 0u);
}

TEST(FabricInfo, GivesPrimaryCapabilitiesOnlyToWhoAsks) {
  const Info tagged = get_info(make_hints(FI_EP_RDM, FI_TAGGED));
  ASSERT_NE(tagged, nullptr);
  EXPECT_NE(tagged->caps & FI_TAGGED, 0u);
  EXPECT_EQ(tagged->caps & (FI_MSG | FI_RMA | FI_ATOMIC), 0u);
  EXPECT_NE(tagged->caps & FI_SEND, 0u);
  EXPECT_NE(tagged->caps & FI_RECV, 0u);
}

TEST(FabricInfo, MakesErrorsOfUnknownSendersOnlyForWhoAsks) {
  for (const fi_ep_type type : {FI_EP_RDM, FI_EP_DGRAM}) {
    Info hints = make_hints(type);
    hints->caps = 0;
    Info info = get_info(hints);
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->caps & (FI_SOURCE | FI_SOURCE_ERR), FI_SOURCE);
    EXPECT_EQ(info->rx_attr->caps & FI_SOURCE_ERR, 0u);
    hints->caps = FI_MSG | FI_SOURCE | FI_SOURCE_ERR;
    info = get_info(hints);
    ASSERT_NE(info, nullptr);
    EXPECT_NE(info->caps & FI_SOURCE_ERR, 0u);
  }
}

TEST(FabricInfo, EchoesWhatProgramsAskForWithinItsMeans) {
  Info hints = make_hints();
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->av_type = FI_AV_TABLE;
  hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
  hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  hints->tx_attr->size = 4000;
  const Info info = get_info(hints);
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->domain_attr->threading, FI_THREAD_DOMAIN);
  EXPECT_EQ(info->domain_attr->av_type, FI_AV_TABLE);
  EXPECT_EQ(info->domain_attr->data_progress, FI_PROGRESS_AUTO);
  EXPECT_EQ(info->tx_attr->op_flags, FI_DELIVERY_COMPLETE);
  EXPECT_EQ(info->tx_attr->size, 4000u);
}

TEST(FabricInfo, DeclinesWhatItDoesNotHave) {
  const std::function<void(fi_info&)> impossible[] = {
      [](fi_info& h) { h.caps = FI_HMEM; },
      [](fi_info& h) { h.caps = FI_MULTICAST; },
      [](fi_info& h) { h.ep_attr->type = FI_EP_SOCK_STREAM; },
      [](fi_info& h) { h.addr_format = FI_ADDR_GNI; },
      [](fi_info& h) { h.tx_attr->inject_size = 1 << 20; },
      [](fi_info& h) { h.tx_attr->iov_limit = 1000; },
      [](fi_info& h) { h.domain_attr->mr_key_size = 16; },
      [](fi_info& h) { h.ep_attr->max_msg_size = ~std::size_t{0}; },
      [](fi_info& h) { h.domain_attr->name = ::strdup("another"); },
      [](fi_info& h) { h.fabric_attr->name = ::strdup("another"); },
  };
  for (std::size_t i = 0; i < std::size(impossible); ++i) {
    Info hints = make_hints();
    impossible[i](*hints);
    EXPECT_EQ(get_info(hints), nullptr) << i;
  }
}

TEST(FabricInfo, ResolvesNodesAndServices) {
  const Info to = get_info(make_hints(), "127.0.0.1", "7471");
  ASSERT_NE(to, nullptr);
  ASSERT_NE(to->dest_addr, nullptr);
  ASSERT_NE(to->src_addr, nullptr);
  EXPECT_EQ(to->addr_format, static_cast<std::uint32_t>(FI_SOCKADDR_IN));
  EXPECT_EQ(static_cast<sockaddr_in*>(to->dest_addr)->sin_port, htons(7471));
  const Info from = get_info(make_hints(), "127.0.0.1", "7471", FI_SOURCE);
  ASSERT_NE(from, nullptr);
  EXPECT_EQ(from->dest_addr, nullptr);
  EXPECT_EQ(static_cast<sockaddr_in*>(from->src_addr)->sin_port, htons(7471));
  EXPECT_EQ(get_info(make_hints(), "no.such.host.invalid", "7471", FI_NUMERICHOST), nullptr);
}

TEST(FabricInfo, SpeaksIPv6ToThoseWhoDo) {
  Info hints = make_hints();
  hints->addr_format = FI_SOCKADDR_IN6;
  const Info info = get_info(hints, "::1", "7471");
  if (!info) GTEST_SKIP() << "no IPv6 on this host";
  EXPECT_EQ(info->addr_format, static_cast<std::uint32_t>(FI_SOCKADDR_IN6));
  EXPECT_EQ(info->dest_addrlen, sizeof(sockaddr_in6));
}

TEST(FabricInfo, KnowsTheOldWordsForMemoryRegistration) {
  Info hints = make_hints();
  hints->domain_attr->mr_mode = FI_MR_BASIC;
  const Info basic = get_info(hints, nullptr, nullptr, 0, FI_VERSION(1, 4));
  ASSERT_NE(basic, nullptr);
  EXPECT_EQ(basic->domain_attr->mr_mode, FI_MR_BASIC);
  hints->domain_attr->mr_mode = FI_MR_UNSPEC;
  const Info scalable = get_info(hints, nullptr, nullptr, 0, FI_VERSION(1, 4));
  ASSERT_NE(scalable, nullptr);
  EXPECT_EQ(scalable->domain_attr->mr_mode, FI_MR_SCALABLE);
}

TEST(FabricInfo, KeepsLibfabricsOwnLayersAway) {
  Info hints = make_hints(FI_EP_UNSPEC);
  const Info all = get_info(hints);
  for (const fi_info* i = all.get(); i != nullptr; i = i->next) {
    EXPECT_STREQ(i->fabric_attr->prov_name, "clan");
  }
}

}  // namespace
}  // namespace clan::test
