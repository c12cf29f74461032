// A program that uses io_uring on its connections. Run with the interposer preloaded. A ring made
// by syscall(), and with liburing where it is installed.
#include <linux/io_uring.h>

#include <atomic>

#include "connection.h"
#ifdef CLAN_HAVE_LIBURING
#include <liburing.h>
#endif

namespace clan::test {
namespace {

// The smallest user of a ring: one entry at a time.
class Ring {
 public:
  explicit Ring(bool in_line) : in_line_(in_line) {
    fd_ = static_cast<int>(::syscall(SYS_io_uring_setup, 4, &parameters_));
    if (fd_ < 0) return;
    const std::size_t sq = parameters_.sq_off.array + parameters_.sq_entries * sizeof(unsigned);
    const std::size_t cq = parameters_.cq_off.cqes + parameters_.cq_entries * sizeof(io_uring_cqe);
    rings_ = static_cast<char*>(map(std::max(sq, cq), IORING_OFF_SQ_RING));
    entries_ = static_cast<io_uring_sqe*>(
        map(parameters_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
  }
  ~Ring() {
    if (fd_ >= 0) ::close(fd_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  bool ok() const { return fd_ >= 0; }

  int run(unsigned char operation, int fd, void* bytes, unsigned count, unsigned flags) {
    auto& tail = word(parameters_.sq_off.tail);
    const unsigned index = tail.load() & word(parameters_.sq_off.ring_mask).load();
    entries_[index] = {};
    entries_[index].opcode = operation;
    entries_[index].fd = fd;
    entries_[index].addr = reinterpret_cast<std::uintptr_t>(bytes);
    entries_[index].len = count;
    entries_[index].msg_flags = flags;
    reinterpret_cast<unsigned*>(rings_ + parameters_.sq_off.array)[index] = index;
    tail.fetch_add(1);
    auto& head = word(parameters_.cq_off.head);
    while (head.load() == word(parameters_.cq_off.tail).load()) enter();
    const auto* results = reinterpret_cast<io_uring_cqe*>(rings_ + parameters_.cq_off.cqes);
    const int result = results[head.load() & word(parameters_.cq_off.ring_mask).load()].res;
    head.fetch_add(1);
    return result;
  }

 private:
  void* map(std::size_t bytes, long at) {
    return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, at);
  }
  std::atomic<unsigned>& word(unsigned at) {
    return *reinterpret_cast<std::atomic<unsigned>*>(rings_ + at);
  }
  void enter() {
    const unsigned waiting =
        word(parameters_.sq_off.tail).load() - word(parameters_.sq_off.head).load();
#ifdef __x86_64__
    if (in_line_) {  // past everybody, as liburing does
      long rc = SYS_io_uring_enter;
      register long flags asm("r10") = IORING_ENTER_GETEVENTS;
      register long mask asm("r8") = 0;
      register long size asm("r9") = 0;
      asm volatile("syscall"
                   : "+a"(rc)
                   : "D"(long{fd_}), "S"(long{waiting}), "d"(1L), "r"(flags), "r"(mask), "r"(size)
                   : "rcx", "r11", "memory");
      return;
    }
#endif
    ::syscall(SYS_io_uring_enter, fd_, waiting, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
  }

  bool in_line_;
  io_uring_params parameters_{};
  int fd_ = -1;
  char* rings_ = nullptr;
  io_uring_sqe* entries_ = nullptr;
};

template <typename AnyRing>
void ping_by(AnyRing& ring, int fd, int rounds) {
  char out[1000], in[1000];
  for (int i = 0; i < rounds; ++i) {
    std::memset(out, i, sizeof out);
    ASSERT_EQ(ring.run(IORING_OP_SEND, fd, out, sizeof out, 0), 1000);
    ASSERT_EQ(ring.run(IORING_OP_RECV, fd, in, sizeof in, MSG_WAITALL), 1000);
    ASSERT_EQ(std::memcmp(in, out, sizeof in), 0) << "round " << i;
  }
}

// In a process of its own, as nothing moves any more where there has been a ring.
template <typename Body>
void with_rings(const Body& body) {
  io_uring_params parameters{};
  const long ring = instruction(SYS_io_uring_setup, 4, reinterpret_cast<long>(&parameters));
  if (ring < 0) GTEST_SKIP() << "no io_uring: " << strerror(errno);
  ::close(static_cast<int>(ring));
  const pid_t process = child([&] {
    body();
    return ::testing::Test::HasFailure() ? 2 : 0;
  });
  EXPECT_EQ(result_of(process), 0);
}

// `ring` is for a connection that has moved, and for one that is made while it lives.
template <typename AnyRing>
void reads_what_the_peer_wrote(Echo& moved, AnyRing& ring) {
  ping_by(ring, moved.fd, 100);
  ping(moved.fd, 100);
  ping_by(ring, moved.fd, 100);
  Echo later;
  ping(later.fd, 100);
  ping_by(ring, later.fd, 100);
}

void reads_all(bool in_line) {
  Echo moved;
  ping(moved.fd, 200);
  const std::uint64_t before = bytes_by_shared_memory();
  EXPECT_GT(before, 300'000u);
  Ring ring(in_line);
  ASSERT_TRUE(ring.ok());
  reads_what_the_peer_wrote(moved, ring);
  EXPECT_LE(bytes_by_shared_memory(), before);
}

TEST(Uring, ReadsAllOfAConnectionThatHadMoved) {
  for (const bool in_line : {false, true}) with_rings([&] { reads_all(in_line); });
}

TEST(Uring, KeepsTheProcessOnTcpWhenItIsClosed) {
  with_rings([] {
    { const Ring one(false); }
    Echo stays;
    ping(stays.fd, 100);
    EXPECT_EQ(bytes_by_shared_memory(), 0u);
  });
}

TEST(Uring, ThatCannotBeSetUpTakesNothingBack) {
  Echo moved;
  ping(moved.fd, 100);
  const std::uint64_t before = bytes_by_shared_memory();
  io_uring_params parameters{};
  EXPECT_LT(::syscall(SYS_io_uring_setup, 0, &parameters), 0);
  ping(moved.fd, 200);
  EXPECT_GE(bytes_by_shared_memory(), before + 400'000u);
}

#ifdef CLAN_HAVE_LIBURING
// Not in every liburing.
extern "C" int io_uring_queue_init_mem(unsigned entries, ::io_uring* ring,
                                       io_uring_params* parameters, void* memory, std::size_t size)
    __attribute__((weak));

class Liburing {
 public:
  enum class By { kInit, kParameters, kMemory };
  explicit Liburing(By by = By::kInit) {
    io_uring_params parameters{};
    switch (by) {
      case By::kInit: error_ = ::io_uring_queue_init(4, &ring_, 0); break;
      case By::kParameters: error_ = ::io_uring_queue_init_params(4, &ring_, &parameters); break;
      case By::kMemory:
        error_ = io_uring_queue_init_mem == nullptr
                     ? -ENOSYS
                     : io_uring_queue_init_mem(4, &ring_, &parameters, memory_, sizeof memory_);
        break;
    }
    if (error_ > 0) error_ = 0;  // bytes of the memory that it has used
  }
  ~Liburing() {
    if (ok()) ::io_uring_queue_exit(&ring_);
  }
  bool ok() const { return error_ == 0; }
  int error() const { return error_; }
  int run(unsigned char operation, int fd, void* bytes, unsigned count, unsigned flags) {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    if (operation == IORING_OP_SEND) {
      ::io_uring_prep_send(entry, fd, bytes, count, static_cast<int>(flags));
    } else {
      ::io_uring_prep_recv(entry, fd, bytes, count, static_cast<int>(flags));
    }
    ::io_uring_submit(&ring_);
    io_uring_cqe* done = nullptr;
    int rc;
    while ((rc = ::io_uring_wait_cqe(&ring_, &done)) == -EINTR) {
    }
    if (rc != 0) return rc;
    rc = done->res;
    ::io_uring_cqe_seen(&ring_, done);
    return rc;
  }

 private:
  ::io_uring ring_{};
  alignas(4096) char memory_[1 << 16];
  int error_ = -1;
};

void liburing_reads_all(Liburing::By by) {
  Echo moved;
  ping(moved.fd, 200);
  EXPECT_GT(bytes_by_shared_memory(), 300'000u);
  Liburing ring(by);
  // an older liburing, or an older kernel
  if (by == Liburing::By::kMemory && !ring.ok()) return;
  ASSERT_TRUE(ring.ok()) << std::strerror(-ring.error());
  reads_what_the_peer_wrote(moved, ring);
}

TEST(Uring, OfLiburingReadsAllOfAConnectionThatHadMoved) {
  for (const auto by : {Liburing::By::kInit, Liburing::By::kParameters, Liburing::By::kMemory})
    with_rings([&] { liburing_reads_all(by); });
}

TEST(Uring, SetUpByLiburingsOwnNameTakesConnectionsBack) {
  with_rings([] {
    Echo moved;
    ping(moved.fd, 200);
    const std::uint64_t before = bytes_by_shared_memory();
    EXPECT_GT(before, 300'000u);
    io_uring_params parameters{};
    const int ring = ::io_uring_setup(4, &parameters);
    EXPECT_GE(ring, 0) << std::strerror(-ring);
    ping(moved.fd, 100);
    EXPECT_LE(bytes_by_shared_memory(), before);
  });
}
#endif

}  // namespace
}  // namespace clan::test
