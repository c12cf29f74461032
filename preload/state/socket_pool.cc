#include "state/socket_pool.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "clan/detail/dekker.h"
#include "os/signals.h"
#include "os/spin_lock.h"
#include "os/sys.h"
#include "table/open_file.h"
#include "table/slot_table.h"

namespace clan::preload {
namespace {

// Free Sockets, as a stack under a spin lock: taken at connect and accept, not per byte.
struct Pool {
  SpinLock lock;
  Socket* free = nullptr;
  void put(Socket* s) {
    s->next_free = free;
    free = s;
  }
  void enter() {
    enter_section();
    lock.lock();
  }
  void leave() {
    lock.unlock();
    leave_section();
  }
};
Pool pool;

}  // namespace

Socket* take_socket_under_lock() {
  if (pool.free == nullptr) {
    constexpr std::size_t kBatch = 64;
    void* memory = sys::mmap(nullptr, kBatch * sizeof(Socket), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
      auto* sockets = static_cast<Socket*>(memory);
      for (std::size_t i = 0; i < kBatch; ++i) pool.put(new (sockets + i) Socket);
    }
  }
  Socket* s = pool.free;
  if (s != nullptr) {
    pool.free = s->next_free;
    s->slot = take_slot();
  }
  return s;
}

Socket* take_socket() {
  pool.enter();
  Socket* const s = take_socket_under_lock();
  pool.leave();
  return s;
}

void give_back_socket(Socket* s) {
  OpenFileState* const slot = s->slot;
  use_slot_no_more(*s);
  s->reset();
  pool.enter();
  give_back_slot(slot);
  pool.put(s);
  pool.leave();
}

bool exchange_slot(Socket& s, OpenFileState& slot) {
  pool.enter();
  const bool may = gives_slots();
  if (may) {
    // PAIR preload.held: nobody else has it
    dekker::subtract(s.slot->held, OpenFileState::kProcess);
    give_back_slot(std::exchange(s.slot, &slot));
  }
  pool.leave();
  return may;
}

void lock_sockets() { pool.enter(); }
void unlock_sockets() { pool.leave(); }

}  // namespace clan::preload
