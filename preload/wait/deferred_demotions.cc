#include "wait/deferred_demotions.h"

#include <atomic>

#include "demote/demote_on_request.h"
#include "table/fd_table.h"

namespace clan::preload {

constinit thread_local OwedAnswers t_owed{};

void pay_owed_answers() {
  while (t_owed.count > 0) {
    const auto [fd, socket] = t_owed.to[--t_owed.count];
    const SocketRef owed(socket);
    if (const SocketRef now = acquire(fd); now.get() == socket) answer_leaving(fd, *socket);
  }
}

bool put_off(int fd, Socket& s) {
  if (!t_owed.putting_off) return false;
  for (int k = 0; k < t_owed.count; ++k) {
    if (t_owed.to[k].socket == &s) return true;
  }
  if (t_owed.count < OwedAnswers::kMost) {
    s.refs.fetch_add(1, std::memory_order_relaxed);
    t_owed.to[t_owed.count++] = {fd, &s};
  }
  return true;
}

}  // namespace clan::preload
