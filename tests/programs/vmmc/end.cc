// One end of VMMC as a program of its own, for programs.py:
//
//     vmmc-end serve NAME          exports 1 MB; "ready"; checks the sum of each notified stretch,
//                                  until word 0 says how many there were; "right"
//     vmmc-end ask NAME [HOST]     fills stretches by sends and by bindings of each mode; "right"
//     vmmc-end hold NAME [HOST]    the same, "held", and then waits to be killed
//     vmmc-end watch NAME [HOST]   "held"; waits until the exporter has gone; "gone"
#include <cstdio>
#include <random>

#include "vmmc/ends.h"

namespace clan::vmmc::testing {
namespace {

constexpr std::size_t kAll = 1 << 20, kStretch = 64 * 1024;

void check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "vmmc-end: %s\n", what);
  std::_Exit(1);
}
void say(const char* what) {
  std::puts(what);
  std::fflush(stdout);
}

std::uint64_t sum_of(const void* data, std::size_t bytes) {
  std::uint64_t sum = bytes;
  for (std::size_t i = 0; i < bytes; ++i)
    sum = sum * 31 + static_cast<const std::uint8_t*>(data)[i];
  return sum;
}

struct Sums {
  std::atomic<std::uint64_t> checked{0};
  static void note(vmmc_buffer_t*, const vmmc_notification_t* what, void* self) {
    const auto* const data = static_cast<const std::uint8_t*>(what->address);
    check(word_at(data, 0) == sum_of(data + 8, what->size - 8), "the sum is wrong");
    static_cast<Sums*>(self)->checked.fetch_add(1, std::memory_order_relaxed);
  }
};

int serve(const char* name) {
  Open v;
  Sums sums;
  auto* const memory = static_cast<std::uint8_t*>(vmmc_alloc(v, kAll));
  vmmc_buffer_t* buffer = nullptr;
  check(vmmc_export(v, name, memory, kAll, nullptr, Sums::note, &sums, &buffer) == 0, "export");
  say("ready");
  while (word_at(memory, 0) == 0) std::this_thread::yield();
  while (sums.checked.load(std::memory_order_relaxed) != word_at(memory, 0))
    std::this_thread::yield();
  say("right");
  return vmmc_unexport(buffer);
}

struct Asker {
  Asker(const char* name, const char* host) {
    check(vmmc_import(v, host, name, kSoon, &remote) == 0, "import");
    check(vmmc_size(remote) == kAll, "size");
  }
  ~Asker() { check(vmmc_unimport(remote) == 0, "unimport"); }

  // The next stretch is complete, and has `data` behind its sum.
  void tell(const void* data, std::size_t bytes) {
    check(vmmc_put_word(remote, at, sum_of(data, bytes)) == 0, "word");
    check(vmmc_notify(remote, at, bytes + 8) == 0, "notify");
    at += kStretch;
    ++told;
  }
  void send(std::size_t bytes, bool waits) {
    std::vector<std::uint8_t> data(bytes);
    for (auto& byte : data) byte = static_cast<std::uint8_t>(random());
    std::uint64_t handle = 0;
    const int rc = waits ? vmmc_send(remote, at + 8, data.data(), bytes, 0)
                         : vmmc_send_async(remote, at + 8, data.data(), bytes, 0, &handle);
    check(rc == 0, "send");
    tell(data.data(), bytes);
    if (!waits) check(vmmc_wait(v, handle, kSoon) == 0, "wait");
  }
  void bind(vmmc_mode_t mode, const char* host) {
    constexpr std::size_t kBound = 12 * kPage;
    vmmc_binding_t* binding = nullptr;
    const int rc = vmmc_bind(remote, at + 8, nullptr, kBound, mode, 0, &binding);
    if (mode == VMMC_ALIAS && host != nullptr) return check(rc == -EOPNOTSUPP, "an alias");
    check(rc == 0, "bind");
    auto* const bound = static_cast<std::uint8_t*>(vmmc_bound(binding));
    for (int n = 0; n < 1000; ++n) {
      const std::size_t i = random() % (kBound / 8) * 8;
      const std::uint64_t word = random();
      if (mode == VMMC_STORE) check(vmmc_store_word(binding, i, word) == 0, "store");
      if (mode != VMMC_STORE) std::memcpy(bound + i, &word, sizeof word);
      if (n % 50 == 0) check(vmmc_flush(binding) == 0, "flush");
    }
    check(vmmc_flush(binding) == 0, "flush");
    tell(bound, kBound);
    check(vmmc_unbind(binding) == 0, "unbind");
  }
  void ask(const char* host) {
    for (const std::size_t bytes : {8u, 1000u, 60'000u}) {
      send(bytes, true);
      send(bytes, false);
    }
    for (const vmmc_mode_t mode : {VMMC_ALIAS, VMMC_STORE, VMMC_MIRROR}) bind(mode, host);
  }

  Open v;
  vmmc_remote_t* remote = nullptr;
  std::mt19937_64 random{7};
  std::size_t at = kStretch;
  std::uint64_t told = 0;
};

}  // namespace
}  // namespace clan::vmmc::testing

int main(int argc, char** argv) {
  using namespace clan::vmmc::testing;
  const std::string what = argc > 2 ? argv[1] : "";
  const char* const host = argc > 3 ? argv[3] : nullptr;
  if (what == "serve") return serve(argv[2]);
  if (what.empty()) return 2;
  Asker asker(argv[2], host);
  if (what == "watch") {
    say("held");
    while (vmmc_check(asker.remote) == 0) std::this_thread::yield();
    check(vmmc_check(asker.remote) == -ECONNRESET, "the exporter has been killed");
    say("gone");
    return 0;
  }
  asker.ask(host);
  if (what == "hold") {
    say("held");
    for (;;) ::pause();
  }
  check(vmmc_put_word(asker.remote, 0, asker.told) == 0, "the last word");
  say("right");
  return 0;
}
