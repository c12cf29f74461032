/* The functions by which a program fills and empties the queues of an endpoint (unet.h). */
#ifndef CLAN_UNET_QUEUES_H
#define CLAN_UNET_QUEUES_H

/* `__ATOMIC_RELEASE` publishes earlier writes; `__ATOMIC_ACQUIRE` sees them. A plain load reads the
 * index that only the caller changes. */

/* Returns the next send descriptor to fill. NULL: the send queue is full. */
static inline unet_send* unet_send_next(const unet_endpoint* e) {
  const uint32_t added = e->indices->send_added.at;
  const uint32_t taken = __atomic_load_n(&e->indices->send_taken.at, __ATOMIC_ACQUIRE);
  return added - taken == e->send_entries ? NULL : &e->sends[added & (e->send_entries - 1)];
}

/* Adds that descriptor to the send queue. The next unet_doorbell() processes it. */
static inline void unet_send_push(const unet_endpoint* e) {
  const uint32_t added = e->indices->send_added.at;
  e->sends[added & (e->send_entries - 1)].status = UNET_PENDING;
  __atomic_store_n(&e->indices->send_added.at, added + 1, __ATOMIC_RELEASE);
}

/* Returns the oldest send if it is done: its status is 0 or an errno value. NULL: it is not done,
 * or the send queue is empty. */
static inline const unet_send* unet_send_done(const unet_endpoint* e) {
  const uint32_t taken = e->indices->send_taken.at;
  const unet_send* const d = &e->sends[taken & (e->send_entries - 1)];
  if (taken == __atomic_load_n(&e->indices->send_added.at, __ATOMIC_ACQUIRE)) return NULL;
  return __atomic_load_n(&d->status, __ATOMIC_ACQUIRE) == UNET_PENDING ? NULL : d;
}

/* Frees the place of that send in the send queue. */
static inline void unet_send_take(const unet_endpoint* e) {
  __atomic_store_n(&e->indices->send_taken.at, e->indices->send_taken.at + 1, __ATOMIC_RELEASE);
}

/* Adds a buffer to the free queue, by its offset in the area or by its address. Returns 1, or 0 if
 * the free queue is full. */
static inline int unet_free_push(const unet_endpoint* e, uint64_t buffer) {
  const uint32_t added = e->indices->free_added.at;
  const uint32_t taken = __atomic_load_n(&e->indices->free_taken.at, __ATOMIC_ACQUIRE);
  if (added - taken == e->free_entries) return 0;
  e->frees[added & (e->free_entries - 1)] = buffer;
  __atomic_store_n(&e->indices->free_added.at, added + 1, __ATOMIC_RELEASE);
  return 1;
}

/* Returns the oldest entry of the receive queue. NULL: unet_poll() has left no entry there. */
static inline const unet_receive* unet_receive_next(const unet_endpoint* e) {
  const uint32_t taken = e->indices->receive_taken.at;
  if (taken == __atomic_load_n(&e->indices->receive_added.at, __ATOMIC_ACQUIRE)) return NULL;
  return &e->receives[taken & (e->receive_entries - 1)];
}

/* Frees the place of that entry in the receive queue. */
static inline void unet_receive_take(const unet_endpoint* e) {
  const uint32_t taken = e->indices->receive_taken.at;
  __atomic_store_n(&e->indices->receive_taken.at, taken + 1, __ATOMIC_RELEASE);
}

#endif
