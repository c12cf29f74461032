// Fuzzes a Pipe whose other end writes into its page and its rings what it likes, when it likes: in
// the middle of a copy, too. Whatever is there, a call returns at once, moves no more bytes than
// were asked for, and touches nothing but the pipe and the caller's buffers. And its ring alone
// (shm/ring.h), in memory of exactly its size.
//
// Input: a byte that chooses the ring or the pipe, one for the pipe's size and end, then steps.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/mapping.h"
#include "clan/detail/clock.h"
#include "clan/face/pipe.h"
#include "input.h"
#include "shm/ring.h"

namespace {

using clan::Pipe;
using clan::PipePage;
using clan::fuzz::Input;

void expect(bool holds) {
  if (!holds) std::abort();
}

constexpr std::size_t kHead = clan::kPageSize;
constexpr std::uint64_t kLongNs = 500'000'000;  ///< three waits of a call, on a machine at work

// --- the ring alone ------------------------------------------------------------------------------

// The cursors, from the input: they lie in memory that the peer can write.
void ring_alone(Input& in) {
  constexpr std::uint64_t kLines = 64;
  const clan::shm::RecordRing ring{kLines};
  std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(64, kLines * 64)), std::free);
  std::memset(memory.get(), 0, kLines * 64);
  const std::byte* const end = memory.get() + kLines * 64;
  clan::shm::RingProducer p;
  clan::shm::RingConsumer c;
  while (!in.empty()) {
    switch (in.byte() % 6) {
      case 0:
      case 1: {  // one record more
        const std::uint64_t payload = in.byte() * 8u, most = in.byte();
        clan::shm::RingSlot slot;
        if (ring.reserve(
                p, payload, most, [&] { return in.byte() % 2 == 0 ? c.head : in.number(); },
                &slot) != 1) {
          break;
        }
        std::byte* const room = ring.payload_at(memory.get(), slot);
        expect(room >= memory.get() && room + payload <= end);
        std::memset(room, 0xab, payload);
        ring.publish(memory.get(), slot,
                     clan::shm::RingHead::make(static_cast<std::uint32_t>(payload), 1, 0));
        ring.advance(p, slot, most);
        break;
      }
      case 2: {
        clan::shm::RingRecord record;
        if (ring.peek(c, memory.get(), &record) != 1) break;
        expect(record.payload >= memory.get() && record.payload + record.head.length() <= end);
        c.head += record.lines;
        break;
      }
      case 3: {  // a cursor
        std::uint64_t* const words[] = {&p.tail,    &p.bound,   &p.consumed, &p.look_at,
                                        &p.skip_at, &p.jump_at, &p.jump_gap, &c.head};
        *words[in.byte() % 8] = in.number(kLines);
        break;
      }
      case 4:  // a head
        clan::shm::head_at(memory.get(), in.byte() % kLines)
            .store(clan::shm::RingHead::make(static_cast<std::uint32_t>(in.number()), in.byte(), 0)
                       .word);
        break;
      default: clan::shm::head_at(memory.get(), in.byte() % kLines).store(in.take<std::uint64_t>());
    }
  }
}

// --- a pipe --------------------------------------------------------------------------------------

/// No memory next to a mapping: what steps beyond faults. Where there is something it stays.
class Fences {
 public:
  Fences(void* at, std::size_t bytes) {
    auto* const begin = static_cast<std::byte*>(at);
    pages_[0] = place(begin - clan::kPageSize);
    pages_[1] = place(begin + bytes);
  }
  ~Fences() {
    for (void* page : pages_) {
      if (page != MAP_FAILED) ::munmap(page, clan::kPageSize);
    }
  }
  Fences(const Fences&) = delete;
  Fences& operator=(const Fences&) = delete;

 private:
  static void* place(void* at) {
    return ::mmap(at, clan::kPageSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                  -1, 0);
  }
  void* pages_[2];
};

class Session;
Session* current = nullptr;

class Session {
 public:
  Session(Input& in, std::uint32_t ring_bytes, int end)
      : in_(in),
        ring_bytes_(ring_bytes),
        pipe_(Pipe::create("fuzz", ring_bytes, end).value()),
        peer_(pipe_.at_other_end().value()),
        fences_(&pipe_.page(), kHead + 2 * std::size_t{ring_bytes}) {
    current = this;
  }
  ~Session() { current = nullptr; }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void run() {
    while (!in_.empty()) step();
  }
  /// In the middle of a copy.
  void scribble_meanwhile() {
    for (; meanwhile_ > 0; --meanwhile_) scribble();
  }

 private:
  void step() {
    const std::uint64_t begin = clan::monotonic_ns();
    switch (in_.byte() % 11) {
      case 0: move(pipe_, true); break;
      case 1: move(pipe_, false); break;
      case 2: move(peer_, true); break;
      case 3: move(peer_, false); break;
      case 4:
      case 5: scribble(); break;
      case 6: look(); break;
      case 7: meanwhile_ = in_.byte() % 4; break;
      case 8: rare(); break;
      case 9: put_head(); break;
      default: expect(pipe_.readable_bytes() <= ring_bytes_);
    }
    expect(clan::monotonic_ns() - begin < kLongNs);
  }

  /// Buffers of exactly their sizes: AddressSanitizer sees the byte behind.
  void move(Pipe& pipe, bool sends) {
    std::vector<std::vector<char>> memory(in_.byte() % 4);
    std::vector<iovec> buffers;
    std::size_t wanted = 0;
    for (auto& piece : memory) {
      piece.resize(in_.byte() % 2 == 0 ? in_.byte() : in_.take<std::uint16_t>());
      wanted += piece.size();
      const bool discards = !sends && in_.byte() % 8 == 7;
      buffers.push_back({discards ? nullptr : piece.data(), piece.size()});
    }
    const std::uint8_t how = in_.byte();
    const auto count = static_cast<int>(buffers.size());
    const Pipe::Done done =
        sends ? pipe.send(buffers.data(), count,
                          how % 2 == 0 ? clan::PipeRoom::kWhole : clan::PipeRoom::kWindow)
              : pipe.receive(buffers.data(), count, how % 4 == 3);
    expect(done.bytes <= wanted);
  }

  void look() {
    (void)pipe_.front();
    (void)pipe_.front_stamp();
    (void)pipe_.seems_empty();
    (void)pipe_.writable(clan::PipeRoom::kWindow);
    expect(pipe_.unread_by_peer() <= kHead + 2 * std::size_t{ring_bytes_});
    (void)pipe_.want_data();
    (void)pipe_.want_room(clan::PipeRoom::kWindow);
    (void)pipe_.want_room();
    pipe_.unwant_data();
    pipe_.fetch_ahead();
  }

  void rare() {
    switch (in_.byte() % 6) {
      case 0: (void)pipe_.end_sending(); break;
      case 1: (void)pipe_.leave(); break;
      case 2: (void)peer_.end_sending(); break;
      case 3: pipe_.keep_wanted(in_.byte() % 2 == 0); break;
      case 4: pipe_.set_limits(in_.number(), in_.number(), in_.byte() % 2 == 0); break;
      default: (void)pipe_.release();
    }
  }

  /// A word of the page: most often it ends up near what another word says.
  void scribble() {
    auto* const words = reinterpret_cast<std::atomic<std::uint64_t>*>(&pipe_.page());
    constexpr std::size_t kWords = sizeof(PipePage) / 8;
    constexpr std::size_t kFirst = offsetof(PipePage, ends) / 8;
    const std::size_t at =
        kFirst + in_.byte() * std::size_t{2} % (kWords - kFirst) + in_.byte() % 2;
    const std::uint8_t how = in_.byte();
    std::uint64_t value = in_.number(ring_bytes_ / 64);
    if (how % 4 == 0) value += words[at].load();
    if (how % 4 == 1) value += words[kFirst + how % (kWords - kFirst)].load();
    words[at].store(value);
  }

  void put_head() {
    std::byte* const rings = reinterpret_cast<std::byte*>(&pipe_.page()) + kHead;
    const std::uint64_t lines = 2 * ring_bytes_ / 64;
    const std::uint8_t how = in_.byte();
    std::uint64_t at = in_.take<std::uint16_t>() % lines;
    // Where the victim reads next.
    if (how % 2 == 0) {
      const std::uint64_t head = pipe_.page().ends[pipe_.end()].receiver.head.load();
      at = (pipe_.end() == 0 ? lines / 2 : 0) + (head & (lines / 2 - 1));
    }
    clan::shm::head_at(rings, at).store(
        how % 4 < 2 ? clan::shm::RingHead::make(static_cast<std::uint32_t>(in_.number()),
                                                how % 8 < 4 ? 1 : in_.byte(), 0)
                          .word
                    : in_.take<std::uint64_t>());
  }

  Input& in_;
  const std::uint32_t ring_bytes_;
  Pipe pipe_, peer_;
  Fences fences_;
  int meanwhile_ = 0;  ///< words that are scribbled on in the next copy
};

bool guard(void (*copy)(void*), void* argument) {
  if (current != nullptr) current->scribble_meanwhile();
  copy(argument);
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  Pipe::guard_copies(guard);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  const std::uint8_t what = in.byte();
  if (what % 4 == 0) {
    ring_alone(in);
  } else {
    Session(in, what % 8 == 1 ? 65536 : 4096, what / 8 % 2).run();
  }
  return 0;
}
