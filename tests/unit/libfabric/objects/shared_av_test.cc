// Address vectors with a name, which processes share.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include "libfabric/node.h"

namespace clan::test {
namespace {

std::string fresh_name() {
  static int number = 0;
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

sockaddr_in address_of(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// A domain without endpoints.
struct Place {
  Place() : info(get_info(make_hints())) {
    fid_fabric* f;
    MUST(fi_fabric(info->fabric_attr, &f, nullptr));
    fabric.reset(f);
    fid_domain* d;
    MUST(fi_domain(f, info.get(), &d, nullptr));
    domain.reset(d);
  }
  int open(const std::string& name, std::uint64_t flags, Object<fid_av>* av,
           void** map_addr = nullptr) {
    fi_av_attr attr{};
    attr.type = FI_AV_MAP;
    attr.name = name.c_str();
    attr.flags = flags;
    fid_av* opened = nullptr;
    const int rc = fi_av_open(domain.get(), &attr, &opened, nullptr);
    if (rc == 0) av->reset(opened);
    if (map_addr != nullptr) *map_addr = attr.map_addr;
    return rc;
  }
  Info info;
  Object<fid_fabric> fabric;
  Object<fid_domain> domain;
};

int port_at(fid_av* av, fi_addr_t index) {
  sockaddr_in address{};
  std::size_t length = sizeof address;
  const int rc = fi_av_lookup(av, index, &address, &length);
  return rc != 0 ? rc : ntohs(address.sin_port);
}

TEST(FabricSharedVectors, ShowEverybodyTheSameAddresses) {
  Place first, second;
  const std::string name = fresh_name();
  Object<fid_av> writer, reader, other;
  EXPECT_EQ(second.open(name, FI_READ, &reader), -FI_ENOENT);
  void *map = nullptr, *reader_map = nullptr;
  ASSERT_EQ(first.open(name, 0, &writer, &map), 0);
  ASSERT_EQ(second.open(name, FI_READ, &reader, &reader_map), 0);
  ASSERT_EQ(first.open(fresh_name(), 0, &other), 0);
  fi_addr_t found[3] = {};
  const sockaddr_in addresses[] = {address_of(1000), address_of(1001), address_of(1002)};
  ASSERT_EQ(fi_av_insert(writer.get(), addresses, 3, found, 0, nullptr), 3);
  ASSERT_NE(map, nullptr);
  ASSERT_NE(reader_map, nullptr);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(port_at(reader.get(), found[i]), 1000 + i);
    EXPECT_EQ(static_cast<fi_addr_t*>(map)[i], found[i]);
    EXPECT_EQ(static_cast<fi_addr_t*>(reader_map)[i], found[i]);
    EXPECT_EQ(port_at(other.get(), found[i]), -FI_EINVAL);
  }
  // Only to be read there.
  fi_addr_t none = 0;
  int error = 0;
  EXPECT_EQ(fi_av_insert(reader.get(), addresses, 1, &none, FI_SYNC_ERR, &error), 0);
  EXPECT_EQ(none, FI_ADDR_NOTAVAIL);
  EXPECT_EQ(error, FI_EACCES);
  EXPECT_EQ(fi_av_remove(reader.get(), &found[1], 1, 0), -FI_EACCES);
  ASSERT_EQ(fi_av_remove(writer.get(), &found[1], 1, 0), 0);
  EXPECT_EQ(fi_av_remove(writer.get(), &found[1], 1, 0), -FI_EINVAL);
  EXPECT_EQ(port_at(reader.get(), found[1]), -FI_EINVAL);
  EXPECT_EQ(port_at(reader.get(), found[2]), 1002);
  const sockaddr_in again = address_of(2000);
  ASSERT_EQ(fi_av_insert(writer.get(), &again, 1, &none, 0, nullptr), 1);
  EXPECT_EQ(none, found[1]);
  EXPECT_EQ(port_at(reader.get(), none), 2000);
}

TEST(FabricSharedVectors, NeedANameToBeRead) {
  Place place;
  fi_av_attr attr{};
  attr.flags = FI_READ;
  fid_av* av = nullptr;
  EXPECT_EQ(fi_av_open(place.domain.get(), &attr, &av, nullptr), -FI_EINVAL);
  Object<fid_av> held;
  EXPECT_LT(place.open(std::string(300, 'n'), 0, &held), 0);
  EXPECT_NE(place.info->caps & FI_SHARED_AV, 0u);
}

TEST(FabricSharedVectors, AreFollowedByEndpointsThatSend) {
  const std::string name = fresh_name();
  Place place;
  Object<fid_av> writer;
  ASSERT_EQ(place.open(name, 0, &writer), 0);
  Node a({.av_name = name.c_str(), .av_flags = FI_READ}), b;
  a.enable();
  b.enable();
  b.insert(a.name());
  EXPECT_EQ(fi_inject(a.ep.get(), "x", 1, 0), -FI_EINVAL);
  fi_addr_t to = FI_ADDR_NOTAVAIL;
  ASSERT_EQ(fi_av_insert(writer.get(), b.name().data(), 1, &to, 0, nullptr), 1);
  char got = 0;
  fi_cq_tagged_entry entry;
  ASSERT_EQ(fi_recv(b.ep.get(), &got, 1, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ASSERT_EQ(fi_inject(a.ep.get(), "x", 1, to), 0);
  ASSERT_TRUE(eventually([&] { return fi_cq_read(b.cq.get(), &entry, 1) == 1; }));
  EXPECT_EQ(got, 'x');
  ASSERT_EQ(fi_av_remove(writer.get(), &to, 1, 0), 0);
  EXPECT_EQ(fi_inject(a.ep.get(), "x", 1, to), -FI_EINVAL);
  // Its number means another endpoint now.
  Node c;
  c.enable();
  c.insert(a.name());
  fi_addr_t to_c = FI_ADDR_NOTAVAIL;
  ASSERT_EQ(fi_av_insert(writer.get(), c.name().data(), 1, &to_c, 0, nullptr), 1);
  ASSERT_EQ(to_c, to);
  ASSERT_EQ(fi_recv(c.ep.get(), &got, 1, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ASSERT_EQ(fi_inject(a.ep.get(), "y", 1, to), 0);
  ASSERT_TRUE(eventually([&] { return fi_cq_read(c.cq.get(), &entry, 1) == 1; }));
  EXPECT_EQ(got, 'y');
}

// A process of its own, that does something and waits until it is killed.
class Child {
 public:
  template <typename F>
  explicit Child(const F& work) {
    int pipe[2];
    MUST(::pipe(pipe));
    pid_ = MUST(::fork());
    if (pid_ == 0) {
      ::close(pipe[0]);
      work();
      (void)!::write(pipe[1], "x", 1);
      for (;;) ::pause();
    }
    ::close(pipe[1]);
    ready_ = pipe[0];
  }
  bool wait() {
    char byte;
    return ::read(ready_, &byte, 1) == 1;
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  ~Child() {
    kill();
    ::close(ready_);
  }

 private:
  pid_t pid_ = 0;
  int ready_ = -1;
};

TEST(FabricSharedVectors, OutliveWhoMadeThemAndGoWithTheLast) {
  const std::string name = fresh_name();
  Child maker([&] {
    auto* place = new Place;
    auto* av = new Object<fid_av>;
    MUST(place->open(name, 0, av));
    for (std::uint16_t i = 0; i < 100; ++i) {
      const sockaddr_in address = address_of(static_cast<std::uint16_t>(3000 + i));
      MUST(fi_av_insert(av->get(), &address, 1, nullptr, 0, nullptr) - 1);
    }
  });
  ASSERT_TRUE(maker.wait());
  Place place;
  Object<fid_av> reader, second;
  ASSERT_EQ(place.open(name, FI_READ, &reader), 0);
  EXPECT_EQ(port_at(reader.get(), 99), 3099);
  maker.kill();
  EXPECT_EQ(port_at(reader.get(), 50), 3050);
  ASSERT_EQ(place.open(name, 0, &second), 0);
  EXPECT_EQ(port_at(second.get(), 7), 3007);
  const sockaddr_in address = address_of(4000);
  fi_addr_t number = 0;
  ASSERT_EQ(fi_av_insert(second.get(), &address, 1, &number, 0, nullptr), 1);
  EXPECT_EQ(number, 100u);
  EXPECT_EQ(port_at(reader.get(), 100), 4000);
  reader.reset();
  second.reset();
  EXPECT_EQ(place.open(name, FI_READ, &reader), -FI_ENOENT);
}

TEST(FabricSharedVectors, AreFilledByManyProcessesAtOnce) {
  const std::string name = fresh_name();
  constexpr int kProcesses = 4, kEach = 500;
  const auto fill = [&](int which) {
    auto* place = new Place;
    auto* av = new Object<fid_av>;
    MUST(place->open(name, 0, av));  // one of them makes it
    for (int i = 0; i < kEach; ++i) {
      const sockaddr_in address =
          address_of(static_cast<std::uint16_t>(10'000 + which * kEach + i));
      fi_addr_t number = FI_ADDR_NOTAVAIL;
      MUST(fi_av_insert(av->get(), &address, 1, &number, 0, nullptr) - 1);
      if (i % 10 == 9) MUST(fi_av_remove(av->get(), &number, 1, 0));
    }
  };
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < kProcesses; ++i)
    children.push_back(std::make_unique<Child>([&] { fill(i); }));
  for (auto& child : children) ASSERT_TRUE(child->wait());
  Place place;
  Object<fid_av> reader;
  ASSERT_EQ(place.open(name, FI_READ, &reader), 0);
  std::set<int> ports;
  for (fi_addr_t i = 0; i < kProcesses * kEach; ++i) {
    const int port = port_at(reader.get(), i);
    if (port < 0) continue;
    EXPECT_TRUE(ports.insert(port).second) << port;
  }
  EXPECT_EQ(ports.size(), static_cast<std::size_t>(kProcesses * kEach * 9 / 10));
  EXPECT_FALSE(ports.contains(10'009));
}

}  // namespace
}  // namespace clan::test
