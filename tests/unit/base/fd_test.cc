#include "base/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "clan/detail/clock.h"
#include "support/process.h"

namespace clan {
namespace {

using test::open_descriptors;

struct SocketPair {
  Fd a, b;
  SocketPair() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0) {
      a = Fd(fds[0]);
      b = Fd(fds[1]);
    }
  }
};

bool same_file(int x, int y) {
  struct stat sx {
  }, sy{};
  return ::fstat(x, &sx) == 0 && ::fstat(y, &sy) == 0 && sx.st_ino == sy.st_ino &&
         sx.st_dev == sy.st_dev;
}

std::span<const std::byte> bytes_of(const char* text) {
  return std::as_bytes(std::span(text, std::strlen(text)));
}

TEST(Fd, OfMemoryBeyondTheLimitOfFileSizesIsAnErrorAndNoSignal) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto fits = create_memfd("test", 1 << 20), large = create_memfd("test", 2 << 20);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(fits.ok());
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().err, EFBIG);
}

TEST(Fd, ClosesItsDescriptorOnceAndOnlyWhenItOwnsOne) {
  const std::size_t before = open_descriptors();
  {
    auto made = create_eventfd();
    ASSERT_OK(made);
    EXPECT_EQ(open_descriptors(), before + 1);
    Fd moved = std::move(*made);
    EXPECT_FALSE(*made);
    EXPECT_TRUE(moved);
    Fd& same = moved;
    moved = std::move(same);  // NOLINT: to itself on purpose
    EXPECT_TRUE(moved);       // NOLINT: it is still valid
    auto copy = duplicate(moved.get());
    ASSERT_OK(copy);
    EXPECT_EQ(open_descriptors(), before + 2);
    moved.reset();
    moved.reset();
    EXPECT_EQ(open_descriptors(), before + 1);
    int raw = copy->release();
    EXPECT_EQ(open_descriptors(), before + 1);
    ::close(raw);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Fd, MadeHereIsClosedOnExec) {
  auto memfd = create_memfd("clan-test", 4096);
  auto event = create_eventfd();
  auto listener = listen_abstract(test::unique_name("exec"));
  ASSERT_OK(memfd);
  ASSERT_OK(event);
  ASSERT_OK(listener);
  for (int fd : {memfd->get(), event->get(), listener->get()}) {
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(Eventfd, CountsSignalsAndDrainsWithoutBlocking) {
  auto event = create_eventfd();
  ASSERT_OK(event);
  drain_eventfd(event->get());
  signal_eventfd(event->get());
  signal_eventfd(event->get());
  std::uint64_t count = 0;
  ASSERT_EQ(::read(event->get(), &count, sizeof count), 8);
  EXPECT_EQ(count, 2u);
  // A counter at its maximum does not block the thread that signals.
  count = ~std::uint64_t{0} - 1;
  ASSERT_EQ(::write(event->get(), &count, sizeof count), 8);
  signal_eventfd(event->get());
}

TEST(Datagram, BringsItsBytesAndDescriptorsInOrder) {
  SocketPair s;
  auto one = create_memfd("clan-one", 4096);
  auto two = create_memfd("clan-two", 4096);
  ASSERT_OK(one);
  ASSERT_OK(two);
  int fds[2] = {one->get(), two->get()};
  ASSERT_TRUE(send_datagram(s.a.get(), bytes_of("hello"), fds));
  ASSERT_TRUE(send_datagram(s.a.get(), bytes_of("world!"), {}));
  std::byte buffer[64];
  auto first = receive_datagram(s.b.get(), buffer);
  ASSERT_OK(first);
  EXPECT_EQ(first->bytes, 5u);
  ASSERT_EQ(first->fd_count, 2u);
  EXPECT_TRUE(same_file(first->fds[0].get(), one->get()));
  EXPECT_TRUE(same_file(first->fds[1].get(), two->get()));
  EXPECT_NE(::fcntl(first->fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  auto second = receive_datagram(s.b.get(), buffer);
  ASSERT_OK(second);
  EXPECT_EQ(second->bytes, 6u);
  EXPECT_EQ(second->fd_count, 0u);
  EXPECT_ERR(receive_datagram(s.b.get(), buffer), EAGAIN);
}

TEST(Datagram, ThatIsNotReadLeavesNoDescriptorBehind) {
  const std::size_t before = open_descriptors();
  {
    SocketPair s;
    auto memfd = create_memfd("clan-test", 4096);
    ASSERT_OK(memfd);
    int fds[4] = {memfd->get(), memfd->get(), memfd->get(), memfd->get()};
    ASSERT_TRUE(send_datagram(s.a.get(), bytes_of("x"), fds));
    ASSERT_TRUE(send_datagram(s.a.get(), bytes_of("y"), fds));
    std::byte buffer[8];
    ASSERT_TRUE(receive_datagram(s.b.get(), buffer).ok());  // dropped with its descriptors
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Datagram, LargerThanTheBufferIsAnErrorAndItsDescriptorsAreClosed) {
  SocketPair s;
  auto event = create_eventfd();
  ASSERT_OK(event);
  int fd = event->get();
  const std::size_t before = open_descriptors();
  ASSERT_TRUE(send_datagram(s.a.get(), bytes_of("longer than four"), {&fd, 1}));
  std::byte buffer[4];
  EXPECT_ERR(receive_datagram(s.b.get(), buffer), EMSGSIZE);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Datagram, WithMoreThanFourDescriptorsIsRefusedByBothEnds) {
  SocketPair s;
  auto event = create_eventfd();
  ASSERT_OK(event);
  std::vector<int> fds(6, event->get());
  EXPECT_ERR(send_datagram(s.a.get(), bytes_of("x"), fds), EINVAL);

  // A peer that sends them anyway.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 6)] = {};
  char byte = 'x';
  iovec iov{&byte, 1};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
  std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  const std::size_t before = open_descriptors();
  ASSERT_EQ(::sendmsg(s.a.get(), &message, 0), 1);
  std::byte buffer[8];
  EXPECT_ERR(receive_datagram(s.b.get(), buffer), EMSGSIZE);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Datagram, WhoseDescriptorsFindNoRoomArrivesWithoutThem) {
  SocketPair s;
  auto event = create_eventfd();
  ASSERT_OK(event);
  const int fd = event->get();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(send_datagram(s.a.get(), bytes_of("hello"), {&fd, 1}));
  auto child = test::Process::start([&] {
    const rlimit few{100, 100};
    CHILD_CHECK(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    int last = -1;
    for (int n; (n = ::dup(fd)) >= 0;) last = n;
    std::byte buffer[8];
    auto lost = receive_datagram(s.b.get(), buffer);
    CHILD_OK(lost);
    CHILD_CHECK(lost->bytes == 5 && lost->fd_count == 0 && lost->fds_lost);
    ::close(last);
    auto whole = receive_datagram(s.b.get(), buffer);
    CHILD_OK(whole);
    CHILD_CHECK(whole->bytes == 5 && whole->fd_count == 1 && !whole->fds_lost);
    return 0;
  });
  EXPECT_TRUE(child.wait().clean());
}

TEST(Datagram, ToAClosedSocketIsAnErrorNotASignal) {
  SocketPair s;
  s.b.reset();
  EXPECT_ERR(send_datagram(s.a.get(), bytes_of("x"), {}), EPIPE);
  std::byte buffer[8];
  auto end = receive_datagram(s.a.get(), buffer);
  ASSERT_OK(end);
  EXPECT_EQ(end->bytes, 0u);
}

TEST(AbstractSocket, ConnectsByNameAndKnowsWhoIsThere) {
  const std::string name = test::unique_name("sock");
  EXPECT_ERR(connect_abstract(name, deadline_after_ms(5000)), ECONNREFUSED);
  auto listener = listen_abstract(name);
  ASSERT_OK(listener);
  EXPECT_ERR(listen_abstract(name), EADDRINUSE);
  auto client = connect_abstract(name, deadline_after_ms(5000));
  ASSERT_OK(client);
  auto who = peer_credentials(client->get());
  ASSERT_OK(who);
  EXPECT_EQ(who->pid, ::getpid());
  EXPECT_EQ(who->uid, ::geteuid());
  listener->reset();
  EXPECT_ERR(connect_abstract(name, deadline_after_ms(5000)), ECONNREFUSED);
  EXPECT_TRUE(listen_abstract(name).ok()) << "the name is free again";
}

TEST(AbstractSocket, ThatBeginsWithASlashIsAFileWhichIsTakenOverWhenNobodyListensThere) {
  const std::string name = ::testing::TempDir() + test::unique_name("file");
  EXPECT_ERR(connect_abstract(name, deadline_after_ms(5000)), ECONNREFUSED);
  auto listener = listen_abstract(name);
  ASSERT_OK(listener);
  EXPECT_ERR(listen_abstract(name), EADDRINUSE);
  EXPECT_OK(connect_abstract(name, deadline_after_ms(5000)));
  listener->reset();  // as if its process had been killed
  EXPECT_ERR(connect_abstract(name, deadline_after_ms(5000)), ECONNREFUSED);
  EXPECT_OK(listen_abstract(name));
  EXPECT_EQ(::unlink(name.c_str()), 0);
}

TEST(AbstractSocket, OneOfManyThatFindTheFileOfADeadListenerTakesItOver) {
  const std::string name = ::testing::TempDir() + test::unique_name("file");
  for (int i = 0; i < 200; ++i) {
    ASSERT_OK(listen_abstract(name));  // and is gone
    std::array<Fd, 4> found;
    {
      std::vector<std::jthread> threads;
      for (Fd& mine : found) {
        threads.emplace_back([&] {
          if (auto listener = listen_abstract(name); listener.ok()) mine = std::move(*listener);
        });
      }
    }
    const auto listens = [](const Fd& fd) { return bool(fd); };
    ASSERT_EQ(1, std::count_if(found.begin(), found.end(), listens)) << "in round " << i;
    ASSERT_OK(connect_abstract(name, deadline_after_ms(5000)));
  }
  EXPECT_EQ(::unlink(name.c_str()), 0);
}

TEST(AbstractSocket, TheEndOfAListenerRemovesItsFileAndNoOthers) {
  const std::string name = ::testing::TempDir() + test::unique_name("file");
  auto first = listen_abstract(name);
  ASSERT_OK(first);
  ASSERT_EQ(::unlink(name.c_str()), 0);
  auto second = listen_abstract(name);
  ASSERT_OK(second);
  end_listener(first->get(), name);
  EXPECT_OK(connect_abstract(name, deadline_after_ms(5000)));
  end_listener(second->get(), name);
  EXPECT_EQ(::access(name.c_str(), F_OK), -1);
}

TEST(AbstractSocket, AKeptLockOfItsDirectoryHoldsUpNoListenerForLong) {
  const std::string directory = ::testing::TempDir() + test::unique_name("directory");
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  const std::string name = directory + "/file";
  const Fd lock(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  auto listener = listen_abstract(name);
  ASSERT_OK(listener);
  EXPECT_OK(connect_abstract(name, deadline_after_ms(5000)));
  end_listener(listener->get(), name);
  EXPECT_EQ(::unlink(name.c_str()), 0) << "it is left, as another one may have taken it over";
  EXPECT_EQ(::rmdir(directory.c_str()), 0);
}

TEST(AbstractSocket, OfAListenerThatAcceptsNobodyIsATimeOut) {
  const std::string name = test::unique_name("full");
  auto listener = listen_abstract(name);
  ASSERT_OK(listener);
  ASSERT_EQ(::listen(listener->get(), 0), 0);
  std::vector<Fd> waiting;
  for (int i = 0; i < 10; ++i) {
    auto client = connect_abstract(name, deadline_after_ms(30));
    if (client.ok()) {
      waiting.push_back(std::move(*client));
      continue;
    }
    EXPECT_EQ(client.error().err, ETIMEDOUT);
    EXPECT_ERR(connect_abstract(name, 1), ETIMEDOUT);  // long past
    Fd(::accept(listener->get(), nullptr, nullptr)).reset();
    EXPECT_OK(connect_abstract(name, deadline_after_ms(5000)));
    return;
  }
  FAIL() << "ten clients fit into no backlog";
}

TEST(AbstractSocket, NamesAreComparedWholeAndBounded) {
  const std::string name = test::unique_name("prefix");
  auto listener = listen_abstract(name + "-longer");
  ASSERT_OK(listener);
  EXPECT_ERR(connect_abstract(name, deadline_after_ms(5000)), ECONNREFUSED);
  EXPECT_ERR(connect_abstract("", deadline_after_ms(5000)), ENAMETOOLONG);
  EXPECT_ERR(listen_abstract(std::string(108, 'n')), ENAMETOOLONG);
}

TEST(Eventfd, IsToldFromWhatWouldHurt) {
  auto eventfd = create_eventfd();
  ASSERT_TRUE(eventfd.ok());
  EXPECT_TRUE(may_be_eventfd(eventfd->get()));
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  EXPECT_FALSE(may_be_eventfd(pipe[1]));
  ::close(pipe[0]);
  ::close(pipe[1]);
  EXPECT_FALSE(may_be_eventfd(-1));
}

TEST(Eventfd, DoesNotBlockAlthoughAPeerHasMadeItBlocking) {
  auto eventfd = create_eventfd();
  ASSERT_TRUE(eventfd.ok());
  ASSERT_EQ(::fcntl(eventfd->get(), F_SETFL, 0), 0);
  drain_eventfd(eventfd->get());  // empty
  const std::uint64_t most = ~std::uint64_t{0} - 1;
  ASSERT_EQ(::write(eventfd->get(), &most, sizeof most), static_cast<ssize_t>(sizeof most));
  signal_eventfd(eventfd->get());  // full
  drain_eventfd(eventfd->get());
  drain_eventfd(eventfd->get());
}

}  // namespace
}  // namespace clan
