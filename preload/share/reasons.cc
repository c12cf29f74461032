#include "share/reasons.h"

#include <sys/stat.h>

#include <atomic>
#include <bit>
#include <cstddef>

#include "clan/detail/log.h"
#include "clan/face/reason_text.h"
#include "os/config.h"
#include "os/memory_owner.h"
#include "os/sandbox.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/named.h"
#include "table/slot_table.h"

namespace clan::preload {
namespace {

using reasons::Reason;
using reasons::reason_of;
using reasons::Why;
using Word = std::atomic<std::uint64_t>;

// Relaxed, all of it: a word publishes nothing else.

Word* words() {
  // A descriptor that is made in borrowed memory is not the lender's.
  if (!has_table() && (config().disabled || !permits_memory() || in_borrowed_memory()))
    return nullptr;
  return reason_words();
}

bool is_of(std::uint64_t word, std::uint32_t of, bool process) {
  const Reason reason = reason_of(word);
  return reason.why != Why::kNone && reason.of == of && reason.of_process == process;
}

// Finds the word of the same socket or process, else a free one, else that of a connection that is
// not used enough, else one in turn.
Word& place_for(Word* bucket, const Reason& reason) {
  static std::atomic<std::uint32_t> turn{0};
  Word* unused = nullptr;
  Word* free = nullptr;
  for (std::size_t i = 0; i < reasons::kWays; ++i) {
    const std::uint64_t word = bucket[i].load(std::memory_order_relaxed);
    if (is_of(word, reason.of, reason.of_process)) return bucket[i];
    const Why why = reason_of(word).why;
    if (why == Why::kNone) free = bucket + i;
    if (why == Why::kUnused) unused = bucket + i;
  }
  if (free != nullptr) return *free;
  return unused != nullptr ? *unused
                           : bucket[turn.fetch_add(1, std::memory_order_relaxed) % reasons::kWays];
}

void put(const Reason& reason) {
  Word* all = words();
  if (all == nullptr) return;
  constexpr int kTries = 4;  // others take places, too
  for (int i = 0; i < kTries; ++i) {
    Word& place = place_for(all + reasons::bucket_of(reason.of), reason);
    std::uint64_t before = place.load(std::memory_order_relaxed);
    if (place.compare_exchange_strong(before, reasons::word_of(reason), std::memory_order_relaxed))
      return;
  }
}

void remove(std::uint32_t of, bool process) {
  if (!has_table()) return;
  Word* bucket = reason_words() + reasons::bucket_of(of);
  for (std::size_t i = 0; i < reasons::kWays; ++i) {
    std::uint64_t word = bucket[i].load(std::memory_order_relaxed);
    if (is_of(word, of, process))
      bucket[i].compare_exchange_strong(word, 0, std::memory_order_relaxed);
  }
}

// Logs the first few, then each time the number doubles: a server may have a thousand a second.
void tell(int fd, const Socket& s, const Reason& reason) {
  constexpr std::uint32_t kAll = 8;
  static std::atomic<std::uint32_t> told[static_cast<std::size_t>(Why::kCount)];
  if (log_level() < LogLevel::kInfo || reasons::may_pass(reason.why)) return;
  const std::uint32_t times =
      told[static_cast<std::size_t>(reason.why)].fetch_add(1, std::memory_order_relaxed) + 1;
  if (times > kAll && !std::has_single_bit(times)) return;
  const Named connection(fd, s);
  char text[160];
  reasons::describe(reason, text, sizeof text);
  if (times <= kAll) {
    CLAN_INFO("%s: %s; the connection stays on TCP", connection.text(), text);
  } else {
    CLAN_INFO("%s: %s; the connection stays on TCP, the %uth to do so", connection.text(), text,
              times);
  }
}

std::uint32_t inode_of(int fd) {
  struct stat about {};
  return sys::fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode)
             ? static_cast<std::uint32_t>(about.st_ino)
             : 0;
}

}  // namespace

void publish_why(int fd, Socket& s, Why why, std::uint32_t number) {
  KeepErrno keep;
  const DeferSignals undisturbed;
  const Why before = s.said.load(std::memory_order_relaxed);
  const bool again = why != Why::kUnused && before == why;
  const bool less = reasons::is_weak(why) && !reasons::may_pass(before);
  Reason reason{s.said_inode.load(std::memory_order_relaxed), why, false, number};
  if (again || less) {
    if (reason.of != 0) return;
    reason.why = before;  // the memory may not have been there then, as after vfork()
  } else {
    s.said.store(why, std::memory_order_relaxed);
    tell(fd, s, reason);
  }
  if (reason.of == 0 && words() != nullptr)
    s.said_inode.store(reason.of = inode_of(fd), std::memory_order_relaxed);
  if (reason.of != 0) put(reason);
}

void withdraw_why(Socket& s) {
  s.said.store(Why::kNone, std::memory_order_relaxed);
  const std::uint32_t inode = s.said_inode.exchange(0, std::memory_order_relaxed);
  // Another process may have the same open file. The reason of a socket that is gone does no harm.
  const bool alone = s.shared() || !s.inherited.load(std::memory_order_relaxed);
  if (inode != 0 && alone) remove(inode, false);
}

void publish_of_process(Why why, std::uint32_t number) {
  KeepErrno keep;
  const DeferSignals undisturbed;
  if (words() != nullptr) put({static_cast<std::uint32_t>(::getpid()), why, true, number});
}

void withdraw_of_process() { remove(static_cast<std::uint32_t>(::getpid()), true); }

}  // namespace clan::preload
