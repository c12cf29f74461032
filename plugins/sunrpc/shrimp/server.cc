// The server's half: polls the next slot of every binding, serves, and sleeps when nothing comes.
#include <clan/aperture.h>
#include <clan/detail/clock.h>
#include <clan/detail/copy.h>
#include <clan/detail/dekker.h>
#include <clan/detail/log.h>
#include <clan/detail/words.h>
#include <clan/face/wait.h>
#include <clan/message.h>
#include <clan/shrimp.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "../log_rate_limit.h"
#include "imports.h"
#include "runtime.h"
#include "slot.h"

using namespace clan;
using namespace clan::shrimp;

namespace {

/// A client's binding.
struct Bound {
  PeerIndex peer = 0;
  std::uint32_t uid = 0;
  std::optional<RemoteAperture> memory;
  std::uint64_t next = 1;      ///< call
  std::uint64_t in_arena = 0;  ///< the last call whose results went there
  Binding& binding() { return *reinterpret_cast<Binding*>(memory->data()); }
  Slot& slot() { return binding().slots[next % kSlots]; }
  std::size_t expected = 0;  ///< bytes of arguments in the slot's data, by the last call
  bool asked() {
    look_at_data(slot(), expected);
    // PAIR shrimp.call: sees the arguments
    return (words::load_acquire(slot().line.flag) & ~kSleeps) == flag_of(next, kAsked);
  }
};

constexpr int kRoundsBetweenMessages = 256;
constexpr std::uint64_t kMs = 1'000'000;
/// while memory is being imported: nothing wakes us when it is
constexpr std::int64_t kImportLookMs = 1;

}  // namespace

struct clan_shrimp_call {
  Bound* bound;
  Slot* slot;
  std::uint32_t size;  ///< copies of what the client has written
  std::uint32_t where;
  std::uint32_t result_size = 0;
  std::uint32_t result_where = kLineData;
};

struct clan_shrimp_server {
  const clan_shrimp_program* program;
  pid_t process = process_id();
  std::optional<MessageEndpoint> endpoint;
  std::optional<Waiter> waiter;
  std::vector<std::unique_ptr<Bound>> bound;
  Imports imports;  ///< memory of clients that are not bound yet
  std::atomic<bool> stop{false};

  bool serve_all();
  void serve_one(Bound& from);
  void look_at_messages();
  void bind(PeerIndex peer, const Hello& hello);
  bool answer(PeerIndex peer, int status);
  void take_imports();
  bool is_known(PeerIndex peer) const;
  void forget(PeerIndex peer);
  Status sleep(std::int64_t ms);
};

bool clan_shrimp_server::serve_all() {
  bool served = false;
  for (std::size_t i = 0; i < bound.size(); ++i) {
    if (!bound[i]->asked()) continue;
    serve_one(*bound[i]);
    served = true;
  }
  return served;
}

void clan_shrimp_server::serve_one(Bound& from) {
  Slot& slot = from.slot();
  clan_shrimp_call call{&from, &slot, load_once(slot.line.size), load_once(slot.line.where)};
  const std::uint32_t number = load_once(slot.line.number);
  from.expected = call.where == kSlotsData ? call.size : 0;
  clan_shrimp_stat stat = CLAN_SHRIMP_NO_PROCEDURE;
  for (std::uint32_t i = 0; i < program->count; ++i) {
    if (program->procedures[i].number != number) continue;
    stat = program->procedures[i].serve(&call);
    break;
  }
  slot.line.size = stat == CLAN_SHRIMP_OK ? call.result_size : 0;
  slot.line.where = call.result_where;
  slot.line.number = stat;
  const std::uint64_t answer = flag_of(from.next, kAnswered);
  ++from.next;
  // PAIR shrimp.answer: publishes the results; what was there says whether the client sleeps
  const std::uint64_t before = dekker::swap(slot.line.flag, answer);
  if ((before & kSleeps) == 0) return;
  Hello bell;
  bell.kind = kBell;
  (void)endpoint->try_send(from.peer, std::as_bytes(std::span(&bell, 1)), {});
}

void clan_shrimp_server::bind(PeerIndex peer, const Hello& hello) {
  int refused = 0;
  if (hello.abi != kAbi) {
    refused = EPROTONOSUPPORT;
  } else if (hello.hash != program->hash) {
    refused = EPROTOTYPE;
  } else if (hello.memory.length < sizeof(Binding)) {
    refused = EPROTO;
  } else {
    return imports.begin(peer, hello.memory);
  }
  (void)answer(peer, refused);
}

bool clan_shrimp_server::answer(PeerIndex peer, int status) {
  Hello answer;
  answer.kind = kAnswer;
  answer.hash = program->hash;
  answer.status = status;
  return endpoint->try_send(peer, std::as_bytes(std::span(&answer, 1)), {}).ok();
}

void clan_shrimp_server::take_imports() {
  while (auto done = imports.take()) {
    if (endpoint->has_gone(done->peer)) continue;
    const int status = done->memory.ok() ? (done->memory->data() != nullptr ? 0 : ENOTSUP)
                                         : done->memory.error().err;
    if (!answer(done->peer, status) || status != 0) continue;
    auto made = std::make_unique<Bound>();
    made->peer = done->peer;
    made->memory = std::move(*done->memory);
    if (auto address = endpoint->peer_address(done->peer); address.ok()) made->uid = address->uid;
    bound.push_back(std::move(made));
  }
}

bool clan_shrimp_server::is_known(PeerIndex peer) const {
  return imports.has(peer) ||
         std::any_of(bound.begin(), bound.end(), [&](const auto& b) { return b->peer == peer; });
}

void clan_shrimp_server::forget(PeerIndex peer) {
  endpoint->disconnect(peer);
  imports.forget(peer);
  std::erase_if(bound, [&](const auto& b) { return b->peer == peer; });
}

void clan_shrimp_server::look_at_messages() {
  // At most so many: others are served although a client goes on ringing.
  for (int n = 0; n < kMostMessages; ++n) {
    auto message = endpoint->peek();
    if (!message.ok()) break;
    Hello hello;
    const PeerIndex from = message->from;
    const bool whole = !message->offered && message->bytes.size() == sizeof hello;
    if (whole) std::memcpy(static_cast<void*>(&hello), message->bytes.data(), sizeof hello);
    endpoint->drop();
    if (whole && hello.kind == kHello && !is_known(from)) {
      bind(from, hello);
    } else if (!whole || hello.kind != kBell) {
      static rpc::LogRateLimit limit;
      if (limit.allows()) CLAN_WARN("a client's message makes no sense: it is not served any more");
      forget(from);
    }
  }
  PeerIndex gone;
  while (endpoint->take_departed(&gone)) forget(gone);
}

Status clan_shrimp_server::sleep(std::int64_t ms) {
  for (auto& b : bound) {
    // PAIR shrimp.sleep: set before the check of the flags; clients read it after their flag's
    // exchange
    dekker::swap(b->binding().head.server_sleeps, 1);
  }
  bool asked = false;
  for (auto& b : bound) asked = asked || b->asked();
  Status slept;
  if (!asked) slept = endpoint->sleep(ms);
  for (auto& b : bound)
    b->binding().head.server_sleeps.store(0, std::memory_order_relaxed);  // relaxed: a hint
  waiter->slept();
  return slept;
}

// The results of an earlier call may still lie in the arena.
static bool take_arena(Bound& bound) {
  // PAIR shrimp.taken: the client has read them
  if (words::load_acquire(bound.binding().head.results_taken) < bound.in_arena) return false;
  bound.in_arena = bound.next;
  return true;
}

#pragma GCC visibility push(default)
extern "C" {

clan_shrimp_server* clan_shrimp_listen(const char* name, const clan_shrimp_program* program) {
  try {
    Context* context = process_context();
    if (context == nullptr) {
      errno = ENOMEM;
      return nullptr;
    }
    auto server = std::make_unique<clan_shrimp_server>();
    server->program = program;
    auto endpoint = MessageEndpoint::create(*context, service_name(name), kHellos);
    if (!endpoint) {
      errno = endpoint.error().err;
      return nullptr;
    }
    server->endpoint = std::move(*endpoint);
    server->waiter.emplace(context->options().wait);
    return server.release();
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
}

int clan_shrimp_serve(clan_shrimp_server* server, int timeout_ms) {
  if (server->process != process_id()) {
    errno = ESHUTDOWN;
    return -1;
  }
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  const auto stopped = [&] {
    // relaxed: the thread that sets it wakes the endpoint after that, so it is checked again
    return server->stop.load(std::memory_order_relaxed);
  };
  const auto is_over = [&] { return deadline != kNoDeadline && monotonic_ns() >= deadline; };
  const auto ready = [&] {
    for (auto& b : server->bound) {
      if (b->asked()) return true;
    }
    return server->imports.any_done() || !server->endpoint->quiet();
  };
  try {
    for (int rounds = 0; !stopped(); ++rounds) {
      if (server->serve_all() && rounds < kRoundsBetweenMessages && !is_over()) continue;
      rounds = 0;
      server->look_at_messages();
      server->take_imports();
      const auto cpu = static_cast<std::uint32_t>(current_cpu_tag());
      for (auto& b : server->bound)
        b->binding().head.server_cpu.store(cpu, std::memory_order_relaxed);  // a hint
      if (is_over()) return 0;  // also where calls keep coming
      if (server->waiter->spin(ready, clan::PeerHint{}, deadline) || stopped()) continue;
      const std::uint64_t now = monotonic_ns();
      if (now >= deadline) return 0;
      std::int64_t ms =
          deadline == kNoDeadline ? -1 : static_cast<std::int64_t>((deadline - now) / kMs) + 1;
      if (!server->imports.idle()) ms = kImportLookMs;
      (void)server->sleep(ms);
    }
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return -1;
  }
  server->stop.store(false, std::memory_order_relaxed);
  return 0;
}

void clan_shrimp_stop(clan_shrimp_server* server) {
  server->stop.store(true, std::memory_order_relaxed);
  if (server->process == process_id()) server->endpoint->wake();
}

void clan_shrimp_destroy(clan_shrimp_server* server) { delete server; }

uint32_t clan_shrimp_caller_uid(const clan_shrimp_call* call) { return call->bound->uid; }

enum clan_shrimp_stat clan_shrimp_arguments(clan_shrimp_call* call, void* to, size_t flat,
                                            clan_shrimp_get get) {
  std::byte* from =
      find(call->bound->binding(), *call->slot, kArgumentsArena, call->where, call->size);
  if (from == nullptr) return CLAN_SHRIMP_GARBAGE;
  if (get != nullptr) {
    clan_shrimp_bytes bytes{reinterpret_cast<char*>(from),
                            reinterpret_cast<char*>(from) + call->size, 0};
    return get(&bytes, to);
  }
  if (call->size != flat) return CLAN_SHRIMP_GARBAGE;
  copy_short(static_cast<std::byte*>(to), from, flat);
  return CLAN_SHRIMP_OK;
}

void* clan_shrimp_in_place(clan_shrimp_call* call, size_t flat) {
  std::byte* to =
      place(call->bound->binding(), *call->slot, flat, kResultsArena, &call->result_where);
  if (to == nullptr || (call->result_where == kResultsArena && !take_arena(*call->bound))) {
    call->result_where = kLineData;  // else the client would tell that it has taken the arena's
    return nullptr;
  }
  call->result_size = static_cast<std::uint32_t>(flat);
  return to;
}

enum clan_shrimp_stat clan_shrimp_results(clan_shrimp_call* call, const void* from,
                                          clan_shrimp_put put) {
  Binding& binding = call->bound->binding();
  for (std::uint32_t where = kSlotsData;; where = kResultsArena) {
    if (where == kResultsArena && !take_arena(*call->bound)) return CLAN_SHRIMP_TOO_LARGE;
    std::byte* begin = where == kSlotsData ? call->slot->data : binding.results;
    clan_shrimp_bytes to{reinterpret_cast<char*>(begin), nullptr, 0};
    to.end = to.at + (where == kSlotsData ? kSlotData : kArenaBytes);
    const clan_shrimp_stat stat = put(&to, from);
    call->result_size = static_cast<std::uint32_t>(to.at - reinterpret_cast<char*>(begin));
    call->result_where = where;
    if (stat != CLAN_SHRIMP_TOO_LARGE || where == kResultsArena) return stat;
  }
}

}  // extern "C"
#pragma GCC visibility pop
