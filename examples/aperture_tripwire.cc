// An aperture and a tripwire: the parent exports memory and sleeps; the child stores into it, and
// the store wakes the parent. The child's code knows nothing of the tripwire.
#include <clan/aperture.h>
#include <clan/tripwire.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

template <typename T>
T must(clan::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message().c_str());
    std::_Exit(1);
  }
  return std::move(*result);
}

static int writer(int pipe) {
  clan::RdmaCookie cookie;
  if (::read(pipe, &cookie, sizeof cookie) != sizeof cookie) return 1;
  auto context = must(clan::Context::create());
  auto remote = must(clan::RemoteAperture::import(context, cookie, 5000));
  const char words[] = "stored by another process";
  if (!remote.write(64, words, sizeof words)) return 1;
  return remote.publish(0, sizeof words) ? 0 : 1;  // the flag, after the data
}

int main() {
  ::alarm(20);
  int pipe[2];
  if (::pipe(pipe) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(writer(pipe[0]));

  auto context = must(clan::Context::create());
  auto memory = must(clan::Memory::allocate(4096));
  auto aperture = must(
      clan::Aperture::export_memory(context, memory, 0, memory.size(), clan::Rights::kReadWrite));
  auto tripwire = must(clan::Tripwire::create(aperture, 0, 8));
  if (::write(pipe[1], &aperture.cookie(), sizeof(clan::RdmaCookie)) < 0) return 1;

  auto& flag = *reinterpret_cast<std::atomic<std::uint64_t>*>(memory.data());
  while (flag.load(std::memory_order_acquire) == 0) {
    tripwire.arm();
    if (flag.load(std::memory_order_acquire) != 0) break;  // always look once more
    if (auto s = tripwire.wait(10'000); !s) return 1;
  }
  const char* words = reinterpret_cast<const char*>(memory.data() + 64);
  std::printf("%llu bytes arrived: %s\n", static_cast<unsigned long long>(flag.load()), words);

  int status = 0;
  ::waitpid(child, &status, 0);
  // Revoked: whatever the peer still does, these bytes are ours alone.
  const bool revoked = aperture.revoke().ok();
  return status == 0 && revoked && std::strcmp(words, "stored by another process") == 0 ? 0 : 1;
}
