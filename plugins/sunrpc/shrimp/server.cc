// The server's half: polls the next slot of every binding, serves, and sleeps when nothing comes.
#include <clan/aperture.h>
#include <clan/clock.h>
#include <clan/copy.h>
#include <clan/log.h>
#include <clan/message.h>
#include <clan/shrimp.h>
#include <clan/wait.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <new>
#include <optional>
#include <vector>

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
  std::uint64_t next = 1;  ///< call
  std::uint64_t in_arena = 0;  ///< the last call whose results went there
  Binding& binding() { return *reinterpret_cast<Binding*>(memory->data()); }
  Slot& slot() { return binding().slots[next % kSlots]; }
  std::size_t expected = 0;  ///< bytes of arguments in the slot's data, by the last call
  bool asked() {
    look_at_data(slot(), expected);
    // PAIR shrimp.call: sees the arguments
    return (slot().line.flag.load(std::memory_order_acquire) & ~kSleeps) == flag_of(next, kAsked);
  }
};

constexpr int kRoundsBetweenMessages = 256;
constexpr std::uint64_t kMs = 1'000'000;

}  // namespace

struct clan_shrimp_call {
  Bound* bound;
  Slot* slot;
  std::uint32_t size;   ///< copies of what the client has written
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
  std::atomic<bool> stop{false};

  bool serve_all();
  void serve_one(Bound& from);
  void look_at_messages();
  void bind(PeerIndex peer, const Hello& hello);
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
  clan_shrimp_call call{&from, &slot, slot.line.size, slot.line.where};
  const std::uint32_t number = slot.line.number;
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
  const std::uint64_t before = slot.line.flag.exchange(answer, std::memory_order_seq_cst);
  if ((before & kSleeps) == 0) return;
  Hello bell;
  bell.kind = 3;
  (void)endpoint->try_send(from.peer, std::as_bytes(std::span(&bell, 1)), {});
}

void clan_shrimp_server::bind(PeerIndex peer, const Hello& hello) {
  Hello answer;
  answer.kind = 2;
  answer.hash = program->hash;
  auto made = std::make_unique<Bound>();
  made->peer = peer;
  if (hello.abi != kAbi) {
    answer.status = EPROTONOSUPPORT;
  } else if (hello.hash != program->hash) {
    answer.status = EPROTOTYPE;
  } else if (hello.memory.length < sizeof(Binding)) {
    answer.status = EPROTO;
  } else {
    auto memory = RemoteAperture::import(*process_context(), hello.memory, 5000);
    if (memory.ok() && memory->data() != nullptr) {
      made->memory = std::move(*memory);
    } else {
      answer.status = memory.ok() ? ENOTSUP : memory.error().err;
    }
  }
  if (auto address = endpoint->peer_address(peer); address.ok()) made->uid = address->uid;
  const bool told = endpoint->try_send(peer, std::as_bytes(std::span(&answer, 1)), {}).ok();
  if (answer.status == 0 && told) bound.push_back(std::move(made));
}

void clan_shrimp_server::look_at_messages() {
  for (auto message = endpoint->peek(); message.ok(); message = endpoint->peek()) {
    Hello hello;
    const PeerIndex from = message->from;
    const bool whole = !message->offered && message->bytes.size() == sizeof hello;
    if (whole) std::memcpy(static_cast<void*>(&hello), message->bytes.data(), sizeof hello);
    endpoint->drop();
    const bool known = std::any_of(bound.begin(), bound.end(), [&](const auto& b) { return b->peer == from; });
    if (whole && hello.kind == 1 && !known) {
      bind(from, hello);
    } else if (!whole || hello.kind != 3) {
      CLAN_WARN("a client's message makes no sense: it is not served any more");
      endpoint->disconnect(from);
      std::erase_if(bound, [&](const auto& b) { return b->peer == from; });
    }
  }
  PeerIndex gone;
  while (endpoint->take_departed(&gone)) {
    endpoint->disconnect(gone);
    std::erase_if(bound, [&](const auto& b) { return b->peer == gone; });
  }
}

Status clan_shrimp_server::sleep(std::int64_t ms) {
  for (auto& b : bound) {
    // PAIR shrimp.sleep: set before we look at flags; clients look at it behind their flag's exchange
    b->binding().head.server_sleeps.exchange(1, std::memory_order_seq_cst);
  }
  bool asked = false;
  for (auto& b : bound) asked = asked || b->asked();
  Status slept;
  if (!asked) slept = endpoint->sleep(ms);
  for (auto& b : bound) b->binding().head.server_sleeps.store(0, std::memory_order_relaxed);  // relaxed: a hint
  waiter->slept();
  return slept;
}

// The results of an earlier call may still lie in the arena.
static bool take_arena(Bound& bound) {
  // PAIR shrimp.taken: the client has read them
  if (bound.binding().head.results_taken.load(std::memory_order_acquire) < bound.in_arena) return false;
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
    auto endpoint = MessageEndpoint::create(*context, service_name(name));
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
    return server->stop.load(std::memory_order_relaxed);  // relaxed: set by this thread or a handler of it
  };
  const auto ready = [&] {
    for (auto& b : server->bound) {
      if (b->asked()) return true;
    }
    return !server->endpoint->quiet();
  };
  try {
    for (int rounds = 0; !stopped(); ++rounds) {
      if (server->serve_all() && rounds < kRoundsBetweenMessages) continue;
      rounds = 0;
      server->look_at_messages();
      const auto cpu = static_cast<std::uint32_t>(current_cpu_tag());
      for (auto& b : server->bound) b->binding().head.server_cpu.store(cpu, std::memory_order_relaxed);  // a hint
      if (server->waiter->spin(ready, clan::Awaited{}, deadline) || stopped()) continue;
      const std::uint64_t now = monotonic_ns();
      if (now >= deadline) return 0;
      (void)server->sleep(deadline == kNoDeadline ? -1 : static_cast<std::int64_t>((deadline - now) / kMs) + 1);
    }
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return -1;
  }
  server->stop.store(false, std::memory_order_relaxed);
  return 0;
}

void clan_shrimp_stop(clan_shrimp_server* server) { server->stop.store(true, std::memory_order_relaxed); }

void clan_shrimp_destroy(clan_shrimp_server* server) { delete server; }

uint32_t clan_shrimp_caller_uid(const clan_shrimp_call* call) { return call->bound->uid; }

enum clan_shrimp_stat clan_shrimp_arguments(clan_shrimp_call* call, void* to, size_t flat, clan_shrimp_get get) {
  std::byte* from = find(call->bound->binding(), *call->slot, kArgumentsArena, call->where, call->size);
  if (from == nullptr) return CLAN_SHRIMP_GARBAGE;
  if (get != nullptr) {
    clan_shrimp_bytes bytes{reinterpret_cast<char*>(from), reinterpret_cast<char*>(from) + call->size, 0};
    return get(&bytes, to);
  }
  if (call->size != flat) return CLAN_SHRIMP_GARBAGE;
  copy_short(static_cast<std::byte*>(to), from, flat);
  return CLAN_SHRIMP_OK;
}

void* clan_shrimp_in_place(clan_shrimp_call* call, size_t flat) {
  std::byte* to = place(call->bound->binding(), *call->slot, flat, kResultsArena, &call->result_where);
  if (to == nullptr || (call->result_where == kResultsArena && !take_arena(*call->bound))) return nullptr;
  call->result_size = static_cast<std::uint32_t>(flat);
  return to;
}

enum clan_shrimp_stat clan_shrimp_results(clan_shrimp_call* call, const void* from, clan_shrimp_put put) {
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
