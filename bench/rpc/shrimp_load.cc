// The load program of `clan bench rpc` for clan-rpcgen's stubs: shrimp SERVER_CORE CLIENT_CORE. It
// answers as load.cc does; kind "echo" of 0, 8, 64, 256, 1440 and 3072 bytes, and "cacheline": the
// bare round trip of a cache line between the two processes.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "flat.h"
#include "transports/slices.h"

extern "C" {

int nothing_1_svc(void*, void*, clan_shrimp_call*) { return 1; }
#define ECHO(size)                                                                      \
  int echo##size##_1_svc(echo##size* argument, echo##size* result, clan_shrimp_call*) { \
    *result = *argument;                                                                \
    return 1;                                                                           \
  }
ECHO(8)
ECHO(64)
ECHO(256)
ECHO(1440)
ECHO(3072)

}  // extern "C"

namespace {

constexpr int kSlices = 9;

struct Ball {
  alignas(64) std::atomic<unsigned> there{0};
  alignas(64) std::atomic<unsigned> back{0};
  alignas(64) std::atomic<unsigned> play{0};
};
Ball* ball = nullptr;

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

void pin(int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

void check(clan_shrimp_stat stat) {
  if (stat == CLAN_SHRIMP_OK) return;
  std::fprintf(stderr, "%s\n", clan_shrimp_text(stat));
  std::exit(1);
}

template <typename T>
void echo(clan_shrimp_stat (*stub)(T*, T*, clan_shrimp_client*), clan_shrimp_client* client) {
  static T in, out;
  in.data[0] = static_cast<char>(in.data[0] + 1);
  in.data[sizeof in - 1] = in.data[0];
  check(stub(&in, &out, client));
  if (out.data[0] != in.data[0] || out.data[sizeof in - 1] != in.data[0]) std::exit(3);
}

void play(int core) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin(core);
  for (;;) {
    while (ball->play.load() == 0) usleep(200);
    while (ball->play.load(std::memory_order_relaxed) != 0) {
      // Both ends ask for exactly what a call does: one line there, another back.
      const unsigned n = ball->there.load(std::memory_order_acquire);
      if (n != ball->back.load(std::memory_order_relaxed))
        ball->back.store(n, std::memory_order_release);
    }
  }
}

void once(const std::string& kind, unsigned size, clan_shrimp_client* client) {
  if (kind == "cacheline") {
    const unsigned n = ball->there.load(std::memory_order_relaxed) + 1;
    ball->there.store(n, std::memory_order_release);
    while (ball->back.load(std::memory_order_acquire) != n) continue;
    return;
  }
  switch (size) {
    case 0: return check(nothing_1(nullptr, nullptr, client));
    case 8: return echo(echo8_1, client);
    case 64: return echo(echo64_1, client);
    case 256: return echo(echo256_1, client);
    case 1440: return echo(echo1440_1, client);
    case 3072: return echo(echo3072_1, client);
    default: std::exit(2);
  }
}

void measure(const std::string& kind, unsigned size, int ms, clan_shrimp_client* client,
             pid_t server) {
  ball->play.store(kind == "cacheline" ? 1 : 0);
  const double slice_us = ms * 1000.0 / kSlices;
  for (const double end = now_us() + slice_us; now_us() < end;) once(kind, size, client);
  clan::bench::Slices slices;
  const double limit = now_us() + 5 * ms * 1000.0;
  while (slices.calm() < kSlices && (now_us() < limit || slices.all() < 3)) {
    const clan::bench::Slice slice;
    const double its = clan::bench::cpu_ns_of(server);
    const double begin = now_us();
    double at = begin;
    int calls = 0;
    while (at - begin < slice_us) {
      for (int i = 0; i < 16; ++i) once(kind, size, client);
      calls += 16;
      at = now_us();
    }
    clan::bench::Spent spent = slice.spent();
    spent.cpu_us += (clan::bench::cpu_ns_of(server) - its) / 1000;
    slices.add((at - begin) / calls, spent, calls);
  }
  ball->play.store(0);
  print(slices.figure());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int server_core = std::atoi(argv[2]), client_core = std::atoi(argv[3]);
  ball =
      new (mmap(nullptr, sizeof(Ball), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          Ball;
  const std::string name = "bench-" + std::to_string(getpid());
  int ready[2];
  if (pipe(ready) != 0) return 1;
  const pid_t server = fork();
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(server_core);
    clan_shrimp_server* serving = clan_shrimp_listen(name.c_str(), &flat_1_service);
    if (serving == nullptr || write(ready[1], "x", 1) != 1) _exit(1);
    clan_shrimp_serve(serving, -1);
    _exit(1);
  }
  const pid_t player = fork();
  if (player == 0) play(server_core);
  char byte;
  if (read(ready[0], &byte, 1) != 1) return 1;
  pin(client_core);
  clan_shrimp_client* client = clan_shrimp_connect(name.c_str(), &flat_1_program, 10'000);
  if (client == nullptr) {
    std::perror("clan_shrimp_connect");
    return 1;
  }
  for (int i = 0; i < 100; ++i) once("echo", 8, client);
  std::printf("ready %d\n", server);
  std::fflush(stdout);
  char kind[16];
  unsigned size;
  int ms;
  while (std::scanf("%15s %u %d", kind, &size, &ms) == 3) measure(kind, size, ms, client, server);
  clan_shrimp_close(client);
  for (const pid_t child : {server, player}) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  return 0;
}
