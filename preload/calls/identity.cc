// Calls by which a process becomes another user, or loses sight of others.
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "calls/interpose.h"
#include "os/real.h"
#include "share/fork.h"

using namespace clan::preload;

#define CLAN_INTERPOSED_IDENTITY(result, name, parameters, arguments) \
  CLAN_INTERPOSED(result, name, parameters, arguments) {              \
    before_identity_changes();                                        \
    return real().name arguments;                                     \
  }

CLAN_INTERPOSED_IDENTITY(int, setuid, (uid_t user), (user))
CLAN_INTERPOSED_IDENTITY(int, setgid, (gid_t group), (group))
CLAN_INTERPOSED_IDENTITY(int, seteuid, (uid_t user), (user))
CLAN_INTERPOSED_IDENTITY(int, setegid, (gid_t group), (group))
CLAN_INTERPOSED_IDENTITY(int, setreuid, (uid_t user, uid_t effective), (user, effective))
CLAN_INTERPOSED_IDENTITY(int, setregid, (gid_t group, gid_t effective), (group, effective))
CLAN_INTERPOSED_IDENTITY(int, setresuid, (uid_t user, uid_t effective, uid_t saved),
                         (user, effective, saved))
CLAN_INTERPOSED_IDENTITY(int, setresgid, (gid_t group, gid_t effective, gid_t saved),
                         (group, effective, saved))
CLAN_INTERPOSED_IDENTITY(int, chroot, (const char* root), (root))
CLAN_INTERPOSED_IDENTITY(int, setns, (int space, int kind), (space, kind))
