// Stream sockets as SHRIMP had them (shrimp-client-server, section 5): one way of a connection is a
// circular buffer of 32 KB in the receiver's memory, and two words.
//
//   sender                                          receiver
//     tail, and what it knows of the head             buffer, tail        <- written by the sender
//     head (imported by the receiver)   <-- head      user's memory       <- one copy
//
// Three forms, which differ in how bytes get into the receiver's buffer:
//
//   DU+1copy   deliberate update straight from the user's memory
//   DU+2copy   the sender copies into a buffer of its own first
//   AU+1copy   the sender copies into memory that is bound to the receiver's buffer
//
//     vmmc_stream          both ends, a process each: checks 1 MB in each form
//     vmmc_stream --times  the paper's figures 10 and 11: GB/s and one-way us by message size
#include <sys/wait.h>
#include <unistd.h>
#include <vmmc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kRing = 32 * 1024;  // the paper's
constexpr std::size_t kBytes = kRing + 64;

enum class Form { kDu1, kDu2, kAu1 };
constexpr Form kForms[] = {Form::kDu1, Form::kDu2, Form::kAu1};
const char* name_of(Form form) {
  return form == Form::kDu1 ? "DU+1copy" : form == Form::kDu2 ? "DU+2copy" : "AU+1copy";
}

void must(int rc, const char* what) {
  if (rc >= 0) return;
  std::fprintf(stderr, "vmmc_stream: %s: %s\n", what, std::strerror(-rc));
  std::exit(1);
}

std::uint64_t look(const std::byte* word) {
  return reinterpret_cast<const std::atomic<std::uint64_t>*>(word)->load(
      std::memory_order_acquire);  // order: the bytes before it are there
}

// One end: its memory, which the peer writes, and the peer's, which it writes. In each the ring
// comes first, then the tail of what comes in, then the head of what has gone out.
class Socket {
 public:
  Socket(const std::string& own, const std::string& peer, Form form) : form_(form) {
    must(vmmc_open(0, &v_), "open");
    memory_ = static_cast<std::byte*>(vmmc_alloc(v_, kBytes));
    must(vmmc_export(v_, own.c_str(), memory_, kBytes, nullptr, nullptr, nullptr, &buffer_),
         "export");
    int rc = -ENOENT;
    while (rc == -ENOENT) rc = vmmc_import(v_, nullptr, peer.c_str(), -1, &remote_);
    must(rc, "import");
    if (form == Form::kAu1)
      must(vmmc_bind(remote_, 0, nullptr, kRing, VMMC_ALIAS, 0, &binding_), "bind");
    between_ = form == Form::kAu1 ? static_cast<std::byte*>(vmmc_bound(binding_)) : copy_.data();
  }
  ~Socket() {
    if (binding_ != nullptr) (void)vmmc_unbind(binding_);
    (void)vmmc_unimport(remote_);
    (void)vmmc_unexport(buffer_);
    (void)vmmc_close(v_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void send(const std::byte* data, std::size_t bytes) {
    while (bytes > 0) {
      const std::size_t at = tail_ % kRing;
      std::size_t room = 0;
      await([&] { return (room = kRing - (tail_ - look(memory_ + kRing + 8))) != 0; });
      const std::size_t n = std::min({bytes, room, kRing - at});
      if (form_ != Form::kDu1) std::memcpy(between_ + at, data, n);
      if (form_ == Form::kDu1) must(vmmc_send(remote_, at, data, n, 0), "send");
      if (form_ == Form::kDu2) must(vmmc_send(remote_, at, between_ + at, n, 0), "send");
      tail_ += n;
      must(vmmc_put_word(remote_, kRing, tail_), "tail");
      data += n;
      bytes -= n;
    }
  }
  void receive(std::byte* data, std::size_t bytes) {
    while (bytes > 0) {
      std::size_t there = 0;
      await([&] { return (there = look(memory_ + kRing) - head_) != 0; });
      const std::size_t at = head_ % kRing, n = std::min({bytes, there, kRing - at});
      std::memcpy(data, memory_ + at, n);
      head_ += n;
      (void)vmmc_put_word(remote_, kRing + 8, head_);  // the peer may have closed behind its bytes
      data += n;
      bytes -= n;
    }
  }

 private:
  // What the peer wrote before it went is there when its end is known.
  template <typename Ready>
  void await(Ready ready) const {
    while (!ready()) {
      const int rc = vmmc_check(remote_);
      if (rc != 0 && !ready()) must(rc, "the peer");
    }
  }

  const Form form_;
  vmmc_t* v_ = nullptr;
  std::byte* memory_ = nullptr;
  vmmc_buffer_t* buffer_ = nullptr;
  vmmc_remote_t* remote_ = nullptr;
  vmmc_binding_t* binding_ = nullptr;
  std::byte* between_ = nullptr;
  std::vector<std::byte> copy_ = std::vector<std::byte>(kRing);
  std::uint64_t tail_ = 0, head_ = 0;
};

// Both ends run `body(socket, is_client)`; true: both have answered true.
template <typename Body>
bool run(Form form, Body body) {
  static int number = 0;
  const std::string name = "stream" + std::to_string(::getpid()) + "." + std::to_string(++number);
  const pid_t pid = ::fork();
  const bool client = pid != 0;
  bool right = false;
  {
    Socket socket(name + (client ? "c" : "s"), name + (client ? "s" : "c"), form);
    right = body(socket, client);
    std::byte last{};
    client ? socket.send(&last, 1) : socket.receive(&last, 1);
    client ? socket.receive(&last, 1) : socket.send(&last, 1);
  }
  if (!client) ::_exit(right ? 0 : 1);
  int status = -1;
  return ::waitpid(pid, &status, 0) == pid && status == 0 && right;
}

bool brings_bytes(Form form) {
  return run(form, [](Socket& socket, bool client) {
    constexpr std::size_t kAll = 1 << 20;
    std::vector<std::byte> data(kAll), got(kAll);
    for (std::size_t i = 0; i < kAll; ++i) data[i] = static_cast<std::byte>(i * 31 >> 3);
    for (std::size_t at = 0, n = 1; at < kAll; at += n, n = std::min(n * 3 + 1, kAll - at)) {
      if (client) socket.send(data.data() + at, n);
      socket.receive(got.data() + at, n);
      if (!client) socket.send(got.data() + at, n);  // back
    }
    return data == got;
  });
}

void print_times(Form form, std::size_t bytes, std::size_t trips) {
  (void)run(form, [&](Socket& socket, bool client) {
    using Clock = std::chrono::steady_clock;
    std::vector<std::byte> data(bytes);
    const std::size_t many = std::max<std::size_t>(5'000 * trips / bytes, 40) / 4;
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < trips; ++i) {
      if (client) socket.send(data.data(), bytes);
      socket.receive(data.data(), bytes);
      if (!client) socket.send(data.data(), bytes);
    }
    const auto middle = Clock::now();
    for (std::size_t i = 0; i < many; ++i)
      client ? socket.send(data.data(), bytes) : socket.receive(data.data(), bytes);
    client ? socket.receive(data.data(), 1) : socket.send(data.data(), 1);
    const std::chrono::duration<double> latency = middle - begin, stream = Clock::now() - middle;
    if (client) {
      std::printf("%-9s %6zu B  %8.3f us one way  %7.3f GB/s\n", name_of(form), bytes,
                  latency.count() * 1e6 / static_cast<double>(2 * trips),
                  static_cast<double>(bytes * many) / stream.count() / 1e9);
      std::fflush(stdout);
    }
    return true;
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--times") == 0) {
    const std::size_t trips = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 20'000;
    for (const Form form : kForms) {
      for (std::size_t bytes = 8; bytes <= 16384; bytes *= 2) print_times(form, bytes, trips);
    }
    return 0;
  }
  if (argc > 1) {
    std::puts(
        "vmmc_stream           both ends, a process each: checks 1 MB in each form\n"
        "vmmc_stream --times [TRIPS]\n"
        "                      the paper's figures 10 and 11: GB/s and one-way us by message size");
    return std::strcmp(argv[1], "--help") != 0;
  }
  for (const Form form : kForms) {
    const bool right = brings_bytes(form);
    std::printf("%s: %s\n", name_of(form), right ? "1 MB there and back, as sent" : "damaged");
    if (!right) return 1;
  }
  return 0;
}
