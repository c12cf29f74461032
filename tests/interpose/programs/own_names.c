/* See own_names.py, which compiles this with definitions of all names that the library interposes. Prints a line for
   each thing that was done, and last whether a connection was in shared memory. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "names.h"

enum { kNames = sizeof own_names / sizeof own_names[0] };
static void *targets[kNames];
static uintptr_t library_from, library_to;
static int second;

static void refuse(const char *name) {
  char line[200];
  long n = snprintf(line, sizeof line, "the library calls %s() of the program\n", name), ignored;
  __asm__ volatile("syscall" : "=a"(ignored) : "0"(SYS_write), "D"(2), "S"(line), "d"(n) : "rcx", "r11", "memory");
  __asm__ volatile("syscall" : "=a"(ignored) : "0"(SYS_exit_group), "D"(99) : "rcx", "r11", "memory");
}

/* Before main() nobody can say where the library is; the loader has mapped it as one range. */
static void find_library(void) {
  static int done;
  if (done) return;
  done = 1;
  const char *way = getenv("OWN_NAMES");
  second = way != NULL && strcmp(way, "second") == 0;
  Dl_info info;
  void *next = dlsym(RTLD_NEXT, "epoll_wait");
  if (next == NULL || dladdr(next, &info) == 0 || strstr(info.dli_fname, "libclan-preload") == NULL) return;
  library_from = (uintptr_t)info.dli_fbase;
  library_to = library_from + 4 * 1024 * 1024;
  while (library_to > library_from) { /* the last page that is of the library */
    if (dladdr((void *)(library_to - 1), &info) != 0 && (uintptr_t)info.dli_fbase == library_from) break;
    library_to -= 4096;
  }
}

void *own_target(int index, uintptr_t caller) {
  find_library();
  if (caller >= library_from && caller < library_to) refuse(own_names[index].name);
  void *target = __atomic_load_n(&targets[index], __ATOMIC_RELAXED);
  if (target == NULL) {
    target = dlsym(RTLD_NEXT, second ? own_names[index].second : own_names[index].name);
    if (target == NULL) target = dlsym(RTLD_NEXT, own_names[index].name);
    if (target == NULL) abort();
    __atomic_store_n(&targets[index], target, __ATOMIC_RELAXED);
  }
  return target;
}

static void check(int good, const char *what) {
  if (good) return;
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

static volatile sig_atomic_t handled;
static void on_signal(int number) { handled += number == SIGUSR1; }

static int connected[2];
static struct sockaddr_in address;

static void *connect_there(void *unused) {
  connected[1] = socket(AF_INET, SOCK_STREAM, 0);
  check(connect(connected[1], (struct sockaddr *)&address, sizeof address) == 0, "connect");
  return unused;
}

static void connect_ends(void) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  check(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0, "listen");
  check(getsockname(listener, (struct sockaddr *)&address, &size) == 0, "getsockname");
  pthread_t thread;
  pthread_create(&thread, NULL, connect_there, NULL);
  connected[0] = accept(listener, NULL, NULL);
  pthread_join(thread, NULL);
  check(connected[0] >= 0 && close(listener) == 0, "accept");
  const int one = 1;
  for (int i = 0; i < 2; ++i) {
    check(setsockopt(connected[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "setsockopt");
  }
}

/* Waits for a byte in one of the ways there are. */
static void wait_for(int fd, int way, int set) {
  struct pollfd p = {fd, POLLIN, 0};
  struct epoll_event event;
  fd_set in;
  FD_ZERO(&in);
  FD_SET(fd, &in);
  if (way == 0) check(poll(&p, 1, 5000) == 1, "poll");
  if (way == 1) check(select(fd + 1, &in, NULL, NULL, NULL) == 1, "select");
  if (way == 2) check(epoll_wait(set, &event, 1, 5000) == 1, "epoll_wait");
}

static void exchange(int from, int to, int rounds) {
  const int set = epoll_create1(0);
  struct epoll_event event = {EPOLLIN, {.fd = to}};
  check(epoll_ctl(set, EPOLL_CTL_ADD, to, &event) == 0, "epoll_ctl");
  for (int i = 0; i < rounds; ++i) {
    char sent[64], got[64];
    memset(sent, i, sizeof sent);
    struct iovec out = {sent, sizeof sent}, in = {got, sizeof got};
    struct msghdr message = {.msg_iov = &in, .msg_iovlen = 1};
    ssize_t n = i % 3 == 0 ? write(from, sent, sizeof sent)
                : i % 3 == 1 ? send(from, sent, sizeof sent, 0) : writev(from, &out, 1);
    check(n == sizeof sent, "sent");
    wait_for(to, i % 4, set);
    n = i % 4 == 0 ? read(to, got, sizeof got)
        : i % 4 == 1 ? recv(to, got, sizeof got, 0)
        : i % 4 == 2 ? readv(to, &in, 1) : recvmsg(to, &message, 0);
    check(n == sizeof got && memcmp(sent, got, sizeof got) == 0, "received");
  }
  check(close(set) == 0, "close");
}

static int shared(void) {
  char path[300], link[64];
  int found = 0;
  DIR *directory = opendir("/proc/self/fd");
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    const ssize_t n = readlink(path, link, sizeof link - 1);
    found |= n > 0 && (link[n] = 0, strstr(link, "memfd:clan-pipe") != NULL);
  }
  closedir(directory);
  return found;
}

static void signals(void) {
  struct sigaction action = {.sa_handler = on_signal}, old;
  check(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR1, NULL, &old) == 0, "sigaction");
  check(old.sa_handler == on_signal && signal(SIGUSR2, SIG_IGN) != SIG_ERR, "signal");
  raise(SIGUSR1);
  printf("signals %d\n", (int)handled);
}

static void processes(char *self) {
  int ends[2], status = 0;
  check(pipe(ends) == 0, "pipe");
  const pid_t pid = fork();
  if (pid == 0) {
    const int copy = dup(ends[1]);
    dup2(copy, STDOUT_FILENO);
    execl(self, self, "child", NULL);
    _exit(9);
  }
  check(close(ends[1]) == 0, "close");
  char text[32] = "";
  check(read(ends[0], text, sizeof text - 1) > 0 && waitpid(pid, &status, 0) == pid, "child");
  printf("exec %d %s", WEXITSTATUS(status), text);
  pid_t spawned = 0;
  char *arguments[] = {self, "quiet", NULL};
  check(posix_spawn(&spawned, self, NULL, NULL, arguments, environ) == 0, "posix_spawn");
  check(waitpid(spawned, &status, 0) == spawned, "waitpid");
  printf("spawn %d system %d\n", WEXITSTATUS(status), WEXITSTATUS(system("exit 5")));
  FILE *stream = popen("echo popen", "r");
  check(stream != NULL && fgets(text, sizeof text, stream) != NULL && pclose(stream) == 0, "popen");
  printf("%s", text);
}

static void descriptors(void) {
  struct rlimit limit;
  int bytes = -1;
  check(fcntl(connected[0], F_SETFL, fcntl(connected[0], F_GETFL) | O_NONBLOCK) == 0, "fcntl");
  char byte;
  const ssize_t n = read(connected[0], &byte, 1);
  printf("nothing %d %d\n", (int)n, errno == EAGAIN);
  check(send(connected[1], "ab", 2, 0) == 2, "send");
  wait_for(connected[0], 0, -1);
  check(ioctl(connected[0], FIONREAD, &bytes) == 0, "ioctl");
  printf("readable %d\n", bytes);
  dprintf(connected[0], "%s %.1f\n", "printed", 1.5);
  char line[32] = "";
  check(recv(connected[1], line, sizeof line, 0) > 0, "recv");
  printf("%s", line);
  FILE *file = fopen("/proc/self/comm", "r");
  check(file != NULL && fgets(line, sizeof line, file) != NULL && fclose(file) == 0, "fopen");
  printf("%s", line);
  check(prlimit(0, RLIMIT_NOFILE, NULL, &limit) == 0 && syscall(SYS_getpid) == getpid(), "prlimit");
}

int main(int count, char **arguments) {
  if (count > 1) {
    if (strcmp(arguments[1], "child") == 0) write(STDOUT_FILENO, "executed\n", 9);
    return 3;
  }
  signals();
  connect_ends();
  for (int i = 0; i < 100; ++i) {
    exchange(connected[0], connected[1], 12);
    exchange(connected[1], connected[0], 12);
  }
  puts("exchanged");
  const int moved = shared();
  descriptors();
  fflush(stdout);
  processes(arguments[0]);
  check(shutdown(connected[0], SHUT_WR) == 0, "shutdown");
  char rest[8];
  printf("end %d\n", (int)recv(connected[1], rest, sizeof rest, 0));
  check(close(connected[0]) == 0 && close(connected[1]) == 0, "close");
  printf("moved %d\n", moved);
  return 0;
}
