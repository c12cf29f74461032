// Two endpoints of two domains of one process, for tests of the transport: nothing moves but by the
// progress that a test makes, once they are connected.
#pragma once

#include <rdma/fi_cm.h>
#include <rdma/fi_tagged.h>
#include <sched.h>

#include <memory>
#include <string>
#include <vector>

#include "libfabric/transport/two_domains.h"
#include "objects/cq.h"
#include "objects/endpoint.h"
#include "transport/transport.h"

namespace clan::ofi {

class TwoEndpoints : public TwoDomains {
 protected:
  /// One of them, with all that it needs.
  struct End {
    std::unique_ptr<fid_av, CloseFid> av;
    std::unique_ptr<fid_cq, CloseFid> cq;
    std::unique_ptr<fid_ep, CloseFid> ep;
    Endpoint& endpoint() const { return endpoint_of(ep.get()); }
    Transport& transport() const { return endpoint().transport(); }
    Cq& queue() const { return *static_cast<Cq*>(cq.get()); }
    /// The contexts of what has completed, and of what has failed, with its error.
    std::vector<void*> completed() const {
      fi_cq_tagged_entry entries[16];
      const ssize_t n = fi_cq_read(cq.get(), entries, 16);
      std::vector<void*> contexts;
      for (ssize_t i = 0; i < n; ++i) contexts.push_back(entries[i].op_context);
      return contexts;
    }
    int failed() const {
      fi_cq_err_entry entry{};
      return fi_cq_readerr(cq.get(), &entry, 0) == 1 ? entry.err : 0;
    }
  };

  TwoEndpoints() : ours(open(*ours_)), theirs(open(*theirs_)) {
    know(ours, theirs);
    know(theirs, ours);
    peer = ours.transport().peer(0);
  }
  /// `shared`: a queue that it shares, in place of one of its own.
  End open(fid_domain& domain, fid_cq* shared = nullptr) {
    fi_info* info = nullptr;
    EXPECT_EQ(get_info(FI_VERSION(1, 17), "127.0.0.1", nullptr, FI_SOURCE, nullptr, &info), 0);
    fi_info* rdm = info;
    while (rdm != nullptr && rdm->ep_attr->type != FI_EP_RDM) rdm = rdm->next;
    EXPECT_NE(rdm, nullptr);
    End end;
    fi_av_attr addresses{};
    addresses.type = FI_AV_TABLE;
    fid_av* av = nullptr;
    EXPECT_EQ(fi_av_open(&domain, &addresses, &av, nullptr), 0);
    end.av.reset(av);
    fi_cq_attr completions{};
    completions.format = FI_CQ_FORMAT_TAGGED;
    fid_cq* cq = shared;
    if (shared == nullptr) {
      EXPECT_EQ(fi_cq_open(&domain, &completions, &cq, nullptr), 0);
      end.cq.reset(cq);
    }
    fid_ep* ep = nullptr;
    EXPECT_EQ(fi_endpoint(&domain, rdm, &ep, nullptr), 0);
    end.ep.reset(ep);
    EXPECT_EQ(fi_ep_bind(ep, &av->fid, 0), 0);
    EXPECT_EQ(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
    EXPECT_EQ(fi_enable(ep), 0);
    fi_freeinfo(info);
    return end;
  }
  static fi_addr_t know(End& end, const End& other) {
    char name[128];
    std::size_t size = sizeof name;
    EXPECT_EQ(fi_getname(&other.ep->fid, name, &size), 0);
    fi_addr_t address = FI_ADDR_NOTAVAIL;
    EXPECT_EQ(fi_av_insert(end.av.get(), name, 1, &address, 0, nullptr), 1);
    return address;
  }
  bool both_progress() {
    const bool moved = theirs.transport().progress();
    return ours.transport().progress() || moved;
  }
  /// Both make progress until `done()`. False: it does not come.
  template <typename Done>
  bool until(Done&& done) {
    for (int i = 0; i < 2'000'000; ++i) {
      if (done()) return true;
      if (!both_progress()) sched_yield();
    }
    return false;
  }
  bool connect() { return connect(*peer, theirs, 0); }
  /// At both ends: the driver thread of the one that is asked accepts, and hands it the connection
  /// behind that. `back`: the address by which it knows ours.
  bool connect(Peer& to, const End& asked, fi_addr_t back) {
    const Peer* const known = asked.transport().peer(back);
    return until([&] {
      (void)asked.transport().progress();
      return ours.transport().ready(to) == 0 && known->index != kNoPeer;
    });
  }
  /// A tagged message whose completion has its own address as context.
  struct Message {
    explicit Message(std::string what, std::uint64_t tag = 1) : text(std::move(what)) {
      piece = {text.data(), text.size()};
      request.header = {.op = Op::kTagged, .tag = tag};
      request.iov = &piece;
      request.count = 1;
      request.length = text.size();
      request.context = this;
      request.flags = FI_SEND | FI_TAGGED;
      request.completion = true;
    }
    Message(const Message&) = delete;
    Message& operator=(const Message&) = delete;
    std::string text;
    iovec piece;
    SendRequest request;
  };
  ssize_t send(const Message& message) {
    return ours.transport().send(ours.endpoint(), *peer, message.request);
  }
  /// They wait for a tagged message.
  void receive(std::string& into, std::uint64_t tag = 1) {
    ASSERT_EQ(fi_trecv(theirs.ep.get(), into.data(), into.size(), nullptr, FI_ADDR_UNSPEC, tag, 0,
                       into.data()),
              0);
  }

  End ours, theirs;
  Peer* peer = nullptr;
};

}  // namespace clan::ofi
