// What both load programs of `clan bench rpc` do: a server process, and a client that is asked by
// lines.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>

#include <string>

#include "support/load.h"
#include "transports/slices.h"

namespace clan::bench {

/// Starts `run(ready)` in a process, which writes a byte to `ready` when it serves. Its id.
template <typename Run>
pid_t start_server(Run&& run) {
  int ready[2];
  if (pipe(ready) != 0) fail("pipe");
  const pid_t server = start_child();
  if (server == 0) {
    run(ready[1]);
    _exit(1);
  }
  close(ready[1]);
  char byte;
  if (read(ready[0], &byte, 1) != 1) fail("server");
  return server;
}

inline void end_child(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

/// Figures of calls for `ms`; CPU time is that of both processes.
template <typename Client>
Figure measure(Client& client, const std::string& kind, unsigned size, int ms, pid_t server) {
  constexpr int kSlices = 9;
  const double slice_us = ms * 1000.0 / kSlices;
  for (const double end = now_us() + slice_us; now_us() < end;) client.call(kind, size);
  Slices slices;
  const double limit = now_us() + 5 * ms * 1000.0;
  while (slices.calm() < kSlices && (now_us() < limit || slices.all() < 3)) {
    const Slice slice;
    const double its = cpu_ns_of(server), begin = now_us();
    double at = begin;
    int calls = 0;
    while (at - begin < slice_us) {
      for (int i = 0; i < Client::kBatch; ++i) client.call(kind, size);
      calls += Client::kBatch;
      at = now_us();
    }
    Spent spent = slice.spent();
    spent.cpu_us += (cpu_ns_of(server) - its) / 1000;
    slices.add((at - begin) / calls, spent, calls);
  }
  return slices.figure();
}

/// Says "ready SERVER", then answers each line "KIND BYTES MS" with a figure, microseconds per
/// call.
template <typename Client>
void answer_lines(Client& client, pid_t server) {
  for (int i = 0; i < 100; ++i) client.call("echo", 8);
  std::printf("ready %d\n", server);
  std::fflush(stdout);
  char kind[16];
  unsigned size;
  int ms;
  while (std::scanf("%15s %u %d", kind, &size, &ms) == 3) {
    client.begin(kind, size);
    const Figure figure = measure(client, kind, size, ms, server);
    client.end();
    print(figure);
  }
}

}  // namespace clan::bench
