// The calls of unet.h.
#include <clan/face/settings.h>

#include "endpoint.h"

using namespace clan::unet::library;

namespace {

Endpoint& of(unet_endpoint* endpoint) { return *static_cast<Endpoint*>(endpoint); }

// A child has no use of its parent's endpoints, and must not wait for a lock that is nobody's.
bool is_parents(const unet_node& node) { return node.generation != generation(); }

clan::ContextOptions context_options(const clan::Settings& settings,
                                     const unet_node_options* wanted) {
  clan::ContextOptions options = settings.context_options();
  options.keep_translations = true;
  if (wanted == nullptr) return options;
  if (wanted->tlb_entries != 0) options.tlb_entries = wanted->tlb_entries;
  if (wanted->tlb_victims != 0) options.tlb_victims = wanted->tlb_victims;
  options.lock_pages = wanted->lock_pages != 0;
  return options;
}

template <typename Work>
int held(unet_endpoint* endpoint, Work&& work) {
  Endpoint& e = of(endpoint);
  if (is_parents(e.node())) [[unlikely]]
    return ESHUTDOWN;
  const Held held(e.port());
  return work(e);
}

std::uint64_t value_of(const std::atomic<std::uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);  // relaxed: a counter
}

}  // namespace

extern "C" {

CLAN_EXPORT int unet_open(const unet_node_options* wanted, unet_node** node) {
  const clan::Settings settings =
      clan::settings_of_environment("U-Net endpoints are not to be had");
  if (settings.disable) return EPERM;
  auto context = clan::create_context(context_options(settings, wanted), "U-Net endpoints");
  if (!context) return context.error().err;
  *node = new unet_node(std::move(*context));
  return 0;
}

CLAN_EXPORT void unet_close(unet_node* node) {
  if (node != nullptr && !is_parents(*node)) delete node;
}

CLAN_EXPORT int unet_create(unet_node* node, const unet_endpoint_options* options,
                            unet_endpoint** endpoint) {
  if (is_parents(*node)) return ESHUTDOWN;
  auto made = Endpoint::create(*node, *options);
  if (!made) return made.error().err;
  *endpoint = made->release();
  return 0;
}

CLAN_EXPORT void unet_destroy(unet_endpoint* endpoint) {
  if (endpoint != nullptr && !is_parents(of(endpoint).node())) delete &of(endpoint);
}

CLAN_EXPORT unet_address unet_address_of(const unet_endpoint* endpoint) {
  return static_cast<const Endpoint*>(endpoint)->address();
}

CLAN_EXPORT int unet_accept(unet_endpoint* endpoint, uint32_t tag, uint64_t key) {
  return held(endpoint, [&](Endpoint& e) { return e.accept(tag, key); });
}

CLAN_EXPORT int unet_connect(unet_endpoint* endpoint, uint32_t tag, const unet_address* peer,
                             uint32_t peer_tag, uint64_t key, int64_t timeout_ms) {
  return held(endpoint, [&](Endpoint& e) {
    if (e.find(tag) != nullptr) return EEXIST;
    ConnectRecord record;
    record.endpoint = peer->number;
    record.tag = peer_tag;
    record.key = key;
    const clan::Address there{{peer->node}, peer->endpoint, peer->uid};
    return e.connect(tag, e.port().reach(there, timeout_ms), record);
  });
}

CLAN_EXPORT int unet_connect_service(unet_endpoint* endpoint, uint32_t tag, const char* service,
                                     uint32_t peer_tag, uint64_t key, int64_t timeout_ms) {
  return held(endpoint, [&](Endpoint& e) {
    if (e.find(tag) != nullptr) return EEXIST;
    ConnectRecord record;
    record.tag = peer_tag;
    record.key = key;
    return e.connect(tag, e.port().reach(std::string(service), timeout_ms), record);
  });
}

CLAN_EXPORT int unet_close_tag(unet_endpoint* endpoint, uint32_t tag) {
  return held(endpoint, [&](Endpoint& e) { return e.close(tag); });
}

CLAN_EXPORT int unet_doorbell(unet_endpoint* endpoint) {
  if (is_parents(of(endpoint).node())) [[unlikely]]
    return ESHUTDOWN;
  of(endpoint).prepare_buffers();
  return held(endpoint, [](Endpoint& e) { return e.pump(); });
}

CLAN_EXPORT int unet_poll(unet_endpoint* endpoint) {
  return is_parents(of(endpoint).node()) ? ESHUTDOWN : of(endpoint).poll();
}

CLAN_EXPORT int unet_wait(unet_endpoint* endpoint, int64_t timeout_ms) {
  return is_parents(of(endpoint).node()) ? ESHUTDOWN : of(endpoint).wait(timeout_ms);
}

CLAN_EXPORT int unet_fd(unet_endpoint* endpoint) {
  return is_parents(of(endpoint).node()) ? -1 : of(endpoint).fd();
}

CLAN_EXPORT int unet_arm(unet_endpoint* endpoint) {
  return is_parents(of(endpoint).node()) ? ESHUTDOWN : of(endpoint).arm();
}

CLAN_EXPORT int unet_on_receive(unet_endpoint* endpoint, void (*arrived)(unet_endpoint*, void*),
                                void* context) {
  if (is_parents(of(endpoint).node())) return ESHUTDOWN;
  return of(endpoint).on_receive(arrived, context);
}

CLAN_EXPORT void unet_count(unet_endpoint* endpoint, unet_counters* counters) {
  Endpoint& e = of(endpoint);
  const clan::unet::UnetRow& row = e.row();
  *counters = {value_of(row.sent),
               value_of(row.sent_bytes),
               value_of(row.received),
               value_of(row.received_bytes),
               value_of(row.dropped_buffer),
               value_of(row.dropped_queue),
               value_of(row.dropped_tag),
               value_of(row.returned),
               value_of(row.deferrals),
               0,
               0,
               0,
               0};
  if (is_parents(e.node()) || !e.node().translator) return;
  const clan::TlbStats tlb = e.node().translator->stats();
  counters->tlb_hits = tlb.hits;
  counters->tlb_misses = tlb.misses;
  counters->tlb_evictions = tlb.evictions;
  counters->tlb_pinned = tlb.pinned;
}

}  // extern "C"
