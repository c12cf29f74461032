// AF_CLAN, as a program that knows nothing but the header uses it. Run with the interposer
// preloaded; each test has processes and names of its own.
#include <clan/af_clan.h>
#include <clan/detail/system_call.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "connection.h"

namespace {

using clan::test::bytes_by_shared_memory;
using clan::test::child;
using clan::test::echo;
using clan::test::ping;
using clan::test::result_of;

sockaddr* generic(void* address) { return static_cast<sockaddr*>(address); }

struct Address {
  sockaddr_clan clan{};
  socklen_t size = sizeof clan;
  Address() = default;
  explicit Address(const std::string& name) : size(clan_address(&clan, name.c_str())) {}
  sockaddr* get() { return generic(&clan); }
  std::string name() const {
    char text[CLAN_NAME_MAX + 1];
    clan_name(&clan, size, text);
    return text;
  }
};

// Returns a name of this test and process.
std::string unique(const char* what = "") {
  return std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + what + "/" +
         std::to_string(::getpid());
}

int bind_to(int fd, const std::string& name) {
  Address a(name);
  return ::bind(fd, a.get(), a.size);
}
int connect_to(int fd, const std::string& name) {
  Address a(name);
  return ::connect(fd, a.get(), a.size);
}
int listener(const std::string& name, int type = SOCK_STREAM) {
  const int fd = ::socket(AF_CLAN, type, 0);
  EXPECT_EQ(bind_to(fd, name), 0) << std::strerror(errno);
  EXPECT_EQ(::listen(fd, 16), 0) << std::strerror(errno);
  return fd;
}
int client(const std::string& name, int type = SOCK_STREAM) {
  const int fd = ::socket(AF_CLAN, type, 0);
  EXPECT_EQ(connect_to(fd, name), 0) << std::strerror(errno);
  return fd;
}
std::string name_of(int fd, int (*call)(int, sockaddr*, socklen_t*) = ::getsockname) {
  Address a;
  if (call(fd, a.get(), &a.size) != 0) return std::string("error: ") + std::strerror(errno);
  EXPECT_EQ(a.clan.sclan_family, AF_CLAN);
  return a.name();
}

TEST(AfClanStream, CarriesBytesBySharedMemory) {
  const std::string name = unique();
  const int listening = listener(name);
  const pid_t server = child([&] { return echo(::accept(listening, nullptr, nullptr)); });
  ::close(listening);
  const int fd = client(name);
  ping(fd, 200);
  EXPECT_GT(bytes_by_shared_memory(), 300'000u);
  ::close(fd);
  EXPECT_EQ(result_of(server), 0);
}

TEST(AfClanStream, TellsItsNames) {
  const std::string name = unique();
  const int listening = listener(name);
  EXPECT_EQ(name_of(listening), name);
  const int fd = client(name);
  Address from;
  const int accepted = ::accept4(listening, from.get(), &from.size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  ASSERT_GE(accepted, 0);
  EXPECT_EQ(from.clan.sclan_family, AF_CLAN);
  EXPECT_EQ(from.size, sizeof(sa_family_t));
  EXPECT_EQ(::fcntl(accepted, F_GETFD), FD_CLOEXEC);
  EXPECT_NE(::fcntl(accepted, F_GETFL) & O_NONBLOCK, 0);
  char byte;
  EXPECT_EQ(::read(accepted, &byte, 1), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(name_of(accepted), name);
  EXPECT_EQ(name_of(accepted, ::getpeername), "");
  EXPECT_EQ(name_of(fd, ::getpeername), name);
  EXPECT_EQ(name_of(fd), "");
  EXPECT_EQ(name_of(listening, ::getpeername), "error: Transport endpoint is not connected");
  for (int each : {listening, fd, accepted}) {
    int value = 0;
    socklen_t size = sizeof value;
    EXPECT_EQ(::getsockopt(each, SOL_SOCKET, SO_DOMAIN, &value, &size), 0);
    EXPECT_EQ(value, AF_CLAN);
    EXPECT_EQ(::getsockopt(each, SOL_SOCKET, SO_TYPE, &value, &size), 0);
    EXPECT_EQ(value, SOCK_STREAM);
    ::close(each);
  }
}

TEST(AfClanStream, ConnectsWithoutBlocking) {
  const std::string name = unique();
  const int listening = listener(name);
  const int fd = ::socket(AF_CLAN, SOCK_STREAM | SOCK_NONBLOCK, 0);
  EXPECT_TRUE(connect_to(fd, name) == 0 || errno == EINPROGRESS) << std::strerror(errno);
  pollfd p{fd, POLLOUT, 0};
  EXPECT_EQ(::poll(&p, 1, 5000), 1);
  int error = -1;
  socklen_t size = sizeof error;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size), 0);
  EXPECT_EQ(error, 0);
  p = {listening, POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 5000), 1);
  EXPECT_TRUE(connect_to(fd, name) == 0 || errno == EISCONN);
  EXPECT_EQ(connect_to(fd, name), -1);
  EXPECT_EQ(errno, EISCONN);
  EXPECT_EQ(connect_to(fd, unique("other")), -1);
  EXPECT_EQ(errno, EISCONN);
  ::close(fd);
  ::close(listening);
}

TEST(AfClanStream, ConnectsWithANameOfItsOwnAgainAndAgain) {
  const std::string name = unique();
  const int listening = listener(name);
  for (int i = 0; i < 3; ++i) {
    const int fd = ::socket(AF_CLAN, SOCK_STREAM, 0);
    ASSERT_EQ(bind_to(fd, name + "/client"), 0) << std::strerror(errno);
    ASSERT_EQ(connect_to(fd, name), 0) << std::strerror(errno);
    EXPECT_EQ(name_of(fd), name + "/client");
    const int accepted = ::accept(listening, nullptr, nullptr);
    ::close(fd);
    char byte;
    EXPECT_EQ(::read(accepted, &byte, 1), 0);
    ::close(accepted);
  }
  ::close(listening);
}

TEST(AfClanStream, IsNotForgottenWhenAVforkedChildClosesIt) {
  const std::string name = unique();
  const int listening = listener(name);
  const pid_t server = child([&] { return echo(::accept(listening, nullptr, nullptr)); });
  const int fd = client(name), null = ::open("/dev/null", O_RDWR);
  ping(fd, 100);
  const pid_t pid = ::vfork();
  if (pid == 0) {
    ::close(fd);
    ::dup2(null, listening);
    ::close_range(3, ~0u, 0);
    ::_exit(0);
  }
  EXPECT_EQ(result_of(pid), 0);
  EXPECT_EQ(name_of(listening), name);
  EXPECT_EQ(name_of(fd, ::getpeername), name);
  ping(fd, 100);
  for (int each : {fd, listening, null}) ::close(each);
  EXPECT_EQ(result_of(server), 0);
}

TEST(AfClanStream, IsHandedByVforkToAProgramAsItsInputAndOutput) {
  const std::string name = unique();
  const int listening = listener(name);
  const pid_t server = child([&] {
    const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    char buffer[1000];
    for (int i = 0; i < 100; ++i) {
      if (::recv(fd, buffer, sizeof buffer, MSG_WAITALL) != 1000) return 5;
      if (::write(fd, buffer, 1000) != 1000) return 6;
    }
    const pid_t cat = ::vfork();
    if (cat == 0) {
      ::dup2(fd, 0);
      ::dup2(fd, 1);
      ::execl("/bin/cat", "cat", nullptr);
      ::_exit(99);
    }
    ::close(fd);
    return result_of(cat);
  });
  ::close(listening);
  const int fd = client(name);
  ping(fd, 200);
  EXPECT_EQ(::shutdown(fd, SHUT_WR), 0);
  char byte;
  EXPECT_EQ(::read(fd, &byte, 1), 0);
  ::close(fd);
  EXPECT_EQ(result_of(server), 0);
}

TEST(AfClanStream, IsTakenOffAndConnectedAnew) {
  const std::string name = unique();
  const int listening = listener(name);
  const pid_t server = child([&] {
    const int first = ::accept(listening, nullptr, nullptr);
    if (echo(first) != 1 || errno != ECONNRESET) return 4;
    return echo(::accept(listening, nullptr, nullptr));
  });
  ::close(listening);
  const int fd = client(name);
  ping(fd, 50);
  const sockaddr nowhere{AF_UNSPEC, {}};
  EXPECT_EQ(::connect(fd, &nowhere, sizeof nowhere), 0);
  EXPECT_EQ(connect_to(fd, name), 0) << std::strerror(errno);
  ping(fd, 50);
  ::close(fd);
  EXPECT_EQ(result_of(server), 0);
}

TEST(AfClanStream, EndsAsTcpDoes) {
  const std::string name = unique();
  const int listening = listener(name);
  const pid_t server = child([&] {
    const int fd = ::accept(listening, nullptr, nullptr);
    echo(fd);
    return ::write(fd, "end", 3) == 3 ? 0 : 3;
  });
  ::close(listening);
  const int fd = client(name);
  ping(fd, 50);
  EXPECT_EQ(::shutdown(fd, SHUT_WR), 0);
  char text[8];
  EXPECT_EQ(::recv(fd, text, sizeof text, MSG_WAITALL), 3);
  EXPECT_EQ(::read(fd, text, sizeof text), 0);
  ::close(fd);
  EXPECT_EQ(result_of(server), 0);
}

TEST(AfClanStream, ServesManyClientsByEpoll) {
  const std::string name = unique();
  const int listening = listener(name);
  const int set = ::epoll_create1(0);
  epoll_event event{EPOLLIN, {.fd = listening}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, listening, &event), 0);
  std::vector<pid_t> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(child([&] {
      const int fd = client(name);
      ping(fd, 100);
      return ::testing::Test::HasFailure() ? 1 : 0;
    }));
  }
  for (std::size_t ended = 0; ended < clients.size();) {
    epoll_event ready[8];
    const int n = ::epoll_wait(set, ready, 8, 20'000);
    ASSERT_GT(n, 0);
    for (int i = 0; i < n; ++i) {
      const int fd = ready[i].data.fd;
      if (fd == listening) {
        event.data.fd = ::accept(listening, nullptr, nullptr);
        ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event), 0);
        continue;
      }
      char buffer[2000];
      const ssize_t got = ::read(fd, buffer, sizeof buffer);
      if (got > 0) {
        ASSERT_EQ(::write(fd, buffer, static_cast<std::size_t>(got)), got);
      } else {
        ++ended;
        ::close(fd);
      }
    }
  }
  for (pid_t pid : clients) EXPECT_EQ(result_of(pid), 0);
  ::close(set);
  ::close(listening);
}

class AfClanOfType : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Types, AfClanOfType,
                         ::testing::Values(SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM));

TEST_P(AfClanOfType, GivesANameToOneSocket) {
  const std::string name = unique();
  const int first = ::socket(AF_CLAN, GetParam(), 0);
  const int second = ::socket(AF_CLAN, GetParam(), 0);
  EXPECT_EQ(bind_to(first, name), 0);
  EXPECT_EQ(bind_to(second, name), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  EXPECT_EQ(bind_to(first, unique("other")), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(
      result_of(child([&] { return bind_to(second, name) == -1 && errno == EADDRINUSE ? 0 : 1; })),
      0);
  ::close(first);
  EXPECT_EQ(bind_to(second, name), 0);
  EXPECT_EQ(name_of(second), name);
  ::close(second);
}

TEST_P(AfClanOfType, RefusesWhoLooksForANameNobodyHas) {
  const int fd = ::socket(AF_CLAN, GetParam(), 0);
  EXPECT_EQ(connect_to(fd, unique()), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  ::close(fd);
}

TEST_P(AfClanOfType, FreesTheNameOfAKilledProcess) {
  const std::string name = unique();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = child([&] {
    const int fd = ::socket(AF_CLAN, GetParam(), 0);
    bind_to(fd, name);
    if (GetParam() != SOCK_DGRAM) ::listen(fd, 5);
    if (::write(ready[1], "", 1) != 1) return 1;
    const int accepted = GetParam() == SOCK_DGRAM ? fd : ::accept(fd, nullptr, nullptr);
    char byte;
    while (::read(accepted, &byte, 1) >= 0) {
    }
    return 1;
  });
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const int peer = client(name, GetParam());
  EXPECT_EQ(::write(peer, "x", 1), 1);
  ::kill(pid, SIGKILL);
  EXPECT_EQ(result_of(pid), -SIGKILL);
  const int late = ::socket(AF_CLAN, GetParam(), 0);
  EXPECT_EQ(connect_to(late, name), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  const int fd = ::socket(AF_CLAN, GetParam(), 0);
  EXPECT_EQ(bind_to(fd, name), 0) << std::strerror(errno);
  if (GetParam() != SOCK_DGRAM) {
    EXPECT_EQ(::listen(fd, 5), 0) << std::strerror(errno);
  }
  for (int each : {fd, peer, late, ready[0], ready[1]}) ::close(each);
}

TEST_P(AfClanOfType, KeepsTheNameWhileACopyIsOpen) {
  const std::string name = unique();
  const int first = ::socket(AF_CLAN, GetParam(), 0);
  EXPECT_EQ(bind_to(first, name), 0);
  const int copy = ::dup(first), high = ::fcntl(first, F_DUPFD_CLOEXEC, 200);
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  const pid_t pid = child([&] {
    ::close(hold[1]);
    char byte;
    const bool right = name_of(high) == name && name_of(copy) == name;
    return ::read(hold[0], &byte, 1) == 0 && right ? 0 : 1;
  });
  ::close(hold[0]);
  ::close(first);
  EXPECT_EQ(name_of(first), "error: Bad file descriptor");
  EXPECT_EQ(name_of(copy), name);
  ASSERT_EQ(::dup2(hold[1], copy), copy);  // a pipe now
  EXPECT_EQ(name_of(copy), "error: Socket operation on non-socket");
  EXPECT_EQ(name_of(high), name);
  ::close(copy);
  ::close(high);
  const int second = ::socket(AF_CLAN, GetParam(), 0);
  EXPECT_EQ(bind_to(second, name), -1);  // the child's
  EXPECT_EQ(errno, EADDRINUSE);
  ::close(hold[1]);
  EXPECT_EQ(result_of(pid), 0);
  EXPECT_EQ(bind_to(second, name), 0);
  ::close(second);
}

TEST_P(AfClanOfType, ServesAfterForkInTheChild) {
  if (GetParam() == SOCK_DGRAM) GTEST_SKIP() << "datagram sockets accept nothing";
  const std::string name = unique();
  const int listening = listener(name, GetParam());
  const pid_t server = child([&] {
    const int fd = ::accept(listening, nullptr, nullptr);
    return name_of(fd) == name ? echo(fd) : 9;
  });
  ::close(listening);
  const int fd = client(name, GetParam());
  EXPECT_EQ(name_of(fd, ::getpeername), name);
  ping(fd, 20);
  const pid_t second = child([&] {
    ping(fd, 20);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(result_of(second), 0);
  ::close(fd);
  EXPECT_EQ(result_of(server), 0);
}

TEST_P(AfClanOfType, FindsANameForWhoWantsAny) {
  std::vector<std::string> names;
  for (int i = 0; i < 2; ++i) {
    const int fd = ::socket(AF_CLAN, GetParam(), 0);
    EXPECT_EQ(bind_to(fd, ""), 0);
    names.push_back(name_of(fd));
    ::close(fd);
  }
  EXPECT_EQ(names[0][0], '~');
  EXPECT_NE(names[0], names[1]);
}

TEST_P(AfClanOfType, TakesTheLongestNameAndCutsItWhereThereIsNoRoom) {
  std::string name = unique();
  name.resize(CLAN_NAME_MAX, 'x');
  const int fd = ::socket(AF_CLAN, GetParam(), 0);
  EXPECT_EQ(bind_to(fd, name), 0);
  EXPECT_EQ(name_of(fd), name);
  struct {
    sockaddr_clan address;
    char behind[8];
  } room;
  std::memset(&room, 'z', sizeof room);
  socklen_t size = 5;
  EXPECT_EQ(::getsockname(fd, generic(&room), &size), 0);
  EXPECT_EQ(size, sizeof(sockaddr_clan));
  EXPECT_EQ(room.address.sclan_name[2], name[2]);
  EXPECT_EQ(room.address.sclan_name[3], 'z');
  size = 0;
  EXPECT_EQ(::getsockname(fd, nullptr, &size), 0);
  EXPECT_EQ(size, sizeof(sockaddr_clan));
  Address longer;
  EXPECT_EQ(clan_address(&longer.clan, (name + "x").c_str()), 0u);
  ::close(fd);
}

TEST_P(AfClanOfType, RefusesImpossibleAddresses) {
  const int fd = ::socket(AF_CLAN, GetParam(), 0);
  Address a(unique());
  auto fails = [](int rc, int error) { return rc == -1 && errno == error; };
  auto* bad = reinterpret_cast<sockaddr*>(8);
  using Call = int (*)(int, const sockaddr*, socklen_t);
  for (Call call : {static_cast<Call>(::bind), static_cast<Call>(::connect)}) {
    EXPECT_TRUE(fails(call(fd, a.get(), 0), EINVAL));
    EXPECT_TRUE(fails(call(fd, a.get(), 1), EINVAL));
    EXPECT_TRUE(fails(call(fd, a.get(), static_cast<socklen_t>(-1)), EINVAL));
    EXPECT_TRUE(fails(call(fd, a.get(), sizeof(sockaddr_storage) + 1), EINVAL));
    EXPECT_TRUE(fails(call(fd, nullptr, a.size), EFAULT));
  }
  EXPECT_TRUE(fails(::bind(fd, bad, a.size), EFAULT));
  sockaddr_in other{};
  other.sin_family = AF_INET;
  EXPECT_TRUE(fails(::bind(fd, generic(&other), sizeof other), EINVAL));
  EXPECT_TRUE(fails(::connect(fd, generic(&other), sizeof other), EAFNOSUPPORT));
  EXPECT_TRUE(fails(connect_to(fd, ""), EINVAL));
  EXPECT_EQ(::bind(fd, a.get(), a.size), 0);
  socklen_t size = sizeof a.clan;
  EXPECT_TRUE(fails(::getsockname(fd, bad, &size), EFAULT));
  EXPECT_TRUE(fails(::getsockname(fd, a.get(), nullptr), EFAULT));
  size = static_cast<socklen_t>(-1);
  EXPECT_TRUE(fails(::getsockname(fd, a.get(), &size), EINVAL));
  ::close(fd);
  EXPECT_TRUE(fails(::bind(fd, a.get(), a.size), EBADF));
}

TEST(AfClan, RefusesTypesAndProtocolsItDoesNotHave) {
  EXPECT_EQ(::socket(AF_CLAN, SOCK_RAW, 0), -1);
  EXPECT_EQ(errno, ESOCKTNOSUPPORT);
  EXPECT_EQ(::socket(AF_CLAN, SOCK_STREAM, 17), -1);
  EXPECT_EQ(errno, EPROTONOSUPPORT);
  int pair[2];
  EXPECT_EQ(::socketpair(AF_CLAN, SOCK_STREAM, 0, pair), -1);
  EXPECT_EQ(errno, EAFNOSUPPORT);
  const int fd = ::socket(AF_CLAN, SOCK_STREAM, 0);
  EXPECT_EQ(::listen(fd, 5), -1);  // it has no name
  EXPECT_EQ(errno, EINVAL);
  ::close(fd);
}

TEST(AfClan, LeavesOtherSocketsAlone) {
  const std::string name = unique();
  const int listening = listener(name);
  const int tcp = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  EXPECT_EQ(::bind(tcp, generic(&any), sizeof any), 0);
  socklen_t size = sizeof any;
  EXPECT_EQ(::getsockname(tcp, generic(&any), &size), 0);
  EXPECT_EQ(any.sin_family, AF_INET);
  EXPECT_EQ(connect_to(tcp, name), -1);
  EXPECT_EQ(errno, EAFNOSUPPORT);
  ::close(tcp);
  ::close(listening);
}

// A server that listens on all addresses at the port of a name is not taken for it, and keeps it
// from nobody.
TEST(AfClanStream, PassesByAServerThatListensEverywhereAtItsPort) {
  std::string name;
  int everywhere = -1;
  for (int i = 0; everywhere < 0; ++i) {
    ASSERT_LT(i, 20);
    name = unique() + "/" + std::to_string(i);
    int fd = listener(name);
    sockaddr_in place{};
    socklen_t size = sizeof place;
    ASSERT_EQ(clan::sys::call(SYS_getsockname, fd, &place, &size), 0);  // as the kernel has it
    ::close(fd);
    place.sin_addr.s_addr = 0;
    everywhere = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::bind(everywhere, generic(&place), sizeof place) == 0) break;
    ::close(everywhere);  // the end of somebody's connection has the port: another name
    everywhere = -1;
  }
  ASSERT_EQ(::listen(everywhere, 5), 0);
  int fd = ::socket(AF_CLAN, SOCK_STREAM, 0);
  EXPECT_EQ(connect_to(fd, name), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  const int listening = listener(name);
  ::close(fd);
  fd = client(name);
  pollfd p[2] = {{everywhere, POLLIN, 0}, {listening, POLLIN, 0}};
  EXPECT_EQ(::poll(p, 2, 5000), 1);
  EXPECT_NE(p[1].revents, 0);
  ::close(everywhere);
  const int second = ::socket(AF_CLAN, SOCK_STREAM, 0);
  EXPECT_EQ(bind_to(second, name), -1);  // though its first place is free
  EXPECT_EQ(errno, EADDRINUSE);
  for (int each : {fd, listening, second}) ::close(each);
}

TEST(AfClanStream, HasNamesOfThisHostOnlyWhateverTheyBeginWith) {
  const std::string name = "udp:127.0.0.1/" + unique();
  const int fd = ::socket(AF_CLAN, SOCK_STREAM, 0);
  EXPECT_EQ(connect_to(fd, name), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  ::close(fd);
  const int listening = listener(name);
  const int connected = client(name);
  EXPECT_EQ(name_of(connected, ::getpeername), name);
  ::close(connected);
  ::close(listening);
}

TEST(AfClanStream, IsNotConnectedToAnotherUsersName) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  const std::string name = unique();
  int ready[2], over[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(over), 0);
  const pid_t pid = child([&] {
    ::close(over[1]);
    if (::setuid(12345) != 0) return 1;
    const int stream = listener(name), packet = listener(name, SOCK_SEQPACKET);
    char byte;
    const bool told = ::write(ready[1], "", 1) == 1;
    return stream >= 0 && packet >= 0 && told && ::read(over[0], &byte, 1) == 0 ? 0 : 1;
  });
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  for (int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const int fd = ::socket(AF_CLAN, type, 0);
    EXPECT_EQ(connect_to(fd, name), -1);
    EXPECT_EQ(errno, EACCES);
    ::close(fd);
  }
  ::close(over[1]);
  EXPECT_EQ(result_of(pid), 0);
  for (int each : {ready[0], ready[1], over[0]}) ::close(each);
}

TEST(AfClanPacket, KeepsTheBoundariesOfMessages) {
  const std::string name = unique();
  const int listening = listener(name, SOCK_SEQPACKET);
  const int fd = ::socket(AF_CLAN, SOCK_SEQPACKET, 0);
  EXPECT_EQ(bind_to(fd, name + "/client"), 0);
  EXPECT_EQ(connect_to(fd, name), 0);
  Address from;
  const int accepted = ::accept(listening, from.get(), &from.size);
  EXPECT_EQ(from.name(), name + "/client");
  EXPECT_EQ(name_of(accepted), name);
  EXPECT_EQ(name_of(accepted, ::getpeername), name + "/client");
  EXPECT_EQ(::send(fd, "one", 3, 0), 3);
  EXPECT_EQ(::send(fd, "three", 5, 0), 5);
  char text[16];
  EXPECT_EQ(::recv(accepted, text, 2, MSG_TRUNC), 3);
  EXPECT_EQ(::read(accepted, text, sizeof text), 5);
  for (int each : {listening, fd, accepted}) ::close(each);
}

TEST(AfClanDatagram, SendsToNamesAndTellsSenders) {
  const std::string name = unique();
  const int a = ::socket(AF_CLAN, SOCK_DGRAM, 0), b = ::socket(AF_CLAN, SOCK_DGRAM, 0);
  const int unnamed = ::socket(AF_CLAN, SOCK_DGRAM, 0);
  EXPECT_EQ(bind_to(a, name + "/a"), 0);
  EXPECT_EQ(bind_to(b, name + "/b"), 0);
  Address to(name + "/b"), from;
  EXPECT_EQ(::sendto(a, "hello", 5, 0, to.get(), to.size), 5);
  char text[16];
  EXPECT_EQ(::recvfrom(b, text, sizeof text, 0, from.get(), &from.size), 5);
  EXPECT_EQ(from.name(), name + "/a");
  iovec io{text, 3};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_name = &from.clan;
  message.msg_namelen = from.size;
  EXPECT_EQ(::sendmsg(b, &message, 0), 3);
  std::memset(&from.clan, 0, sizeof from.clan);
  message.msg_namelen = sizeof from.clan;
  io.iov_len = 2;
  EXPECT_EQ(::recvmsg(a, &message, 0), 2);
  EXPECT_EQ(message.msg_flags, MSG_TRUNC);
  from.size = message.msg_namelen;
  EXPECT_EQ(from.name(), name + "/b");
  EXPECT_EQ(::sendto(unnamed, "x", 1, 0, to.get(), to.size), 1);
  from.size = sizeof from.clan;
  EXPECT_EQ(::recvfrom(b, text, sizeof text, 0, from.get(), &from.size), 1);
  EXPECT_EQ(from.size, 0u);
  Address nobody(name + "/nobody");
  EXPECT_EQ(::sendto(a, "x", 1, 0, nobody.get(), nobody.size), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  EXPECT_EQ(::sendto(a, "x", 1, 0, to.get(), 1), -1);
  EXPECT_EQ(errno, EINVAL);
  sockaddr_un other{};
  other.sun_family = AF_UNIX;
  EXPECT_EQ(::sendto(a, "x", 1, 0, generic(&other), sizeof other), -1);
  EXPECT_EQ(errno, EINVAL);
  for (int each : {a, b, unnamed}) ::close(each);
}

TEST(AfClanDatagram, GoesInBatchesWithNames) {
  const std::string name = unique();
  const int a = ::socket(AF_CLAN, SOCK_DGRAM, 0), b = ::socket(AF_CLAN, SOCK_DGRAM, 0);
  EXPECT_EQ(bind_to(a, name + "/a"), 0);
  EXPECT_EQ(bind_to(b, name + "/b"), 0);
  Address to(name + "/b");
  char text[3][4] = {"one", "two", "six"};
  iovec io[3];
  mmsghdr messages[3] = {};
  Address from[3];
  for (int i = 0; i < 3; ++i) {
    io[i] = {text[i], 3};
    messages[i].msg_hdr.msg_iov = io + i;
    messages[i].msg_hdr.msg_iovlen = 1;
    messages[i].msg_hdr.msg_name = &to.clan;
    messages[i].msg_hdr.msg_namelen = to.size;
  }
  EXPECT_EQ(::sendmmsg(a, messages, 3, 0), 3);
  for (int i = 0; i < 3; ++i) {
    messages[i].msg_hdr.msg_name = &from[i].clan;
    messages[i].msg_hdr.msg_namelen = sizeof from[i].clan;
  }
  EXPECT_EQ(::recvmmsg(b, messages, 3, MSG_WAITFORONE, nullptr), 3);
  EXPECT_STREQ(text[2], "six");
  EXPECT_EQ(messages[2].msg_len, 3u);
  from[2].size = messages[2].msg_hdr.msg_namelen;
  EXPECT_EQ(from[2].name(), name + "/a");
  ::close(a);
  ::close(b);
}

TEST(AfClan, IsKnownAgainAfterExec) {
  const std::string name = unique();
  const int kept = listener(name), closed = listener(name + "/closed");
  ::fcntl(closed, F_SETFD, FD_CLOEXEC);
  const int packet = ::socket(AF_CLAN, SOCK_DGRAM, 0);
  EXPECT_EQ(bind_to(packet, name), 0);
  const pid_t pid = child([&]() -> int {
    ::setenv("AF_CLAN_TEST_NAME", name.c_str(), 1);
    const std::string k = std::to_string(kept), p = std::to_string(packet);
    ::execl("/proc/self/exe", "af_clan_test", "--executed", k.c_str(), p.c_str(), nullptr);
    return 99;
  });
  ::close(kept);
  ::close(packet);
  const int fd = client(name);
  ping(fd, 20);
  ::close(fd);
  EXPECT_EQ(result_of(pid), 0);
  ::close(closed);
}

int executed(char** arguments) {
  const char* name = std::getenv("AF_CLAN_TEST_NAME");
  const int listening = std::atoi(arguments[0]), packet = std::atoi(arguments[1]);
  if (name_of(listening) != name || name_of(packet) != name) return 8;
  if (std::getenv("CLAN_INHERITED_NAMES") != nullptr) return 9;
  const int fd = ::accept(listening, nullptr, nullptr);
  return name_of(fd) == name ? echo(fd) : 10;
}

TEST(AfClan, IsWhatTheResolverFindsForItsNames) {
  const std::string name = "clan:" + unique();
  addrinfo* found = nullptr;
  ASSERT_EQ(::getaddrinfo(name.c_str(), nullptr, nullptr, &found), 0);
  int count = 0;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    EXPECT_EQ(a->ai_family, AF_CLAN);
    const int fd = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    EXPECT_EQ(::bind(fd, a->ai_addr, a->ai_addrlen), 0);
    EXPECT_EQ("clan:" + name_of(fd), name);
    ::close(fd);
    ++count;
  }
  EXPECT_EQ(count, 3);
  ::freeaddrinfo(found);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_protocol = IPPROTO_TCP;
  ASSERT_EQ(::getaddrinfo(name.c_str(), "6379", &hints, &found), 0);
  EXPECT_EQ(found->ai_next, nullptr);
  char host[128];
  EXPECT_EQ(::getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof host, nullptr, 0, 0), 0);
  EXPECT_EQ(host, name + ":6379");
  EXPECT_EQ(::getnameinfo(found->ai_addr, found->ai_addrlen, host, 8, nullptr, 0, 0), EAI_OVERFLOW);
  ::freeaddrinfo(found);
  EXPECT_EQ(::getaddrinfo(("clan:" + std::string(97, 'x')).c_str(), nullptr, nullptr, &found),
            EAI_NONAME);
  EXPECT_EQ(::getaddrinfo("clan:", nullptr, nullptr, &found), EAI_NONAME);
  hints.ai_socktype = SOCK_RAW;
  EXPECT_EQ(::getaddrinfo(name.c_str(), nullptr, &hints, &found), EAI_SOCKTYPE);
  EXPECT_EQ(::getaddrinfo("127.0.0.1", "80", nullptr, &found), 0);
  EXPECT_EQ(found->ai_family, AF_INET);
  ::freeaddrinfo(found);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--executed") == 0) return executed(argv + 2);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
