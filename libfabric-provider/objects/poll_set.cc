#include "objects/poll_set.h"

#include <algorithm>

#include "objects/counter.h"
#include "objects/cq.h"
#include "objects/domain.h"

namespace clan::ofi {

fi_ops PollSet::ops_ = object_ops(close_object<PollSet>);

fi_ops_poll PollSet::poll_ops_ = {
    .size = sizeof(fi_ops_poll),
    .poll = PollSet::poll,
    .poll_add = guarded<PollSet::add>,
    .poll_del = guarded<PollSet::remove>,
};

int PollSet::open(fid_domain* id, fi_poll_attr* attr, fid_poll** set) {
  if (attr != nullptr && attr->flags != 0) return -FI_EINVAL;
  auto& domain = *static_cast<Domain*>(id);
  auto* made = new (std::nothrow) PollSet(domain);
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_POLL, nullptr, &ops_};
  made->ops = &poll_ops_;
  made->domain_held_ = Held(domain.references());
  *set = made;
  return 0;
}

int PollSet::add(fid_poll* id, fid_t object, std::uint64_t flags) {
  if (flags != 0) return -FI_EINVAL;
  auto& set = *static_cast<PollSet*>(id);
  References* references;
  if (object->fclass == FI_CLASS_CQ) {
    references = &object_of<Cq>(object).references();
  } else if (object->fclass == FI_CLASS_CNTR) {
    references = &object_of<Counter>(object).references();
  } else {
    return -FI_EINVAL;
  }
  std::lock_guard lock(set.domain_.lock());
  set.members_.push_back({object, Held(*references)});
  return 0;
}

int PollSet::remove(fid_poll* id, fid_t object, std::uint64_t flags) {
  if (flags != 0) return -FI_EINVAL;
  auto& set = *static_cast<PollSet*>(id);
  std::lock_guard lock(set.domain_.lock());
  auto it = std::find_if(set.members_.begin(), set.members_.end(),
                         [object](const Member& m) { return m.object == object; });
  if (it == set.members_.end()) return -FI_EINVAL;
  set.members_.erase(it);
  return 0;
}

int PollSet::poll(fid_poll* id, void** contexts, int count) {
  auto& set = *static_cast<PollSet*>(id);
  std::lock_guard lock(set.domain_.lock());
  int n = 0;
  for (const Member& member : set.members_) {
    bool ready;
    if (member.object->fclass == FI_CLASS_CQ) {
      auto& cq = object_of<Cq>(member.object);
      cq.progress();
      ready = !cq.empty() || cq.overrun();
    } else {
      auto& counter = object_of<Counter>(member.object);
      counter.progress();
      ready = counter.news();
    }
    if (!ready) continue;
    if (n == count) break;
    contexts[n++] = member.object->context;
  }
  return n;
}

}  // namespace clan::ofi
