// U-Net endpoints over CLAN (plugins/unet), beside the message endpoints that they are built of;
// and the table of U-Net/MM.
//
// unet_latency     round trips of 40 and 1,498 bytes, as its table 1 has them, and others
// unet_table       table 1: what a page costs the NIC that has no entry of it, one page each time
// unet_queues      table 1: a descriptor through a queue, without a message
#include <clan/context.h>
#include <clan/face/translator.h>
#include <fcntl.h>
#include <unet.h>

#include <cerrno>
#include <cstring>

#include "benchmarks.h"
#include "transports/clan_transport.h"
#include "transports/loops.h"

namespace clan::bench {
namespace {

/// Where messages lie: in the endpoint's area; where the loop has them.
enum class UnetMemory { kArea, kAnywhere };

class UnetEnd {
 public:
  struct Close {
    void operator()(unet_node* node) const { unet_close(node); }
    void operator()(unet_endpoint* endpoint) const { unet_destroy(endpoint); }
  };
  UnetEnd(std::unique_ptr<unet_node, Close> node, std::unique_ptr<unet_endpoint, Close> endpoint,
          UnetMemory memory)
      : node_(std::move(node)), endpoint_(std::move(endpoint)), memory_(memory) {}

  bool send(std::span<const std::byte> message) {
    unet_endpoint* const e = endpoint_.get();
    unet_send* const d = unet_send_next(e);
    if (d == nullptr) return false;
    d->tag = 1;
    d->flags = 0;
    if (message.size() <= UNET_INLINE) {
      d->pieces = 0;
      d->bytes = static_cast<std::uint32_t>(message.size());
      std::memcpy(d->u.data, message.data(), message.size());
    } else {
      d->pieces = 1;
      d->u.piece[0].bytes = static_cast<std::uint32_t>(message.size());
      d->u.piece[0].at = out(message);
    }
    unet_send_push(e);
    if (unet_doorbell(e) != 0) return false;
    while (unet_send_done(e) == nullptr) (void)unet_doorbell(e);
    const int status = unet_send_done(e)->status;
    unet_send_take(e);
    return status == 0;
  }
  bool recv(std::span<std::byte> message) {
    unet_endpoint* const e = endpoint_.get();
    if (message.size() > UNET_INLINE && !given_) give(message);
    const unet_receive* d = nullptr;
    while ((d = unet_receive_next(e)) == nullptr) (void)unet_poll(e);
    const bool right = d->status == 0 && d->flags == 0 && d->bytes == message.size();
    if (d->buffers == 0) {
      std::memcpy(message.data(), d->u.data, message.size());
    } else if (memory_ == UnetMemory::kArea) {
      look(message, e->area + d->u.buffer[0]);
    }
    if (d->buffers != 0) (void)unet_free_push(e, d->u.buffer[0]);
    unet_receive_take(e);
    return right;
  }

 private:
  static constexpr std::uint64_t kOut = 64 * 1024;
  /// What differs from message to message (support/pattern.h): a program has its messages in the
  /// area, and copies nothing.
  static void look(std::span<std::byte> to, const void* from) {
    const auto* bytes = static_cast<const std::byte*>(from);
    for (const std::size_t i : {std::size_t{0}, to.size() / 2, to.size() - 1}) to[i] = bytes[i];
  }
  std::uint64_t out(std::span<const std::byte> message) {
    if (memory_ == UnetMemory::kAnywhere) return reinterpret_cast<std::uint64_t>(message.data());
    if (!filled_) std::memcpy(endpoint_->area + kOut, message.data(), message.size());
    filled_ = true;
    look({reinterpret_cast<std::byte*>(endpoint_->area + kOut), message.size()}, message.data());
    return kOut;
  }
  void give(std::span<std::byte> message) {
    given_ = true;
    const bool area = memory_ == UnetMemory::kArea;
    (void)unet_free_push(endpoint_.get(),
                         area ? 0 : reinterpret_cast<std::uint64_t>(message.data()));
    (void)unet_doorbell(endpoint_.get());
  }
  std::unique_ptr<unet_node, Close> node_;
  std::unique_ptr<unet_endpoint, Close> endpoint_;
  UnetMemory memory_;
  bool given_ = false, filled_ = false;
};

class UnetTransport : public Named {
 public:
  explicit UnetTransport(UnetMemory memory) : memory_(memory) {}
  std::string name() const { return memory_ == UnetMemory::kArea ? "unet-area" : "unet-anywhere"; }
  std::optional<UnetEnd> open(Side side) {
    constexpr std::int64_t kConnectMs = 10'000;
    constexpr std::uint64_t kBenchKey = 1;
    const bool serves = side == Side::kServer, in_area = memory_ == UnetMemory::kArea;
    const auto bytes = static_cast<std::uint32_t>(bytes_);
    unet_node* node = nullptr;
    if (unet_open(nullptr, &node) != 0) return std::nullopt;
    std::unique_ptr<unet_node, UnetEnd::Close> owned(node);
    unet_endpoint_options options{};
    options.mode = in_area ? UNET_AREA : UNET_ANYWHERE;
    options.area_bytes = in_area ? 256 * 1024 : 0;
    options.buffer_bytes = bytes > UNET_INLINE ? bytes : 0;
    options.service = serves ? name_.c_str() : nullptr;
    unet_endpoint* endpoint = nullptr;
    if (unet_create(node, &options, &endpoint) != 0) return std::nullopt;
    std::unique_ptr<unet_endpoint, UnetEnd::Close> made(endpoint);
    int error = serves ? unet_accept(endpoint, 1, kBenchKey) : ECONNREFUSED;
    while (!serves && error == ECONNREFUSED) {  // the server is not there yet
      error = unet_connect_service(endpoint, 1, name_.c_str(), 1, kBenchKey, kConnectMs);
      if (error == ECONNREFUSED) ::usleep(100);
    }
    if (error != 0) return std::nullopt;
    return UnetEnd(std::move(owned), std::move(made), memory_);
  }

 private:
  UnetMemory memory_;
};

constexpr std::size_t kPage = 4096, kPages = 512;

/// What is measured of one page.
enum class Case { kHit, kPresent, kCopyOnWrite, kZeroFill, kFile, kUnmap };
constexpr const char* kCases[] = {"hit",
                                  "miss, present",
                                  "miss, copy-on-write",
                                  "miss, zero-fill",
                                  "miss, page-in from a file",
                                  "unpin, by madvise"};

/// Fresh pages in the state that a case is about.
class Pages {
 public:
  explicit Pages(Case which) {
    const bool file = which == Case::kFile, cow = which == Case::kCopyOnWrite;
    int fd = -1;
    if (file) fd = ::open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (cow) fd = ::memfd_create("unet-bench", MFD_CLOEXEC);
    std::array<char, kPage> some;
    some.fill(1);
    for (std::size_t i = 0; fd >= 0 && i < kPages; ++i) (void)!::write(fd, some.data(), kPage);
    if (file) {
      (void)::fsync(fd);
      (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    const int flags = file ? MAP_SHARED : fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_PRIVATE;
    if (!file || fd >= 0)
      data_ =
          static_cast<char*>(::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, flags, fd, 0));
    if (fd >= 0) ::close(fd);
    if (!is_there()) return;
    if (cow) {
      for (std::size_t i = 0; i < kPages; ++i) sum_ += at(i)[0];
    } else if (!file && which != Case::kZeroFill) {
      std::memset(data_, 1, kPages * kPage);
    }
  }
  ~Pages() {
    if (is_there()) ::munmap(data_, kPages * kPage);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  bool is_there() const { return data_ != nullptr && data_ != MAP_FAILED; }
  char* at(std::size_t page) { return data_ + page * kPage; }

 private:
  char* data_ = nullptr;
  int sum_ = 0;
};

bool table_member(Member& m, Case which) {
  ContextOptions options;
  options.keep_translations = true;
  auto context = clan::Context::create(options);
  if (!context) return m.fail("no context");
  auto translator = Translator::of(*context);
  if (!translator || !translator->keeps()) return m.fail("unmaps cannot be watched here");
  const PageAccess access = PageAccess::kWrite;
  while (m.next_sample()) {
    Pages pages(which);
    if (!pages.is_there()) return m.fail("no such memory here");
    const bool known = which == Case::kHit || which == Case::kUnmap;
    for (std::size_t i = 0; known && i < kPages; ++i)
      (void)translator->pre_translate(pages.at(i), 1, access);
    const std::uint64_t begin = Clock::now();
    for (std::size_t i = 0; i < kPages; ++i) {
      if (which == Case::kUnmap) {
        (void)::madvise(pages.at(i), kPage, MADV_DONTNEED);
      } else if (translator->pre_translate(pages.at(i), 1, access) != 0) {
        return m.fail("a page cannot be translated");
      }
    }
    m.record(Clock::ns_since(begin) / static_cast<double>(kPages));
    m.did(kPages);
  }
  return true;
}

// A send descriptor that is refused at once, and a free buffer that is given and never filled.
bool queue_member(Member& m) {
  unet_node* node = nullptr;
  unet_endpoint* e = nullptr;
  unet_endpoint_options options{};
  options.area_bytes = 1 << 16;
  if (unet_open(nullptr, &node) != 0 || unet_create(node, &options, &e) != 0)
    return m.fail("no endpoint");
  constexpr std::uint64_t kTimes = 10'000;
  while (m.next_sample()) {
    const std::uint64_t begin = Clock::now();
    for (std::uint64_t i = 0; i < kTimes; ++i) {
      unet_send* const d = unet_send_next(e);
      d->tag = 1;  // nobody's
      d->pieces = d->flags = 0;
      d->bytes = 40;
      unet_send_push(e);
      (void)unet_doorbell(e);
      if (unet_send_done(e) == nullptr) return m.fail("not done");
      unet_send_take(e);
    }
    m.record(Clock::ns_since(begin) / static_cast<double>(kTimes));
    m.did(kTimes);
  }
  unet_destroy(e);
  unet_close(node);
  return true;
}

template <class Body>
Context::Variant alone(const char* benchmark, const char* name, Body body) {
  return [=](Context& context) -> std::optional<Row> {
    const auto outcome =
        context.run(benchmark, name, "", context.on_two_cores(1), body, /*required=*/false);
    if (!outcome) return std::nullopt;
    Row row = make_row(benchmark, name, 1, "ns", *outcome);
    row.x_name = "pages";
    return row;
  };
}

auto unet_trips(UnetMemory memory) {
  return [=] { return UnetTransport(memory); };
}

}  // namespace

void unet(Context& context) {
  for (std::size_t bytes : context.sizes({8, 40, 48, 100, 1498, 4096}, {40, 1498}, {40, 1498})) {
    const auto variant = [&](auto make) {
      return round_trip_variant("unet_latency", make, bytes, context.across_cores());
    };
    context.point({variant(unet_trips(UnetMemory::kArea)),
                   variant(unet_trips(UnetMemory::kAnywhere)),
                   variant(clan_messages(WaitMode::kPoll))});
  }
  std::vector<Context::Variant> table;
  for (int i = 0; i <= static_cast<int>(Case::kUnmap); ++i) {
    table.push_back(alone("unet_table", kCases[i],
                          [=](Member& m) { return table_member(m, static_cast<Case>(i)); }));
  }
  context.point(table);
  context.point({alone("unet_queues", "send queue", queue_member)});
}

}  // namespace clan::bench
