/* The library under the stubs that clan-rpcgen makes: remote calls through slots of shared memory,
 * without a header.
 *
 *   client stub                   slot, shared                 server's skeleton
 *     arguments ---------------> | data ... | flag | -------> procedure(arguments, &result)
 *     result <------------------ | data ... | flag | <------- writes its result there
 *
 * A binding has CLAN_SHRIMP_SLOTS slots, so that as many calls may be under way; what does not fit
 * into one goes through the binding's arena, one such call at a time. Programs use the generated
 * header, and of this file the functions in its first part.
 *
 * Threads: a client may be used by any number of them; a server serves in one. After fork a child
 * makes its own.
 */
#ifndef CLAN_SHRIMP_H_
#define CLAN_SHRIMP_H_

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CLAN_SHRIMP_SLOTS 16

/* How a call has ended. */
enum clan_shrimp_stat {
  CLAN_SHRIMP_OK = 0,
  CLAN_SHRIMP_NO_PROCEDURE, /* the server has none of this number */
  CLAN_SHRIMP_GARBAGE,      /* arguments or results that cannot be decoded */
  CLAN_SHRIMP_REFUSED,      /* the procedure returned 0 */
  CLAN_SHRIMP_TIMED_OUT,
  CLAN_SHRIMP_GONE,      /* the server has ended; or the binding is another process's */
  CLAN_SHRIMP_TOO_LARGE, /* arguments or results of more than the arena holds */
  CLAN_SHRIMP_NO_MEMORY
};
const char* clan_shrimp_text(enum clan_shrimp_stat stat);

typedef struct clan_shrimp_client clan_shrimp_client;
typedef struct clan_shrimp_server clan_shrimp_server;
typedef struct clan_shrimp_call clan_shrimp_call;
typedef struct clan_shrimp_program clan_shrimp_program;

/* Binds to the program of that name on this host. NULL: errno says why; EPROTOTYPE: the server was
 * made from another .x file. timeout_ms < 0: as long as it takes. */
clan_shrimp_client* clan_shrimp_connect(const char* name, const clan_shrimp_program* program,
                                        int timeout_ms);
void clan_shrimp_close(clan_shrimp_client* client);
/* For each call from now on; 25 seconds otherwise. */
void clan_shrimp_set_timeout(clan_shrimp_client* client, int timeout_ms);

/* Serves a program under a name, to processes of this user. NULL: errno, as EADDRINUSE. */
clan_shrimp_server* clan_shrimp_listen(const char* name, const clan_shrimp_program* program);
/* Serves for timeout_ms, or for ever (< 0), or until clan_shrimp_stop(). Returns 0, or -1 with
 * errno. */
int clan_shrimp_serve(clan_shrimp_server* server, int timeout_ms);
/* Ends clan_shrimp_serve(); from within a procedure, a signal handler or another thread. */
void clan_shrimp_stop(clan_shrimp_server* server);
void clan_shrimp_destroy(clan_shrimp_server* server);

/* Of the caller of the procedure that is being served, by the kernel's word. */
uint32_t clan_shrimp_caller_uid(const clan_shrimp_call* call);

/* ---- for generated code -------------------------------------------------------------------------
 */

typedef struct {
  uint32_t number;
  enum clan_shrimp_stat (*serve)(clan_shrimp_call* call);
} clan_shrimp_procedure;

struct clan_shrimp_program {
  const char* name;
  uint64_t hash; /* of the interface: types, procedures, numbers */
  uint32_t count;
  const clan_shrimp_procedure* procedures;
};

/* Bytes being written in the machine's order, or read. A reader's bounds are private; each length
 * is checked on a copy. */
typedef struct {
  char* at;
  char* end;
  uint32_t depth; /* of pointers and arrays being followed */
} clan_shrimp_bytes;

typedef enum clan_shrimp_stat (*clan_shrimp_put)(clan_shrimp_bytes* to, const void* from);
typedef enum clan_shrimp_stat (*clan_shrimp_get)(clan_shrimp_bytes* from, void* to);

/* A call of a client: arguments of `flat` bytes as they are, or put by `put`; results likewise. */
typedef struct {
  uint32_t number;
  const void* arguments;
  size_t flat_arguments; /* 0: put is used, unless that is NULL: none */
  clan_shrimp_put put;
  void* results;
  size_t flat_results;
  clan_shrimp_get get;
} clan_shrimp_request;
enum clan_shrimp_stat clan_shrimp_do(clan_shrimp_client* client,
                                     const clan_shrimp_request* request);
/* The same in halves, for several calls under way; *ticket names the call. */
enum clan_shrimp_stat clan_shrimp_send(clan_shrimp_client* client,
                                       const clan_shrimp_request* request, uint64_t* ticket);
enum clan_shrimp_stat clan_shrimp_wait(clan_shrimp_client* client,
                                       const clan_shrimp_request* request, uint64_t ticket);

/* The server's side of one. */
enum clan_shrimp_stat clan_shrimp_arguments(clan_shrimp_call* call, void* to, size_t flat,
                                            clan_shrimp_get get);
/* Where a result of `flat` bytes is to be written: in the slot, or in the arena, over what lay
 * there. NULL: too large. */
void* clan_shrimp_in_place(clan_shrimp_call* call, size_t flat);
enum clan_shrimp_stat clan_shrimp_results(clan_shrimp_call* call, const void* from,
                                          clan_shrimp_put put);

static inline enum clan_shrimp_stat clan_put_bytes(clan_shrimp_bytes* to, const void* from,
                                                   size_t bytes) {
  if ((size_t)(to->end - to->at) < bytes) return CLAN_SHRIMP_TOO_LARGE;
  if (bytes > 0) memcpy(to->at, from, bytes);
  to->at += bytes;
  return CLAN_SHRIMP_OK;
}

static inline enum clan_shrimp_stat clan_get_bytes(clan_shrimp_bytes* from, void* to,
                                                   size_t bytes) {
  if ((size_t)(from->end - from->at) < bytes) return CLAN_SHRIMP_GARBAGE;
  if (bytes > 0) memcpy(to, from->at, bytes);
  from->at += bytes;
  return CLAN_SHRIMP_OK;
}

/* A counted array's length, and memory for its elements, of which each takes at least `least` bytes
 * of message. */
static inline enum clan_shrimp_stat clan_get_length(clan_shrimp_bytes* from, uint32_t most,
                                                    size_t least, size_t element, uint32_t* length,
                                                    void** memory) {
  uint32_t n;
  *memory = NULL;
  *length = 0;
  if (clan_get_bytes(from, &n, sizeof n) != CLAN_SHRIMP_OK || n > most) return CLAN_SHRIMP_GARBAGE;
  if (least > 0 && (size_t)(from->end - from->at) / least < n) return CLAN_SHRIMP_GARBAGE;
  if (n > 0 && (*memory = calloc(n, element)) == NULL) return CLAN_SHRIMP_NO_MEMORY;
  *length = n;
  return CLAN_SHRIMP_OK;
}

static inline enum clan_shrimp_stat clan_put_length(clan_shrimp_bytes* to, uint32_t length,
                                                    uint32_t most) {
  return length > most ? CLAN_SHRIMP_GARBAGE : clan_put_bytes(to, &length, sizeof length);
}

static inline enum clan_shrimp_stat clan_put_string(clan_shrimp_bytes* to, const char* text,
                                                    uint32_t most) {
  const size_t length = text != NULL ? strlen(text) : (size_t)-1;
  if (length > most || clan_put_length(to, (uint32_t)length, most) != CLAN_SHRIMP_OK) {
    return length > most ? CLAN_SHRIMP_GARBAGE : CLAN_SHRIMP_TOO_LARGE;
  }
  return clan_put_bytes(to, text, length);
}

static inline enum clan_shrimp_stat clan_get_string(clan_shrimp_bytes* from, char** text,
                                                    uint32_t most) {
  uint32_t length;
  *text = NULL;
  if (clan_get_bytes(from, &length, sizeof length) != CLAN_SHRIMP_OK || length > most ||
      (size_t)(from->end - from->at) < length) {
    return CLAN_SHRIMP_GARBAGE;
  }
  if ((*text = (char*)malloc((size_t)length + 1)) == NULL) return CLAN_SHRIMP_NO_MEMORY;
  (*text)[length] = 0;
  return clan_get_bytes(from, *text, length);
}

/* Pointers and arrays are followed so deep, a list so long: it takes stack. */
#define CLAN_SHRIMP_DEPTH 10000

static inline enum clan_shrimp_stat clan_get_pointer(clan_shrimp_bytes* from, size_t size,
                                                     void** memory) {
  uint32_t there;
  *memory = NULL;
  if (clan_get_bytes(from, &there, sizeof there) != CLAN_SHRIMP_OK || there > 1)
    return CLAN_SHRIMP_GARBAGE;
  if (there == 0) return CLAN_SHRIMP_OK;
  if (++from->depth > CLAN_SHRIMP_DEPTH) return CLAN_SHRIMP_GARBAGE;
  return (*memory = calloc(1, size)) != NULL ? CLAN_SHRIMP_OK : CLAN_SHRIMP_NO_MEMORY;
}

#ifdef __cplusplus
}
#endif
#endif
