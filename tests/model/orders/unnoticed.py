"""Orders whose absence no test notices, and why not. See order_mutants.py."""

# mutant: why no test can tell
RMW = "on x86 a read-modify-write is a full fence, and the model has no other machine"
LOAD = "on x86 all loads are alike, and the data come by another pair"
WAKEUP = {
    "end_single_shot armed.compare_exchange_strong release": RMW,
    "post_event_bit q.mid.load seq_cst": LOAD,
    "post_event_bit q.root.load seq_cst": LOAD,
    "begin_wake q.sleeping.compare_exchange_strong seq_cst": RMW,
    "prepare_sleep q.sleeping.compare_exchange_strong seq_cst": RMW,
    "take_events q.root.fetch_and seq_cst": RMW,
    "take_events q.mid.load seq_cst": LOAD,
    "take_events q.root.fetch_and seq_cst #2": RMW,
    "take_events q.mid.load seq_cst #2": LOAD,
    "take_events q.root.fetch_or seq_cst": RMW,
    "take_events q.mid.fetch_and seq_cst": "the load before it sees the leaf as well; and as above",
}

BY_FENCE = "the compare-and-swap before it is a full fence on x86, the model's only machine"
PIPE_WAITING = {
    "announce waiting.compare_exchange_weak seq_cst": RMW,
    "announce even fence": BY_FENCE,
    "withdraw_reader waiting.compare_exchange_strong seq_cst": RMW,
    "take_waiting waiting.exchange seq_cst": RMW,
    "take_waiting_for_room waiting.exchange seq_cst": RMW,
}

WAIT_WORDS = {
    "may_sleep words.armed.load seq_cst": LOAD,
    "wake_sleepers words.armed.exchange seq_cst": RMW,
    "wake_sleepers words.sleepers.load seq_cst": LOAD,
}

OPEN_FILE = {
    "try_close_over counter.compare_exchange_strong acq_rel":
        "calls that are counted then step back: they have done nothing that would be seen",
}

CONFIG = {
    "config state.compare_exchange_strong acquire": "nothing was read before",
    "config state.load acquire #2": "no test holds a thread while it reads the settings",
}
LATE = "a store that is late behind the load after it; there is no model of sets and gates"
SOCKET_IDENTITY = {
    "become state.store seq_cst": LATE,
}
ONE_TABLE = "as has_table(): a program makes one table, and one test sees it made"
LIVES = "users of a slot are processes; there is no model of its lives"
SLOT_TABLE = {
    "is_own own.load acquire": ONE_TABLE,
    "own_table own.load acquire": ONE_TABLE,
    "find_slot own.load acquire": ONE_TABLE,
    "give_back_slot own.load acquire": ONE_TABLE,
    "take slot.sends.load seq_cst": LIVES,
    "take slot.receives.load seq_cst": LIVES,
    "take slot.cookie.store seq_cst": "nothing is read that comes with it",
    "name_slot slot.cookie.store release": "slot_table_race_test names its slot itself",
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

CHANNEL = {
    "attach view.control->consumed.load acquire": "the owner before has been another process",
    "announce .head.store release": "a hint for caches: no line is believed by it",
}
DEKKER = {
    "even  seq_cst": "the model has a fence of its own, and ThreadSanitizer knows none",
}

UNNOTICED = {
    "core/include/clan/detail/dekker.h": DEKKER,
    "preload/os/config.cc": CONFIG,
    "preload/state/socket_identity.h": SOCKET_IDENTITY,
    "preload/table/slot_table.cc": SLOT_TABLE,
    "libfabric-provider/system/shared_table.cc": SHARED_TABLE,
    "core/nic/wakeup.h": WAKEUP,
    "core/engine/pipe/pipe_waiting.h": PIPE_WAITING,
    "plugins/mpi/channel/channel_sender.h": CHANNEL,
    "libfabric-provider/wait/wait_words.h": WAIT_WORDS,
    "preload/table/open_file.h": OPEN_FILE,
}
