// Two environment variables for tests:
//
//   CLAN_TEST_MOVE=1       a connection moves at once, so that short ones use the ring, too. Waits
//                          for the other end for up to two milliseconds.
//   CLAN_TEST_COUNT=FILE   adds up what shared memory has carried in FILE, of 24 bytes or more:
//                          three 64-bit words, streams, bytes sent by clients and by servers.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::preload {

struct TestSettings {
  bool move_at_once = false;
  std::atomic<std::uint64_t>* sums = nullptr;
};
/// Written under config()'s lock, before the first socket is known.
extern constinit TestSettings test_settings;

inline bool moves_at_once() { return test_settings.move_at_once; }
/// Reads the variables; for config().
void read_test_settings();

}  // namespace clan::preload
