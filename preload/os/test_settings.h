// Two switches for tests, in the environment and nowhere else:
//
//   CLAN_TEST_MOVE=1       a connection moves at once instead of after some calls, so that programs
//                          whose connections are short use the ring, too. Waits for the other end
//                          for up to two milliseconds.
//   CLAN_TEST_COUNT=FILE   adds up in FILE what went by shared memory: three 64-bit words, streams,
//                          bytes sent by clients and by servers. The file is there before, with at
//                          least 24 bytes.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::preload {

struct TestSettings {
  bool move_at_once = false;
  /// in the file: streams, bytes from clients, bytes from servers
  std::atomic<std::uint64_t>* sums = nullptr;
};
/// Written under config()'s lock, before the first socket is known.
extern constinit TestSettings test_settings;

/// CLAN_TEST_MOVE is set. Valid once a socket is known.
inline bool moves_at_once() { return test_settings.move_at_once; }
/// Reads the two; by config().
void read_test_settings();

}  // namespace clan::preload
