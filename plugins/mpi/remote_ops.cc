// The answering side of operations.h: by threads in MPI, and by one that is woken where none is.
#include <clan/detail/words.h>

#include <csignal>
#include <cstring>
#include <system_error>

#include "component.h"

namespace clan::mpi {
namespace {

void answer_where(Node& node, const AskedOperation& asked, OperationCell& cell) {
  const auto handle = node.registrations.find(asked.address, asked.bytes);
  cell.error = handle ? 0 : ERANGE;
  if (handle) {
    const RdmaCookie& cookie = handle->cookie;
    cell.aperture = cookie.aperture;
    cell.key = cookie.key;
    const FoundWindow found{handle->base, cookie.length, cookie.generation,
                            static_cast<std::uint16_t>(cookie.rights), handle->block};
    std::memcpy(cell.data, &found, sizeof found);
  }
  // PAIR cell.state: publishes the answer
  words::store_release(cell.state, CellState::kDone);
}

}  // namespace

void serve_cell(Node& node, OperationCell& cell) {
  CellState posted = CellState::kPosted;
  // PAIR cell.state: sees the operation; of all threads that look, one gets it
  if (!words::cas(cell.state, posted, CellState::kTaken)) return;
  AskedOperation asked = asked_in(cell);
  if (asked.operation == Operation::kFind) return answer_where(node, asked, cell);
  cell.error = static_cast<std::uint16_t>(node.registrations.with(
      asked.aperture, asked.key, asked.address, asked.bytes, asked.operation != Operation::kGet,
      [&](std::byte* address) { return carry_out(asked, address); }));
  std::memcpy(cell.data, asked.data, sizeof cell.data);
  // PAIR cell.state: publishes the answer
  words::store_release(cell.state, CellState::kDone);
}

void serve_those_that_wait(Node& node) {
  for (std::uint32_t i = 0; i < node.segment.taken(); ++i) {
    OperationCell& cell = *cells_of(node.segment.channel(i));
    // relaxed: serve_cell() acquires
    if (cell.state.load(std::memory_order_relaxed) == CellState::kPosted) serve_cell(node, cell);
  }
}

namespace {

void serve_all(Node& node) {
  for (std::uint32_t i = 0; i < node.segment.taken(); ++i) {
    OperationCell* cells = cells_of(node.segment.channel(i));
    for (unsigned c = 0; c < kCells; ++c) {
      // relaxed: serve_cell() acquires
      if (cells[c].state.load(std::memory_order_relaxed) == CellState::kPosted)
        serve_cell(node, cells[c]);
    }
  }
}

}  // namespace

// The thread that answers where no thread of the program is in Open MPI. It is woken by a rank
// that waits. Signals are the program's own threads' business.
bool start_server(Node& node) {
  std::lock_guard lock(node.server_mutex);
  if (node.server.joinable()) return true;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    node.server = std::thread([&node] {
      while (!words::load_acquire(node.server_ends)) {  // PAIR mpi.server: ends
        (void)node.wakeups->recv(1000);
        serve_all(node);
      }
    });
  } catch (const std::system_error&) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return node.server.joinable();
}

void end_server(Node& node) {
  std::lock_guard lock(node.server_mutex);
  if (!node.server.joinable()) return;
  words::store_release(node.server_ends, true);  // PAIR mpi.server: the thread ends
  (void)node.wakeups->send(node.wakeups->address(), kWake, {}, 1000);
  node.server.join();
}

int serve_operations(Node& node) {
  // PAIR segment.operations: sees the cells posted before
  const std::uint32_t now = words::load_acquire(node.segment.header().operations);
  // relaxed, both: a thread that does not see what another has stored looks once more
  if (now == node.operations_seen.load(std::memory_order_relaxed)) return 0;
  node.operations_seen.store(now, std::memory_order_relaxed);
  serve_all(node);
  return 1;
}

}  // namespace clan::mpi
