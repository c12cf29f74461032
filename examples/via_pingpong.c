/* Ping-pong between two processes by the Virtual Interface Architecture, in plain C.
 *
 *     via_pingpong                 forks, and has both ends talk: the time of a round trip
 *     via_pingpong server NAME     one end, here or on another host (CLAN_KEY at both)
 *     via_pingpong client NAME HOST
 *
 * The steps are those of every VIA program: open the NIC, register memory, make a VI, post what
 * will be received, connect, and then post sends and take what is done. Time-outs are milliseconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vipl.h>

#define BYTES 40
#define ROUNDS 20000
#define PATIENCE 10000

/* Every call says how it went. */
static void check(VIP_RETURN rc, const char* call) {
  if (rc == VIP_SUCCESS) return;
  fprintf(stderr, "via_pingpong: %s answers %d\n", call, (int)rc);
  exit(1);
}

/* What one end has. Descriptors must be aligned, and lie in registered memory as the data do. */
static struct {
  VIP_DESCRIPTOR receive[2], send;
  char in[2][BYTES], out[BYTES];
} __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT))) memory;
static VIP_NIC_HANDLE nic;
static VIP_MEM_HANDLE handle;
static VIP_VI_HANDLE vi;

static VIP_DESCRIPTOR* fill(VIP_DESCRIPTOR* d, void* data) {
  memset(d, 0, sizeof *d);
  d->CS.Control = VIP_CONTROL_OP_SENDRECV;
  d->CS.SegCount = 1;
  d->DS[0].Local.Data.Address = data;
  d->DS[0].Local.Handle = handle;
  d->DS[0].Local.Length = BYTES;
  return d;
}

static void set_up(void) {
  VIP_MEM_ATTRIBUTES for_memory = {0};
  VIP_VI_ATTRIBUTES for_vi = {0};
  int i;
  check(VipOpenNic("nic0", &nic), "VipOpenNic");
  check(VipRegisterMem(nic, &memory, sizeof memory, &for_memory, &handle), "VipRegisterMem");
  for_vi.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
  check(VipCreateVi(nic, &for_vi, NULL, NULL, &vi), "VipCreateVi");
  /* Before there is a connection: the peer must never find the queue empty. */
  for (i = 0; i < 2; ++i)
    check(VipPostRecv(vi, fill(&memory.receive[i], memory.in[i]), handle), "VipPostRecv");
}

typedef struct {
  VIP_UINT64 bytes[8];
} place;

/* A host's address, which the name service knows, and behind it what tells this program's
 * connection from others: the discriminator. */
static VIP_NET_ADDRESS* address(const char* host, const char* name, place* to) {
  VIP_NET_ADDRESS* a = (VIP_NET_ADDRESS*)memset(to, 0, sizeof *to);
  check(VipNSInit(nic, NULL), "VipNSInit");
  check(VipNSGetHostByName(nic, (char*)host, a, 0), "VipNSGetHostByName");
  check(VipNSShutdown(nic), "VipNSShutdown");
  a->DiscriminatorLen = (VIP_UINT16)strlen(name);
  memcpy((char*)a + 4 + a->HostAddressLen, name, strlen(name));
  return a;
}

static void ping(void) {
  VIP_DESCRIPTOR* done;
  VIP_RETURN rc;
  check(VipPostSend(vi, fill(&memory.send, memory.out), handle), "VipPostSend");
  do {
    rc = VipSendDone(vi, &done);
  } while (rc == VIP_NOT_DONE);
  check(rc, "VipSendDone");
}

static void pong(void) {
  VIP_DESCRIPTOR* done;
  check(VipRecvWait(vi, PATIENCE, &done), "VipRecvWait");
  check(VipPostRecv(vi, done, handle), "VipPostRecv"); /* its buffer may be filled again */
}

static void serve(const char* name) {
  VIP_CONN_HANDLE connection;
  place own;
  int i;
  set_up();
  check(VipConnectWait(nic, address("localhost", name, &own), PATIENCE, NULL, NULL, &connection),
        "VipConnectWait");
  check(VipConnectAccept(connection, vi), "VipConnectAccept");
  for (i = 0; i < ROUNDS; ++i) {
    pong();
    ping();
  }
  pong(); /* the client's last word: it has what was sent */
}

static void ask(const char* name, const char* host) {
  VIP_RETURN rc;
  struct timespec start, end;
  place own, servers;
  int i;
  set_up();
  do { /* until the server waits */
    rc = VipConnectRequest(vi, address("localhost", "client", &own), address(host, name, &servers),
                           PATIENCE, NULL);
    if (rc == VIP_NO_MATCH) usleep(1000);
  } while (rc == VIP_NO_MATCH);
  check(rc, "VipConnectRequest");
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (i = 0; i < ROUNDS; ++i) {
    ping();
    pong();
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  ping();
  printf("%d round trips of %d bytes: %.2f us each\n", ROUNDS, BYTES,
         ((double)(end.tv_sec - start.tv_sec) * 1e6 + (double)(end.tv_nsec - start.tv_nsec) / 1e3) /
             ROUNDS);
}

static void tear_down(void) {
  check(VipDisconnect(vi), "VipDisconnect");
  check(VipDestroyVi(vi), "VipDestroyVi");
  check(VipDeregisterMem(nic, &memory, handle), "VipDeregisterMem");
  check(VipCloseNic(nic), "VipCloseNic");
}

int main(int argc, char** argv) {
  char name[32];
  int status = 0;
  pid_t child;
  if (argc >= 3 && strcmp(argv[1], "server") == 0) {
    serve(argv[2]);
  } else if (argc >= 4 && strcmp(argv[1], "client") == 0) {
    ask(argv[2], argv[3]);
  } else if (argc > 1) {
    puts(
        "via_pingpong                    forks, and has both ends talk: the time of a round trip\n"
        "via_pingpong server NAME        one end, here or on another host (CLAN_KEY at both)\n"
        "via_pingpong client NAME HOST   the other end");
    return strcmp(argv[1], "--help") != 0;
  } else {
    snprintf(name, sizeof name, "pingpong%d", (int)getpid());
    child = fork();
    if (child == 0) {
      serve(name);
    } else {
      ask(name, "localhost");
      if (waitpid(child, &status, 0) != child) status = 1;
    }
  }
  tear_down();
  return status == 0 ? 0 : 1;
}
