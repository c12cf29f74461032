// Accesses to the other side's memory.
#include <rdma/fi_atomic.h>

#include "side.h"

namespace clan::bench::ofi {

double Side::access_window(const Order& order) {
  meet();
  const double began = now();
  for (std::uint64_t w = 0; w < order.times / kWindow; ++w) {
    for (int i = 0; i < kWindow; ++i) {
      order.kind == Kind::kWriteInject ? inject_write(order.bytes)
                                       : access(order.kind == Kind::kWriteWindow, order.bytes, i);
    }
    if (order.kind != Kind::kWriteInject) wait(sent_, kWindow, "an access");
  }
  const double took = now() - began;
  meet();
  return took;
}

double Side::access_single(const Order& order) {
  meet();
  double took = 0;
  if (client_) {
    const double began = now();
    for (std::uint64_t i = 0; i < order.times; ++i) {
      access(order.kind == Kind::kWrite, order.bytes);
      wait(sent_, 1, "an access");
    }
    took = now() - began;
  }
  meet();  // where the owner polls meanwhile
  return took;
}

double Side::fetch_add(const Order& order) {
  meet();
  double took = 0;
  if (client_) {
    auto* const one = reinterpret_cast<std::uint64_t*>(out_);
    auto* const found = reinterpret_cast<std::uint64_t*>(out_ + 64);
    *one = 1;
    std::uint64_t first = 0;
    const double began = now();
    for (std::uint64_t i = 0; i < order.times; ++i) {
      post(
          [&] {
            return fi_fetch_atomic(ep_, one, 1, desc_, found, desc_, peer_, remote_.address,
                                   remote_.key, FI_UINT64, FI_SUM, &sends_[0]);
          },
          "fetch-and-add");
      wait(sent_, 1, "a fetch-and-add");
      if (i == 0) first = *found;
      if (*found != first + i) give_up("fetch-and-add", "wrong result");
    }
    took = now() - began;
  }
  meet();
  return took;
}

}  // namespace clan::bench::ofi
