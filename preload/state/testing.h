// Two switches for tests, in the environment and nowhere else (preload/README.md, "Tests"):
//
//   CLAN_TEST_MOVE=1       a connection moves at once instead of after some calls, so that programs whose connections
//                          are short use the ring, too. Waits for the other end for up to two milliseconds.
//   CLAN_TEST_COUNT=FILE   adds up in FILE what went by shared memory: three 64-bit words, streams, bytes
//                          sent by clients and by servers. The file is there before, with at least 24 bytes.
#pragma once

#include "state/socket.h"

namespace clan::preload {

namespace testing_detail {
extern bool move_at_once;  ///< written under config()'s lock, before the first socket is known
}

/// CLAN_TEST_MOVE is set. Valid once a socket is known.
inline bool moves_at_once() { return testing_detail::move_at_once; }
/// Reads the two; by config().
void read_test_settings();

/// Both ends count what they find that the other one has not counted: at close, exit and _exit. A process that is
/// killed counts nothing.
void count_for_test(Socket& s);

}  // namespace clan::preload
