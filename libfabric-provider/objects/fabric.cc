#include "objects/fabric.h"

#include <cstring>

#include "objects/counter.h"
#include "objects/cq.h"
#include "objects/domain.h"
#include "objects/eq.h"
#include "objects/passive_endpoint.h"
#include "wait/wait.h"

namespace clan::ofi {

fi_ops Fabric::ops_ = object_ops(close_object<Fabric>);

fi_ops_fabric Fabric::fabric_ops_ = {
    .size = sizeof(fi_ops_fabric),
    .domain = guarded<Domain::open>,
    .passive_ep = guarded<PassiveEndpoint::open>,
    .eq_open = guarded<Eq::open>,
    .wait_open = guarded<WaitSet::open>,
    .trywait = guarded<Fabric::trywait>,
    .domain2 = not_supported,
};

int Fabric::open(fi_fabric_attr* attr, fid_fabric** fabric, void* context) {
  if (attr != nullptr && attr->name != nullptr && std::strcmp(attr->name, "clan") != 0)
    return -FI_ENODATA;
  auto* made = new (std::nothrow) Fabric;
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_FABRIC, context, &ops_};
  made->ops = &fabric_ops_;
  made->api_version =
      attr != nullptr ? attr->api_version : FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
  *fabric = made;
  return 0;
}

int open_fabric(fi_fabric_attr* attr, fid_fabric** fabric, void* context) {
  return Fabric::open(attr, fabric, context);
}

int Fabric::trywait(fid_fabric*, fid_t* fids, int count) {
  for (int i = 0; i < count; ++i) {
    WaitObject* object = nullptr;
    switch (fids[i]->fclass) {
      case FI_CLASS_CQ: object = object_of<Cq>(fids[i]).wait_place().object(); break;
      case FI_CLASS_CNTR: object = object_of<Counter>(fids[i]).wait_place().object(); break;
      case FI_CLASS_EQ: object = object_of<Eq>(fids[i]).wait_place().object(); break;
      case FI_CLASS_WAIT: object = &object_of<WaitSet>(fids[i]).object(); break;
      default: return -FI_EINVAL;
    }
    if (object == nullptr) return -FI_EINVAL;
    if (!object->prepare()) return -FI_EAGAIN;
  }
  return 0;
}

}  // namespace clan::ofi
