#include "table/open_file.h"

#include <linux/bpf.h>
#include <linux/tcp.h>

#include <cstdint>
#include <cstring>

#include "clan/detail/dekker.h"
#include "kernel/tcp.h"
#include "os/signals.h"
#include "state/socket.h"

namespace clan::preload {

std::int32_t closer_id() {
  return static_cast<std::int32_t>(sys::name_of(static_cast<std::uint32_t>(thread_id())));
}

bool closer_has_died(std::uint64_t word) {
  return sys::has_ended(static_cast<std::uint32_t>(word >> OpenFileState::kCloser) &
                        ~static_cast<std::uint32_t>(OpenFileState::kSendsAgain));
}

void OpenFileState::renew() {
  const auto set = [](auto& word, auto value) {
    word.store(value, std::memory_order_relaxed);  // relaxed: published with the cookie, or by fork
  };
  for (auto* word : {&sent, &received, &inode, &pipe}) set(*word, std::uint64_t{0});
  for (auto* word : {&pipe_pid, &pipe_end, &pinned, &alone}) set(*word, 0);
  for (auto* word : {&silent, &owes_ring[0], &owes_ring[1], &client}) set(*word, 0u);
  for (auto* word : {&again.base, &again.resent, &again.given, &again.file})
    set(*word, std::uint64_t{0});
  set(pipe_fd, -1);
  set(to_follow, 1);
  set(pids, sys::pid_namespace());
}

void count_bytes_before(int fd, OpenFileState& slot) {
  tcp_info info{};
  std::size_t queued = 0;
  std::uint64_t sent = 0;
  if (!sent_by_tcp(fd, &sent) || !received_by_tcp(fd, &info, &queued)) return;
  // A FIN may be counted as a byte: what is too few by it does no harm.
  const std::uint64_t fin =
      info.tcpi_state != BPF_TCP_ESTABLISHED && info.tcpi_bytes_received > queued ? 1 : 0;
  // relaxed: read behind the closed gates
  slot.sent.store(sent, std::memory_order_relaxed);
  slot.received.store(info.tcpi_bytes_received - queued - fin, std::memory_order_relaxed);
}

bool leave_slot(Socket& s) {
  OpenFileState& slot = s.open_file();
  // PAIR preload.to_follow: this process is none of them
  if (!dekker::swap(s.not_to_follow, true)) dekker::subtract(slot.to_follow, 1);
  // PAIR preload.held: first, as one that arrives counts itself among those to follow before
  const bool on_its_way = OpenFileState::on_its_way(dekker::load(slot.held)) > 0;
  // PAIR preload.to_follow
  const bool others = on_its_way || dekker::load(slot.to_follow) > 0;
  return others;
}

void use_slot_no_more(Socket& s) {
  // PAIR preload.held: a user less
  if (!dekker::swap(s.left_slot, true)) dekker::subtract(s.slot->held, 1);
}

}  // namespace clan::preload
