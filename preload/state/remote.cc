#include "state/remote.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "os/config.h"
#include "os/signals.h"
#include "os/spin_lock.h"
#include "state/withdraw.h"
#include "table/fd_table.h"

namespace clan::preload {
namespace {

std::atomic<const RemoteConnections*> the_table{nullptr};
std::atomic<bool> tried{false};
SpinLock loading;

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
                      library->dlpi_name, kRemoteLibrary);
    own.found = n > 0 && static_cast<std::size_t>(n) < own.size;
    return 1;
  }
  return 0;
}

bool path_of_component(char* to, std::size_t size) {
  OwnPath own{to, size, false};
  ::dl_iterate_phdr(take_if_own, &own);
  return own.found;
}

const RemoteConnections* load() {
  char path[4096];
  if (!path_of_component(path, sizeof path)) return nullptr;
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    log_line(LogLevel::kError,
             "connections to other hosts stay on TCP: %s cannot be loaded; it belongs beside "
             "libclan-preload.so",
             path);
    return nullptr;
  }
  auto* get = reinterpret_cast<RemoteConnectionsOf*>(::dlsym(library, kRemoteSymbol));
  const RemoteConnections* table = get != nullptr ? get() : nullptr;
  if (table == nullptr || table->version != kRemoteVersion) {
    log_line(LogLevel::kError,
             "connections to other hosts stay on TCP: %s is of another version of CLAN", path);
    return nullptr;
  }
  if (const char* why = table->start(config(), interposer); why != nullptr) {
    log_line(LogLevel::kError, "connections to other hosts stay on TCP: %s", why);
    return nullptr;
  }
  return table;
}

// Loads the component, the first time. False: there is none, which has been said.
bool has_component() {
  // PAIR preload.remote: sees the table
  if (words::load_acquire(the_table) != nullptr) return true;
  if (tried.load(std::memory_order_relaxed)) return false;
  const DeferSignals undisturbed;
  KeepErrno keep;
  loading.lock();
  if (!tried.load(std::memory_order_relaxed)) {
    // PAIR preload.remote: publishes the table
    words::store_release(the_table, load());
    tried.store(true, std::memory_order_relaxed);
  }
  loading.unlock();
  return words::load_acquire(the_table) != nullptr;  // PAIR preload.remote
}

// No handler of the program's runs while its thread is in the component, whose locks it may have.
template <typename Result, typename... Declared, typename... HandedBack>
Result call(Result (*RemoteConnections::*what)(Declared...), HandedBack&&... given) {
  const DeferSignals undisturbed;
  KeepErrno keep;
  return (the_table.load(std::memory_order_relaxed)->*what)(given...);
}

}  // namespace

bool remote_is_loaded() { return the_table.load(std::memory_order_relaxed) != nullptr; }

void move_to_other_host(int fd, Socket& s, const Route* route) {
  if (!has_component()) return stay(fd, s, reasons::Why::kNoNetwork);
  call(&RemoteConnections::move, fd, s, route);
}

void let_go_of_remote(Socket& s) {
  if (is_remote(s)) call(&RemoteConnections::let_go, s);
}

void wake_remote(int fd, Socket& s) {
  if (is_remote(s)) call(&RemoteConnections::wake, fd, s);
}

bool fetch_packets() { return remote_is_loaded() && call(&RemoteConnections::look); }

bool begin_packet_sleep(bool may_fetch, PacketFds* watched) {
  return !remote_is_loaded() ||
         call(&RemoteConnections::begin_sleep, thread_id(), may_fetch, watched);
}

bool end_packet_sleep(bool fetches) {
  return remote_is_loaded() && call(&RemoteConnections::end_sleep, thread_id(), fetches);
}

bool is_all_there(Socket& s) { return !is_remote(s) || call(&RemoteConnections::is_all_there, s); }

void leave_other_host(int fd, Socket& s) { call(&RemoteConnections::leave, fd, s); }

void end_remote() {
  if (remote_is_loaded()) call(&RemoteConnections::end);
}

void remote_before_fork() {
  if (remote_is_loaded()) call(&RemoteConnections::before_fork);
}

void remote_after_fork(bool in_child) {
  if (!remote_is_loaded()) return;
  call(&RemoteConnections::after_fork, in_child);
  if (!in_child) return;
  // The library is there; it begins anew.
  the_table.store(nullptr, std::memory_order_relaxed);
  tried.store(false, std::memory_order_relaxed);
}

bool with_descriptor(Socket& s, bool (*what)(int fd, Socket& s)) {
  const DeferSignals undisturbed;
  KeepErrno keep;
  int fd = s.remote_fd.load(std::memory_order_relaxed);
  if (fd < 0 || acquire(fd).get() != &s) {
    fd = descriptor_of(s);
    s.remote_fd.store(fd, std::memory_order_relaxed);
  }
  if (fd < 0) return true;
  const SocketRef held = acquire(fd);
  return held.get() != &s || what(fd, s);
}

}  // namespace clan::preload
