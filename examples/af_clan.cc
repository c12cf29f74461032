// Sockets by name, for programs that run under `clan run`: <clan/af_clan.h> and the socket API, no
// library. A server squares numbers for each client of its name, and writes a note by datagram
// when it ends.
//
//   clan run build/release/bin/examples/af_clan
#include <clan/af_clan.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

static constexpr int kNumbers = 10'000;
static constexpr int kNotHere = 77;  // to ctest: skipped

static void must(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
  std::_Exit(errno == EAFNOSUPPORT ? kNotHere : 1);
}

// A socket with a name (bind) or of one (connect).
static int socket_with(int (*call)(int, const sockaddr*, socklen_t), int type,
                       const std::string& name) {
  const int fd = ::socket(AF_CLAN, type, 0);
  must(fd >= 0, "socket(AF_CLAN), outside `clan run`");
  sockaddr_clan address;
  const socklen_t size = clan_address(&address, name.c_str());
  must(call(fd, reinterpret_cast<sockaddr*>(&address), size) == 0, name.c_str());
  return fd;
}

static int server(int listener, const std::string& notes) {
  const int fd = ::accept(listener, nullptr, nullptr);
  long number, served = 0;
  while (::recv(fd, &number, sizeof number, MSG_WAITALL) == sizeof number) {
    const long square = number * number;
    if (::send(fd, &square, sizeof square, 0) != sizeof square) return 1;
    ++served;
  }
  const std::string note = "squared " + std::to_string(served);
  const int out = socket_with(::bind, SOCK_DGRAM, notes + "/from");
  sockaddr_clan to;
  const socklen_t size = clan_address(&to, notes.c_str());
  const ssize_t sent =
      ::sendto(out, note.data(), note.size(), 0, reinterpret_cast<sockaddr*>(&to), size);
  return sent == static_cast<ssize_t>(note.size()) ? 0 : 1;
}

int main() {
  ::alarm(50);
  const std::string squares = "squares/" + std::to_string(::getpid());
  const std::string notes = "notes/" + std::to_string(::getpid());
  const int listener = socket_with(::bind, SOCK_STREAM, squares);
  const int notebook = socket_with(::bind, SOCK_DGRAM, notes);
  must(::listen(listener, 5) == 0, "listen");
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(server(listener, notes));
  ::close(listener);  // the name stays while the child has it

  const int fd = socket_with(::connect, SOCK_STREAM, squares);
  int right = 0;
  for (long i = 0; i < kNumbers; ++i) {
    long square = 0;
    must(::send(fd, &i, sizeof i, 0) == sizeof i, "send");
    must(::recv(fd, &square, sizeof square, MSG_WAITALL) == sizeof square, "recv");
    right += square == i * i;
  }
  ::close(fd);

  char note[64] = {}, from[CLAN_NAME_MAX + 1];
  sockaddr_clan sender;
  socklen_t size = sizeof sender;
  must(::recvfrom(notebook, note, sizeof note - 1, 0, reinterpret_cast<sockaddr*>(&sender), &size) >
           0,
       "recvfrom");
  clan_name(&sender, size, from);
  std::printf("%d of %d squares were right; \"%s\" says: %s\n", right, kNumbers, from, note);
  int status = 0;
  ::waitpid(child, &status, 0);
  const bool noted = note == "squared " + std::to_string(kNumbers) && from == notes + "/from";
  return status == 0 && right == kNumbers && noted ? 0 : 1;
}
