"""Orders whose absence no test notices, and why not. See order_mutants.py."""

# mutant: why no test can tell
RMW = "on x86 a read-modify-write is a full fence, and the model has no other machine"
LOAD = "on x86 all loads are alike, and the data come by another pair"
WAKEUP = {
    "post_event_bit q.mid.load seq_cst": LOAD,
    "post_event_bit q.mid.fetch_or seq_cst": RMW,
    "post_event_bit q.root.load seq_cst": LOAD,
    "post_event_bit q.root.fetch_or seq_cst": RMW,
    "post_event_bit q.sleeping.load seq_cst": LOAD,
    "post_event_bit q.sleeping.exchange seq_cst": RMW,
    "take_events q.root.load seq_cst": LOAD,
    "take_events q.root.fetch_and seq_cst": RMW,
    "take_events q.mid.load seq_cst": LOAD,
    "take_events q.root.fetch_and seq_cst #2": RMW,
    "take_events q.mid.load seq_cst #2": LOAD,
    "take_events q.root.fetch_or seq_cst": RMW,
    "take_events q.mid.fetch_and seq_cst": RMW,
    "prepare_sleep q.root.load seq_cst": LOAD,
}

BY_FENCE = "the compare-and-swap before it is a full fence on x86, the model's only machine"
PIPE_WAITING = {
    "announce_reader waiting.compare_exchange_weak seq_cst": RMW,
    "announce_reader even fence": BY_FENCE,
    "withdraw_reader waiting.compare_exchange_strong seq_cst": RMW,
    "take_waiting waiting.exchange seq_cst": RMW,
    "take_waiting_for_room waiting.exchange seq_cst": RMW,
}

WAIT_WORDS = {
    "may_sleep words.armed.load seq_cst": LOAD,
    "wake_sleepers words.armed.exchange seq_cst": RMW,
    "wake_sleepers words.sleepers.load seq_cst": LOAD,
}

QUEUE_CONSUMERS = {
    "prepare_consumer pending.load seq_cst": LOAD,
    "prepare_on_futex fd.load seq_cst": LOAD,
    "each_lane queue.sleeping.load seq_cst": LOAD,
    "each_lane queue.sleeping.exchange seq_cst": RMW,
    "hand_on_events pending.fetch_or seq_cst": RMW,
}

OPEN_FILE = {
    "try_close_over counter.compare_exchange_strong acq_rel":
        "calls that are counted then step back: they have done nothing that would be seen",
    "UnderWay pinned.store seq_cst":
        "a store that is late behind the load after it; there is no model of who holds a file",
}

NO_FENCE = "on x86 loads come in their order, and ThreadSanitizer knows no fences"
PIPE_CLAIM_WORDS = {"read_marked owner.load acquire #2": NO_FENCE}
CONFIG = {
    "config state.compare_exchange_strong acquire": "nothing was read before",
    "config state.load acquire #2": "no test holds a thread while it reads the settings",
}
ZEROED = "the entries are atomics, and come from the kernel as zeros"
AF_CLAN_TABLE = {
    "entry table.load acquire": ZEROED,
    "af_clan_appear table.store release": ZEROED,
}
LATE = "a store that is late behind the load after it; there is no model of sets and gates"
SOCKET_IDENTITY = {
    "become state.store seq_cst": LATE,
    "share inherited.store seq_cst": LATE,
}
FACE = {"add_holders face.words.fetch_add seq_cst": RMW}
ONE_TABLE = "as has_table(): a program makes one table, and one test sees it made"
LIVES = "users of a slot are processes; there is no model of its lives"
OTHER = "of another process: ThreadSanitizer sees one"
SLOT_TABLE = {
    "own_table .entries.load acquire": ONE_TABLE,
    "find_here table.entries.load acquire": ONE_TABLE,
    "is_passable table.entries.load acquire": ONE_TABLE,
    "take e.slot.held.load seq_cst": LIVES,
    "take e.slot.sends.load seq_cst": LIVES,
    "take e.slot.receives.load seq_cst": LIVES,
    "take e.slot.held.compare_exchange_strong seq_cst": LIVES,
    "take_table .entries.load acquire": OTHER,
    "take_table .entries.store release": OTHER,
    "new_entry .cookie.store seq_cst": "nothing is read that comes with it",
}
BEHIND = "a generation or a count behind it shows it, too; it is for processes that are killed"
SHARED_TABLE = {
    "Locked .count.load acquire": BEHIND,
    "Locked fresh.used.store release": BEHIND,
    "Locked .count.store release": BEHIND,
    "Locked .freed.fetch_sub release": BEHIND,
    "Locked .generation.store release": "the count before it shows the line, too",
    "Locked .used.store release": BEHIND,
    "Locked .freed.fetch_add release": BEHIND,
    "Locked l.used.load acquire": "the generation has shown it",
}

SLOTS = "slots are atomics: one that is overwritten too early shows on weaker machines alone"
DEKKER = "a store that is late behind the load after it; the rings have no model of store buffers"
READER = {
    "end_reading owner.store release": "on x86 stores are seen in their order",
    "begin_looking even fence": RMW,
    "stop_reading owner.load acquire": LOAD,
}
RDMA_RING_DRIVER = {
    "take request_head.store release": SLOTS,
    "look completion_head.load acquire": SLOTS,
    "go_idle idle_epoch.store seq_cst": DEKKER,
    "go_idle request_tail.load seq_cst": DEKKER,
    "leave_idle idle_epoch.store release": "late news cost a doorbell",
    "publish_state state.store release": "nothing is read that comes with it",
}
RDMA_RING_APP = {
    "room_for request_head.load acquire": SLOTS,
    "reap completion_head.store release": SLOTS,
    "room_for completion_head.load acquire": SLOTS,
    "publish idle_epoch.load seq_cst": DEKKER,
    "state state.load acquire": "nothing is read that comes with it",
}
CHANNEL = {
    "attach view.control->consumed.load acquire": "the owner before has been another process",
    "announce .head.store release": "a hint for caches: no line is believed by it",
}
GRANT = {
    "change_owner owner.compare_exchange_strong seq_cst": RMW,
    "has_taken table.owner.load seq_cst": LOAD,
    "find_granted_at owner.load seq_cst": LOAD,
    "find_granted_at owner.load seq_cst #2": LOAD,
    "ask_for_channel table.closed.load seq_cst": LOAD,
    "ask_for_channel table.closed.load seq_cst #2": LOAD,
    "refuse_rank table.closed.store seq_cst": "the exchanges behind it drain the store buffer",
}

UNNOTICED = {
    "core/engine/pipe_claim_words.h": PIPE_CLAIM_WORDS,
    "preload/os/config.cc": CONFIG,
    "preload/af_clan/af_clan_table.cc": AF_CLAN_TABLE,
    "preload/state/socket_identity.h": SOCKET_IDENTITY,
    "preload/state/face.h": FACE,
    "preload/share/slot_table.cc": SLOT_TABLE,
    "libfabric-provider/shared_table.cc": SHARED_TABLE,
    "core/nic/wakeup.h": WAKEUP,
    "core/engine/pipe_waiting.h": PIPE_WAITING,
    "core/engine/queue_consumers.h": QUEUE_CONSUMERS,
    "core/nic/rdma_ring_driver.h": RDMA_RING_DRIVER,
    "core/nic/rdma_ring_app.h": RDMA_RING_APP,
    "plugins/mpi/channel_sender.h": CHANNEL,
    "plugins/mpi/grant.h": GRANT,
    "libfabric-provider/wait_words.h": WAIT_WORDS,
    "preload/state/open_file.h": OPEN_FILE,
    "preload/state/reader.h": READER,
}
