// The load program of `clan bench rpc` for clan-rpcgen's stubs: shrimp SERVER_CORE CLIENT_CORE. It
// answers as load.cc does; kind "echo" of 0, 8, 64, 256, 1440 and 3072 bytes, and "cacheline": the
// bare round trip of a cache line between the two processes.
#include <atomic>
#include <new>

#include "calls.h"
#include "flat.h"

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

using namespace clan::bench;

struct Ball {
  alignas(64) std::atomic<unsigned> there{0};
  alignas(64) std::atomic<unsigned> back{0};
  alignas(64) std::atomic<unsigned> play{0};
};
Ball* ball = nullptr;

void check(clan_shrimp_stat stat) {
  if (stat == CLAN_SHRIMP_OK) return;
  give_up("call", clan_shrimp_text(stat));
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

struct Client {
  static constexpr int kBatch = 16;
  clan_shrimp_client* client;

  void begin(const std::string& kind, unsigned) { ball->play.store(kind == "cacheline" ? 1 : 0); }
  void end() { ball->play.store(0); }
  void call(const std::string& kind, unsigned size) {
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
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int server_core = std::atoi(argv[2]), client_core = std::atoi(argv[3]);
  ball =
      new (mmap(nullptr, sizeof(Ball), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          Ball;
  const std::string name = "bench-" + std::to_string(getpid());
  const pid_t server = start_server([&](int ready) {
    pin(server_core);
    clan_shrimp_server* serving = clan_shrimp_listen(name.c_str(), &flat_1_service);
    if (serving == nullptr || write(ready, "x", 1) != 1) _exit(1);
    clan_shrimp_serve(serving, -1);
  });
  const pid_t player = start_child();
  if (player == 0) play(server_core);
  pin(client_core);
  Client client{clan_shrimp_connect(name.c_str(), &flat_1_program, 10'000)};
  if (client.client == nullptr) fail("clan_shrimp_connect");
  answer_lines(client, server);
  clan_shrimp_close(client.client);
  end_child(server);
  end_child(player);
  return 0;
}
