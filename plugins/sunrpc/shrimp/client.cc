// The client's half of a binding.
#include <clan/aperture.h>
#include <clan/detail/clock.h>
#include <clan/detail/copy.h>
#include <clan/detail/dekker.h>
#include <clan/detail/words.h>
#include <clan/face/wait.h>
#include <clan/message.h>
#include <clan/shrimp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "runtime.h"
#include "slot.h"

namespace clan::shrimp {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

constexpr int kLooksBeforeClock = 256;  ///< about a microsecond: most answers come meanwhile

/// When a call's time is over. The clock is read when somebody asks first.
class Deadline {
 public:
  explicit Deadline(std::uint64_t timeout_ns) : timeout_ns_(timeout_ns) {}
  std::uint64_t ns() {
    if (timeout_ns_ != kNoDeadline && at_ns_ == kNoDeadline) at_ns_ = monotonic_ns() + timeout_ns_;
    return at_ns_;
  }

 private:
  const std::uint64_t timeout_ns_;
  std::uint64_t at_ns_ = kNoDeadline;
};

/// What one slot's call is doing.
struct Pending {
  std::uint64_t call = 0;  ///< 0: the slot is free
  bool given_up = false;   ///< its reply is to be thrown away
  bool in_arena = false;   ///< its arguments are
};

}  // namespace
}  // namespace clan::shrimp

using namespace clan;
using namespace clan::shrimp;

struct clan_shrimp_client {
  std::mutex mutex;
  pid_t process = getpid();
  std::optional<Memory> memory;
  std::optional<Aperture> aperture;
  std::optional<MessageEndpoint> endpoint;
  PeerIndex server = 0;
  std::optional<Waiter> waiter;
  std::uint64_t timeout_ns = 25'000 * kMs;
  std::uint64_t next = 1;
  Pending pending[kSlots];
  int given_up = 0;         ///< of these
  std::uint64_t taken = 0;  ///< results of calls up to this one the server may write over
  /// bytes of results that will lie in the slot's data; 0: nobody knows, or none
  std::size_t expected = 0;
  bool last_in_arena = false;  ///< the arguments put last
  bool gone = false;

  Binding& binding() { return *reinterpret_cast<Binding*>(memory->data()); }
  Slot& slot_of(std::uint64_t call) { return binding().slots[call % kSlots]; }
  bool alive();
  bool answered(std::uint64_t call);
  void settle(std::uint64_t call);
  void take_results_up_to(std::uint64_t call);
  void pass_over_given_up();
  clan_shrimp_stat await_given_up(std::uint64_t call, Deadline* within);
  clan_shrimp_stat free_arena(Deadline* within);
  clan_shrimp_stat send(const clan_shrimp_request& request, Deadline* within,
                        std::uint64_t* ticket);
  clan_shrimp_stat put(const clan_shrimp_request& request, Slot& slot, std::uint64_t call,
                       Deadline* within);
  clan_shrimp_stat wait(std::uint64_t call, Deadline* within);
  clan_shrimp_stat take(const clan_shrimp_request& request, std::uint64_t call);
  int meet(const char* name, const clan_shrimp_program& program, std::int64_t timeout_ms);
};

// Takes the server's wake-ups; false: it has gone.
bool clan_shrimp_client::alive() {
  for (int n = 0; n < kMostMessages && endpoint->peek().ok(); ++n) endpoint->drop();
  PeerIndex peer;
  if (endpoint->take_departed(&peer) || endpoint->has_gone(server)) gone = true;
  return !gone;
}

bool clan_shrimp_client::answered(std::uint64_t call) {
  // PAIR shrimp.answer: sees the results
  return words::load_acquire(slot_of(call).line.flag) == flag_of(call, kAnswered);
}

// The reply has been taken, or is not wanted.
void clan_shrimp_client::settle(std::uint64_t call) {
  Pending& done = pending[call % kSlots];
  if (done.given_up) --given_up;
  done = {};
  if (load_once(slot_of(call).line.where) == kResultsArena) take_results_up_to(call);
}

void clan_shrimp_client::take_results_up_to(std::uint64_t call) {
  if (call <= taken) return;
  taken = call;
  // PAIR shrimp.taken: the server may write there again
  words::store_release(binding().head.results_taken, call);
}

// Calls that were given up and have been answered since are done with. Results of the others the
// program will not take either: where it waits for no call they may be written over when they come.
void clan_shrimp_client::pass_over_given_up() {
  bool waits = false;
  for (const Pending& p : pending) {
    if (p.call != 0 && !p.given_up) waits = true;
    if (p.given_up && answered(p.call)) settle(p.call);
  }
  if (!waits) take_results_up_to(next - 1);
}

clan_shrimp_stat clan_shrimp_client::await_given_up(std::uint64_t call, Deadline* within) {
  const auto stat = wait(call, within);
  if (stat == CLAN_SHRIMP_OK) settle(call);
  return stat;
}

// One call at a time has the arena of arguments: one that was given up until it has been answered.
clan_shrimp_stat clan_shrimp_client::free_arena(Deadline* within) {
  for (const Pending& p : pending) {
    if (!p.in_arena) continue;
    return p.given_up ? await_given_up(p.call, within) : CLAN_SHRIMP_TOO_LARGE;
  }
  return CLAN_SHRIMP_OK;
}

clan_shrimp_stat clan_shrimp_client::put(const clan_shrimp_request& request, Slot& slot,
                                         std::uint64_t call, Deadline* within) {
  std::uint32_t where = kLineData;
  clan_shrimp_stat stat = CLAN_SHRIMP_OK;
  std::size_t size = request.flat_arguments;
  if (size > 0) {
    std::byte* to = place(binding(), slot, size, kArgumentsArena, &where);
    if (to == nullptr) return CLAN_SHRIMP_TOO_LARGE;
    if (where == kArgumentsArena) stat = free_arena(within);
    if (stat != CLAN_SHRIMP_OK) return stat;
    copy_short(to, request.arguments, size);
  } else if (request.put != nullptr) {
    // Nobody knows its size: into the slot, and if that is too small into the arena.
    for (where = kSlotsData;; where = kArgumentsArena) {
      std::byte* begin = where == kSlotsData ? slot.data : binding().arguments;
      if (where == kArgumentsArena) stat = free_arena(within);
      if (stat != CLAN_SHRIMP_OK) return stat;
      clan_shrimp_bytes to{reinterpret_cast<char*>(begin), nullptr, 0};
      to.end = to.at + (where == kSlotsData ? kSlotData : kArenaBytes);
      stat = request.put(&to, request.arguments);
      size = static_cast<std::size_t>(to.at - reinterpret_cast<char*>(begin));
      if (stat == CLAN_SHRIMP_OK) break;
      if (stat != CLAN_SHRIMP_TOO_LARGE || where == kArgumentsArena) return stat;
    }
    if (where == kSlotsData && size <= kInLine) {
      std::memcpy(slot.line.data, slot.data, size);
      where = kLineData;
    }
  }
  last_in_arena = where == kArgumentsArena;
  slot.line.size = static_cast<std::uint32_t>(size);
  slot.line.number = request.number;
  slot.line.where = where;
  // PAIR shrimp.call: publishes the arguments; and ordered before the check of server_sleeps
  dekker::swap(slot.line.flag, flag_of(call, kAsked));
  return CLAN_SHRIMP_OK;
}

clan_shrimp_stat clan_shrimp_client::send(const clan_shrimp_request& request, Deadline* within,
                                          std::uint64_t* ticket) {
  const std::uint64_t call = next;
  Pending& slot = pending[call % kSlots];
  if (given_up > 0) [[unlikely]]
    pass_over_given_up();
  // as many are under way as there are slots; one that was given up may be in the way
  if (slot.call != 0) {
    if (!slot.given_up) return CLAN_SHRIMP_TOO_LARGE;
    if (const auto stat = await_given_up(slot.call, within); stat != CLAN_SHRIMP_OK) return stat;
  }
  const clan_shrimp_stat stat = put(request, slot_of(call), call, within);
  if (stat != CLAN_SHRIMP_OK) return stat;
  ++next;
  slot.call = call;
  slot.given_up = false;
  slot.in_arena = std::exchange(last_in_arena, false);
  *ticket = call;
  // PAIR shrimp.sleep: the flag's exchange is behind us; the server sets this before it checks
  // flags
  if (dekker::load(binding().head.server_sleeps) != 0) {
    Hello bell;
    bell.kind = kBell;
    // no room: one lies there
    (void)endpoint->try_send(server, std::as_bytes(std::span(&bell, 1)), {});
  }
  return CLAN_SHRIMP_OK;
}

clan_shrimp_stat clan_shrimp_client::wait(std::uint64_t call, Deadline* within) {
  auto& flag = slot_of(call).line.flag;
  const auto ready = [&] {
    look_at_data(slot_of(call), expected);
    return answered(call);
  };
  const auto cpu = static_cast<std::uint16_t>(
      binding().head.server_cpu.load(std::memory_order_relaxed));  // relaxed: a hint
  // Not where the server, or somebody else, needs this processor.
  if (!t_contention.known() && cpu != static_cast<std::uint16_t>(current_cpu_tag())) {
    for (int looks = 0; looks < kLooksBeforeClock; ++looks) {
      if (ready()) return CLAN_SHRIMP_OK;
    }
  }
  const std::uint64_t deadline = within->ns();
  for (;;) {
    if (waiter->spin(ready, clan::PeerHint{cpu}, deadline)) return CLAN_SHRIMP_OK;
    if (deadline != kNoDeadline && monotonic_ns() >= deadline) return CLAN_SHRIMP_TIMED_OUT;
    std::uint64_t asked = flag_of(call, kAsked);
    // PAIR shrimp.answer: the server exchanges it when it answers, and finds that we sleep
    dekker::cas(flag, asked, asked | kSleeps);
    if (answered(call)) return CLAN_SHRIMP_OK;
    const bool there = alive();  // may take the wake-up: the answer was there before it
    if (answered(call)) return CLAN_SHRIMP_OK;
    if (!there) return CLAN_SHRIMP_GONE;
    std::int64_t ms = -1;
    if (deadline != kNoDeadline) {
      const std::uint64_t now = monotonic_ns();
      ms = now < deadline ? static_cast<std::int64_t>((deadline - now) / kMs) + 1 : 0;
    }
    (void)endpoint->sleep(ms);
    waiter->slept();
  }
}

clan_shrimp_stat clan_shrimp_client::take(const clan_shrimp_request& request, std::uint64_t call) {
  Slot& slot = slot_of(call);
  const std::uint32_t size = load_once(slot.line.size), where = load_once(slot.line.where);
  const std::uint32_t status = load_once(slot.line.number);
  std::byte* from = find(binding(), slot, kResultsArena, where, size);
  if (status != CLAN_SHRIMP_OK)
    return status <= CLAN_SHRIMP_NO_MEMORY ? static_cast<clan_shrimp_stat>(status)
                                           : CLAN_SHRIMP_GARBAGE;
  if (from == nullptr) return CLAN_SHRIMP_GARBAGE;
  if (request.get != nullptr) {
    clan_shrimp_bytes bytes{reinterpret_cast<char*>(from), reinterpret_cast<char*>(from) + size, 0};
    return request.get(&bytes, request.results);
  }
  if (size != request.flat_results) return CLAN_SHRIMP_GARBAGE;
  copy_short(static_cast<std::byte*>(request.results), from, size);
  return CLAN_SHRIMP_OK;
}

int clan_shrimp_client::meet(const char* name, const clan_shrimp_program& program,
                             std::int64_t timeout_ms) {
  Context* context = process_context();
  if (context == nullptr) return ENOMEM;
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  auto made = Memory::allocate(sizeof(Binding));
  if (!made) return made.error().err;
  memory = std::move(*made);
  new (memory->data()) Head{};
  auto exported =
      Aperture::export_memory(*context, *memory, 0, sizeof(Binding), Rights::kReadWrite);
  if (!exported) return exported.error().err;
  aperture = std::move(*exported);
  auto opened = MessageEndpoint::create(*context, {}, kHellos);
  if (!opened) return opened.error().err;
  endpoint = std::move(*opened);
  auto peer = endpoint->connect(service_name(name), timeout_ms);
  if (!peer) return peer.error().err;
  server = *peer;
  waiter.emplace(context->options().wait);
  Hello hello;
  hello.hash = program.hash;
  hello.memory = aperture->cookie();
  if (auto sent = endpoint->try_send(server, std::as_bytes(std::span(&hello, 1)), {}); !sent)
    return sent.error().err;
  for (;;) {
    if (auto message = endpoint->peek(); message.ok()) {
      Hello answer;
      if (message->bytes.size() != sizeof answer) return EPROTO;
      std::memcpy(static_cast<void*>(&answer), message->bytes.data(), sizeof answer);
      endpoint->drop();
      const bool sense = answer.abi == kAbi && answer.kind == kAnswer && answer.status >= 0 &&
                         answer.status <= kMostErrno;
      return sense ? answer.status : EPROTO;
    }
    PeerIndex left;
    if (endpoint->take_departed(&left)) return ECONNRESET;
    const std::uint64_t now = monotonic_ns();
    if (now >= deadline) return ETIMEDOUT;
    if (endpoint->spin()) continue;
    (void)endpoint->sleep(
        deadline == kNoDeadline ? -1 : static_cast<std::int64_t>((deadline - now) / kMs) + 1);
  }
}

#pragma GCC visibility push(default)
extern "C" {

clan_shrimp_client* clan_shrimp_connect(const char* name, const clan_shrimp_program* program,
                                        int timeout_ms) {
  auto* client = new (std::nothrow) clan_shrimp_client;
  int err = client == nullptr ? ENOMEM : 0;
  try {
    if (err == 0) err = client->meet(name, *program, timeout_ms);
  } catch (const std::bad_alloc&) {
    err = ENOMEM;
  }
  if (err == 0) return client;
  delete client;
  errno = err;
  return nullptr;
}

void clan_shrimp_close(clan_shrimp_client* client) {
  if (client == nullptr) return;
  client->endpoint.reset();
  delete client;
}

void clan_shrimp_set_timeout(clan_shrimp_client* client, int timeout_ms) {
  std::lock_guard lock(client->mutex);
  client->timeout_ns = timeout_ms < 0 ? kNoDeadline : static_cast<std::uint64_t>(timeout_ms) * kMs;
}

enum clan_shrimp_stat clan_shrimp_send(clan_shrimp_client* client,
                                       const clan_shrimp_request* request, uint64_t* ticket) {
  if (client->process != getpid()) return CLAN_SHRIMP_GONE;
  std::lock_guard lock(client->mutex);
  Deadline within(client->timeout_ns);
  return client->gone ? CLAN_SHRIMP_GONE : client->send(*request, &within, ticket);
}

static clan_shrimp_stat finish(clan_shrimp_client& client, const clan_shrimp_request& request,
                               std::uint64_t ticket, Deadline* within) {
  Pending& pending = client.pending[ticket % kSlots];
  if (pending.call != ticket || pending.given_up) return CLAN_SHRIMP_GARBAGE;
  client.expected = request.flat_results > kInLine ? request.flat_results : 0;
  const clan_shrimp_stat stat = client.wait(ticket, within);
  if (stat != CLAN_SHRIMP_OK) {
    pending.given_up = true;  // the server may write there until it has answered
    ++client.given_up;
    return stat;
  }
  const clan_shrimp_stat taken = client.take(request, ticket);
  client.settle(ticket);
  return taken;
}

enum clan_shrimp_stat clan_shrimp_wait(clan_shrimp_client* client,
                                       const clan_shrimp_request* request, uint64_t ticket) {
  if (client->process != getpid()) return CLAN_SHRIMP_GONE;
  std::lock_guard lock(client->mutex);
  Deadline within(client->timeout_ns);
  return finish(*client, *request, ticket, &within);
}

enum clan_shrimp_stat clan_shrimp_do(clan_shrimp_client* client,
                                     const clan_shrimp_request* request) {
  if (client->process != process_id()) return CLAN_SHRIMP_GONE;
  std::lock_guard lock(client->mutex);
  if (client->gone) return CLAN_SHRIMP_GONE;
  std::uint64_t ticket = 0;
  Deadline within(client->timeout_ns);
  const clan_shrimp_stat sent = client->send(*request, &within, &ticket);
  return sent == CLAN_SHRIMP_OK ? finish(*client, *request, ticket, &within) : sent;
}

const char* clan_shrimp_text(enum clan_shrimp_stat stat) {
  switch (stat) {
    case CLAN_SHRIMP_OK: return "success";
    case CLAN_SHRIMP_NO_PROCEDURE: return "the server has no such procedure";
    case CLAN_SHRIMP_GARBAGE: return "arguments or results cannot be decoded";
    case CLAN_SHRIMP_REFUSED: return "the procedure failed";
    case CLAN_SHRIMP_TIMED_OUT: return "no answer in time";
    case CLAN_SHRIMP_GONE: return "the server has ended";
    case CLAN_SHRIMP_TOO_LARGE: return "too large, or too many calls under way";
    case CLAN_SHRIMP_NO_MEMORY: return "no memory";
  }
  return "unknown";
}

}  // extern "C"
#pragma GCC visibility pop
