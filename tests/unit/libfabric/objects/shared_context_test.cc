// Shared contexts, scalable endpoints and aliases: several objects of libfabric behind one address,
// and one object behind several.
#include <algorithm>

#include "libfabric/node.h"

namespace clan::test {
namespace {

template <typename Open>
auto opened(Open open) {
  return Object<std::remove_pointer_t<decltype(open())>>(open());
}

/// A domain of its own with a queue and an address vector, for endpoints that a test makes itself.
struct Place {
  explicit Place(const std::function<void(fi_info*)>& change = [](fi_info*) {}) {
    const Info hints = make_hints();
    change(hints.get());
    info = get_info(hints, "127.0.0.1", "0", FI_SOURCE);
    if (!info) MUST(-FI_ENODATA);
    fabric = opened([&] {
      fid_fabric* f;
      MUST(fi_fabric(info->fabric_attr, &f, nullptr));
      return f;
    });
    domain = opened([&] {
      fid_domain* d;
      MUST(fi_domain(fabric.get(), info.get(), &d, nullptr));
      return d;
    });
    cq = opened([&] {
      fi_cq_attr attr{};
      attr.format = FI_CQ_FORMAT_TAGGED;
      fid_cq* c;
      MUST(fi_cq_open(domain.get(), &attr, &c, nullptr));
      return c;
    });
    av = opened([&] {
      fi_av_attr attr{};
      attr.type = FI_AV_TABLE;
      attr.rx_ctx_bits = info->ep_attr->rx_ctx_cnt > 1 ? 2 : 0;
      fid_av* a;
      MUST(fi_av_open(domain.get(), &attr, &a, nullptr));
      return a;
    });
  }

  Object<fid_ep> endpoint() {
    fid_ep* e;
    MUST(fi_endpoint(domain.get(), info.get(), &e, nullptr));
    return Object<fid_ep>(e);
  }
  void enable(fid_ep* ep, std::uint64_t directions = FI_TRANSMIT | FI_RECV) {
    MUST(fi_ep_bind(ep, &cq->fid, directions));
    MUST(fi_ep_bind(ep, &av->fid, 0));
    MUST(fi_enable(ep));
  }
  fi_addr_t insert(fid_ep* ep) {
    char name[64];
    std::size_t length = sizeof name;
    MUST(fi_getname(&ep->fid, name, &length));
    fi_addr_t address = FI_ADDR_NOTAVAIL;
    EXPECT_EQ(fi_av_insert(av.get(), name, 1, &address, 0, nullptr), 1);
    return address;
  }

  Info info;
  Object<fid_fabric> fabric;
  Object<fid_domain> domain;
  Object<fid_cq> cq;
  Object<fid_av> av;
};

/// The next completion of `here`, while `there` makes progress too.
::testing::AssertionResult completes(Place& here, Place& there, fi_cq_tagged_entry* entry) {
  ssize_t n = 0;
  const bool came = eventually([&] {
    fi_cq_tagged_entry nothing;
    (void)fi_cq_read(there.cq.get(), &nothing, 0);
    n = fi_cq_read(here.cq.get(), entry, 1);
    return n != -FI_EAGAIN;
  });
  if (came && n == 1) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "fi_cq_read: " << (came ? fi_strerror(static_cast<int>(-n)) : "nothing came");
}

/// Until there is room, while both make progress.
ssize_t posted(const std::function<ssize_t()>& call, Place& here, Place& there) {
  ssize_t rc = -FI_EAGAIN;
  (void)eventually([&] {
    fi_cq_tagged_entry nothing;
    if ((rc = call()) != -FI_EAGAIN) return true;
    (void)fi_cq_read(here.cq.get(), &nothing, 0);
    (void)fi_cq_read(there.cq.get(), &nothing, 0);
    return false;
  });
  return rc;
}

TEST(FabricSharedContexts, AReceiveIsTakenByWhicheverEndpointAMessageComesTo) {
  Place here([](fi_info*hints) { hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT; }), there;
  fid_ep* context = nullptr;
  ASSERT_EQ(fi_srx_context(here.domain.get(), nullptr, &context, nullptr), 0);
  const Object<fid_ep> shared(context);
  Object<fid_ep> first = here.endpoint(), second = here.endpoint(), sender = there.endpoint();
  for (fid_ep* ep : {first.get(), second.get()}) {
    ASSERT_EQ(fi_ep_bind(ep, &shared->fid, 0), 0);
    here.enable(ep);
  }
  there.enable(sender.get());
  fi_addr_t to[2];
  int k = 0;
  for (fid_ep* ep : {first.get(), second.get()}) {
    char name[64];
    std::size_t length = sizeof name;
    MUST(fi_getname(&ep->fid, name, &length));
    ASSERT_EQ(fi_av_insert(there.av.get(), name, 1, &to[k++], 0, nullptr), 1);
  }
  int buffers[4] = {}, contexts[4] = {};
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(
        fi_recv(shared.get(), &buffers[i], sizeof(int), nullptr, FI_ADDR_UNSPEC, &contexts[i]), 0);
  }
  for (int i = 0; i < 4; ++i) {
    const int message = 100 + i;
    ASSERT_EQ(posted([&] { return fi_inject(sender.get(), &message, sizeof message, to[i % 2]); },
                     there, here),
              0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(completes(here, there, &entry));
    EXPECT_EQ(entry.op_context, &contexts[i]);  // the oldest receive, whichever endpoint it was
    EXPECT_EQ(buffers[i], message);
  }
}

TEST(FabricSharedContexts, AMessageThatIsThrownAwayIsAnsweredByTheEndpointItHasComeTo) {
  Place here([](fi_info*hints) { hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT; }), there;
  fid_ep* context = nullptr;
  ASSERT_EQ(fi_srx_context(here.domain.get(), nullptr, &context, nullptr), 0);
  const Object<fid_ep> shared(context);
  Object<fid_ep> first = here.endpoint(), second = here.endpoint(), sender = there.endpoint();
  for (fid_ep* ep : {first.get(), second.get()}) {
    ASSERT_EQ(fi_ep_bind(ep, &shared->fid, 0), 0);
    here.enable(ep);
  }
  there.enable(sender.get());
  char name[64];
  std::size_t length = sizeof name;
  MUST(fi_getname(&second->fid, name, &length));
  fi_addr_t to = FI_ADDR_NOTAVAIL;
  ASSERT_EQ(fi_av_insert(there.av.get(), name, 1, &to, 0, nullptr), 1);
  // It stays with its sender until it is received, or thrown away.
  const auto data = pattern(100'000, 2);
  const iovec iov{const_cast<char*>(data.data()), data.size()};
  int sending = 0;
  const fi_msg_tagged message{&iov, nullptr, 1, to, 5, 0, &sending, 0};
  ASSERT_EQ(
      posted(
          [&] { return fi_tsendmsg(sender.get(), &message, FI_COMPLETION | FI_DELIVERY_COMPLETE); },
          there, here),
      0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(eventually([&] {
    const fi_msg_tagged wanted{nullptr, nullptr, 0, FI_ADDR_UNSPEC, 5, 0, nullptr, 0};
    EXPECT_EQ(fi_trecvmsg(first.get(), &wanted, FI_PEEK | FI_DISCARD), 0);
    fi_cq_err_entry none{};
    const ssize_t n = fi_cq_read(here.cq.get(), &entry, 1);
    if (n == -FI_EAVAIL) (void)fi_cq_readerr(here.cq.get(), &none, 0);
    return n == 1;
  }));
  EXPECT_EQ(entry.len, data.size());
  ASSERT_TRUE(completes(there, here, &entry));
  EXPECT_EQ(entry.op_context, &sending);
}

TEST(FabricSharedContexts, EndpointsShareATransmitContext) {
  Place here([](fi_info*hints) { hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT; }), there;
  fid_stx* context = nullptr;
  ASSERT_EQ(fi_stx_context(here.domain.get(), nullptr, &context, nullptr), 0);
  const Object<fid_stx> shared(context);
  Object<fid_ep> first = here.endpoint(), second = here.endpoint(), receiver = there.endpoint();
  there.enable(receiver.get());
  for (fid_ep* ep : {first.get(), second.get()}) {
    ASSERT_EQ(fi_ep_bind(ep, &shared->fid, 0), 0);
    here.enable(ep);
  }
  char name[64];
  std::size_t length = sizeof name;
  MUST(fi_getname(&receiver->fid, name, &length));
  fi_addr_t to = 0;
  ASSERT_EQ(fi_av_insert(here.av.get(), name, 1, &to, 0, nullptr), 1);
  int message = 5;
  for (fid_ep* ep : {first.get(), second.get()}) {
    int got = 0;
    ASSERT_EQ(fi_recv(receiver.get(), &got, sizeof got, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    ++message;
    ASSERT_EQ(posted([&] { return fi_inject(ep, &message, sizeof message, to); }, here, there), 0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(completes(there, here, &entry));
    EXPECT_EQ(got, message);
  }
}

TEST(FabricScalableEndpoints, SendFromAnyOfTheirContextsToAnyOfThePeers) {
  constexpr std::size_t kContexts = 3;
  const auto several = [](fi_info* hints) {
    hints->ep_attr->tx_ctx_cnt = hints->ep_attr->rx_ctx_cnt = kContexts;
    hints->caps |= FI_MSG | FI_TAGGED | FI_NAMED_RX_CTX;
  };
  struct Scalable : Place {
    using Place::Place;
    void open() {
      fid_ep* made;
      MUST(fi_scalable_ep(domain.get(), info.get(), &made, nullptr));
      sep.reset(made);
      MUST(fi_scalable_ep_bind(made, &av->fid, 0));
      MUST(fi_enable(made));
      for (std::size_t i = 0; i < kContexts; ++i) {
        fid_ep *t, *r;
        MUST(fi_tx_context(made, static_cast<int>(i), nullptr, &t, nullptr));
        MUST(fi_rx_context(made, static_cast<int>(i), nullptr, &r, nullptr));
        MUST(fi_ep_bind(t, &cq->fid, FI_TRANSMIT));
        MUST(fi_ep_bind(r, &cq->fid, FI_RECV));
        MUST(fi_enable(t));
        MUST(fi_enable(r));
        tx.emplace_back(t);
        rx.emplace_back(r);
      }
    }
    Object<fid_ep> sep;
    std::vector<Object<fid_ep>> tx, rx;  // gone before it
  } a(several), b(several);
  a.open();
  b.open();
  char name[64];
  std::size_t length = sizeof name;
  MUST(fi_getname(&b.sep->fid, name, &length));
  fi_addr_t to_b = 0;
  ASSERT_EQ(fi_av_insert(a.av.get(), name, 1, &to_b, 0, nullptr), 1);
  std::size_t received[kContexts][kContexts] = {};
  for (std::size_t to = 0; to < kContexts; ++to) {
    for (std::size_t from = 0; from < kContexts; ++from) {
      std::size_t* const place = &received[to][from];
      ASSERT_EQ(fi_recv(b.rx[to].get(), place, sizeof *place, nullptr, FI_ADDR_UNSPEC, place), 0);
      const std::size_t message = 1 + 10 * to + from;
      const fi_addr_t address = fi_rx_addr(to_b, static_cast<int>(to), 2);
      ASSERT_EQ(
          posted([&] { return fi_inject(a.tx[from].get(), &message, sizeof message, address); }, a,
                 b),
          0);
      fi_cq_tagged_entry entry;
      ASSERT_TRUE(completes(b, a, &entry));
      EXPECT_EQ(entry.op_context, place);  // of that context, and of no other
      EXPECT_EQ(*place, message);
    }
  }
}

TEST(FabricAliases, SendByTheSameEndpointWithFlagsOfTheirOwn) {
  Place here, there;
  Object<fid_ep> sender = here.endpoint(), receiver = there.endpoint();
  MUST(fi_ep_bind(sender.get(), &here.cq->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION));
  here.enable(sender.get(), FI_RECV);
  there.enable(receiver.get());
  fid_ep* made = nullptr;
  ASSERT_EQ(fi_ep_alias(sender.get(), &made, FI_TRANSMIT | FI_COMPLETION), 0);
  Object<fid_ep> alias(made);
  char name[64];
  std::size_t length = sizeof name;
  MUST(fi_getname(&receiver->fid, name, &length));
  fi_addr_t to = 0;
  ASSERT_EQ(fi_av_insert(here.av.get(), name, 1, &to, 0, nullptr), 1);
  int got = 0, context = 0;
  fi_cq_tagged_entry entry;
  for (const bool by_alias : {false, true}) {
    ASSERT_EQ(fi_recv(receiver.get(), &got, sizeof got, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    const int message = by_alias ? 2 : 1;
    fid_ep* ep = by_alias ? alias.get() : sender.get();
    ASSERT_EQ(posted([&] { return fi_send(ep, &message, sizeof message, nullptr, to, &context); },
                     here, there),
              0);
    ASSERT_TRUE(completes(there, here, &entry));
    EXPECT_EQ(got, message);
    // The endpoint tells only of what asks for it; the alias asks always.
    if (by_alias) {
      ASSERT_TRUE(completes(here, there, &entry));
      EXPECT_EQ(entry.op_context, &context);
    }
    EXPECT_EQ(fi_cq_read(here.cq.get(), &entry, 1), -FI_EAGAIN);
  }
  EXPECT_EQ(fi_close(&sender->fid), -FI_EBUSY);  // as long as it has an alias
}

}  // namespace
}  // namespace clan::test
