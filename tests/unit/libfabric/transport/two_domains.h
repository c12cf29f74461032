// Two domains of one process: their queues are the same over any link.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "objects/domain.h"
#include "objects/fabric.h"

namespace clan::ofi {

struct CloseFid {
  template <typename T>
  void operator()(T* object) const {
    EXPECT_EQ(fi_close(&object->fid), 0);
  }
};

class TwoDomains : public testing::Test {
 protected:
  TwoDomains() {
    fi_info* info = nullptr;
    EXPECT_EQ(get_info(FI_VERSION(1, 17), nullptr, nullptr, 0, nullptr, &info), 0);
    fid_fabric* fabric = nullptr;
    EXPECT_EQ(open_fabric(info->fabric_attr, &fabric, nullptr), 0);
    fabric_.reset(fabric);
    for (auto* domain : {&ours_, &theirs_}) {
      fid_domain* made = nullptr;
      EXPECT_EQ(fi_domain(fabric, info, &made, nullptr), 0);
      domain->reset(made);
    }
    fi_freeinfo(info);
  }
  static Domain& domain(fid_domain& id) { return static_cast<Domain&>(id); }

  std::unique_ptr<fid_fabric, CloseFid> fabric_;
  std::unique_ptr<fid_domain, CloseFid> ours_, theirs_;
};

}  // namespace clan::ofi
