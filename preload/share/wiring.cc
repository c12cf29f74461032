// Where the upward calls of the lower rooms go.

#include "far/carrier.h"
#include "migrate/demote.h"
#include "share/reasons.h"
#include "state/hooks.h"
#include "stream/close.h"
#include "wait/owed_answers.h"
#include "wait/set_events.h"

namespace clan::preload {

constinit Hooks hooks{
    .left_descriptor = left_descriptor,
    .migrated = moved,
    .demoted = went_back,
    .pinned = stayed,
    .held_up = held_up,
    .set_sleeps = set_sleeps,
    .put_off = put_off,
    .said_why = publish_why,
    .unsaid = withdraw_why,
    .process_said = publish_of_process,
    .unseen_use = take_back_moved,
    .let_go = let_go_of_far,
    .before_last_close = hand_over_end,
    .last_close = shared_close,
};

}  // namespace clan::preload
