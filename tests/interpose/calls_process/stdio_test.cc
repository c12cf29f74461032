// Streams of the C library on sockets.
#include <sys/epoll.h>

#include <chrono>
#include <cstdio>
#include <cwchar>

#include "helpers.h"

namespace clan::test {
namespace {

TEST(Stdio, AStreamOnASocketReadsAndWrites) {
  Pair pair;
  FILE* in = ::fdopen(::dup(pair.far), "r");
  FILE* out = ::fdopen(::dup(pair.far), "w");
  FILE* both = ::fdopen(::dup(pair.far), "r+");
  ASSERT_TRUE(in != nullptr && out != nullptr && both != nullptr);
  ASSERT_EQ(std::setvbuf(out, nullptr, _IOLBF, 0), 0);
  put(pair.near, "one\ntwo\nthree");
  char line[100];
  ASSERT_NE(std::fgets(line, sizeof line, in), nullptr);
  EXPECT_STREQ(line, "one\n");
  EXPECT_EQ(std::fgetc(in), 't');
  EXPECT_EQ(std::fscanf(in, "wo\n%5s", line), 1);
  EXPECT_STREQ(line, "three");
  EXPECT_EQ(std::fprintf(out, "%d bottles\n", 99), 11);
  EXPECT_EQ(get(pair.near, 11), "99 bottles\n");
  put(pair.near, "42\n");
  ASSERT_NE(std::fgets(line, sizeof line, both), nullptr);
  EXPECT_STREQ(line, "42\n");
  EXPECT_GE(std::fputs("answer", both), 0);
  EXPECT_TRUE(silent(pair.near)) << "still in the stream";
  EXPECT_EQ(std::fflush(both), 0);
  EXPECT_EQ(get(pair.near, 6), "answer");
  EXPECT_GE(::fileno(in), 0);
  for (FILE* stream : {in, out, both}) EXPECT_EQ(std::fclose(stream), 0);
  EXPECT_TRUE(by_tcp(pair.near));
  put(pair.near, "x");
  EXPECT_EQ(get(pair.far, 1), "x");
}

TEST(Stdio, AStreamThatHasReadAheadIsFlushedAndHasNoPosition) {
  Pair pair;
  FILE* const in = ::fdopen(::dup(pair.far), "r");
  ASSERT_NE(in, nullptr);
  put(pair.near, "one\ntwo\n");
  char line[100];
  ASSERT_NE(std::fgets(line, sizeof line, in), nullptr);
  errno = 0;
  EXPECT_EQ(std::fflush(in), 0);
  ASSERT_NE(std::fgets(line, sizeof line, in), nullptr);
  EXPECT_STREQ(line, "two\n");
  EXPECT_EQ(std::fseek(in, 0, SEEK_SET), -1);
  EXPECT_EQ(errno, ESPIPE);
  EXPECT_EQ(std::fclose(in), 0);
}

TEST(Stdio, AStreamReadsWhatLayInThePipeWhenItWasMade) {
  Pair pair;
  put(pair.near, "before\n");
  FILE* const in = ::fdopen(::dup(pair.far), "r");
  ASSERT_NE(in, nullptr);
  put(pair.near, "behind\n");
  char line[100];
  for (const char* const expected : {"before\n", "behind\n"}) {
    ASSERT_NE(std::fgets(line, sizeof line, in), nullptr);
    EXPECT_STREQ(line, expected);
  }
  EXPECT_EQ(std::fclose(in), 0);
  pair.talk();
}

TEST(Stdio, AWideStreamReadsAndWrites) {
  for (const bool moves : {true, false}) {
    Pair pair(moves);
    FILE* const both = ::fdopen(::dup(pair.far), "r+");
    ASSERT_NE(both, nullptr);
    EXPECT_GT(std::fwide(both, 1), 0);
    EXPECT_EQ(std::fputwc(L'w', both), static_cast<wint_t>(L'w'));
    EXPECT_GE(std::fputws(L"ide\n", both), 0);
    EXPECT_EQ(std::fflush(both), 0);
    EXPECT_EQ(get(pair.near, 5), "wide\n");
    put(pair.near, "in\n");
    EXPECT_EQ(std::fgetwc(both), static_cast<wint_t>(L'i'));
    wchar_t rest[10];
    ASSERT_NE(std::fgetws(rest, 10, both), nullptr);
    EXPECT_EQ(std::wstring_view(rest), L"n\n");
    EXPECT_EQ(std::fclose(both), 0);
    pair.talk();
  }
}

// As a daemon does it with what it has inherited.
TEST(Stdio, AStreamOpenedAnewIsAFileAndTheSocketIsClosed) {
  for (const bool moves : {true, false}) {
    Pair pair(moves);
    const int fd = std::exchange(pair.far, -1);
    FILE* stream = ::fdopen(fd, "r+");
    ASSERT_NE(stream, nullptr);
    EXPECT_GE(std::fputs("last", stream), 0);
    stream = std::freopen("/dev/null", "r+", stream);
    ASSERT_NE(stream, nullptr);
    EXPECT_EQ(::fileno(stream), fd);
    EXPECT_EQ(get(pair.near, 10), "last") << "and the end";
    EXPECT_GE(std::fputs("nowhere", stream), 0);
    EXPECT_EQ(::write(fd, "nowhere", 7), 7);
    EXPECT_EQ(std::fclose(stream), 0);
    const Pair other;  // one of its ends has the number
    other.talk();
  }
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  FILE* const stream = std::freopen("/dev/null", "r", ::fdopen(fd, "r+"));
  ASSERT_NE(stream, nullptr);
  EXPECT_EQ(std::fclose(stream), 0);
  FILE* const gone = ::fdopen(::socket(AF_INET, SOCK_STREAM, 0), "r+");
  ASSERT_NE(gone, nullptr);
  EXPECT_EQ(std::freopen("/there/is/none", "r", gone), nullptr);
  const Pair other;
  other.talk();
}

TEST(Stdio, AllStreamsAreClosedAtOnce) {
  EXPECT_EQ(result_of(child([] {
              Pair pair;
              FILE* const out = ::fdopen(::dup(pair.near), "w");
              if (out == nullptr || std::fputs("left in it", out) < 0) return 1;
              if (::fcloseall() != 0) return 2;
              return get(pair.far, 10) == "left in it" ? 0 : 3;
            })),
            0);
}

TEST(Stdio, DprintfWritesToTheConnection) {
  Pair pair;
  EXPECT_EQ(::dprintf(pair.far, "%s %d\n", "bottles", 99), 11);
  EXPECT_EQ(get(pair.near, 11), "bottles 99\n");
  const std::string much(100'000, 'm');
  Thread writer([&] { EXPECT_EQ(::dprintf(pair.far, "%s", much.c_str()), 100'000); });
  EXPECT_TRUE(get(pair.near, much.size()) == much);
  writer.join();
  EXPECT_TRUE(silent(pair.near));
  pair.talk();
  EXPECT_TRUE(by_pipe(pair.near));
}

TEST(Stdio, StandardStreamsOnASocketReadAndWrite) {
  Peer peer([](int fd) {
    ::dup2(fd, STDIN_FILENO);
    ::dup2(fd, STDOUT_FILENO);
    ::close(fd);
    char line[100];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
      std::printf("you said %s", line);
      std::fflush(stdout);
    }
    return std::ferror(stdin) != 0 ? 1 : 0;
  });
  for (int i = 0; i < 50; ++i) {
    const std::string line = "line " + std::to_string(1000 + i) + "\n";
    put(peer.fd, line);
    ASSERT_EQ(get(peer.fd, 19), "you said " + line);
  }
}

TEST(Stdio, AConnectionThatIsAStandardStreamFromTheBeginningStaysOnTcp) {
  const int listening = listener();
  const pid_t server = child([&] {
    ::close(STDIN_FILENO);
    if (::accept(listening, nullptr, nullptr) != STDIN_FILENO) return 1;
    char line[20];
    for (int i = 0; i < 40; ++i) {
      if (::recv(STDIN_FILENO, line, 10, MSG_WAITALL) != 10) return 2;
      if (::write(STDIN_FILENO, line, 10) != 10) return 3;
    }
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
      if (::write(STDIN_FILENO, line, 10) != 10) return 4;
    }
    return std::ferror(stdin) != 0 ? 5 : 0;
  });
  const int fd = connect_to(port_of(listening));
  for (int i = 0; i < 80; ++i) {
    const std::string line = "line " + std::to_string(1000 + i) + "\n";
    put(fd, line);
    ASSERT_EQ(get(fd, 10), line);
  }
  EXPECT_TRUE(by_tcp(fd));
  ::close(fd);
  ::close(listening);
  EXPECT_EQ(result_of(server), 0);
}

/// Until it takes no more. What it took.
std::size_t fill(int fd) {
  const std::string much(65536, 'f');
  std::size_t sum = 0;
  for (int idle = 0; idle < 3;) {
    const ssize_t n = ::send(fd, much.data(), much.size(), MSG_DONTWAIT);
    n > 0 ? (sum += static_cast<std::size_t>(n), idle = 0) : (++idle, ::usleep(1000));
  }
  return sum;
}

TEST(Stdio, AWriteThatASignalInterruptsFails) {
  Pair pair;
  FILE* out = ::fdopen(::dup(pair.near), "w");
  ASSERT_NE(out, nullptr);
  ASSERT_EQ(std::setvbuf(out, nullptr, _IONBF, 0), 0);
  (void)fill(pair.near);
  struct sigaction act {
  }, old{};
  act.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &act, &old), 0);
  std::size_t written = 9;
  int error = 0;
  Thread writer([&] {
    written = std::fwrite("x", 1, 1, out);
    error = errno;
  });
  EXPECT_TRUE(writer.falls_asleep());
  ::pthread_kill(writer.handle(), SIGUSR1);
  EXPECT_TRUE(writer.ends());
  EXPECT_EQ(written, 0u);
  EXPECT_EQ(error, EINTR);
  EXPECT_NE(std::ferror(out), 0);
  pair.close_far();  // and a later write fails
  writer.join();
  std::fclose(out);
  ::sigaction(SIGUSR1, &old, nullptr);
}

TEST(Stdio, ClosedWithWhatCannotBeWrittenAStreamLosesThatAndNothingElse) {
  Pair pair;
  FILE* out = ::fdopen(::dup(pair.near), "w");
  ASSERT_NE(out, nullptr);
  ASSERT_EQ(::fcntl(pair.near, F_SETFL, O_NONBLOCK), 0);
  const std::size_t filled = fill(pair.near);
  ASSERT_EQ(std::fputs("lost", out), 1);
  EXPECT_EQ(std::fclose(out), EOF);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(get(pair.far, filled), std::string(filled, 'f'));
  EXPECT_EQ(poll_one(pair.far, POLLIN, 50), 0) << "nothing comes behind it";
  EXPECT_TRUE(silent(pair.far));
  ASSERT_EQ(::fcntl(pair.near, F_SETFL, 0), 0);
  pair.talk();
}

}  // namespace
}  // namespace clan::test
