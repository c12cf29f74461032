#include "state/socket.h"

#include "os/sys.h"
#include "os/test_settings.h"

namespace clan::preload {
namespace {

// relaxed: see Identity::reset
void set(auto& field, auto value) { field.store(value, std::memory_order_relaxed); }

}  // namespace

void Identity::reset() {
  client = false;
  set(inherited, false);
  set(nonblocking, -1);
  forget_timeouts();
  pipe = Pipe();
  for (auto* flag : {&left_slot, &uses_no_slot}) set(*flag, false);
  last_fork = 0;
  lost_refs = false;
  slot = nullptr;
  set(state, State::kTcp);
}

void Transfer::reset() {
  receive_wait.reset();
  send_wait.reset();
  for (auto* flag :
       {&kernel_end, &fin_counted, &kernel_error, &error_taken, &sent_to_nobody, &reset_told}) {
    flag->reset();
  }
  for (auto* flag : {&drained, &shut_read, &rang, &owes_memory}) set(*flag, false);
  set(low_water, 1);
  set(error, 0);
  set(release_looks, 0);
  for (auto* count : {&full, &going_back}) set(*count, 0);
  set(checked_ns, 0);
  set(glanced, 0);
  set(released_ns, 0);
  for (auto* counter : {&told_sent, &told_acked, &told_received}) {
    set(counter->told, 0);
    set(counter->changed_ns, 0);
  }
}

void Migration::reset() {
  for (auto* count : {&sends, &receives, &offer_calls}) set(*count, 0);
  set(said, reasons::Why::kNone);
  set(said_inode, 0);
  set(remote, static_cast<RemoteConnection*>(nullptr));
  set(remote_fd, -1);
  set(switch_known, false);
  offered_ns = 0;
  place = Place::kNotAsked;
  window_interface = window_looks = 0;
}

void Demotion::reset() {
  anew.reset();
  for (auto* flag : {&back_in, &resending}) set(*flag, false);
  set(answer_wanted_ns, 0);
}

void Watch::reset() {
  interests = nullptr;
  for (auto* flag : {&in_sets, &polled}) set(*flag, false);
  set(unwatched_calls, 0u);
}

void Bells::reset() {
  for (KeptFd* fd : {&bell_set.fd, &receive_set.fd, &bell, &others_bell}) {
    if (const int number = fd->take(); number >= 0) sys::close(number);
  }
}

void Socket::reset() {
  Bells::reset();
  Transfer::reset();
  Watch::reset();
  Migration::reset();
  Demotion::reset();
  Identity::reset();
}

void count_for_test(Socket& s) {
  auto* const sums = test_settings.sums;
  if (sums == nullptr || !s.pipe) return;
  // relaxed: sums, for people to read
  for (int k = 0; k < 2; ++k) {
    auto& end = s.pipe.page().ends[k];
    const std::uint64_t bytes = end.sender.bytes.load(std::memory_order_relaxed);
    const std::uint64_t before = end.sender.counted.exchange(bytes, std::memory_order_relaxed);
    if (bytes <= before) continue;
    if (before == 0) sums[0].fetch_add(1, std::memory_order_relaxed);
    sums[1 + k].fetch_add(bytes - before, std::memory_order_relaxed);
  }
}

}  // namespace clan::preload
