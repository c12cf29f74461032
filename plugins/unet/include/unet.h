/* U-Net endpoints (U-Net/MM, section 4) over CLAN: by shared memory on one host, by the UDP link
 * between hosts. docs/vmmc-unet.md is the reference.
 *
 *   program                                 library
 *   sends     descriptors to send     -->   unet_doorbell()   gathers into the peer's ring
 *   frees     buffers to fill         -->
 *   receives  messages that arrived   <--   unet_poll()       takes a free buffer and fills it
 *
 * The three queues are rings in the memory of this process. The program fills and empties them by
 * the functions of unet_queues.h; calls of the library process the entries. A tag names a channel
 * to another endpoint; the program registers a tag before it uses it. A message arrives at most
 * once. The receiver drops and counts a message that finds no free buffer or no free place in the
 * receive queue.
 *
 * Calls return 0 or an errno value. ESHUTDOWN: the node belongs to the parent of a forked process.
 * One thread at a time may use an endpoint. With UNET_THREADS, one thread fills and one empties
 * each queue, and any thread may call the library. timeout_ms is in milliseconds; -1 sets no limit.
 */
#ifndef CLAN_UNET_H
#define CLAN_UNET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UNET_INLINE 48u   /* most bytes of data in a descriptor */
#define UNET_PIECES 6u    /* most pieces of memory in one message */
#define UNET_BUFFERS 6u   /* most buffers that one message fills */
#define UNET_PENDING (-1) /* status of a send that the library has not finished */

/* Modes of an endpoint: the meaning of entries in descriptors and in the free queue. */
#define UNET_AREA 0u     /* offsets in the endpoint's area */
#define UNET_ANYWHERE 1u /* addresses of this process, translated by the NIC's TLB */

/* Flags of an endpoint. */
#define UNET_DIRECT_AREA 1u /* peers may write to its area by UNET_DIRECT */
#define UNET_EMULATED 2u    /* shares the NIC's resources with other endpoints of the node */
#define UNET_THREADS 4u     /* several threads use it */

/* Flags of a descriptor. */
#define UNET_DIRECT 1u /* the data go to `offset` in the peer's area */
#define UNET_CLOSED 2u /* of a receive: the channel has ended; `status` gives the reason */

typedef struct unet_node unet_node;

/* The address of an endpoint: plain data, which the program may pass on by any means. */
typedef struct unet_address {
  uint64_t node;
  uint32_t endpoint, uid, number, reserved;
} unet_address;

typedef struct unet_piece {
  uint64_t at; /* an offset in the area, or an address */
  uint32_t bytes, reserved;
} unet_piece;

typedef struct unet_send {
  uint64_t cookie; /* for the program's use */
  uint64_t offset; /* in the peer's area, with UNET_DIRECT */
  uint32_t tag;
  uint32_t bytes; /* of `data`, if pieces is 0 */
  uint16_t pieces;
  uint16_t flags;
  int32_t status; /* UNET_PENDING, then 0 or an errno value */
  union {
    unsigned char data[UNET_INLINE];
    unet_piece piece[UNET_PIECES];
  } u;
} unet_send;

/* Status 0: a message, in `data` if buffers is 0, else in the buffers in order.
 * With UNET_CLOSED: 0, the peer has closed the channel; ECONNRESET, the peer has died; EACCES, the
 * peer has no such tag and key.
 * Otherwise an unfilled buffer comes back: EFAULT, the library cannot write to it; EAGAIN, its page
 * was not in memory in time; ENOBUFS, the message needed more buffers than there were. */
typedef struct unet_receive {
  uint32_t tag;
  uint32_t bytes;
  int32_t status;
  uint16_t buffers;
  uint16_t flags;
  union {
    unsigned char data[UNET_INLINE];
    uint64_t buffer[UNET_BUFFERS]; /* as the program gave them; with UNET_DIRECT, one: the offset */
  } u;
} unet_receive;

typedef struct unet_index {
  uint32_t at, pad[15];
} unet_index;

/* One side changes each index: the side that fills a queue its `added`, the other its `taken`. */
typedef struct unet_indices {
  unet_index send_added, send_taken, free_added, free_taken, receive_added, receive_taken;
} unet_indices;

/* The part of an endpoint that the program sees. Numbers of entries are powers of two. */
typedef struct unet_endpoint {
  unet_indices* indices;
  unet_send* sends;
  uint64_t* frees;
  unet_receive* receives;
  uint32_t send_entries, free_entries, receive_entries, buffer_bytes;
  unsigned char* area;
  uint64_t area_bytes;
} unet_endpoint;

/* 0 selects a default. The environment variables (CLAN_KEY and others) also apply. */
typedef struct unet_node_options {
  uint32_t tlb_entries, tlb_victims; /* entries: 1024 and 16 */
  uint32_t lock_pages;               /* not 0: mlock() pages while they have an entry in the TLB */
} unet_node_options;

typedef struct unet_endpoint_options {
  const char* service; /* a name by which peers find it, or NULL */
  uint32_t mode, flags;
  uint32_t send_entries, free_entries, receive_entries; /* 64, 64, 64; powers of two */
  uint32_t buffer_bytes;                                /* of each free buffer; 4096 */
  uint64_t area_bytes;                                  /* of the page-aligned area; 0: none */
} unet_endpoint_options;

typedef struct unet_counters {
  uint64_t sent, sent_bytes, received, received_bytes;
  uint64_t dropped_buffer; /* messages dropped: no free buffer */
  uint64_t dropped_queue;  /* messages dropped: no free place in the receive queue */
  uint64_t dropped_tag;    /* messages dropped: channel closed or never accepted */
  uint64_t returned;       /* buffers returned unfilled */
  uint64_t deferrals;      /* times that sends waited for a page */
  uint64_t tlb_hits, tlb_misses, tlb_evictions, tlb_pinned; /* of the node */
} unet_counters;

/* Opens a node: a network interface of this process. `options` may be NULL. EPERM: CLAN_DISABLE. */
int unet_open(const unet_node_options* options, unet_node** node);
/* Closes a node. The program must destroy its endpoints first. */
void unet_close(unet_node* node);

/* Creates an endpoint. EADDRINUSE: another endpoint has the name; EINVAL: invalid options, such as
 * entries that are not powers of two, or a name for an emulated endpoint. */
int unet_create(unet_node* node, const unet_endpoint_options* options, unet_endpoint** endpoint);
/* Destroys an endpoint and closes its channels. Its peers get UNET_CLOSED. */
void unet_destroy(unet_endpoint* endpoint);
/* Returns the address of an endpoint. */
unet_address unet_address_of(const unet_endpoint* endpoint);

/* Registers a tag for the one peer that connects to it with this key. EEXIST: the tag exists. */
int unet_accept(unet_endpoint* endpoint, uint32_t tag, uint64_t key);
/* Registers a tag for the channel to `peer_tag` of another endpoint. The program gives the address
 * of that endpoint or its name, such as "worker" or "udp:HOST/worker". It may send at once. If the
 * peer refuses, the receive queue gets UNET_CLOSED. EEXIST: the tag exists; ECONNREFUSED: no
 * process has this address or name; ETIMEDOUT. */
int unet_connect(unet_endpoint* endpoint, uint32_t tag, const unet_address* peer, uint32_t peer_tag,
                 uint64_t key, int64_t timeout_ms);
int unet_connect_service(unet_endpoint* endpoint, uint32_t tag, const char* service,
                         uint32_t peer_tag, uint64_t key, int64_t timeout_ms);
/* Closes the channel of a tag and removes the tag. ENOENT: the tag does not exist. */
int unet_close_tag(unet_endpoint* endpoint, uint32_t tag);

/* Processes the send queue and prepares the buffers in the free queue. Statuses of sends: EACCES:
 * no such tag; EFAULT: unreadable memory; EINVAL: too many pieces; EMSGSIZE: too long; ERANGE:
 * outside the peer's area; EOPNOTSUPP: the peer has no UNET_DIRECT_AREA; EPIPE, ECONNRESET: the
 * peer has gone. If the peer has no room, the send and later sends of its channel stay pending. If
 * a page is not in memory, the send and all later sends of the endpoint stay pending. */
int unet_doorbell(unet_endpoint* endpoint);
/* Moves messages that arrived to the receive queue. EAGAIN: the receive queue is empty. */
int unet_poll(unet_endpoint* endpoint);
/* Does the work of unet_poll(), continues pending sends, and waits until the receive queue has an
 * entry or a pending send is done. ETIMEDOUT; EINTR: a signal. */
int unet_wait(unet_endpoint* endpoint, int64_t timeout_ms);
/* Returns a descriptor for poll() and epoll, or -1. After unet_arm() has returned 0, it is readable
 * when there is work to do. */
int unet_fd(unet_endpoint* endpoint);
/* Arms that descriptor. EAGAIN: call unet_poll() and unet_doorbell() first. */
int unet_arm(unet_endpoint* endpoint);
/* Makes a thread of the library call `arrived` when the receive queue has an entry, until the next
 * call. arrived NULL: ends this. EINVAL: no UNET_THREADS. `arrived` must not make this call. */
int unet_on_receive(unet_endpoint* endpoint, void (*arrived)(unet_endpoint*, void*), void* context);

/* Copies the counters of an endpoint. */
void unet_count(unet_endpoint* endpoint, unet_counters* counters);

#ifdef __cplusplus
}
#endif

#include "unet_queues.h"

#endif
