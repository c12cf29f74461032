// RDMA: the child writes 8 MB from its own memory into the parent's own memory, in one copy and
// without the parent's processor taking part, and reads it back.
#include <clan/rdma.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

template <typename T>
T must(clan::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message().c_str());
    std::_Exit(1);
  }
  return std::move(*result);
}

constexpr std::size_t kWords = 1 << 20, kBytes = kWords * 8;

static std::vector<std::uint64_t> content() {
  std::vector<std::uint64_t> words(kWords);
  for (std::size_t i = 0; i < kWords; ++i) words[i] = i * 0x9e3779b97f4a7c15u;
  return words;
}

static int writer(int pipe) {
  clan::RdmaCookie cookie;
  if (::read(pipe, &cookie, sizeof cookie) != sizeof cookie) return 1;
  auto context = must(clan::Context::create());
  auto remote = must(clan::RemoteAperture::import(context, cookie, 5000));
  auto queue = must(clan::RdmaQueue::create(context));

  const auto words = content();
  std::vector<std::uint64_t> back(kWords);
  if (!queue.write(remote, 0, words.data(), kBytes, {.cookie = 1})) return 1;
  if (!queue.read(remote, 0, back.data(), kBytes, {.cookie = 2})) return 1;
  for (std::uint64_t expected = 1; expected <= 2;) {  // they complete in the order of posting
    clan::RdmaCompletion completions[2];
    const std::size_t n = must(queue.wait(completions, 10'000));
    for (std::size_t i = 0; i < n; ++i, ++expected) {
      const clan::RdmaCompletion& c = completions[i];
      std::printf("request %llu: status %d, %llu bytes\n",
                  static_cast<unsigned long long>(c.cookie), c.status,
                  static_cast<unsigned long long>(c.bytes));
      std::fflush(stdout);
      if (c.cookie != expected || c.status != 0 || c.bytes != kBytes) return 1;
    }
  }
  // An error is a completion as well.
  if (!queue.write(remote, kBytes, words.data(), 8)) return 1;
  clan::RdmaCompletion c;
  if (must(queue.wait({&c, 1}, 10'000)) != 1 || c.status != ERANGE) return 1;
  return back == words ? 0 : 1;
}

int main() {
  ::alarm(50);
  int pipe[2];
  if (::pipe(pipe) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(writer(pipe[0]));

  auto context = must(clan::Context::create());
  std::vector<std::uint64_t> mine(kWords);  // any memory will do
  auto aperture = must(clan::Aperture::export_region(
      context, std::as_writable_bytes(std::span(mine)), clan::Rights::kReadWrite));
  if (::write(pipe[1], &aperture.cookie(), sizeof(clan::RdmaCookie)) < 0) return 1;
  int status = 0;
  ::waitpid(child, &status, 0);  // this process sleeps meanwhile
  if (!aperture.revoke()) return 1;
  std::printf("%zu MB arrived, %s\n", kBytes >> 20,
              mine == content() ? "all of them right" : "wrong");
  return status == 0 && mine == content() ? 0 : 1;
}
