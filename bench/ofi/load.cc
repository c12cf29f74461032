// What `clan bench ofi` measures with: two processes that exchange data by libfabric's public interface,
// whichever provider is asked for. ofi.py starts one pair per provider and has them measure in turns.
//
//   clan-ofi-load PROVIDER FAMILY CORE_A CORE_B
//
//   ofi.py ── "tagged 64 12" ──> client, CORE_B ── socketpair: Order ──> server, CORE_A (its child)
//          <── "0.41 0.43 9 0" (us) ──         <── the provider ──>
//
// The loops are those of fabtests: the same sequence of calls, queues for sends and receives apart, which are
// read one entry at a time without pause; messages below the provider's inject size are injected. Every
// message of a ping-pong carries its number at front, middle and back, which its receiver checks; a window of
// messages carries the window's. Before and after each measurement the whole of a message or a region is
// checked, byte by byte. What does not come within kPatience ends the program.
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr std::size_t kMostBytes = 4u << 20;
constexpr int kWindow = 64;
constexpr int kSlices = 9;
constexpr int kMostTimes = 5;     ///< as long as asked for, to get as many slices that nothing disturbed
constexpr double kPatience = 20;  ///< seconds
constexpr std::uint64_t kTag = 0x10;

[[noreturn]] void give_up(const char* what, const char* why) {
  std::fprintf(stderr, "clan-ofi-load: %s: %s\n", what, why);
  std::exit(1);
}

template <typename T>
T must(T rc, const char* what) {
  if (rc < 0) give_up(what, fi_strerror(static_cast<int>(-rc)));
  return rc;
}
#define MUST(call) must((call), #call)

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// Ends a loop that waits in vain; looks at the clock only now and then.
class Patience {
 public:
  explicit Patience(const char* what) : what_(what) {}
  void operator()() {
    if ((++turns_ & 0xfffff) != 0) return;
    const double t = now();
    if (since_ == 0) since_ = t;
    if (t - since_ > kPatience) give_up(what_, "has not come in time");
  }

 private:
  const char* what_;
  std::uint32_t turns_ = 0;
  double since_ = 0;
};

enum class Kind : int {
  kTagged,        ///< ping-pong
  kMessage,       ///< the same without tags
  kTaggedWindow,  ///< 64 messages, then an answer
  kWriteWindow,   ///< both sides write at once, 64 under way
  kReadWindow,
  kWriteInject,  ///< both sides, fi_inject_write
  kWrite,        ///< one at a time, until it is complete; the owner polls
  kRead,
  kFetchAdd,
  kIdle,     ///< CPU time of two seconds of waiting at the queue's descriptor
  kWakeUp,   ///< ping-pong of two that sleep there
  kEventfd,  ///< the same with nothing but an eventfd
  kEnd,
};

struct Entry {
  const char* name;
  Kind kind;
  const char* family;
};
constexpr Entry kKinds[] = {
    {"tagged", Kind::kTagged, "tagged"},
    {"tagged-window", Kind::kTaggedWindow, "tagged"},
    {"msg", Kind::kMessage, "msg"},
    {"write-window", Kind::kWriteWindow, "rma"},
    {"read-window", Kind::kReadWindow, "rma"},
    {"write-inject", Kind::kWriteInject, "rma"},
    {"write", Kind::kWrite, "rma"},
    {"read", Kind::kRead, "rma"},
    {"fetch-add", Kind::kFetchAdd, "atomic"},
    {"idle", Kind::kIdle, "wait"},
    {"wake-up", Kind::kWakeUp, "wait"},
    {"eventfd", Kind::kEventfd, "wait"},
};

/// What the client tells the server to do together.
struct Order {
  Kind kind = Kind::kEnd;
  std::uint64_t bytes = 0;
  std::uint64_t times = 0;  ///< 0: check that the bytes arrive, all of them
};

std::uint64_t capabilities(std::string_view family) {
  if (family == "tagged") return FI_TAGGED;
  if (family == "rma") return FI_MSG | FI_RMA;
  if (family == "atomic") return FI_MSG | FI_ATOMIC;
  return FI_MSG;
}

std::uint8_t stamp_of(std::uint64_t number) { return static_cast<std::uint8_t>(number % 251 + 1); }

void stamp(std::uint8_t* message, std::size_t bytes, std::uint64_t number) {
  message[0] = message[bytes / 2] = message[bytes - 1] = stamp_of(number);
}

bool stamped(const std::uint8_t* message, std::size_t bytes, std::uint64_t number) {
  const std::uint8_t s = stamp_of(number);
  return message[0] == s && message[bytes / 2] == s && message[bytes - 1] == s;
}

std::uint8_t pattern(std::size_t i, unsigned seed) {
  return static_cast<std::uint8_t>(i * 31 + (i >> 8) * 7 + seed);
}

void fill(std::uint8_t* to, std::size_t bytes, unsigned seed) {
  for (std::size_t i = 0; i < bytes; ++i) to[i] = pattern(i, seed);
}

bool filled(const std::uint8_t* in, std::size_t bytes, unsigned seed) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (in[i] != pattern(i, seed)) return false;
  }
  return true;
}

/// Microseconds per operation: of the slices that other work did not disturb, as far as there are such.
struct Figure {
  double minimum = 0;
  double median = 0;
  int kept = 1;     ///< slices. None: all were disturbed, and the figure is of those
  int dropped = 0;  ///< slices in which another process took a processor away from either side
};

/// How often the processor has been taken away from this process.
long times_preempted() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

/// The socket between the two: set-up and orders, nothing that is measured.
class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  void send(const void* data, std::size_t bytes) const {
    if (::send(fd_, data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) give_up("channel", "closed");
  }
  void receive(void* data, std::size_t bytes) const {
    if (::recv(fd_, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) give_up("channel", "closed");
  }
  bool ready() const {
    pollfd p{fd_, POLLIN, 0};
    return ::poll(&p, 1, 0) != 0;
  }

 private:
  int fd_;
};

struct RemoteRegion {
  std::uint64_t address = 0;
  std::uint64_t key = 0;
};

/// One of the two, with an endpoint, and buffers that are the same for every measurement.
class Side {
 public:
  Side(bool client, const Channel& channel, const std::array<int, 2>& eventfds)
      : client_(client), channel_(channel), eventfds_(eventfds) {
    for (std::uint8_t** buffer : {&out_, &in_}) {
      *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(4096, kMostBytes));
      if (*buffer == nullptr) give_up("buffers", "no memory");
      std::memset(*buffer, 0x5a, kMostBytes);
    }
  }

  /// Empty, or why this provider cannot do it.
  std::string open(const char* provider, std::string_view family);
  void close();
  void serve();
  Figure measure(Kind kind, std::size_t bytes, double ms);

 private:
  double run(Order order);

  void progress() {
    (void)fi_cq_read(sent_, nullptr, 0);
    (void)fi_cq_read(received_, nullptr, 0);
  }
  template <typename F>
  void post(F&& call, const char* what) {
    Patience patience(what);
    for (;;) {
      const ssize_t rc = call();
      if (rc == 0) return;
      if (rc != -FI_EAGAIN) must(rc, what);
      progress();
      patience();
    }
  }
  bool take(fid_cq* cq, const char* what) {
    fi_cq_entry entry;
    const ssize_t n = fi_cq_read(cq, &entry, 1);
    if (n == 1) return true;
    if (n == -FI_EAGAIN) return false;
    if (n == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      (void)fi_cq_readerr(cq, &error, 0);
      give_up(what, fi_strerror(error.err));
    }
    must(n, what);
    return false;
  }
  void wait(fid_cq* cq, int count, const char* what) {
    Patience patience(what);
    while (count > 0) {
      if (take(cq, what)) {
        --count;
      } else {
        patience();
      }
    }
  }
  void post_receive(std::size_t bytes, int slot = 0) {
    post(
        [&] {
          return tagged_ ? fi_trecv(ep_, in_, bytes, nullptr, FI_ADDR_UNSPEC, kTag, 0, &receives_[slot])
                         : fi_recv(ep_, in_, bytes, nullptr, FI_ADDR_UNSPEC, &receives_[slot]);
        },
        "receive");
  }
  bool injects(std::size_t bytes) const { return bytes < info_->tx_attr->inject_size; }
  void inject(std::size_t bytes) {
    post(
        [&] {
          return tagged_ ? fi_tinject(ep_, out_, bytes, peer_, kTag) : fi_inject(ep_, out_, bytes, peer_);
        },
        "inject");
  }
  void inject_write(std::size_t bytes) {
    post([&] { return fi_inject_write(ep_, out_, bytes, peer_, remote_.address, remote_.key); },
         "inject write");
  }
  void post_send(std::size_t bytes, int slot = 0) {
    post(
        [&] {
          return tagged_ ? fi_tsend(ep_, out_, bytes, nullptr, peer_, kTag, &sends_[slot])
                         : fi_send(ep_, out_, bytes, nullptr, peer_, &sends_[slot]);
        },
        "send");
  }
  void send(std::size_t bytes) {
    if (injects(bytes)) return inject(bytes);
    post_send(bytes);
    wait(sent_, 1, "a send");
  }
  void access(bool write, std::size_t bytes, int slot = 0) {
    post(
        [&] {
          return write ? fi_write(ep_, out_, bytes, desc_, peer_, remote_.address, remote_.key, &sends_[slot])
                       : fi_read(ep_, out_, bytes, desc_, peer_, remote_.address, remote_.key, &sends_[slot]);
        },
        write ? "write" : "read");
  }
  /// Both have come here. `prepare` receives before the other side can send.
  template <typename F>
  void meet(F&& prepare) {
    post_note();
    prepare();
    send_note();
    wait(received_, 1, "a message");
  }
  void meet() {
    meet([] {});
  }
  // Notes are messages of the loops' own.
  void post_note() {
    post(
        [&] {
          return tagged_ ? fi_trecv(ep_, &note_in_, sizeof note_in_, nullptr, FI_ADDR_UNSPEC, kTag, 0,
                                    &note_context_)
                         : fi_recv(ep_, &note_in_, sizeof note_in_, nullptr, FI_ADDR_UNSPEC, &note_context_);
        },
        "receive");
  }
  void send_note() {
    post(
        [&] {
          return tagged_ ? fi_tinject(ep_, &note_out_, sizeof note_out_, peer_, kTag)
                         : fi_inject(ep_, &note_out_, sizeof note_out_, peer_);
        },
        "inject");
  }
  void sleep_until_received();

  template <typename Send, typename Wait>
  double back_and_forth(const Order& order, const char* what, Send&& send, Wait&& wait);
  double ping_pong(const Order& order);
  double window(const Order& order);
  double access_window(const Order& order);
  double access_single(const Order& order);
  double fetch_add(const Order& order);
  double idle();
  double wake_up(const Order& order);
  double eventfd(const Order& order);
  void verify(const Order& order);
  void verify_message(std::size_t bytes);
  void verify_write(bool inject, bool both, std::size_t bytes);
  void verify_read(bool both, std::size_t bytes);

  bool client_;
  Channel channel_;
  std::array<int, 2> eventfds_;  ///< the server waits for [0], the client for [1]
  bool tagged_ = false;
  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* av_ = nullptr;
  fid_cq *sent_ = nullptr, *received_ = nullptr;
  fid_ep* ep_ = nullptr;
  fid_mr *out_mr_ = nullptr, *in_mr_ = nullptr;
  void* desc_ = nullptr;
  int fd_ = -1;  ///< of received_, in the family that waits
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  RemoteRegion remote_;
  std::uint8_t *out_ = nullptr, *in_ = nullptr;  ///< in_ is also the region for the other side's accesses
  std::uint32_t note_in_ = 0, note_out_ = 0;
  unsigned seed_ = 0;       ///< of the next check
  bool preempted_ = false;  ///< either side, in the last run(); the client knows
  fi_context2 sends_[kWindow] = {}, receives_[kWindow] = {}, note_context_ = {};
};

std::string Side::open(const char* provider, std::string_view family) {
  tagged_ = family == "tagged";
  const bool waits = family == "wait", regions = family == "rma" || family == "atomic";
  fi_info* hints = fi_allocinfo();
  hints->fabric_attr->prov_name = ::strdup(provider);
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = capabilities(family);
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  // shm takes its own process for its address; with a node both sides would have the same.
  const char* node = std::strcmp(provider, "shm") == 0 ? nullptr : "127.0.0.1";
  const int found =
      fi_getinfo(FI_VERSION(1, 17), node, nullptr, node != nullptr ? FI_SOURCE : 0, hints, &info_);
  fi_freeinfo(hints);
  if (found != 0) return std::string("fi_getinfo: ") + fi_strerror(-found);
  MUST(fi_fabric(info_->fabric_attr, &fabric_, nullptr));
  MUST(fi_domain(fabric_, info_, &domain_, nullptr));
  fi_av_attr av{};
  av.type = FI_AV_TABLE;
  MUST(fi_av_open(domain_, &av, &av_, nullptr));
  fi_cq_attr cq{};
  cq.format = FI_CQ_FORMAT_CONTEXT;
  cq.wait_obj = FI_WAIT_NONE;
  MUST(fi_cq_open(domain_, &cq, &sent_, nullptr));
  if (waits) cq.wait_obj = FI_WAIT_FD;
  if (const int rc = fi_cq_open(domain_, &cq, &received_, nullptr); rc != 0) {
    if (!waits) must(rc, "fi_cq_open");
    return std::string("FI_WAIT_FD: ") + fi_strerror(-rc);
  }
  if (waits) MUST(fi_control(&received_->fid, FI_GETWAIT, &fd_));
  MUST(fi_endpoint(domain_, info_, &ep_, nullptr));
  MUST(fi_ep_bind(ep_, &av_->fid, 0));
  MUST(fi_ep_bind(ep_, &sent_->fid, FI_TRANSMIT));
  MUST(fi_ep_bind(ep_, &received_->fid, FI_RECV));
  MUST(fi_enable(ep_));

  // Names are blobs of the provider's.
  std::array<char, 256> name{};
  std::size_t length = name.size();
  MUST(fi_getname(&ep_->fid, name.data(), &length));
  channel_.send(name.data(), name.size());
  channel_.receive(name.data(), name.size());
  if (fi_av_insert(av_, name.data(), 1, &peer_, 0, nullptr) != 1) give_up("fi_av_insert", "refused");
  if (regions) {
    constexpr std::uint64_t kAll = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    MUST(fi_mr_reg(domain_, in_, kMostBytes, kAll, 0, 1, 0, &in_mr_, nullptr));
    MUST(fi_mr_reg(domain_, out_, kMostBytes, kAll, 0, 2, 0, &out_mr_, nullptr));
    desc_ = fi_mr_desc(out_mr_);
    const bool by_address = (info_->domain_attr->mr_mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC)) != 0;
    RemoteRegion mine{by_address ? reinterpret_cast<std::uint64_t>(in_) : 0, fi_mr_key(in_mr_)};
    channel_.send(&mine, sizeof mine);
    channel_.receive(&remote_, sizeof remote_);
  }
  return "";
}

void Side::close() {
  for (fid* f :
       {in_mr_ ? &in_mr_->fid : nullptr, out_mr_ ? &out_mr_->fid : nullptr, ep_ ? &ep_->fid : nullptr,
        received_ ? &received_->fid : nullptr, sent_ ? &sent_->fid : nullptr, av_ ? &av_->fid : nullptr,
        domain_ ? &domain_->fid : nullptr, fabric_ ? &fabric_->fid : nullptr}) {
    if (f != nullptr) (void)fi_close(f);
  }
  if (info_ != nullptr) fi_freeinfo(info_);
}

// Messages to and fro, sent and waited for as the caller says.
template <typename Send, typename Wait>
double Side::back_and_forth(const Order& order, const char* what, Send&& send, Wait&& wait) {
  const std::size_t bytes = order.bytes;
  meet([&] { post_receive(bytes); });
  const double began = now();
  for (std::uint64_t i = 0; i < order.times; ++i) {
    if (client_) {
      stamp(out_, bytes, i);
      send(bytes);
    }
    wait();
    if (!stamped(in_, bytes, i)) give_up(what, "wrong data");
    if (i + 1 < order.times) post_receive(bytes);
    if (!client_) {
      stamp(out_, bytes, i);
      send(bytes);
    }
  }
  return (now() - began) / 2;
}

double Side::ping_pong(const Order& order) {
  return back_and_forth(
      order, "ping-pong", [this](std::size_t bytes) { send(bytes); },
      [this] { wait(received_, 1, "a message"); });
}

// The sender may be early, as in programs: messages that find no receive are part of it.
double Side::window(const Order& order) {
  const std::size_t bytes = order.bytes;
  const std::uint64_t windows = order.times / kWindow;
  meet();
  const double began = now();
  for (std::uint64_t w = 0; w < windows; ++w) {
    if (client_) {
      post_note();
      stamp(out_, bytes, w);
      for (int i = 0; i < kWindow; ++i) {
        injects(bytes) ? inject(bytes) : post_send(bytes, i);
      }
      if (!injects(bytes)) wait(sent_, kWindow, "a send");
      wait(received_, 1, "an answer");
    } else {
      for (int i = 0; i < kWindow; ++i) post_receive(bytes, i);
      wait(received_, kWindow, "a message");
      if (!stamped(in_, bytes, w)) give_up("window", "wrong data");
      send_note();
    }
  }
  return now() - began;
}

double Side::access_window(const Order& order) {
  meet();
  const double began = now();
  for (std::uint64_t w = 0; w < order.times / kWindow; ++w) {
    for (int i = 0; i < kWindow; ++i) {
      order.kind == Kind::kWriteInject ? inject_write(order.bytes)
                                       : access(order.kind == Kind::kWriteWindow, order.bytes, i);
    }
    if (order.kind != Kind::kWriteInject) wait(sent_, kWindow, "an access");
  }
  const double took = now() - began;
  meet();
  return took;
}

double Side::access_single(const Order& order) {
  meet();
  double took = 0;
  if (client_) {
    const double began = now();
    for (std::uint64_t i = 0; i < order.times; ++i) {
      access(order.kind == Kind::kWrite, order.bytes);
      wait(sent_, 1, "an access");
    }
    took = now() - began;
  }
  meet();  // where the owner polls meanwhile
  return took;
}

double Side::fetch_add(const Order& order) {
  meet();
  double took = 0;
  if (client_) {
    auto* const one = reinterpret_cast<std::uint64_t*>(out_);
    auto* const found = reinterpret_cast<std::uint64_t*>(out_ + 64);
    *one = 1;
    std::uint64_t first = 0;
    const double began = now();
    for (std::uint64_t i = 0; i < order.times; ++i) {
      post(
          [&] {
            return fi_fetch_atomic(ep_, one, 1, desc_, found, desc_, peer_, remote_.address, remote_.key,
                                   FI_UINT64, FI_SUM, &sends_[0]);
          },
          "fetch-and-add");
      wait(sent_, 1, "a fetch-and-add");
      if (i == 0) first = *found;
      if (*found != first + i) give_up("fetch-and-add", "wrong result");
    }
    took = now() - began;
  }
  meet();
  return took;
}

void Side::sleep_until_received() {
  while (!take(received_, "a message")) {
    fid* waited = &received_->fid;
    const int rc = fi_trywait(fabric_, &waited, 1);
    if (rc == -FI_EAGAIN) continue;
    must(rc, "fi_trywait");
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(kPatience * 1000)) == 0) give_up("a message", "has not come in time");
  }
}

/// Microseconds of CPU time in two seconds, on the side that used more.
double Side::idle() {
  meet();
  const double used = cpu_seconds(), until = now() + 2;
  for (double left = 2; left > 0; left = until - now()) {
    fid* waited = &received_->fid;
    if (fi_trywait(fabric_, &waited, 1) == 0) {
      pollfd p{fd_, POLLIN, 0};
      (void)::poll(&p, 1, static_cast<int>(left * 1000) + 1);
    }
    if (take(received_, "nothing")) give_up("idle", "a message that nobody sent");
  }
  double mine = cpu_seconds() - used, other = 0;
  channel_.send(&mine, sizeof mine);
  channel_.receive(&other, sizeof other);
  return std::max(mine, other);
}

double Side::wake_up(const Order& order) {
  return back_and_forth(
      order, "wake-up", [this](std::size_t bytes) { inject(bytes); }, [this] { sleep_until_received(); });
}

double Side::eventfd(const Order& order) {
  const int mine = eventfds_[client_ ? 1 : 0], theirs = eventfds_[client_ ? 0 : 1];
  const auto ring = [&] {
    if (::eventfd_write(theirs, 1) != 0) give_up("eventfd", std::strerror(errno));
  };
  meet();
  const double began = now();
  for (std::uint64_t i = 0; i < order.times; ++i) {
    if (client_) ring();
    pollfd p{mine, POLLIN, 0};
    eventfd_t value;
    if (::poll(&p, 1, static_cast<int>(kPatience * 1000)) != 1 || ::eventfd_read(mine, &value) != 0) {
      give_up("eventfd", "has not come in time");
    }
    if (!client_) ring();
  }
  return (now() - began) / 2;
}

void Side::verify_message(std::size_t bytes) {
  const unsigned seed = ++seed_;
  meet([&] { post_receive(bytes); });
  fill(out_, bytes, seed);
  if (client_) send(bytes);
  wait(received_, 1, "a message");
  if (!filled(in_, bytes, seed)) give_up("message", "wrong data");
  if (!client_) send(bytes);
}

void Side::verify_write(bool inject, bool both, std::size_t bytes) {
  const unsigned seed = ++seed_;
  fill(out_, bytes, seed);
  meet();
  if (client_ || both) {
    if (inject) {
      inject_write(bytes);
    } else {
      access(true, bytes);
      wait(sent_, 1, "a write");
    }
  }
  if (!client_ || both) {
    const double until = now() + kPatience;
    while (!filled(in_, bytes, seed)) {
      progress();
      if (now() > until) give_up("write", "wrong data");
      asm volatile("" ::: "memory");  // the other side writes it
    }
  }
  meet();
}

void Side::verify_read(bool both, std::size_t bytes) {
  const unsigned seed = ++seed_;
  fill(in_, bytes, seed);
  std::memset(out_, 0, bytes);
  meet();
  if (client_ || both) {
    access(false, bytes);
    wait(sent_, 1, "a read");
    if (!filled(out_, bytes, seed)) give_up("read", "wrong data");
  }
  meet();
}

void Side::verify(const Order& order) {
  switch (order.kind) {
    case Kind::kTagged:
    case Kind::kMessage:
    case Kind::kTaggedWindow: return verify_message(order.bytes);
    case Kind::kWriteInject: return verify_write(true, true, order.bytes);
    case Kind::kWriteWindow: return verify_write(false, true, order.bytes);
    case Kind::kWrite: return verify_write(false, false, order.bytes);
    case Kind::kReadWindow: return verify_read(true, order.bytes);
    case Kind::kRead: return verify_read(false, order.bytes);
    default: return;  // these check all they do
  }
}

/// Seconds. On both sides; the client's figure counts.
double Side::run(Order order) {
  if (client_) {
    channel_.send(&order, sizeof order);
  }
  double took = 0;
  const long before = times_preempted();
  if (order.times == 0) {
    verify(order);
  } else {
    switch (order.kind) {
      case Kind::kTagged:
      case Kind::kMessage: took = ping_pong(order); break;
      case Kind::kTaggedWindow: took = window(order); break;
      case Kind::kWriteWindow:
      case Kind::kReadWindow:
      case Kind::kWriteInject: took = access_window(order); break;
      case Kind::kWrite:
      case Kind::kRead: took = access_single(order); break;
      case Kind::kFetchAdd: took = fetch_add(order); break;
      case Kind::kIdle: took = idle(); break;
      case Kind::kWakeUp: took = wake_up(order); break;
      case Kind::kEventfd: took = eventfd(order); break;
      case Kind::kEnd: break;
    }
  }
  // Nobody stops making progress while the other may still need it.
  bool preempted = times_preempted() != before;
  if (client_) {
    preempted_ = preempted;
    while (!channel_.ready()) progress();
    channel_.receive(&preempted, sizeof preempted);
    preempted_ |= preempted;
  } else {
    channel_.send(&preempted, sizeof preempted);
  }
  return took;
}

void Side::serve() {
  for (;;) {
    const double until = now() + 0.001;
    while (!channel_.ready() && now() < until) progress();
    Order order;
    channel_.receive(&order, sizeof order);
    if (order.kind == Kind::kEnd) return;
    (void)run(order);
  }
}

Figure Side::measure(Kind kind, std::size_t bytes, double ms) {
  if (kind == Kind::kIdle) {
    const double us = run({kind, bytes, 1}) * 1e6;
    return {us, us};
  }
  const bool windows = kind == Kind::kTaggedWindow || kind == Kind::kWriteWindow ||
                       kind == Kind::kReadWindow || kind == Kind::kWriteInject;
  const std::uint64_t unit = windows ? kWindow : 8;
  const std::uint64_t few = bytes <= 65536 ? 2 * kWindow : unit;
  (void)run({kind, bytes, 0});
  (void)run({kind, bytes, few});  // warm
  const double each = std::max(run({kind, bytes, few}) / static_cast<double>(few), 1e-9);
  const auto wanted = static_cast<std::uint64_t>(ms * 1e-3 / kSlices / each);
  const std::uint64_t times = std::clamp<std::uint64_t>(wanted, few, 4'000'000) / unit * unit;
  std::vector<double> calm, disturbed;
  for (const double until = now() + kMostTimes * ms * 1e-3; calm.size() < kSlices;) {
    const double us = run({kind, bytes, times}) / static_cast<double>(times) * 1e6;
    (preempted_ ? disturbed : calm).push_back(us);
    if (now() > until) break;
  }
  (void)run({kind, bytes, 0});
  const auto count = static_cast<int>(calm.size()), dropped = static_cast<int>(disturbed.size());
  auto& kept = calm.empty() ? disturbed : calm;
  std::sort(kept.begin(), kept.end());
  return {kept.front(), kept[kept.size() / 2], count, dropped};
}

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) give_up("sched_setaffinity", std::strerror(errno));
}

int be_client(Side& side, const Channel& channel, std::string_view family, pid_t server) {
  std::printf("ready %d\n", static_cast<int>(server));
  std::fflush(stdout);
  char line[128];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    char name[32];
    unsigned long bytes;
    double ms;
    if (std::sscanf(line, "%31s %lu %lf", name, &bytes, &ms) != 3) give_up("order", "not KIND BYTES MS");
    const auto* entry = std::find_if(std::begin(kKinds), std::end(kKinds),
                                     [&](const Entry& e) { return e.name == std::string_view(name); });
    if (entry == std::end(kKinds) || family != entry->family || bytes < 1 || bytes > kMostBytes) {
      give_up("order", line);
    }
    const Figure figure = side.measure(entry->kind, bytes, ms);
    std::printf("%.5f %.5f %d %d\n", figure.minimum, figure.median, figure.kept, figure.dropped);
    std::fflush(stdout);
  }
  const Order end;
  channel.send(&end, sizeof end);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("clan-ofi-load PROVIDER FAMILY CORE_A CORE_B: see ofi.py\n", stderr);
    return 2;
  }
  // Who started us may be killed. Not SIGTERM: providers catch it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int sockets[2];
  const std::array<int, 2> eventfds{::eventfd(0, 0), ::eventfd(0, 0)};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0 || eventfds[0] < 0 || eventfds[1] < 0) {
    give_up("set-up", std::strerror(errno));
  }
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();  // before libfabric does anything
  if (child < 0) give_up("fork", std::strerror(errno));
  const bool client = child != 0;
  if (!client) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) return 1;
  }
  ::close(sockets[client ? 1 : 0]);
  pin(std::atoi(argv[client ? 4 : 3]));
  const Channel channel(sockets[client ? 0 : 1]);
  Side side(client, channel, eventfds);
  const std::string reason = side.open(argv[1], argv[2]);
  int code = 0;
  if (!reason.empty()) {
    if (client) std::printf("unavailable: %s\n", reason.c_str());
  } else if (client) {
    code = be_client(side, channel, argv[2], child);
  } else {
    side.serve();
  }
  side.close();
  if (client) (void)::waitpid(child, nullptr, 0);
  return code;
}
