// Calls of the provider's to the kernel that are refused, with connections (FI_EP_MSG): a server
// that listens, a client that connects, and what they say (libfabric/refusals.h).
#include "libfabric/refusals.h"

namespace clan::test {
namespace {

/// One end of a connection; any step may fail.
struct ConnectionEnd : End {
  bool begin(const char* service) {
    fi_info* found = nullptr;
    const Info hints = make_hints(FI_EP_MSG);
    if (!well(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", service,
                         service == nullptr ? FI_SOURCE : 0, hints.get(), &found)))
      return false;
    info.reset(found);
    fi_eq_attr eq_attr{};
    eq_attr.wait_obj = FI_WAIT_FD;
    return make(&fabric, [&](auto** f) { return fi_fabric(found->fabric_attr, f, nullptr); }) &&
           make(&eq, [&](auto** q) { return fi_eq_open(fabric.get(), &eq_attr, q, nullptr); });
  }
  bool listens(std::string* service) {
    sockaddr_in name{};
    std::size_t size = sizeof name;
    const bool done =
        make(&pep, [&](auto** p) { return fi_passive_ep(fabric.get(), info.get(), p, nullptr); }) &&
        well(fi_pep_bind(pep.get(), &eq->fid, 0)) && well(fi_listen(pep.get())) &&
        well(fi_getname(&pep->fid, &name, &size));
    *service = std::to_string(ntohs(name.sin_port));
    return done;
  }
  bool opens(fi_info* with) {
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_TAGGED;
    cq_attr.wait_obj = FI_WAIT_FD;
    peer = FI_ADDR_UNSPEC;
    return make(&domain, [&](auto** d) { return fi_domain(fabric.get(), with, d, nullptr); }) &&
           make(&cq, [&](auto** c) { return fi_cq_open(domain.get(), &cq_attr, c, nullptr); }) &&
           make(&ep, [&](auto** e) { return fi_endpoint(domain.get(), with, e, nullptr); }) &&
           make(&mr,
                [&](auto** m) {
                  return fi_mr_reg(domain.get(), memory, sizeof memory, FI_REMOTE_WRITE, 0, 5, 0, m,
                                   nullptr);
                }) &&
           well(fi_ep_bind(ep.get(), &eq->fid, 0)) &&
           well(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV)) && well(fi_enable(ep.get()));
  }
  /// What its queue has to tell, if anything.
  void hear() {
    alignas(fi_eq_cm_entry) char buffer[2048];
    std::uint32_t what = 0;
    const ssize_t n = fi_eq_read(eq.get(), &what, buffer, sizeof buffer, 0);
    if (n == -FI_EAGAIN) return;
    if (n < 0) {
      fi_eq_err_entry error{};
      (void)fi_eq_readerr(eq.get(), &error, 0);
      lost = true;
      return;
    }
    if (what == FI_CONNREQ) request.reset(reinterpret_cast<fi_eq_cm_entry*>(buffer)->info);
    connected = connected || what == FI_CONNECTED;
    lost = lost || what == FI_SHUTDOWN;
  }
  Info request;
  bool connected = false, lost = false;
};

struct ConnectionInTrouble {
  bool build() {
    std::string service;
    if (!server.begin(nullptr) || !server.listens(&service) || !client.begin(service.c_str()) ||
        !client.opens(client.info.get()) ||
        !well(fi_connect(client.ep.get(), client.info->dest_addr, "may I", 5)))
      return false;
    bool accepts = true;
    EXPECT_TRUE(eventually([&] {
      hear();
      if (server.request && !server.ep)
        accepts = server.opens(server.request.get()) && well(fi_accept(server.ep.get(), "yes", 3));
      return !accepts || is_lost() || (client.connected && server.connected);
    })) << "neither connected nor refused";
    return accepts && !is_lost();
  }
  bool talk() { return test::talk(client, server); }
  /// One of them has heard that it is over, or was refused.
  bool is_lost() {
    hear();
    return client.lost || server.lost;
  }
  void hear() {
    for (ConnectionEnd* side : {&client, &server}) side->hear();
  }
  ConnectionEnd server, client;
};

TEST(FabricConnectionFaults, OfOneCallToTheKernelAreSaidOrNotNoticed) {
  in_a_process_of_its_own(each_call_is_refused_once<ConnectionInTrouble>);
}

}  // namespace
}  // namespace clan::test
