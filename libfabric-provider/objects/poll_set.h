// fi_poll_open(): which of several queues and counters have something to read.
#pragma once

#include <vector>

#include "system/provider.h"

namespace clan::ofi {

class Domain;

class PollSet final : public fid_poll {
 public:
  using Face = fid_poll;
  static int open(fid_domain* domain, fi_poll_attr* attr, fid_poll** set);

 private:
  struct Member {
    fid_t object;
    Held held;
  };
  explicit PollSet(Domain& domain) : domain_(domain) {}
  static int poll(fid_poll* set, void** contexts, int count);
  static int add(fid_poll* set, fid_t object, std::uint64_t flags);
  static int remove(fid_poll* set, fid_t object, std::uint64_t flags);
  static fi_ops ops_;
  static fi_ops_poll poll_ops_;

  Domain& domain_;
  Held domain_held_;
  std::vector<Member> members_;
};

}  // namespace clan::ofi
