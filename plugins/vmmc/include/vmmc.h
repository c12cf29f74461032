/* Virtual memory-mapped communication (VMMC) of the SHRIMP multicomputer, over CLAN.
 *
 *   receiver                                        sender
 *   m = vmmc_alloc(v, bytes);
 *   vmmc_export(v, "in", m, bytes, ..., &buffer);   vmmc_import(v, NULL, "in", ms, &remote);
 *                                                   vmmc_send(remote, offset, data, n, 0);
 *   polls m, or its handler runs                    vmmc_bind(remote, ..., mode, ms, &binding);
 *
 * Every call returns 0 or a negative errno value unless its comment says otherwise. A null handle
 * gives -EINVAL. In a forked child, a handle of the parent gives -ESHUTDOWN. Any thread may make
 * any call. timeout_ms is in milliseconds; -1 sets no limit. docs/vmmc-unet.md is the reference.
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

/* Flag of vmmc_open(): makes handlers run inside vmmc_poll() and vmmc_suspend() only, not in a
 * thread of the library. */
#define VMMC_HANDLERS_IN_POLL 1u

/* Opens VMMC. flags: 0 or VMMC_HANDLERS_IN_POLL. */
int vmmc_open(unsigned flags, vmmc_t** v);
/* Closes it and frees the memory of vmmc_alloc(). -EBUSY: it has buffers, remotes or bindings. */
int vmmc_close(vmmc_t* v);

/* Allocates whole pages of zeroed memory, which importers on this host map. Returns NULL and sets
 * errno on failure. */
void* vmmc_alloc(vmmc_t* v, size_t bytes);
/* Frees memory of vmmc_alloc(). -EINVAL: any other address. */
int vmmc_free(vmmc_t* v, void* memory);

/* --- export and import --- */

#define VMMC_READ 1u  /* importers may bind the buffer by VMMC_ALIAS, to read it */
#define VMMC_WRITE 2u /* importers may send to it */

typedef struct {
  int64_t uid;     /* the user whose processes may import the buffer; -1: this user */
  unsigned rights; /* VMMC_READ | VMMC_WRITE */
} vmmc_permissions_t;

typedef struct {
  void* address;         /* of the data: in the buffer, or where vmmc_redirect() moved them */
  uint64_t offset, size; /* as the sender gave them, in bytes */
  uint64_t lost;         /* notifications lost since the last call, as the queue was full */
} vmmc_notification_t;

typedef void (*vmmc_handler_t)(vmmc_buffer_t* buffer, const vmmc_notification_t* what,
                               void* context);

/* Exports `bytes` of memory at `address`. name NULL: importers need the cookie. permissions NULL:
 * this user has both rights. handler NULL: notifications are dropped. context: for the handler.
 * -EADDRINUSE, -EEXIST: another process, or this one, has exported this name. */
int vmmc_export(vmmc_t* v, const char* name, void* address, size_t bytes,
                const vmmc_permissions_t* permissions, vmmc_handler_t handler, void* context,
                vmmc_buffer_t** buffer);
/* Ends the export. When it returns, no importer can reach the memory. -EBUSY: another buffer shares
 * a page with this one, or vmmc_bind_both() uses it. */
int vmmc_unexport(vmmc_buffer_t* buffer);
/* Writes to `cookie` the right to import the buffer. */
int vmmc_cookie(vmmc_buffer_t* buffer, unsigned char cookie[VMMC_COOKIE_BYTES]);

/* Imports a buffer by its name. host NULL: this host. -ENOENT: no process of this host exports the
 * name now; of another host that is -ECONNREFUSED. */
int vmmc_import(vmmc_t* v, const char* host, const char* name, int64_t timeout_ms,
                vmmc_remote_t** remote);
/* Imports a buffer of a process of user `owner_uid` by its name; -1: this user. */
int vmmc_import_of(vmmc_t* v, const char* host, const char* name, int64_t owner_uid,
                   int64_t timeout_ms, vmmc_remote_t** remote);
/* Imports a buffer by its cookie; owner_uid: as for vmmc_import_of(). */
int vmmc_import_cookie(vmmc_t* v, const unsigned char cookie[VMMC_COOKIE_BYTES], int64_t owner_uid,
                       int64_t timeout_ms, vmmc_remote_t** remote);
/* Ends the import. -EBUSY: bindings use it. */
int vmmc_unimport(vmmc_remote_t* remote);
/* Returns the size of the buffer in bytes, or 0 for an unusable handle. */
size_t vmmc_size(const vmmc_remote_t* remote);
/* Checks the exporter. -ESTALE: it has ended the export; -ECONNRESET: it has gone. */
int vmmc_check(vmmc_remote_t* remote);

/* --- deliberate update --- */

#define VMMC_NOTIFY 1u /* flag of sends: a notification follows the data */

/* Sends `bytes` from `source` to `offset` in the buffer, and returns when the program may reuse the
 * source. -EINVAL: a flag that does not exist; -ERANGE: outside the buffer; -EACCES: no right to
 * write; -ESTALE, -ECONNRESET: as for vmmc_check(); -EAGAIN: as for vmmc_notify(), after the data
 * have left. */
int vmmc_send(vmmc_remote_t* remote, size_t offset, const void* source, size_t bytes,
              unsigned flags);
/* Starts a send. The program must keep the source unchanged until vmmc_test() or vmmc_wait()
 * returns a value other than -EAGAIN and -ETIMEDOUT. -EAGAIN: 1,024 sends are under way. -EINVAL:
 * as for vmmc_send(), or handle NULL. */
int vmmc_send_async(vmmc_remote_t* remote, size_t offset, const void* source, size_t bytes,
                    unsigned flags, uint64_t* handle);
/* Returns the result of a send, once. -EAGAIN: it is under way; -ESRCH: no such send is left;
 * -ENOBUFS: the data have arrived, but not their notification, as the receiver has not taken
 * earlier ones. */
int vmmc_test(vmmc_t* v, uint64_t handle);
/* Waits for the result of a send. -ETIMEDOUT: it is under way; -ESRCH: as for vmmc_test(). */
int vmmc_wait(vmmc_t* v, uint64_t handle, int64_t timeout_ms);
/* Writes one aligned word. The receiver sees it after all data sent to this remote before. */
int vmmc_put_word(vmmc_remote_t* remote, size_t offset, uint64_t word);
/* Sends a notification without data. -ERANGE: outside the buffer; -EAGAIN: the receiver has not
 * taken earlier ones. */
int vmmc_notify(vmmc_remote_t* remote, size_t offset, size_t bytes);

/* --- notifications --- */

typedef enum { VMMC_IGNORE = 0, VMMC_QUEUE = 1, VMMC_DELIVER = 2 } vmmc_state_t;

/* Sets the state of a buffer's notifications: a vmmc_state_t. */
int vmmc_notifications(vmmc_buffer_t* buffer, int state);
/* Prevents the start of handlers. Notifications are queued. */
int vmmc_block(vmmc_t* v);
/* Allows handlers to start again. */
int vmmc_unblock(vmmc_t* v);
/* Waits until a notification has arrived since the last return of 0, and until its handler has run,
 * unless the notification is queued. -ETIMEDOUT; -EDEADLK: called from the buffer's handler, or
 * from any handler that the library's thread runs. */
int vmmc_suspend(vmmc_buffer_t* buffer, int64_t timeout_ms);
/* Runs the handlers that are due and returns their number. -EOPNOTSUPP: not opened with
 * VMMC_HANDLERS_IN_POLL. */
int vmmc_poll(vmmc_t* v);
/* Returns a descriptor that is readable when vmmc_poll() has work to do. It belongs to the library.
 * -EOPNOTSUPP: as for vmmc_poll(). */
int vmmc_fd(vmmc_t* v);
/* Moves the data of the next notified transfer that fits to `address` before its handler runs. */
int vmmc_redirect(vmmc_buffer_t* buffer, void* address, size_t bytes);

/* --- automatic update --- */

typedef enum {
  VMMC_ALIAS = 1, /* the bound memory is the exporter's memory */
  VMMC_STORE = 2, /* vmmc_store() and vmmc_store_word() write to both memories */
  VMMC_MIRROR = 3 /* the library finds changes; vmmc_flush() or an interval sends them */
} vmmc_mode_t;

/* Binds `bytes` of memory at `address` to `offset` in the buffer. address NULL: the library gives
 * the memory; vmmc_bound() returns its address. mode: a vmmc_mode_t. interval_ms: time between
 * flushes of a MIRROR; 0: vmmc_flush() alone. -ERANGE: outside the buffer; -EBUSY: another binding
 * overlaps it; -EINVAL: not aligned; -EOPNOTSUPP: the mode does not work here. */
int vmmc_bind(vmmc_remote_t* remote, size_t offset, void* address, size_t bytes, int mode,
              unsigned interval_ms, vmmc_binding_t** binding);
/* Binds by MIRROR in both directions. The peer's binding sends into `landing`, an exported buffer
 * of at least `bytes`. Each flush copies the changes from there into the bound memory. */
int vmmc_bind_both(vmmc_remote_t* remote, size_t offset, vmmc_buffer_t* landing, void* address,
                   size_t bytes, unsigned interval_ms, vmmc_binding_t** binding);
/* Ends the binding. */
int vmmc_unbind(vmmc_binding_t* binding);
/* Returns the address of the bound memory, or NULL for an unusable handle. */
void* vmmc_bound(const vmmc_binding_t* binding);
/* Sends all earlier stores. They stay in order before everything sent later. -EFAULT: some of the
 * bound memory of a MIRROR is gone; -ESTALE, -ECONNRESET: as for vmmc_check(). */
int vmmc_flush(vmmc_binding_t* binding);
/* Stores `bytes` at `offset` in the bound memory of a STORE and in the buffer. -EINVAL: outside the
 * bound memory, or another mode; other errors: as for vmmc_send(). */
int vmmc_store(vmmc_binding_t* binding, size_t offset, const void* source, size_t bytes);
/* Stores one aligned word. The receiver sees it after earlier stores. -EINVAL: as for vmmc_store(),
 * or not aligned. */
int vmmc_store_word(vmmc_binding_t* binding, size_t offset, uint64_t word);
/* Returns 1 if a MIRROR compares all its memory, as the kernel does not report writes; else 0. */
int vmmc_compares(const vmmc_binding_t* binding);

#ifdef __cplusplus
}
#endif
#endif
