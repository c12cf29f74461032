// Calls by which a process becomes another user, or loses sight of others.
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "calls/interpose.h"
#include "os/real.h"
#include "share/fork.h"

using namespace clan::preload;

CLAN_INTERPOSED(int, setuid, (uid_t user), (user)) {
  before_identity_changes();
  return real().setuid(user);
}
CLAN_INTERPOSED(int, setgid, (gid_t group), (group)) {
  before_identity_changes();
  return real().setgid(group);
}
CLAN_INTERPOSED(int, seteuid, (uid_t user), (user)) {
  before_identity_changes();
  return real().seteuid(user);
}
CLAN_INTERPOSED(int, setegid, (gid_t group), (group)) {
  before_identity_changes();
  return real().setegid(group);
}
CLAN_INTERPOSED(int, setreuid, (uid_t user, uid_t effective), (user, effective)) {
  before_identity_changes();
  return real().setreuid(user, effective);
}
CLAN_INTERPOSED(int, setregid, (gid_t group, gid_t effective), (group, effective)) {
  before_identity_changes();
  return real().setregid(group, effective);
}
CLAN_INTERPOSED(int, setresuid, (uid_t user, uid_t effective, uid_t saved),
                (user, effective, saved)) {
  before_identity_changes();
  return real().setresuid(user, effective, saved);
}
CLAN_INTERPOSED(int, setresgid, (gid_t group, gid_t effective, gid_t saved),
                (group, effective, saved)) {
  before_identity_changes();
  return real().setresgid(group, effective, saved);
}
CLAN_INTERPOSED(int, chroot, (const char* root), (root)) {
  before_identity_changes();
  return real().chroot(root);
}
CLAN_INTERPOSED(int, setns, (int space, int kind), (space, kind)) {
  before_identity_changes();
  return real().setns(space, kind);
}
