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

// Free Sockets, as a stack.
SpinLock pool_lock;
Socket* free_sockets = nullptr;

void put(Socket* s) {
  s->next_free = free_sockets;
  free_sockets = s;
}

}  // namespace

void lock_sockets() {
  enter_section();
  pool_lock.lock();
}

void unlock_sockets() {
  pool_lock.unlock();
  leave_section();
}

Socket* take_socket_under_lock() {
  if (free_sockets == nullptr) {
    constexpr std::size_t kBatch = 64;
    void* memory = sys::mmap(nullptr, kBatch * sizeof(Socket), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
      auto* sockets = static_cast<Socket*>(memory);
      for (std::size_t i = 0; i < kBatch; ++i) put(new (sockets + i) Socket);
    }
  }
  Socket* s = free_sockets;
  if (s != nullptr) {
    free_sockets = s->next_free;
    s->slot = take_slot();
  }
  return s;
}

Socket* take_socket() {
  lock_sockets();
  Socket* const s = take_socket_under_lock();
  unlock_sockets();
  return s;
}

void give_back_socket(Socket* s) {
  OpenFileState* const slot = s->slot;
  use_slot_no_more(*s);
  s->reset();
  lock_sockets();
  give_back_slot(slot);
  put(s);
  unlock_sockets();
}

bool exchange_slot(Socket& s, OpenFileState& slot) {
  lock_sockets();
  const bool may = gives_slots();
  if (may) {
    // PAIR preload.held: nobody else has it
    dekker::subtract(s.slot->held, OpenFileState::kProcess);
    give_back_slot(std::exchange(s.slot, &slot));
  }
  unlock_sockets();
  return may;
}

}  // namespace clan::preload
