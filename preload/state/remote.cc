#include "state/remote.h"

#include <dlfcn.h>

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

// Names the component beside this library. False: this is no library of its own.
bool path_of_component(char* to, std::size_t size) {
  Dl_info own{};
  if (::dladdr(reinterpret_cast<const void*>(&path_of_component), &own) == 0) return false;
  const char* slash = std::strrchr(own.dli_fname, '/');
  if (slash == nullptr) return false;
  const int n = std::snprintf(to, size, "%.*s/%s", static_cast<int>(slash - own.dli_fname),
                              own.dli_fname, kRemoteLibrary);
  return n > 0 && static_cast<std::size_t>(n) < size;
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

// Loads the component, once. False: there is none, which has been logged.
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

// Defers signal handlers of the program: the component may hold locks.
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
  // The library is loaded; it starts anew.
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
