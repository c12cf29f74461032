/* Virtual memory-mapped communication (VMMC) of the SHRIMP multicomputer, over CLAN.
 *
 *   receiver                                        sender
 *   m = vmmc_alloc(v, bytes);
 *   vmmc_export(v, "in", m, bytes, ..., &buffer);   vmmc_import(v, NULL, "in", ms, &remote);
 *                                                   vmmc_send(remote, offset, data, n, 0);
 *   looks at m, or has a handler called             vmmc_bind(remote, ..., mode, ms, &binding);
 *
 * Every call answers 0 or a negative errno unless it says otherwise. Any thread may make any call.
 * What a forked child has of its parent answers -ESHUTDOWN. docs/vmmc.md is the reference.
 */
#ifndef CLAN_VMMC_H
#define CLAN_VMMC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vmmc vmmc_t;
typedef struct vmmc_buffer vmmc_buffer_t;   /* exported */
typedef struct vmmc_remote vmmc_remote_t;   /* imported */
typedef struct vmmc_binding vmmc_binding_t; /* automatic update */

#define VMMC_COOKIE_BYTES 48

/* vmmc_open(): handlers run inside vmmc_poll() and vmmc_suspend() only, not in a thread of the
 * library. */
#define VMMC_HANDLERS_IN_POLL 1u

int vmmc_open(unsigned flags, vmmc_t** v);
int vmmc_close(vmmc_t* v); /* -EBUSY: it has buffers, remotes or bindings */

/* Memory that importers of this host map: whole pages, zeroed. NULL: errno. */
void* vmmc_alloc(vmmc_t* v, size_t bytes);
int vmmc_free(vmmc_t* v, void* memory);

/* --- export and import --- */

#define VMMC_READ 1u  /* importers may bind it by VMMC_ALIAS, to read */
#define VMMC_WRITE 2u /* and send to it */

typedef struct {
  int64_t uid;     /* the user whose processes may import it; -1: this one */
  unsigned rights; /* VMMC_READ | VMMC_WRITE */
} vmmc_permissions_t;

typedef struct {
  void* address;         /* where the data are: in the buffer, or where it was redirected to */
  uint64_t offset, size; /* as the sender has named them */
  uint64_t lost;         /* notifications lost for want of room since the last call */
} vmmc_notification_t;

typedef void (*vmmc_handler_t)(vmmc_buffer_t* buffer, const vmmc_notification_t* what,
                               void* context);

/* permissions NULL: this user, both rights. name NULL: by cookie only. handler NULL: notifications
 * of it are dropped. */
int vmmc_export(vmmc_t* v, const char* name, void* address, size_t bytes,
                const vmmc_permissions_t* permissions, vmmc_handler_t handler, void* context,
                vmmc_buffer_t** buffer);
int vmmc_unexport(vmmc_buffer_t* buffer); /* when it returns, no importer reaches the memory */
int vmmc_cookie(vmmc_buffer_t* buffer, unsigned char cookie[VMMC_COOKIE_BYTES]);

/* host NULL: this one. -ENOENT: nobody exports it now. timeout_ms -1: none. */
int vmmc_import(vmmc_t* v, const char* host, const char* name, int64_t timeout_ms,
                vmmc_remote_t** remote);
int vmmc_import_of(vmmc_t* v, const char* host, const char* name, int64_t owner_uid,
                   int64_t timeout_ms, vmmc_remote_t** remote);
int vmmc_import_cookie(vmmc_t* v, const unsigned char cookie[VMMC_COOKIE_BYTES], int64_t owner_uid,
                       int64_t timeout_ms, vmmc_remote_t** remote);
int vmmc_unimport(vmmc_remote_t* remote); /* -EBUSY: bindings use it */
size_t vmmc_size(const vmmc_remote_t* remote);
int vmmc_check(vmmc_remote_t* remote); /* -ESTALE: unexported; -ECONNRESET: its owner is gone */

/* --- deliberate update --- */

#define VMMC_NOTIFY 1u

int vmmc_send(vmmc_remote_t* remote, size_t offset, const void* source, size_t bytes,
              unsigned flags);
/* The source stays until vmmc_test() or vmmc_wait() answers something other than -EAGAIN,
 * -ETIMEDOUT. */
int vmmc_send_async(vmmc_remote_t* remote, size_t offset, const void* source, size_t bytes,
                    unsigned flags, uint64_t* handle);
int vmmc_test(vmmc_t* v, uint64_t handle); /* -EAGAIN: under way */
int vmmc_wait(vmmc_t* v, uint64_t handle, int64_t timeout_ms);
/* One aligned word, which is seen behind all that was sent to this remote before. */
int vmmc_put_word(vmmc_remote_t* remote, size_t offset, uint64_t word);
/* A notification alone. -EAGAIN: the receiver has not taken earlier ones. */
int vmmc_notify(vmmc_remote_t* remote, size_t offset, size_t bytes);

/* --- notifications --- */

typedef enum { VMMC_IGNORE = 0, VMMC_QUEUE = 1, VMMC_DELIVER = 2 } vmmc_state_t;

int vmmc_notifications(vmmc_buffer_t* buffer, int state); /* a vmmc_state_t */
int vmmc_block(vmmc_t* v); /* no handler begins; what comes is queued */
int vmmc_unblock(vmmc_t* v);
/* Until a notification has come since this last returned 0; its handler has run, unless it is
 * queued. */
int vmmc_suspend(vmmc_buffer_t* buffer, int64_t timeout_ms);
int vmmc_poll(vmmc_t* v); /* how many handlers have run */
int vmmc_fd(vmmc_t* v);   /* readable when vmmc_poll() has something to do; the library's */
/* The data of the next notified transfer are moved to `address` before its handler runs. */
int vmmc_redirect(vmmc_buffer_t* buffer, void* address, size_t bytes);

/* --- automatic update --- */

typedef enum {
  VMMC_ALIAS = 1, /* the bound memory is the exporter's memory */
  VMMC_STORE = 2, /* vmmc_store() and its like write both */
  VMMC_MIRROR = 3 /* changes are found, and sent by vmmc_flush() or at intervals */
} vmmc_mode_t;

/* address NULL: the library gives the memory, vmmc_bound() says where. mode: a vmmc_mode_t.
 * interval_ms: of MIRROR; 0: vmmc_flush() alone. */
int vmmc_bind(vmmc_remote_t* remote, size_t offset, void* address, size_t bytes, int mode,
              unsigned interval_ms, vmmc_binding_t** binding);
/* MIRROR both ways: what the peer's binding sends lands in `landing`, an exported buffer of at
 * least `bytes`, and each flush takes it over into the bound memory. */
int vmmc_bind_both(vmmc_remote_t* remote, size_t offset, vmmc_buffer_t* landing, void* address,
                   size_t bytes, unsigned interval_ms, vmmc_binding_t** binding);
int vmmc_unbind(vmmc_binding_t* binding);
void* vmmc_bound(const vmmc_binding_t* binding);
/* All stores before it are on their way, in order before what is sent later. */
int vmmc_flush(vmmc_binding_t* binding);
int vmmc_store(vmmc_binding_t* binding, size_t offset, const void* source, size_t bytes);
int vmmc_store_word(vmmc_binding_t* binding, size_t offset, uint64_t word); /* behind earlier */
/* Of MIRROR: 1, changes are found by comparing everything, as the kernel does not tell; else 0. */
int vmmc_compares(const vmmc_binding_t* binding);

#ifdef __cplusplus
}
#endif
#endif
