/* Ping-pong between two processes by U-Net endpoints, in plain C.
 *
 *     unet_ping                 forks, and has both ends talk: the time of a round trip
 *     unet_ping server NAME     one end, here or on another host (CLAN_KEY at both)
 *     unet_ping client NAME     NAME, or udp:HOST/NAME
 *
 * The steps are those of every U-Net program: make an endpoint, register tags, give it buffers, and
 * then fill and empty its queues. Messages as short as these need no buffers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unet.h>
#include <unistd.h>

#define ROUNDS 20000
#define KEY 20240601 /* both ends know it */

static unet_node* node;
static unet_endpoint* endpoint;

static void check(int error, const char* call) {
  if (error == 0) return;
  fprintf(stderr, "unet_ping: %s: %s\n", call, strerror(error));
  exit(1);
}

static void send_word(uint32_t tag, const char* word) {
  unet_send* d = unet_send_next(endpoint); /* never full here: each send is taken back */
  memset(d, 0, sizeof *d);
  d->tag = tag;
  d->bytes = (uint32_t)strlen(word);
  memcpy(d->u.data, word, d->bytes);
  unet_send_push(endpoint);
  check(unet_doorbell(endpoint), "unet_doorbell");
  while (unet_send_done(endpoint) == NULL) check(unet_wait(endpoint, -1), "unet_wait");
  check(unet_send_done(endpoint)->status, "send");
  unet_send_take(endpoint);
}

/* 0: the other end has closed the channel. */
static int receive_word(const char* word) {
  const unet_receive* d;
  int closed;
  while ((d = unet_receive_next(endpoint)) == NULL) check(unet_wait(endpoint, -1), "unet_wait");
  closed = d->flags == UNET_CLOSED;
  if (closed) check(d->status, "the channel's end");
  if (!closed && (d->bytes != strlen(word) || memcmp(d->u.data, word, d->bytes) != 0)) exit(2);
  unet_receive_take(endpoint);
  return !closed;
}

static void open_endpoint(const char* service) {
  unet_endpoint_options options;
  memset(&options, 0, sizeof options);
  options.service = service;
  check(unet_open(NULL, &node), "unet_open");
  check(unet_create(node, &options, &endpoint), "unet_create");
}

static void close_endpoint(void) {
  unet_destroy(endpoint);
  unet_close(node);
}

static int server(const char* name, int ready) {
  open_endpoint(name);
  check(unet_accept(endpoint, 1, KEY), "unet_accept");
  if (ready >= 0 && write(ready, "", 1) != 1) return 1;
  while (receive_word("ping")) send_word(1, "pong");
  close_endpoint();
  return 0;
}

static int client(const char* name) {
  struct timespec begin, end;
  int i;
  open_endpoint(NULL);
  check(unet_connect_service(endpoint, 2, name, 1, KEY, 10000), "unet_connect_service");
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (i = 0; i < ROUNDS; ++i) {
    send_word(2, "ping");
    if (!receive_word("pong")) return 1;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  printf(
      "round trip of 4 bytes: %.0f ns\n",
      ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / ROUNDS);
  close_endpoint();
  return 0;
}

int main(int argc, char** argv) {
  char name[64], byte;
  int ready[2], status = 1, result;
  if (argc == 3 && strcmp(argv[1], "server") == 0) return server(argv[2], -1);
  if (argc == 3 && strcmp(argv[1], "client") == 0) return client(argv[2]);
  if (argc > 1) {
    puts(
        "unet_ping                 forks, and has both ends talk: the time of a round trip\n"
        "unet_ping server NAME     one end, here or on another host (CLAN_KEY at both)\n"
        "unet_ping client NAME     the other end; NAME, or udp:HOST/NAME");
    return strcmp(argv[1], "--help") != 0;
  }
  snprintf(name, sizeof name, "unet-ping-%d", (int)getpid());
  if (pipe(ready) != 0) return 1;
  if (fork() == 0) _exit(server(name, ready[1]));
  if (read(ready[0], &byte, 1) != 1) return 1;
  result = client(name);
  wait(&status);
  return result != 0 || status != 0;
}
