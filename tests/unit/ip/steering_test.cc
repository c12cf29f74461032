#include "steering.h"

#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "frames.h"

namespace clan::ip {
namespace {

/// The kernel's own run of the program over packets; needs the right to load one.
class Program {
 public:
  explicit Program(std::span<const Steered> prefixes) : fd_(load_steering_program(prefixes)) {}
  ~Program() { ::close(fd_); }
  bool ok() const { return fd_ >= 0; }
  /// The queue of a packet to that address.
  unsigned queue_of(const char* to) const {
    const Address destination = address(to);
    Frame f = frame(destination.v6, IPPROTO_UDP, 100);
    std::memcpy(f.ip.data() + (destination.v6 ? 24 : 16), destination.bytes.data(),
                destination.size());
    f.ip.insert(f.ip.begin(), 14, std::byte{0});  // the run takes an Ethernet header off
    f.ip[12] = std::byte(destination.v6 ? 0x86 : 0x08);
    f.ip[13] = std::byte(destination.v6 ? 0xdd : 0x00);
    bpf_attr attr{};
    attr.test.prog_fd = static_cast<std::uint32_t>(fd_);
    attr.test.data_in = reinterpret_cast<std::uint64_t>(f.ip.data());
    attr.test.data_size_in = static_cast<std::uint32_t>(f.ip.size());
    attr.test.repeat = 1;
    EXPECT_EQ(::syscall(SYS_bpf, BPF_PROG_TEST_RUN, &attr, sizeof attr), 0) << errno;
    return attr.test.retval;
  }

 private:
  int fd_ = -1;
};

TEST(IpSteering, SendsEachPacketToTheQueueOfTheFirstPrefixThatHasIt) {
  const Steered prefixes[] = {{*parse_prefix("10.9.0.2"), 1},
                              {*parse_prefix("fd09::2"), 2},
                              {*parse_prefix("10.9.0.0/30"), 3},
                              {*parse_prefix("fd09::/65"), 4},
                              {*parse_prefix("224.0.0.0/3"), 5}};
  const Program program(prefixes);
  if (!program.ok()) GTEST_SKIP() << "this process may not load BPF programs";
  EXPECT_EQ(program.queue_of("10.9.0.2"), 1u);
  EXPECT_EQ(program.queue_of("10.9.0.3"), 3u);
  EXPECT_EQ(program.queue_of("10.9.0.4"), 0u);
  EXPECT_EQ(program.queue_of("255.255.255.255"), 5u);
  EXPECT_EQ(program.queue_of("fd09::2"), 2u);
  EXPECT_EQ(program.queue_of("fd09::7fff:0:0:1"), 4u);
  EXPECT_EQ(program.queue_of("fd09::8000:0:0:1"), 0u);
}

TEST(IpSteering, IsLoadedForNoPeerForAsManyAsThereCanBeAndForAllAddresses) {
  const Program none({});
  if (!none.ok()) GTEST_SKIP() << "this process may not load BPF programs";
  EXPECT_EQ(none.queue_of("10.9.0.2"), 0u);
  std::vector<Steered> many;
  for (unsigned i = 1; i < 256; ++i)
    many.push_back({*parse_prefix("fd09::" + std::to_string(i)), i});
  many.push_back({*parse_prefix("::/0"), 7});
  many.push_back({*parse_prefix("fd09::/64"), 8});
  const Program program(many);
  ASSERT_TRUE(program.ok()) << errno;
  EXPECT_EQ(program.queue_of("fd09::255"), 255u);
  EXPECT_EQ(program.queue_of("fd0a::1"), 7u);
}

}  // namespace
}  // namespace clan::ip
