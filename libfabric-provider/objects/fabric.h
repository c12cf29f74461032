// fi_fabric(): what domains, event queues and wait sets belong to.
#pragma once

#include "system/provider.h"

namespace clan::ofi {

class Fabric final : public fid_fabric {
 public:
  using Face = fid_fabric;
  static int open(fi_fabric_attr* attr, fid_fabric** fabric, void* context);
  References& references() { return references_; }

 private:
  Fabric() = default;
  static int trywait(fid_fabric* fabric, fid_t* fids, int count);
  static fi_ops ops_;
  static fi_ops_fabric fabric_ops_;
  References references_;
};

}  // namespace clan::ofi
