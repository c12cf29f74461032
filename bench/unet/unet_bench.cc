// U-Net endpoints over CLAN (plugins/unet), beside the message endpoints that they are built of;
// and the table of U-Net/MM.
//
// unet_latency     round trips of 40 and 1,498 bytes, as its table 1 has them, and others
// unet_table       table 1: what a page costs the NIC that has no entry of it, one page each time
// unet_queues      table 1: a descriptor through a queue, without a message
#include <clan/context.h>
#include <clan/face/translator.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>

#include "benchmarks.h"
#include "support/clock.h"
#include "transports/clan_transport.h"
#include "transports/round_trip.h"
#include "unet/unet_transport.h"

namespace clan::bench {
namespace {

constexpr std::size_t kPage = 4096, kPages = 512;

/// What is measured of one page.
enum class Case { kHit, kPresent, kCopyOnWrite, kZeroFill, kFile, kUnmap };

const char* name_of(Case which) {
  switch (which) {
    case Case::kHit: return "hit";
    case Case::kPresent: return "miss, present";
    case Case::kCopyOnWrite: return "miss, copy-on-write";
    case Case::kZeroFill: return "miss, zero-fill";
    case Case::kFile: return "miss, page-in from a file";
    case Case::kUnmap: return "unpin, by madvise";
  }
  return "";
}

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
    m.record(Clock::to_ns(Clock::now() - begin) / static_cast<double>(kPages));
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
    m.record(Clock::to_ns(Clock::now() - begin) / static_cast<double>(kTimes));
    m.did(kTimes);
  }
  unet_destroy(e);
  unet_close(node);
  return true;
}

template <class Body>
Context::Variant alone(const char* benchmark, const char* name, Body body) {
  return [=](Context& context) -> std::optional<Row> {
    const Outcome outcome = run_group(context.on_two_cores(1), body);
    if (!outcome.ok()) {
      context.skip(benchmark, name, outcome.failure);
      return std::nullopt;
    }
    Row row = make_row(benchmark, name, 1, "ns", outcome);
    row.x_name = "pages";
    row.op_ns = row.stats.p50;
    return row;
  };
}

auto unet_trips(UnetMemory memory) {
  return [=] { return UnetTransport(memory); };
}

}  // namespace

void unet(Context& context) {
  for (std::size_t bytes : context.sizes({8, 40, 48, 100, 1498, 4096}, {40, 1498}, {40, 1498})) {
    const auto group = context.across_cores();
    context.point({
        round_trip_variant("unet_latency", unet_trips(UnetMemory::kArea), bytes, group),
        round_trip_variant("unet_latency", unet_trips(UnetMemory::kAnywhere), bytes, group),
        round_trip_variant(
            "unet_latency", [] { return ClanMessages(WaitMode::kPoll); }, bytes, group),
    });
  }
  std::vector<Context::Variant> table;
  for (const Case which : {Case::kHit, Case::kPresent, Case::kCopyOnWrite, Case::kZeroFill,
                           Case::kFile, Case::kUnmap}) {
    table.push_back(
        alone("unet_table", name_of(which), [=](Member& m) { return table_member(m, which); }));
  }
  context.point(table);
  context.point({alone("unet_queues", "send queue", queue_member)});
}

}  // namespace clan::bench
