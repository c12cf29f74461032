// Programs that reach the kernel past the library with a connection that has moved, or is about to:
// waits by an instruction of their own, asynchronous I/O, options that receive, copies into pipes,
// descriptors of another process's. Whatever the library cannot serve is TCP's.
#include <aio.h>
#include <linux/aio_abi.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>

#include <memory>

#include "connection.h"

extern "C" __attribute__((weak)) int io_submit(aio_context_t context, long count, iocb** list);

namespace clan::test {
namespace {

const bool watched = Watchdog::start();

long word_of(void* pointer) { return reinterpret_cast<long>(pointer); }

// An epoll set that only its user knows of.
class OwnSet {
 public:
  OwnSet() : fd_(static_cast<int>(instruction(SYS_epoll_create1, EPOLL_CLOEXEC))) {}
  ~OwnSet() { ::close(fd_); }
  OwnSet(const OwnSet&) = delete;
  OwnSet& operator=(const OwnSet&) = delete;

  int fd() const { return fd_; }
  void add(int fd, std::uint32_t events) const {
    epoll_event event{.events = events, .data = {.fd = fd}};
    ASSERT_EQ(instruction(SYS_epoll_ctl, fd_, EPOLL_CTL_ADD, fd, word_of(&event)), 0);
  }
  /// It is reported within two seconds.
  bool told() const {
    epoll_event event{};
    return instruction(SYS_epoll_pwait, fd_, word_of(&event), 1, 2000, 0, 8) == 1;
  }

 private:
  int fd_;
};

void do_not_wait(int fd) { ASSERT_EQ(::fcntl(fd, F_SETFL, O_NONBLOCK), 0); }

// As an event loop has it: what there is, until there is nothing.
std::string all_there_is(int fd) {
  std::string all;
  char some[4096];
  for (ssize_t n; (n = ::recv(fd, some, sizeof some, 0)) > 0;)
    all.append(some, static_cast<std::size_t>(n));
  EXPECT_EQ(errno, EAGAIN);
  return all;
}

// `rounds` messages to `near`, each waited for in a set of its own.
void hears_of_each(const OwnSet& set, const Pair& pair, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    const std::string text = "message " + std::to_string(i);
    put(pair.far, text);
    ASSERT_TRUE(set.told()) << text;
    ASSERT_EQ(all_there_is(pair.near), text);
  }
}

// In a process of its own: what others of this program know of sets does not matter.
template <typename F>
void in_child(F&& run) {
  const pid_t pid = child([&] {
    run();
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(result_of(pid), 0);
}

TEST(UnseenSet, ThatIsThereKeepsConnectionsOnTcp) {
  for (const std::uint32_t how : {0u, static_cast<std::uint32_t>(EPOLLET)}) {
    in_child([how] {
      OwnSet set;
      Pair pair(false);
      do_not_wait(pair.near);
      set.add(pair.near, EPOLLIN | EPOLLRDHUP | how);
      hears_of_each(set, pair, 50);
      EXPECT_TRUE(by_tcp(pair.near));
      pair.close_far();
      EXPECT_TRUE(set.told());
    });
  }
}

TEST(UnseenSet, ThatIsMadeWhenAConnectionHasMovedTakesItBack) {
  for (const std::uint32_t how : {0u, static_cast<std::uint32_t>(EPOLLET)}) {
    in_child([how] {
      Pair pair, other;
      do_not_wait(pair.near);
      EXPECT_EQ(all_there_is(pair.near), "");
      OwnSet set;
      set.add(pair.near, EPOLLIN | how);
      EXPECT_EQ(all_there_is(pair.near), "");
      hears_of_each(set, pair, 20);
      EXPECT_TRUE(by_tcp(pair.near));
      other.talk();
      EXPECT_TRUE(by_tcp(other.near)) << "whose turn may come next";
    });
  }
}

TEST(UnseenSet, HearsOfRoom) {
  in_child([] {
    Pair pair;
    do_not_wait(pair.near);
    const std::string much(1 << 16, 'm');
    std::size_t sent = 0;
    auto fill = [&] {
      for (ssize_t n; (n = ::send(pair.near, much.data(), much.size(), 0)) > 0;)
        sent += static_cast<std::size_t>(n);
      EXPECT_EQ(errno, EAGAIN);
    };
    fill();
    OwnSet set;
    set.add(pair.near, EPOLLOUT | EPOLLET);
    EXPECT_EQ(get(pair.far, sent).size(), sent);
    EXPECT_TRUE(set.told());
    EXPECT_EQ(::send(pair.near, "more", 4, 0), 4);
    EXPECT_EQ(get(pair.far, 4), "more");
  });
}

TEST(UnseenSet, ThatIsClosedLetsConnectionsMoveAgain) {
  in_child([] {
    {
      const OwnSet set;
      Pair stays(false);
      stays.talk();
      EXPECT_TRUE(by_tcp(stays.near));
    }
    const Pair moves;
  });
}

TEST(UnseenSet, IsNoneThatTheCLibraryHasMade) {
  in_child([] {
    const int sets[] = {::epoll_create1(0), ::epoll_create(1),
                        static_cast<int>(::syscall(SYS_epoll_create1, 0)), -1, -1};
    for (int i = 0; i < 3; ++i) ASSERT_GE(sets[i], 0);
    ASSERT_GE(::dup(sets[0]), 0);
    ASSERT_GE(::fcntl(sets[1], F_DUPFD_CLOEXEC, 100), 100);
    const Pair moves;
    const pid_t sharer = child([] {
      const Pair here;
      return ::testing::Test::HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(result_of(sharer), 0);
  });
}

TEST(UnseenSet, IsFoundAmongManyDescriptorsIfLater) {
  in_child([] {
    std::vector<std::unique_ptr<Pair>> many;
    for (int i = 0; i < 100; ++i) many.push_back(std::make_unique<Pair>());
    const OwnSet set;
    for (int i = 0; i < 8; ++i) many.push_back(std::make_unique<Pair>(false));
    int stay = 0;
    for (int i = 100; i < 108; ++i) {
      many[static_cast<std::size_t>(i)]->talk();
      stay += by_tcp(many[static_cast<std::size_t>(i)]->near) ? 1 : 0;
    }
    EXPECT_GT(stay, 0) << "it is found among many descriptors, if later";
  });
}

TEST(UnseenRing, ThatIsThereKeepsConnectionsOnTcp) {
  in_child([] {
    alignas(8) char parameters[120] = {};  // io_uring_params
    const long ring = instruction(SYS_io_uring_setup, 4, word_of(parameters));
    if (ring < 0) return;  // there are none here
    Pair stays(false);
    stays.talk();
    EXPECT_TRUE(by_tcp(stays.near));
    ::close(static_cast<int>(ring));
    const Pair moves;
  });
}

TEST(Instruction, SetsASocketThatDoesNotWait) {
  Pair pair(false);
  int yes = 1;
  ASSERT_EQ(instruction(SYS_ioctl, pair.near, FIONBIO, word_of(&yes)), 0);
  char byte;
  for (int i = 0; i < 40; ++i) {
    put(pair.near, "x");
    EXPECT_EQ(get(pair.far, 1), "x");
    put(pair.far, "y");
    ASSERT_TRUE(comes_true([&] { return ::recv(pair.near, &byte, 1, 0) == 1; }));
  }
  EXPECT_TRUE(by_pipe(pair.near));
  EXPECT_EQ(::recv(pair.near, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  const std::string much(1 << 16, 'm');
  while (::send(pair.near, much.data(), much.size(), 0) > 0) {
  }
  EXPECT_EQ(errno, EAGAIN);
}

// --- asynchronous I/O ----------------------------------------------------------------------------

ssize_t result_of_aio(aiocb* one) {
  const aiocb* const list[] = {one};
  int error;
  while ((error = ::aio_error(one)) == EINPROGRESS) {
    const timespec limit{5, 0};
    if (::aio_suspend(list, 1, &limit) != 0 && errno == EAGAIN) return -2;
  }
  const ssize_t n = ::aio_return(one);
  errno = error;
  return n;
}
aiocb transfer(int fd, char* bytes, std::size_t n, int operation = LIO_NOP) {
  aiocb one{};
  one.aio_fildes = fd;
  one.aio_buf = bytes;
  one.aio_nbytes = n;
  one.aio_lio_opcode = operation;
  return one;
}

TEST(Aio, OfTheCLibraryReadsWhatThePeerWrote) {
  for (const bool moves : {true, false}) {
    Pair pair(moves);
    put(pair.near, "first");  // it lies in the pipe
    char in[6] = {};
    aiocb one = transfer(pair.far, in, 5);
    ASSERT_EQ(::aio_read(&one), 0);
    EXPECT_EQ(result_of_aio(&one), 5) << std::strerror(errno);
    EXPECT_STREQ(in, "first");
    one = transfer(pair.far, in, 5);
    ASSERT_EQ(::aio_read(&one), 0);
    put(pair.near, "later");
    EXPECT_EQ(result_of_aio(&one), 5);
    EXPECT_STREQ(in, "later");
    pair.talk();
    EXPECT_TRUE(by_tcp(pair.near));
  }
}

TEST(Aio, OfTheCLibraryWritesBehindWhatWasWritten) {
  Pair pair;
  put(pair.near, "one ");
  char two[] = "two", three[] = " three";
  aiocb one = transfer(pair.near, two, 3);
  ASSERT_EQ(::aio_write(&one), 0);
  EXPECT_EQ(result_of_aio(&one), 3);
  put(pair.near, three);
  EXPECT_EQ(get(pair.far, 13), "one two three");
}

TEST(Aio, OfAListReadsAndWrites) {
  Pair pair, idle;
  put(pair.near, "question");
  char in[9] = {}, out[] = "answer";
  aiocb reads = transfer(pair.far, in, 8, LIO_READ), writes = transfer(pair.far, out, 6, LIO_WRITE);
  aiocb none = transfer(idle.near, in, 1, LIO_NOP);
  aiocb* const list[] = {&reads, nullptr, &writes, &none};
  ASSERT_EQ(::lio_listio(LIO_WAIT, list, 4, nullptr), 0);
  EXPECT_STREQ(in, "question");
  EXPECT_EQ(get(pair.near, 6), "answer");
  EXPECT_TRUE(by_pipe(idle.near));
}

class KernelAio {
 public:
  KernelAio() { error_ = ::syscall(SYS_io_setup, 8, &context_) != 0 ? errno : 0; }
  ~KernelAio() {
    if (error_ == 0) ::syscall(SYS_io_destroy, context_);
  }
  KernelAio(const KernelAio&) = delete;
  KernelAio& operator=(const KernelAio&) = delete;
  int error() const { return error_; }
  void submit(int fd, unsigned operation, void* bytes, std::size_t n) {
    one_ = {};
    one_.aio_fildes = static_cast<unsigned>(fd);
    one_.aio_lio_opcode = static_cast<std::uint16_t>(operation);
    one_.aio_buf = operation == IOCB_CMD_POLL ? POLLIN : reinterpret_cast<std::uintptr_t>(bytes);
    one_.aio_nbytes = n;
    iocb* list[] = {&one_};
    ASSERT_EQ(::syscall(SYS_io_submit, context_, 1, list), 1) << std::strerror(errno);
  }
  long result() {
    io_event event{};
    timespec limit{3, 0};
    return ::syscall(SYS_io_getevents, context_, 1, 1, &event, &limit) == 1 ? event.res : -1000;
  }

 private:
  aio_context_t context_ = 0;
  iocb one_{};
  int error_ = 0;
};

TEST(Aio, OfTheKernelReadsWritesAndPolls) {
  KernelAio aio;
  if (aio.error() != 0) GTEST_SKIP() << "no io_setup: " << std::strerror(aio.error());
  {
    Pair pair;
    put(pair.near, "bytes");
    char in[6] = {}, out[] = "back";
    aio.submit(pair.far, IOCB_CMD_PREAD, in, 5);
    EXPECT_EQ(aio.result(), 5);
    EXPECT_STREQ(in, "bytes");
    aio.submit(pair.far, IOCB_CMD_PWRITE, out, 4);
    EXPECT_EQ(aio.result(), 4);
    EXPECT_EQ(get(pair.near, 4), "back");
  }
  Pair pair;
  EXPECT_TRUE(silent(pair.far));
  aio.submit(pair.far, IOCB_CMD_POLL, nullptr, 0);
  put(pair.near, "bytes");
  EXPECT_EQ(aio.result() & POLLIN, POLLIN);
  EXPECT_EQ(get(pair.far, 5), "bytes");
}

// Where no libaio is loaded there is nothing below.
TEST(Aio, OfLibaioTakesAConnectionBackFirst) {
  if (io_submit == nullptr) return;
  Pair pair;
  iocb one{};
  one.aio_fildes = static_cast<unsigned>(pair.far);
  iocb* list[] = {&one};
  EXPECT_LT(io_submit(0, 1, list), 0);
  pair.talk();
  EXPECT_TRUE(by_tcp(pair.near));
}

// --- descriptors of another process's ------------------------------------------------------------

extern "C" int pidfd_getfd(int pidfd, int target, unsigned flags) noexcept;

// It would read nothing there.
TEST(TakenDescriptor, OfAConnectionThatHasMovedIsRefused) {
  for (const bool by_number : {false, true}) {
    int numbers[2], go[2];
    ASSERT_EQ(::pipe(numbers), 0);
    ASSERT_EQ(::pipe(go), 0);
    const pid_t owner = child([&] {
      const Pair pair, stays(false);
      const int all[] = {pair.far, stays.far};
      char byte;
      if (::write(numbers[1], all, sizeof all) < 0 || ::read(go[0], &byte, 1) != 1) return 1;
      pair.talk();
      return by_pipe(pair.near) && !::testing::Test::HasFailure() ? 0 : 2;
    });
    int all[2] = {-1, -1};
    ASSERT_EQ(::read(numbers[0], all, sizeof all), static_cast<ssize_t>(sizeof all));
    const auto pidfd = static_cast<int>(::syscall(SYS_pidfd_open, owner, 0));
    const auto take = [&](int number) {
      return by_number ? static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd, number, 0))
                       : pidfd_getfd(pidfd, number, 0);
    };
    const int moved = take(all[0]), error = errno, other = take(all[1]);
    const bool is_forbidden = other < 0;
    EXPECT_EQ(moved < 0, preloaded() || is_forbidden);
    EXPECT_TRUE(moved >= 0 || error == EPERM || is_forbidden) << std::strerror(error);
    EXPECT_EQ(::write(go[1], "x", 1), 1);
    EXPECT_EQ(result_of(owner), 0);
    for (const int one : {numbers[0], numbers[1], go[0], go[1], pidfd}) ::close(one);
    for (const int one : {moved, other}) {
      if (one >= 0) ::close(one);
    }
    if (is_forbidden) GTEST_SKIP() << "no pidfd_getfd: " << std::strerror(errno);
  }
}

TEST(TakenDescriptor, OfTheProcessItselfIsADuplicate) {
  Pair pair;
  const auto pidfd = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  const int copy = pidfd_getfd(pidfd, pair.near, 0);
  if (copy < 0) GTEST_SKIP() << "no pidfd_getfd: " << std::strerror(errno);
  put(copy, "by the copy");
  EXPECT_EQ(get(pair.far, 11), "by the copy");
  ::close(pair.near);
  pair.near = copy;
  pair.talk();
  EXPECT_TRUE(by_pipe(copy));
  ::close(pidfd);
}

// --- calls that receive
// ---------------------------------------------------------------------------

TEST(ZeroCopyReceive, ReceivesWhatThePeerWrote) {
  struct Request {  // tcp_zerocopy_receive, as of Linux 5.11
    std::uint64_t address;
    std::uint32_t length, recv_skip_hint, inq;
    std::int32_t err;
    std::uint64_t copybuf_address;
    std::int32_t copybuf_len;
    std::uint32_t flags;
  };
  Pair pair;
  void* const room = ::mmap(nullptr, 1 << 16, PROT_READ, MAP_SHARED, pair.far, 0);
  if (room == MAP_FAILED) GTEST_SKIP() << "no mmap() of a socket: " << std::strerror(errno);
  put(pair.near, "nine byte");
  char copy[64] = {};
  Request request{};
  request.address = reinterpret_cast<std::uintptr_t>(room);
  request.length = 1 << 16;
  request.copybuf_address = reinterpret_cast<std::uintptr_t>(copy);
  request.copybuf_len = sizeof copy;
  socklen_t size = sizeof request;
  ASSERT_EQ(::getsockopt(pair.far, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &request, &size), 0);
  EXPECT_EQ(request.copybuf_len, 9);
  EXPECT_STREQ(copy, "nine byte");
  pair.talk();
  EXPECT_TRUE(by_tcp(pair.near));
  ::munmap(room, 1 << 16);
}

TEST(SendFileFromASocket, IntoAPipeTakesWhatThePeerWrote) {
  for (const bool moves : {true, false}) {
    Pair pair(moves);
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    put(pair.near, "bytes");
    const ssize_t n = ::sendfile(pipe[1], pair.far, nullptr, 5);
    if (n < 0) {  // before Linux 5.12
      EXPECT_EQ(errno, EINVAL);
      EXPECT_EQ(get(pair.far, 5), "bytes");
    } else {
      char in[6] = {};
      EXPECT_EQ(::read(pipe[0], in, 5), 5);
      EXPECT_STREQ(in, "bytes");
    }
    pair.talk();
    for (const int fd : pipe) ::close(fd);
  }
}

}  // namespace
}  // namespace clan::test
