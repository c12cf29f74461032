#!/usr/bin/env python3
"""Modules that are opened past the library (RTLD_DEEPBIND, dlmopen) read what was sent.

    modules.py CC CLAN

A server opens a module that reads from the server's connection: before the connection has moved, or
after. The module lies where only the server's own search path (DT_RUNPATH) finds it. Each also
without the library.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = """
#define _GNU_SOURCE
#include <sys/socket.h>
#include <unistd.h>
long module_read(int fd, char *to, unsigned long n) { return recv(fd, to, n, MSG_WAITALL); }
"""

# Both ends of a connection, in two processes; the server reads each second kilobyte by the module.
PROGRAM = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int pipes(void) {
  int found = 0;
  DIR *directory = opendir("/proc/self/fd");
  char path[300], link[64];
  for (struct dirent *e; (e = readdir(directory)) != NULL;) {
    snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
    const ssize_t n = readlink(path, link, sizeof link - 1);
    found += n > 0 && (link[n] = 0, strstr(link, "memfd:clan-pipe") != NULL);
  }
  closedir(directory);
  return found;
}

static void *open_module(const char *how) {
  void *module = strcmp(how, "deepbind") == 0 ? dlopen("module.so", RTLD_NOW | RTLD_DEEPBIND)
                 : strcmp(how, "dlmopen") == 0 ? dlmopen(LM_ID_NEWLM, "module.so", RTLD_NOW)
                                               : dlopen("module.so", RTLD_NOW);
  if (module == NULL) puts(dlerror()), exit(3);
  return dlsym(module, "module_read");
}

int main(int count, char **arguments) {
  const char *how = arguments[1];
  const int late = atoi(arguments[2]);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  bind(listener, (struct sockaddr *)&at, size);
  listen(listener, 1);
  getsockname(listener, (struct sockaddr *)&at, &size);
  long (*module_read)(int, char *, unsigned long) = late ? NULL : open_module(how);
  const pid_t client = fork();
  const int fd = client == 0 ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL);
  if (client == 0 && connect(fd, (struct sockaddr *)&at, size) != 0) return 1;
  char bytes[1000], expected[1000];
  int moved = 0, wrong = 0;
  for (int i = 0; i < 200; ++i) {
    memset(expected, 'a' + i % 26, sizeof expected);
    if (client == 0) {
      send(fd, expected, sizeof expected, 0);
      if (i % 3 == 0) usleep(1000); /* the server sleeps */
      if (recv(fd, bytes, 1, 0) != 1) return 2;
      continue;
    }
    if (i == 100) {
      moved = pipes();
      if (late) module_read = open_module(how);
    }
    const long n = module_read != NULL && i % 2 == 1 ? module_read(fd, bytes, sizeof bytes)
                                                     : recv(fd, bytes, sizeof bytes, MSG_WAITALL);
    wrong += n != sizeof bytes || memcmp(bytes, expected, sizeof bytes) != 0;
    send(fd, bytes, 1, 0);
  }
  if (client == 0) return 0;
  int status = -1;
  close(fd);
  waitpid(client, &status, 0);
  printf("wrong %d client %d before %d\n", wrong, status, moved != 0);
  return 0;
}
"""


def main():
    cc, clan = sys.argv[1:3]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        (top / "hidden").mkdir()
        (top / "module.c").write_text(MODULE)
        (top / "program.c").write_text(PROGRAM)
        subprocess.run(
            [cc, "-x", "c", "-shared", "-fPIC", "-o", top / "hidden/module.so", top / "module.c"],
            check=True)
        subprocess.run([cc, "-x", "c", "-w", "-o", top / "program", top / "program.c", "-ldl",
                        f"-Wl,-rpath,{top}/hidden,--enable-new-dtags"], check=True)
        for how in "plain", "deepbind", "dlmopen":
            for late in "0", "1":
                for command in [], [clan, "run"]:
                    done = subprocess.run([*command, top / "program", how, late],
                                          capture_output=True, text=True, timeout=60,
                                          env={**os.environ, "CLAN_LOG": "warn"})
                    before = bool(command) and (how == "plain" or late == "1")
                    good = done.stdout.startswith(
                        f"wrong 0 client 0 before {int(before)}") and done.returncode == 0
                    print(how, "late" if late == "1" else "early", "clan" if command else "stock",
                          done.stdout.strip(), done.stderr.strip())
                    failed += not good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
