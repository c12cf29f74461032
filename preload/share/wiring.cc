// Where the upward calls of the lower rooms go.
#include "attach/attach.h"
#include "demote/demote.h"
#include "demote/demote_on_request.h"
#include "migrate/bells.h"
#include "share/reasons.h"
#include "state/hooks.h"
#include "state/remote.h"
#include "state/withdraw.h"
#include "stream/close.h"
#include "table/fd_table.h"
#include "tcp/aborted.h"
#include "tcp/ring.h"
#include "tcp/tcp_backlog.h"
#include "wait/set_events.h"

namespace clan::preload {

constinit Hooks hooks{
    .left_descriptor = left_descriptor,
    .migrated = moved,
    .demoted = went_back,
    .pinned = stayed,
    .going_back = going_back,
    .lost_bells = leave_without_bells,
    .said_why = publish_why,
    .unsaid = withdraw_why,
    .process_said = publish_of_process,
    .unseen_use = take_back_moved,
    .last_close = shared_close,
};

constinit const Interposer interposer{
    .with = with_descriptor,
    .for_each = for_each_socket,
    .create_pipe = create_pipe,
    .make_own_bell = make_own_bell,
    .enter_pipe = enter_pipe,
    .ring = write_bell,
    .stay = stay,
    .switch_sending = switch_sending,
    .answer = [](int fd, Socket& s) { return s.shared() && is_to_go(s) && answer_leaving(fd, s); },
    .go = go_now,
    .break_off = break_off,
};

}  // namespace clan::preload
