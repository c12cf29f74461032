// Memory that runs out: each allocation of a call, one after the other, fails once. The call says
// so, or goes on without; nothing ends the program, and afterwards everything can be done again.
#include <atomic>
#include <cstdlib>
#include <map>
#include <new>

#include "libfabric/node.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

thread_local bool t_scarce = false;  ///< allocations of this thread are counted
thread_local long t_left = -1;       ///< how many succeed before one fails; negative: all do
thread_local long t_failed = 0;

}  // namespace

// The provider has the program's.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (t_scarce && t_left >= 0 && t_left-- == 0) {
    ++t_failed;
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace clan::test {
namespace {

template <typename F>
auto scarcely(F&& call) {
  t_scarce = true;
  const auto answer = call();
  t_scarce = false;
  return answer;
}

/// Two endpoints of which one has little memory. What has been started has a number.
class Needy {
 public:
  explicit Needy(const NodeOptions& options = {}) : two(options, options) {
    MUST(fi_mr_reg(two.a.domain.get(), at_a, sizeof at_a, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 5, 0,
                   &region_a, nullptr));
    MUST(fi_mr_reg(two.b.domain.get(), at_b, sizeof at_b, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 5, 0,
                   &region_b, nullptr));
    held_a.reset(region_a);
    held_b.reset(region_b);
  }
  /// Everything once, from a and to a.
  void live() {
    static const auto large = pattern(100'000, 1);
    for (auto& buffer : in) buffer.resize(large.size());
    const fi_addr_t to = two.to_b;
    fid_ep* const a = two.a.ep.get();
    fid_ep* const b = two.b.ep.get();
    std::uint64_t one = 1, found = 0;
    const iovec pieces[] = {{const_cast<char*>(large.data()), 500},
                            {const_cast<char*>(large.data()), 700}};
    for (auto& buffer : in)
      started(fi_recv(b, buffer.data(), buffer.size(), nullptr, FI_ADDR_UNSPEC, nullptr));
    for (int i = 0; i < 3; ++i)
      call([&] { return fi_recv(a, got, sizeof got, nullptr, FI_ADDR_UNSPEC, nullptr); });
    call([&] { return fi_inject(a, "x", 1, to); });
    call([&] { return fi_send(a, large.data(), large.size(), nullptr, to, nullptr); });
    call([&] { return fi_sendv(a, pieces, nullptr, 2, to, nullptr); });
    const fi_msg acknowledged{pieces, nullptr, 1, to, nullptr, 0};
    call([&] { return fi_sendmsg(a, &acknowledged, FI_DELIVERY_COMPLETE); });
    call([&] { return fi_tsend(a, large.data(), 8, nullptr, to, 1, nullptr); });
    call([&] { return fi_write(a, got, sizeof got, nullptr, to, 0, 5, nullptr); });
    call([&] { return fi_read(a, got, sizeof got, nullptr, to, 0, 5, nullptr); });
    call([&] { return fi_atomic(a, &one, 1, nullptr, to, 0, 5, FI_UINT64, FI_SUM, nullptr); });
    call([&] {
      return fi_fetch_atomic(a, &one, 1, nullptr, &found, nullptr, to, 0, 5, FI_UINT64, FI_SUM,
                             nullptr);
    });
    // And what the other asks of us.
    started(fi_inject(b, "y", 1, two.to_a));
    started(fi_send(b, large.data(), 40'000, nullptr, two.to_a, nullptr));
    started(
        fi_sendmsg(b, &(back = {pieces, nullptr, 1, two.to_a, nullptr, 0}), FI_DELIVERY_COMPLETE));
    started(fi_tinject(b, "z", 1, two.to_a, 3));
    started(fi_write(b, in[0].data(), 64, nullptr, two.to_a, 0, 5, nullptr));
    started(fi_fetch_atomic(b, &one, 1, nullptr, &found, nullptr, two.to_a, 0, 5, FI_UINT64, FI_SUM,
                            nullptr));
    std::vector<char> other(two.b.name());
    fi_addr_t inserted;
    call([&] {
      return fi_av_insert(two.a.av.get(), other.data(), 1, &inserted, 0, nullptr) < 0 ? -1 : 0;
    });
    fid_mr* mr = nullptr;
    const ssize_t rc = call([&] {
      return fi_mr_reg(two.a.domain.get(), got, 8, FI_REMOTE_READ, 0, 77, 0, &mr, nullptr);
    });
    for (int i = 0; i < 60; ++i) work();
    if (rc == 0) {
      EXPECT_EQ(fi_close(&mr->fid), 0);
    }
  }
  /// Both can talk with each other, maybe by a new connection.
  bool well() {
    two.idle();
    drain();
    char buffer[8] = {};
    for (Node* node : {&two.a, &two.b}) {
      Node& other = node == &two.a ? two.b : two.a;
      if (fi_trecv(other.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, 99, 0, buffer) !=
          0)
        return false;
      const bool came = eventually([&] {
        (void)fi_tinject(node->ep.get(), "well", 5, node == &two.a ? two.to_b : two.to_a, 99);
        for (int i = 0; i < 20; ++i) {
          fi_cq_tagged_entry entry;
          fi_cq_err_entry error{};
          (void)fi_cq_read(node->cq.get(), &entry, 0);
          const ssize_t n = fi_cq_read(other.cq.get(), &entry, 1);
          if (n == -FI_EAVAIL) (void)fi_cq_readerr(other.cq.get(), &error, 0);
          if (n == 1 && entry.op_context == buffer) return true;
        }
        return false;
      });
      if (!came) return false;
    }
    return true;
  }
  void drain() {
    for (Node* node : {&two.a, &two.b}) {
      fi_cq_tagged_entry entry;
      fi_cq_err_entry error{};
      for (ssize_t n = 0;
           (n = fi_cq_read(node->cq.get(), &entry, 1)) != -FI_EAGAIN && n != -FI_EOVERRUN;)
        if (n == -FI_EAVAIL) (void)fi_cq_readerr(node->cq.get(), &error, 0);
    }
  }
  void work() {
    fi_cq_tagged_entry entry;
    fi_cq_err_entry error{};
    const ssize_t n = scarcely([&] { return fi_cq_read(two.a.cq.get(), &entry, 1); });
    if (n == -FI_EAVAIL) (void)fi_cq_readerr(two.a.cq.get(), &error, 0);
    if (fi_cq_read(two.b.cq.get(), &entry, 1) == -FI_EAVAIL)
      (void)fi_cq_readerr(two.b.cq.get(), &error, 0);
  }
  template <typename F>
  ssize_t call(F&& what) {
    const ssize_t rc = scarcely(what);
    if (rc != 0) ++refused[rc];
    for (int i = 0; i < 3; ++i) work();
    return rc;
  }
  static void started(ssize_t) {}

  Two two;
  std::uint64_t at_a[64] = {}, at_b[64] = {};
  char got[64] = {};
  std::vector<char> in[3];
  fi_msg back{};
  fid_mr *region_a = nullptr, *region_b = nullptr;
  Object<fid_mr> held_a, held_b;
  std::map<ssize_t, int> refused;
};

TEST(FabricScarcity, EachAllocationOfACallOrOfProgressMayFail) {
  long failures = 0;
  for (long n = 0;; ++n) {
    ASSERT_LT(n, 3000);
    Needy needy;
    ASSERT_TRUE(needy.well());
    t_left = n;
    t_failed = 0;
    needy.live();
    t_left = -1;
    failures += t_failed;
    for (const auto& [rc, times] : needy.refused) {
      EXPECT_TRUE(rc == -FI_ENOMEM || rc == -FI_EAGAIN || rc == -FI_ECONNRESET ||
                  rc == -FI_ENOTCONN || rc == -1)
          << rc << " with " << n;
    }
    EXPECT_TRUE(needy.well()) << "with " << n;
    if (t_failed == 0) break;
  }
  EXPECT_GT(failures, 10);
}

TEST(FabricScarcity, AQueueThatCannotGrowSaysWhatItHasLost) {
  Two two;
  constexpr int kMessages = 1000;
  ASSERT_EQ(sent([&] { return fi_inject(two.a.ep.get(), "x", 1, two.to_b); }, two.a), 0);
  for (int i = 0; i < kMessages; ++i) {
    t_left = 0;  // no more than there is
    ASSERT_EQ(sent(
                  [&] {
                    return scarcely([&] {
                      return fi_send(two.a.ep.get(), "x", 1, nullptr, two.to_b, nullptr);
                    });
                  },
                  two.b),
              0);
  }
  t_left = -1;
  int read = 0;
  fi_cq_tagged_entry entry;
  ssize_t n;
  while ((n = fi_cq_read(two.a.cq.get(), &entry, 1)) == 1) ++read;
  EXPECT_EQ(n, -FI_EOVERRUN);
  EXPECT_GT(read, 0);
  EXPECT_LT(read, kMessages);
  EXPECT_EQ(fi_cq_read(two.a.cq.get(), &entry, 1), -FI_EOVERRUN);
}

TEST(FabricScarcity, EveryObjectMayFindNoMemory) {
  long n = 0;
  for (bool failed = true; failed; ++n) {
    ASSERT_LT(n, 3000);
    Node node({.wait = FI_WAIT_FD});
    node.enable();
    t_left = n;
    t_failed = 0;
    fid_domain* d = nullptr;
    if (scarcely([&] { return fi_domain(node.fabric.get(), node.info.get(), &d, nullptr); }) == 0) {
      Object<fid_domain> domain(d);
      fi_cq_attr cq_attr{};
      cq_attr.wait_obj = FI_WAIT_FD;
      fid_cq* c = nullptr;
      Object<fid_cq> cq;
      if (scarcely([&] { return fi_cq_open(d, &cq_attr, &c, nullptr); }) == 0) cq.reset(c);
      fi_cntr_attr counter_attr{};
      counter_attr.wait_obj = FI_WAIT_FD;
      fid_cntr* counter = nullptr;
      Object<fid_cntr> counter_held;
      if (scarcely([&] { return fi_cntr_open(d, &counter_attr, &counter, nullptr); }) == 0)
        counter_held.reset(counter);
      fi_av_attr av_attr{};
      av_attr.count = 100;
      fid_av* av = nullptr;
      Object<fid_av> av_held;
      if (scarcely([&] { return fi_av_open(d, &av_attr, &av, nullptr); }) == 0) av_held.reset(av);
      fid_ep* ep = nullptr;
      Object<fid_ep> ep_held;
      if (scarcely([&] { return fi_endpoint(d, node.info.get(), &ep, nullptr); }) == 0)
        ep_held.reset(ep);
      if (cq && av_held && ep_held) {
        ssize_t rc = scarcely([&] { return fi_ep_bind(ep, &c->fid, FI_TRANSMIT | FI_RECV); });
        if (rc == 0) rc = scarcely([&] { return fi_ep_bind(ep, &av->fid, 0); });
        if (rc == 0) rc = scarcely([&] { return fi_enable(ep); });
        EXPECT_TRUE(rc == 0 || rc == -FI_ENOMEM || rc == -FI_EAGAIN) << rc;
      }
    }
    fi_eq_attr eq_attr{};
    eq_attr.wait_obj = FI_WAIT_FD;
    eq_attr.flags = FI_WRITE;
    fid_eq* eq = nullptr;
    if (scarcely([&] { return fi_eq_open(node.fabric.get(), &eq_attr, &eq, nullptr); }) == 0) {
      Object<fid_eq> eq_held(eq);
      fi_eq_entry entry{};
      std::uint32_t event;
      const ssize_t rc =
          scarcely([&] { return fi_eq_write(eq, FI_NOTIFY, &entry, sizeof entry, 0); });
      EXPECT_TRUE(rc == sizeof entry || rc == -FI_ENOMEM) << rc;
      EXPECT_EQ(fi_eq_read(eq, &event, &entry, sizeof entry, 0), rc > 0 ? rc : -FI_EAGAIN);
    }
    t_left = -1;
    failed = t_failed > 0;
  }
  EXPECT_GT(n, 20);
}

}  // namespace
}  // namespace clan::test

#endif
