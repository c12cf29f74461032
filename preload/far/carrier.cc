#include "far/carrier.h"

#include <dlfcn.h>
#include <link.h>
#include <sched.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "clan/log.h"
#include "clan/words.h"
#include "os/config.h"
#include "os/kept_key.h"
#include "os/signals.h"
#include "os/spin_lock.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

constexpr std::uint32_t kLastBytesMs = 2000;

std::atomic<const CarrierTable*> the_table{nullptr};
std::atomic<bool> tried{false};
SpinLock loading;

// No handler of the program's runs while its thread is in the carrier, whose locks it may have.
class InCarrier {
 private:
  Undisturbed undisturbed_;
  KeepErrno keep_;
};

struct OwnPath {
  char* to;
  std::size_t size;
  bool found;
};

// Beside this library.
int take_if_own(dl_phdr_info* library, std::size_t, void* argument) {
  const auto here = reinterpret_cast<ElfW(Addr)>(&take_if_own);
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const auto& part = library->dlpi_phdr[i];
    const ElfW(Addr) begin = library->dlpi_addr + part.p_vaddr;
    if (part.p_type != PT_LOAD || here < begin || here - begin >= part.p_memsz) continue;
    auto& own = *static_cast<OwnPath*>(argument);
    const char* slash = std::strrchr(library->dlpi_name, '/');
    if (slash == nullptr) return 1;
    const int n =
        std::snprintf(own.to, own.size, "%.*s/%s", static_cast<int>(slash - library->dlpi_name),
                      library->dlpi_name, kCarrierLibrary);
    own.found = n > 0 && static_cast<std::size_t>(n) < own.size;
    return 1;
  }
  return 0;
}

bool path_of_carrier(char* to, std::size_t size) {
  OwnPath own{to, size, false};
  ::dl_iterate_phdr(take_if_own, &own);
  return own.found;
}

const CarrierTable* load() {
  char path[4096];
  if (!path_of_carrier(path, sizeof path)) return nullptr;
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    log_line(LogLevel::kError,
             "connections to other hosts stay on TCP: %s cannot be loaded; it belongs beside "
             "libclan-preload.so",
             path);
    return nullptr;
  }
  auto* get = reinterpret_cast<CarrierTableOf*>(::dlsym(library, kCarrierSymbol));
  const CarrierTable* table = get != nullptr ? get() : nullptr;
  if (table == nullptr || table->version != kCarrierVersion) {
    log_line(LogLevel::kError,
             "connections to other hosts stay on TCP: %s is of another version of CLAN", path);
    return nullptr;
  }
  if (const char* why = table->start(config(), kept_key(config()), carrier_calls); why != nullptr) {
    log_line(LogLevel::kError, "connections to other hosts stay on TCP: %s", why);
    return nullptr;
  }
  return table;
}

const CarrierTable& table() { return *the_table.load(std::memory_order_relaxed); }

CarrierSide side_of(const Endpoint& end) { return {end.address, end.port}; }

Carried* of(const Socket& s) { return s.far.load(std::memory_order_relaxed); }

}  // namespace

bool has_carrier() {
  // PAIR preload.carrier: sees the table
  if (words::look(the_table) != nullptr) return true;
  if (tried.load(std::memory_order_relaxed)) return false;
  const InCarrier here;
  loading.lock();
  if (!tried.load(std::memory_order_relaxed)) {
    // PAIR preload.carrier: publishes the table
    words::publish(the_table, load());
    tried.store(true, std::memory_order_relaxed);
  }
  loading.unlock();
  return words::look(the_table) != nullptr;  // PAIR preload.carrier
}

bool carrier_is_loaded() { return the_table.load(std::memory_order_relaxed) != nullptr; }

bool meet_far(Socket& s, const Route& route) {
  const InCarrier here;
  const CarrierNames names{side_of(route.local), side_of(route.remote)};
  Carried* carried = s.client ? table().dial(names, &s) : table().await(names, &s);
  s.far.store(carried, std::memory_order_relaxed);
  return carried != nullptr;
}

CarrierStage far_stage(const Socket& s) {
  const InCarrier here;
  return table().stage(of(s));
}

bool carry(Socket& s) {
  auto end = s.pipe.at_other_end();
  if (!end) return false;
  const InCarrier here;
  return table().attach(of(s), &*end);
}

void wake_carrier(Socket& s) {
  if (!is_far(s)) return;
  const InCarrier here;
  table().wake(of(s));
}

bool look_at_network() {
  if (!carrier_is_loaded()) return false;
  const InCarrier here;
  return table().look();
}

bool begin_network_sleep(bool may_fetch, PacketFds* watched) {
  if (!carrier_is_loaded()) return true;
  const InCarrier here;
  return table().begin_sleep(thread_id(), may_fetch, watched);
}

bool end_network_sleep(bool fetches) {
  if (!carrier_is_loaded()) return false;
  const InCarrier here;
  return table().end_sleep(thread_id(), fetches);
}

bool is_all_there(Socket& s) {
  if (!is_far(s)) return true;
  const InCarrier here;
  if (table().stage(of(s)) == CarrierStage::kOver) return true;
  table().tcp_ended(of(s));
  return false;
}

void let_go_of_far(Socket& s) {
  Carried* carried = s.far.exchange(nullptr, std::memory_order_relaxed);
  if (carried == nullptr) return;
  const InCarrier here;
  table().release(carried);
}

void finish_carrier() {
  if (the_table.load(std::memory_order_relaxed) == nullptr) return;
  const InCarrier here;
  table().finish(kLastBytesMs);
}

void carrier_before_fork() {
  if (the_table.load(std::memory_order_relaxed) != nullptr) table().before_fork();
}

void carrier_after_fork(bool in_child) {
  const CarrierTable* loaded = the_table.load(std::memory_order_relaxed);
  if (loaded == nullptr) return;
  loaded->after_fork(in_child);
  if (!in_child) return;
  // The library is there; a Node of its own is to be started.
  the_table.store(nullptr, std::memory_order_relaxed);
  tried.store(false, std::memory_order_relaxed);
}

}  // namespace clan::preload
