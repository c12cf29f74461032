// One thread serves many connections through one event queue: the cost of a turn does not depend on
// how many of them are silent. The clients send a number and expect its square.
#include <clan/event_queue.h>
#include <clan/stream.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

template <typename T>
T must(clan::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message().c_str());
    std::_Exit(1);
  }
  return std::move(*result);
}

constexpr std::uint64_t kClients = 40, kQuestions = 25, kListener = ~std::uint64_t{0};

static std::span<std::byte> bytes(std::uint64_t& word) {
  return std::as_writable_bytes(std::span(&word, 1));
}

static int clients(int ready, const std::string& service) {
  char go;
  if (::read(ready, &go, 1) != 1) return 1;
  auto context = must(clan::Context::create());
  std::vector<clan::Stream> streams;
  for (std::uint64_t i = 0; i < kClients; ++i) {
    streams.push_back(must(clan::Stream::connect(context, service, 10'000)));
  }
  for (std::uint64_t q = 0; q < kQuestions; ++q) {
    for (std::uint64_t i = 0; i < kClients; ++i) {
      std::uint64_t question = q * kClients + i;
      if (!streams[i].send(bytes(question), 10'000)) return 1;
    }
    for (std::uint64_t i = 0; i < kClients; ++i) {
      std::uint64_t answer = 0, question = q * kClients + i;
      // 8 bytes were sent at once: they come at once
      auto n = streams[i].recv(bytes(answer), 10'000);
      if (!n || *n != 8 || answer != question * question) return 1;
    }
  }
  return 0;
}

int main() {
  ::alarm(50);
  const std::string service = "example-event-loop-" + std::to_string(::getpid());
  int ready[2];
  if (::pipe(ready) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(clients(ready[0], service));

  auto context = must(clan::Context::create());
  auto queue = must(clan::EventQueue::create(context));
  auto listener = must(clan::Listener::create(context, service));
  if (!listener.register_with(queue, kListener)) return 1;
  if (::write(ready[1], "g", 1) != 1) return 1;

  std::map<std::uint64_t, clan::Stream> streams;
  std::uint64_t next = 0, answered = 0, closed = 0;
  while (closed < kClients) {
    clan::Event events[16];
    const std::size_t n = must(queue.wait(events, 10'000));
    for (std::size_t i = 0; i < n; ++i) {
      if (events[i].tag == kListener) {
        for (auto s = listener.try_accept(); s.ok(); s = listener.try_accept()) {
          auto at = streams.emplace(next, std::move(*s)).first;
          if (!at->second.register_with(queue, next++)) return 1;
        }
        continue;
      }
      auto at = streams.find(events[i].tag);
      if (at == streams.end()) continue;
      // An event is a hint: read until there is nothing more.
      std::uint64_t question = 0;
      auto got = at->second.try_recv(bytes(question));
      for (; got.ok() && *got == 8; got = at->second.try_recv(bytes(question))) {
        question *= question;
        if (!at->second.send(bytes(question), 10'000)) return 1;
        ++answered;
      }
      if (got.ok() || got.error().err != EAGAIN) {  // the end of the stream
        streams.erase(at);
        ++closed;
      }
    }
  }
  std::printf("one thread answered %llu questions of %llu clients\n",
              static_cast<unsigned long long>(answered), static_cast<unsigned long long>(next));
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 && answered == kClients * kQuestions ? 0 : 1;
}
