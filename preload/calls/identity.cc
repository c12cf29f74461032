// Calls by which a process becomes another user, or loses sight of others.
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "calls/interpose.h"
#include "os/real.h"
#include "share/fork.h"

using namespace clan::preload;

#define CLAN_IDENTITY(name, parameters, ...)    \
  CLAN_INTERPOSE int name parameters noexcept { \
    before_identity_changes();                  \
    return real().name(__VA_ARGS__);            \
  }

CLAN_IDENTITY(setuid, (uid_t user), user)
CLAN_IDENTITY(setgid, (gid_t group), group)
CLAN_IDENTITY(seteuid, (uid_t user), user)
CLAN_IDENTITY(setegid, (gid_t group), group)
CLAN_IDENTITY(setreuid, (uid_t user, uid_t effective), user, effective)
CLAN_IDENTITY(setregid, (gid_t group, gid_t effective), group, effective)
CLAN_IDENTITY(setresuid, (uid_t user, uid_t effective, uid_t saved), user, effective, saved)
CLAN_IDENTITY(setresgid, (gid_t group, gid_t effective, gid_t saved), group, effective, saved)
CLAN_IDENTITY(chroot, (const char* root), root)
CLAN_IDENTITY(setns, (int space, int kind), space, kind)
