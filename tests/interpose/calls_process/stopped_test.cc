// A peer that is stopped on its way back to TCP holds up nobody, and a peer that lies is reset.
#include <sys/epoll.h>

#include <chrono>
#include <functional>

#include "helpers.h"

namespace clan::test {
namespace {

constexpr double kSoon = 5;  ///< on a very busy machine; the fault was ten seconds

double seconds_of(const std::function<void()>& what) {
  const auto before = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

constexpr int kBytes = 100;
constexpr int kMostTurns = 2000;  ///< of a loop that does not spin

enum class Way { kPoll, kLevel, kEdges };

/// Waits for `fd` in turns with calls that do not wait.
class Waits {
 public:
  Waits(int fd, Way way, std::uint32_t events)
      : fd_(fd), way_(way), set_(::epoll_create1(EPOLL_CLOEXEC)) {
    epoll_event event{events | (way == Way::kEdges ? EPOLLET : 0u), {}};
    EXPECT_EQ(::epoll_ctl(set_, EPOLL_CTL_ADD, fd, &event), 0);
    events_ = static_cast<short>(events);
  }
  ~Waits() { ::close(set_); }
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;
  void wait() {
    EXPECT_LT(++turns_, kMostTurns) << "it spins";
    epoll_event event{};
    EXPECT_EQ(way_ == Way::kPoll ? poll_one(fd_, events_, -1) : ::epoll_wait(set_, &event, 1, -1),
              way_ == Way::kPoll ? events_ : 1);
  }
  void wait_for_any() const {
    epoll_event event{};
    EXPECT_TRUE(way_ == Way::kPoll ? poll_one(fd_, events_, -1) > 0
                                   : ::epoll_wait(set_, &event, 1, -1) == 1);
  }
  int turns() const { return turns_; }

 private:
  int fd_;
  Way way_;
  int set_;
  short events_ = 0;
  int turns_ = 0;
};

/// One byte after the other, by `call`, which answers as send and recv do.
void move_bytes(Waits& waits, const std::function<ssize_t(char*)>& call, std::string* moved) {
  while (moved->size() < kBytes && waits.turns() < kMostTurns) {
    char byte = static_cast<char>('!' + moved->size() % 90);
    ssize_t n = 0;
    EXPECT_LT(seconds_of([&] { n = call(&byte); }), kSoon);
    if (n == 1) {
      moved->push_back(byte);
    } else {
      ASSERT_EQ(n, -1);
      ASSERT_EQ(errno, EAGAIN);
      waits.wait();
    }
  }
}

std::string all_bytes() {
  std::string all;
  for (std::size_t i = 0; i < kBytes; ++i) all.push_back(static_cast<char>('!' + i % 90));
  return all;
}

/// A peer that is stopped when it has said that it goes back to TCP, and no more. Then it does, by
/// urgent data, and echoes. `fd` is its end.
int stopped_while_leaving(int fd) {
  if (preloaded()) face_of(fd)->words[socket_face::kState].fetch_or(socket_face::kLeaving);
  ::raise(SIGSTOP);
  if (::send(fd, "!", 1, MSG_OOB) != 1) return 1;
  return echo(fd);
}

TEST(Stopped, APeerOnItsWayBackToTcpHoldsUpNoCallThatDoesNotWait) {
  for (const Way way : {Way::kPoll, Way::kLevel, Way::kEdges}) {
    Peer peer(stopped_while_leaving);
    const int fd = peer.fd;
    int status = 0;
    ASSERT_EQ(::waitpid(peer.pid, &status, WUNTRACED), peer.pid);
    ASSERT_TRUE(WIFSTOPPED(status));
    Waits waits(fd, way, EPOLLIN);
    std::string sent = all_bytes(), received;
    for (const char byte : sent) {
      EXPECT_LT(
          seconds_of([&] { EXPECT_EQ(::send(fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL), 1); }),
          kSoon);
    }
    std::thread later([&] {
      ::usleep(400'000);
      ::kill(peer.pid, SIGCONT);
    });
    move_bytes(
        waits, [&](char* byte) { return ::recv(fd, byte, 1, MSG_DONTWAIT); }, &received);
    later.join();
    EXPECT_EQ(received, sent);
    EXPECT_TRUE(silent(fd));
    put(fd, "more");
    EXPECT_EQ(get(fd, 4), "more");
  }
}

/// The same; then it says that it reads on, and waits without a call or a ring until it is
/// answered.
int stopped_before_it_says_more(int fd) {
  using namespace socket_face;
  PipePage::Face* const mine = face_of(fd);
  if (preloaded()) mine->words[kState].fetch_or(kLeaving);
  ::raise(SIGSTOP);
  if (!preloaded()) return 0;
  mine->words[kGivenBack].store(kReadsOn);
  PipePage* const page = page_of(pipes().at(0));
  auto answered = [&](const PipePage::End& end) {
    return end.face.words[kCookie] != mine->words[kCookie] &&
           (end.face.words[kState].load() & kGone) != 0;
  };
  return comes_true([&] { return answered(page->ends[0]) || answered(page->ends[1]); }) ? 0 : 1;
}

TEST(Stopped, APeerOnItsWayBackToTcpIsAnsweredByCallsThatSleep) {
  for (const bool reads : {true, false}) {
    for (const Way way : {Way::kPoll, Way::kLevel, Way::kEdges}) {
      Peer peer(stopped_before_it_says_more);
      const int fd = peer.fd;
      int status = 0;
      ASSERT_EQ(::waitpid(peer.pid, &status, WUNTRACED), peer.pid);
      Waits waits(fd, way, EPOLLIN);
      put(fd, "x");
      Thread sleeper([&] {
        if (reads) {
          char byte;
          (void)::recv(fd, &byte, 1, 0);
        } else {
          waits.wait_for_any();
        }
      });
      EXPECT_TRUE(sleeper.falls_asleep());
      ::kill(peer.pid, SIGCONT);
      sleeper.join();  // by its end
      EXPECT_EQ(peer.result(), 0) << "it has not been answered";
      if (reads) break;
    }
  }
}

TEST(Stopped, APeerThatSaysThatThisEndHasLeftIsResetAtOnce) {
  Peer peer([](int fd) { return echo(fd) == (preloaded() ? 1 : 0) ? 0 : 1; });  // it is reset, too
  if (preloaded()) end_of(peer.fd)->sender.ended = 2;
  EXPECT_LT(seconds_of([&] {
              const ssize_t n = ::send(peer.fd, "x", 1, MSG_NOSIGNAL);
              EXPECT_EQ(n, preloaded() ? -1 : 1);
            }),
            kSoon);
}

}  // namespace
}  // namespace clan::test
