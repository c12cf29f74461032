// Calls of the provider's to the kernel that are refused, with two endpoints that know each other
// by address (libfabric/refusals.h).
#include "libfabric/refusals.h"

namespace clan::test {
namespace {

/// As Node; any step may fail.
struct Part : End {
  bool build() {
    fi_info* found = nullptr;
    const Info hints = make_hints();
    if (!well(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "0", FI_SOURCE, hints.get(), &found)))
      return false;
    info.reset(found);
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_TAGGED;
    cq_attr.wait_obj = FI_WAIT_FD;
    fi_av_attr av_attr{};
    av_attr.type = FI_AV_TABLE;
    return make(&fabric, [&](auto** f) { return fi_fabric(found->fabric_attr, f, nullptr); }) &&
           make(&domain, [&](auto** d) { return fi_domain(fabric.get(), found, d, nullptr); }) &&
           make(&cq, [&](auto** c) { return fi_cq_open(domain.get(), &cq_attr, c, nullptr); }) &&
           make(&av, [&](auto** a) { return fi_av_open(domain.get(), &av_attr, a, nullptr); }) &&
           make(&ep, [&](auto** e) { return fi_endpoint(domain.get(), found, e, nullptr); }) &&
           make(&mr,
                [&](auto** m) {
                  return fi_mr_reg(domain.get(), memory, sizeof memory, FI_REMOTE_WRITE, 0, 5, 0, m,
                                   nullptr);
                }) &&
           well(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV)) &&
           well(fi_ep_bind(ep.get(), &av->fid, 0)) && well(fi_enable(ep.get()));
  }
  /// The address of `other` here.
  bool knows(Part& other) {
    char name[64];
    std::size_t size = sizeof name;
    return well(fi_getname(&other.ep->fid, name, &size)) &&
           well(fi_av_insert(av.get(), name, 1, &peer, 0, nullptr));
  }
};

/// Two parts that talk, as far as they can.
struct Pair {
  bool build() { return a.build() && b.build() && a.knows(b) && b.knows(a); }
  bool talk() { return test::talk(a, b); }
  static bool is_lost() { return false; }
  Part a, b;
};

TEST(FabricFaults, OfOneCallToTheKernelAreSaidOrNotNoticed) {
  in_a_process_of_its_own(each_call_is_refused_once<Pair>);
}

}  // namespace
}  // namespace clan::test
