/* U-Net endpoints (U-Net/MM, section 4) over CLAN: by shared memory on one host, by the UDP link
 * between hosts. docs/unet.md goes through it.
 *
 *   program                                 library
 *   sends     descriptors to send     -->   unet_doorbell()   gathers, into the peer's ring
 *   frees     buffers to fill         -->
 *   receives  what has arrived        <--   unet_poll()       takes a free buffer, fills it
 *
 * The three queues are rings in this process's memory, which the program writes and reads itself by
 * the functions of unet_queues.h; a call of the library carries out what lies there. Tags name
 * channels to other endpoints, and are registered before they are used. A message arrives once or
 * not at all: what finds no free buffer, or no place in the receive queue, is dropped and counted.
 *
 * Calls answer 0 or an errno value. ESHUTDOWN: the node belongs to the parent of a forked process.
 * Threads: one thread at a time uses an endpoint, unless it has UNET_THREADS; then one fills and
 * one empties each queue, and any thread calls the library. */
#ifndef CLAN_UNET_H
#define CLAN_UNET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UNET_INLINE 48u   /* bytes that lie in the descriptor itself */
#define UNET_PIECES 6u    /* of memory that one message is gathered from */
#define UNET_BUFFERS 6u   /* that one message fills at most */
#define UNET_PENDING (-1) /* status of a send descriptor that the library has not done */

/* Modes: what descriptors and the free queue name. */
#define UNET_AREA 0u     /* offsets in the endpoint's area */
#define UNET_ANYWHERE 1u /* addresses of this process, through the NIC's TLB */

/* Of an endpoint. */
#define UNET_DIRECT_AREA 1u /* peers may write its area by UNET_DIRECT */
#define UNET_EMULATED 2u    /* shares the NIC's resources with others of the node */
#define UNET_THREADS 4u     /* used by several threads */

/* Of a descriptor. */
#define UNET_DIRECT 1u /* the data go to `offset` in the peer's area */
#define UNET_CLOSED 2u /* received: the channel's end; `status` says why */

typedef struct unet_node unet_node;

/* Where an endpoint is: plain data, to be handed on by any means. */
typedef struct unet_address {
  uint64_t node;
  uint32_t endpoint, uid, number, reserved;
} unet_address;

typedef struct unet_piece {
  uint64_t at; /* an offset in the area, or an address */
  uint32_t bytes, reserved;
} unet_piece;

typedef struct unet_send {
  uint64_t cookie; /* the program's */
  uint64_t offset; /* with UNET_DIRECT */
  uint32_t tag;
  uint32_t bytes; /* of `data`, where there are no pieces */
  uint16_t pieces;
  uint16_t flags;
  int32_t status; /* UNET_PENDING, then 0 or an errno value */
  union {
    unsigned char data[UNET_INLINE];
    unet_piece piece[UNET_PIECES];
  } u;
} unet_send;

/* Status 0: a message, in `data` where there are no buffers, else in them, one after the other.
 * UNET_CLOSED: 0, the peer has closed the channel; ECONNRESET, it has died; EACCES, it has no such
 * tag and key. Otherwise a buffer that comes back as it was: EFAULT, it cannot be written; EAGAIN,
 * its page was not in memory in time; ENOBUFS, the message needed more than there were. */
typedef struct unet_receive {
  uint32_t tag;
  uint32_t bytes;
  int32_t status;
  uint16_t buffers;
  uint16_t flags;
  union {
    unsigned char data[UNET_INLINE];
    uint64_t buffer[UNET_BUFFERS]; /* as they were given; with UNET_DIRECT one, the offset */
  } u;
} unet_receive;

typedef struct unet_index {
  uint32_t at, pad[15];
} unet_index;

/* Each is changed by one side: `added` of what the program fills, `taken` of what it empties. */
typedef struct unet_indices {
  unet_index send_added, send_taken, free_added, free_taken, receive_added, receive_taken;
} unet_indices;

/* What the program sees of an endpoint. Entries are powers of two. */
typedef struct unet_endpoint {
  unet_indices* indices;
  unet_send* sends;
  uint64_t* frees;
  unet_receive* receives;
  uint32_t send_entries, free_entries, receive_entries, buffer_bytes;
  unsigned char* area;
  uint64_t area_bytes;
} unet_endpoint;

/* Zeros are the defaults. Settings of the environment (CLAN_KEY and others) apply beside them. */
typedef struct unet_node_options {
  uint32_t tlb_entries, tlb_victims; /* 1024 and 16 */
  uint32_t lock_pages;               /* mlock() pages while they have an entry */
} unet_node_options;

typedef struct unet_endpoint_options {
  const char* service; /* a name that it is found by, or NULL */
  uint32_t mode, flags;
  uint32_t send_entries, free_entries, receive_entries; /* 64, 64, 64; powers of two */
  uint32_t buffer_bytes;                                /* of each free buffer: 4096 */
  uint64_t area_bytes;                                  /* page-aligned memory of the endpoint */
} unet_endpoint_options;

typedef struct unet_counters {
  uint64_t sent, sent_bytes, received, received_bytes;
  uint64_t dropped_buffer; /* received, and no free buffer */
  uint64_t dropped_queue;  /* received, and no place in the receive queue */
  uint64_t dropped_tag;    /* received by a channel that is closed, or was never accepted */
  uint64_t returned;       /* buffers that came back unfilled */
  uint64_t deferrals;      /* times that its sends waited for a page */
  uint64_t tlb_hits, tlb_misses, tlb_evictions, tlb_pinned; /* of the node */
} unet_counters;

/* A node is a network interface of this process. `options` may be NULL. */
int unet_open(const unet_node_options* options, unet_node** node);
/* Its endpoints have to be destroyed before. */
void unet_close(unet_node* node);

/* EADDRINUSE; EINVAL: not powers of two, an emulated endpoint with a name, and the like. */
int unet_create(unet_node* node, const unet_endpoint_options* options, unet_endpoint** endpoint);
/* Closes its channels: peers get UNET_CLOSED. */
void unet_destroy(unet_endpoint* endpoint);
unet_address unet_address_of(const unet_endpoint* endpoint);

/* Registers a tag for the one peer that connects to it with this key. EEXIST. */
int unet_accept(unet_endpoint* endpoint, uint32_t tag, uint64_t key);
/* Registers a tag for the channel to `peer_tag` of another endpoint, by its address or by its name,
 * as "worker", "udp:HOST/worker". Messages may be sent at once; where the peer does not accept, the
 * receive queue gets UNET_CLOSED. EEXIST; ECONNREFUSED, ETIMEDOUT. -1: no limit of time. */
int unet_connect(unet_endpoint* endpoint, uint32_t tag, const unet_address* peer, uint32_t peer_tag,
                 uint64_t key, int64_t timeout_ms);
int unet_connect_service(unet_endpoint* endpoint, uint32_t tag, const char* service,
                         uint32_t peer_tag, uint64_t key, int64_t timeout_ms);
/* The tag is not registered any more. ENOENT. */
int unet_close_tag(unet_endpoint* endpoint, uint32_t tag);

/* Carries out what lies in the send queue, and makes ready what lies in the free queue. Statuses:
 * EACCES: no such tag; EFAULT: memory that cannot be read; EMSGSIZE; EPIPE, ECONNRESET: the peer is
 * gone. A send for which the peer has no room stays pending, as do the later ones of its channel;
 * one whose page is not in memory, and all later ones of the endpoint. */
int unet_doorbell(unet_endpoint* endpoint);
/* Takes what has arrived. EAGAIN: the receive queue is empty. */
int unet_poll(unet_endpoint* endpoint);
/* The same, waiting, until there is something in the receive queue or a pending send is done.
 * ETIMEDOUT, EINTR. */
int unet_wait(unet_endpoint* endpoint, int64_t timeout_ms);
/* A descriptor for poll() and epoll, readable when there is something to do after unet_arm() has
 * answered 0. EAGAIN: unet_poll() and unet_doorbell() first. -1: there can be none. */
int unet_fd(unet_endpoint* endpoint);
int unet_arm(unet_endpoint* endpoint);
/* Calls `arrived` in a thread of the library when the receive queue is not empty, until the next
 * call; NULL: no more. EINVAL: without UNET_THREADS. Not to be called in `arrived`. */
int unet_on_receive(unet_endpoint* endpoint, void (*arrived)(unet_endpoint*, void*), void* context);

void unet_count(unet_endpoint* endpoint, unet_counters* counters);

#ifdef __cplusplus
}
#endif

#include "unet_queues.h"

#endif
