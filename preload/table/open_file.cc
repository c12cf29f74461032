#include "table/open_file.h"

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
  for (auto* word : {&sent, &received, &inode}) set(*word, std::uint64_t{0});
  for (auto* word : {&owes_ring[0], &owes_ring[1], &client, &moved}) set(*word, 0u);
  set(pinned, 0);
  set(pids, sys::pid_namespace());
}

bool leave_slot(Socket& s) {
  auto& held = s.open_file().held;
  // PAIR preload.held: one that closes last sees that it is the last
  const std::uint64_t before = dekker::swap(s.left_slot, true)
                                   ? dekker::load(held) + OpenFileState::kHolder
                                   : dekker::subtract(held, OpenFileState::kHolder);
  return OpenFileState::holders(before) > 1;
}

void use_slot_no_more(Socket& s) {
  // PAIR preload.held: a user less
  if (!dekker::swap(s.uses_no_slot, true)) dekker::subtract(s.slot->held, OpenFileState::kUser);
}

void use_slot_again(Socket& s) {
  auto& held = s.open_file().held;
  // PAIR preload.held: as before
  if (dekker::swap(s.left_slot, false)) dekker::add(held, OpenFileState::kHolder);
  // PAIR preload.held: the same
  if (dekker::swap(s.uses_no_slot, false)) dekker::add(held, OpenFileState::kUser);
}

}  // namespace clan::preload
