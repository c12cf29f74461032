#include <clan/aperture.h>
#include <clan/tripwire.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "support/plain_link.h"
#include "support/process.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;

TEST(Aperture, ShowsThePeersStoresAtOnce) {
  OwnerAndPeer c;
  auto memory = must(Memory::allocate(10'000));
  EXPECT_EQ(memory.size() % 4096, 0u);
  auto a = must(Aperture::export_memory(c.owner, memory, 4096, 5000, Rights::kReadWrite));
  auto r = must(RemoteAperture::import(c.peer, a.cookie()));
  EXPECT_EQ(r.size(), 5000u);
  ASSERT_NE(r.data(), nullptr);
  const auto data = pattern(5000, 1);
  ASSERT_OK(r.write(0, data.data(), data.size()));
  EXPECT_TRUE(is_pattern(a.region(), 1, 0));
  EXPECT_EQ(a.region().data(), memory.data() + 4096);
  std::vector<std::byte> back(1000);
  ASSERT_OK(r.read(4000, back.data(), back.size()));
  EXPECT_TRUE(is_pattern(back, 1, 4000));
  ASSERT_OK(r.publish(8, 0x1122334455667788));
  std::uint64_t word;
  std::memcpy(&word, a.region().data() + 8, 8);
  EXPECT_EQ(word, 0x1122334455667788u);
  std::memset(r.data() + 100, 7, 10);
  ASSERT_OK(r.wrote(100, 10));
  EXPECT_EQ(a.region()[109], std::byte{7});
  EXPECT_OK(r.check());
  EXPECT_EQ(c.owner.counters().apertures, 1u);
}

TEST(Aperture, IsFoundByItsNameAndNoteWhateverItsOwnerDoes) {
  OwnerAndPeer c;
  std::vector<std::byte> own(9000);
  auto a = must(Aperture::export_region(c.owner, own, Rights::kReadWrite));
  EXPECT_ERR(RemoteAperture::look_up(c.peer, c.owner.node(), 42, 10'000), ENOENT);
  const auto note = pattern(kMaxApertureNote, 5);
  EXPECT_ERR(a.set_name(42, pattern(kMaxApertureNote + 1, 5)), EMSGSIZE);
  ASSERT_OK(a.set_name(42, note));
  EXPECT_ERR(a.set_name(43, note), EEXIST);
  auto other = must(Aperture::export_region(c.owner, own, Rights::kRead));
  EXPECT_ERR(other.set_name(42), EEXIST);
  auto found = RemoteAperture::look_up(c.peer, c.owner.node(), 42, 10'000);
  ASSERT_OK(found);
  ASSERT_EQ(found->note_bytes, kMaxApertureNote);
  EXPECT_TRUE(std::equal(note.begin(), note.end(), found->note.begin()));
  auto r = must(RemoteAperture::import(c.peer, found->cookie));
  const auto data = pattern(9000, 1);
  ASSERT_OK(r.write(0, data.data(), data.size()));
  EXPECT_TRUE(is_pattern(own, 1, 0));
  // By ourselves too.
  ASSERT_OK(RemoteAperture::look_up(c.owner, c.owner.node(), 42, 10'000));
  ASSERT_OK(a.revoke());
  EXPECT_ERR(RemoteAperture::look_up(c.peer, c.owner.node(), 42, 10'000), ENOENT);
  ASSERT_OK(other.set_name(42));
  ASSERT_OK(RemoteAperture::look_up(c.peer, c.owner.node(), 42, 10'000));
  EXPECT_ERR(RemoteAperture::look_up(c.peer, NodeId{1}, 42, 10'000), ECONNREFUSED);
}

TEST(Aperture, OfTheCallersOwnMemoryIsReachedByCopies) {
  OwnerAndPeer c;
  std::vector<std::byte> own(9000);
  auto a = must(Aperture::export_region(c.owner, own, Rights::kReadWrite));
  auto r = must(RemoteAperture::import(c.peer, a.cookie()));
  EXPECT_EQ(r.data(), nullptr);
  const auto data = pattern(9000, 2);
  ASSERT_OK(r.write(0, data.data(), data.size()));
  EXPECT_TRUE(is_pattern(own, 2, 0));
  std::vector<std::byte> back(9000);
  ASSERT_OK(r.read(0, back.data(), back.size()));
  EXPECT_EQ(back, data);
  EXPECT_ERR(r.wrote(0, 8), EOPNOTSUPP);
  ASSERT_OK(r.publish(0, 5));
  EXPECT_EQ(own[0], std::byte{5});
}

TEST(Aperture, IsNotReachedByPioWhereCopiesAreForbidden) {
  ContextOptions options;
  options.direct_copy = false;
  auto owner = must(Context::create(options));
  auto peer = must(Context::create(options));
  std::vector<std::byte> own(100), local(100, std::byte{9});
  auto a = must(Aperture::export_region(owner, own, Rights::kReadWrite));
  auto r = must(RemoteAperture::import(peer, a.cookie()));
  EXPECT_ERR(r.write(0, local.data(), 100), EOPNOTSUPP);
  EXPECT_ERR(r.read(0, local.data(), 100), EOPNOTSUPP);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(own, std::vector<std::byte>(100));
  EXPECT_EQ(local, std::vector<std::byte>(100, std::byte{9}));  // nothing comes later either
}

TEST(Aperture, TakesAnAccessToNothingWithoutAnAddress) {
  OwnerAndPeer c;
  auto memory = must(Memory::allocate(4096));
  std::vector<std::byte> own(4096);
  for (bool mapped : {true, false}) {
    auto a = mapped ? must(Aperture::export_memory(c.owner, memory, 0, 4096, Rights::kReadWrite))
                    : must(Aperture::export_region(c.owner, own, Rights::kReadWrite));
    auto r = must(RemoteAperture::import(c.peer, a.cookie()));
    EXPECT_OK(r.write(4096, nullptr, 0));
    EXPECT_OK(r.read(0, nullptr, 0));
    EXPECT_ERR(r.write(4097, nullptr, 0), ERANGE);
  }
}

TEST(Aperture, GrantsNoMoreThanItsRightsAndBounds) {
  OwnerAndPeer c;
  for (bool mapped : {true, false}) {
    auto memory = must(Memory::allocate(4096));
    std::vector<std::byte> own(4096);
    auto make = [&](Rights rights) {
      return mapped ? Aperture::export_memory(c.owner, memory, 0, 4096, rights)
                    : Aperture::export_region(c.owner, own, rights);
    };
    std::uint64_t word = 1;
    {
      auto a = must(make(Rights::kWrite));
      auto r = must(RemoteAperture::import(c.peer, a.cookie()));
      EXPECT_OK(r.write(4088, &word, 8));
      EXPECT_ERR(r.read(0, &word, 8), EACCES);
      EXPECT_ERR(r.write(4089, &word, 8), ERANGE);
      EXPECT_ERR(r.write(~std::uint64_t{0}, &word, 8), ERANGE);
      EXPECT_ERR(r.write(8, &word, ~std::size_t{0}), ERANGE);
      EXPECT_ERR(r.publish(4, 1), EINVAL);
      EXPECT_ERR(r.publish(4096, 1), ERANGE);
      RdmaCookie wider = a.cookie();
      wider.rights = Rights::kReadWrite;
      EXPECT_ERR(RemoteAperture::import(c.peer, wider), EACCES);
      wider = a.cookie();
      wider.length *= 2;
      EXPECT_ERR(RemoteAperture::import(c.peer, wider), EACCES);
      wider = a.cookie();
      wider.key ^= 1;
      EXPECT_ERR(RemoteAperture::import(c.peer, wider), EACCES);
      wider = a.cookie();
      wider.generation += 2;
      EXPECT_ERR(RemoteAperture::import(c.peer, wider), ESTALE);
      wider = a.cookie();
      wider.node.value ^= 1;
      EXPECT_ERR(RemoteAperture::import(c.peer, wider, 1000), ECONNREFUSED);
    }
    auto fresh = must(Memory::allocate(4096));
    memory = std::move(fresh);
    auto a = must(make(Rights::kRead));
    auto r = must(RemoteAperture::import(c.peer, a.cookie()));
    EXPECT_OK(r.read(0, &word, 8));
    EXPECT_ERR(r.write(0, &word, 8), EACCES);
    EXPECT_ERR(r.publish(0, 8), EACCES);
  }
}

TEST(Aperture, RefusesWhatMakesNoSense) {
  OwnerAndPeer c;
  auto memory = must(Memory::allocate(4096));
  EXPECT_ERR(Aperture::export_memory(c.owner, memory, 0, 4097, Rights::kRead), ERANGE);
  EXPECT_ERR(Aperture::export_memory(c.owner, memory, 4097, 0, Rights::kRead), ERANGE);
  EXPECT_ERR(Aperture::export_memory(c.owner, memory, 0, 0, Rights::kRead), EINVAL);
  EXPECT_ERR(Aperture::export_memory(c.owner, memory, 0, 8, Rights::kNone), EINVAL);
  EXPECT_ERR(Aperture::export_region(c.owner, {}, Rights::kRead), EINVAL);
  EXPECT_ERR(Aperture::export_memory(c.owner, memory, 0, 8, Rights::kRead, 4'000'000), EACCES);
  auto w = must(Aperture::export_memory(c.owner, memory, 0, 8, Rights::kWrite));
  EXPECT_ERR(Aperture::export_memory(c.owner, memory, 8, 8, Rights::kRead), EBUSY);
  auto other = must(Memory::allocate(4096));
  auto r = must(Aperture::export_memory(c.owner, other, 0, 8, Rights::kRead));
  EXPECT_ERR(Aperture::export_memory(c.owner, other, 8, 8, Rights::kWrite), EPERM);
  EXPECT_ERR(Memory::allocate(0), EINVAL);
}

TEST(Aperture, IsOutOfReachOnceRevoked) {
  OwnerAndPeer c;
  for (bool mapped : {true, false}) {
    auto memory = must(Memory::allocate(8192));
    std::vector<std::byte> own(8192);
    auto a = must(mapped ? Aperture::export_memory(c.owner, memory, 0, 8192, Rights::kReadWrite)
                         : Aperture::export_region(c.owner, own, Rights::kReadWrite));
    auto r = must(RemoteAperture::import(c.peer, a.cookie()));
    const auto data = pattern(8192, 3);
    ASSERT_OK(r.write(0, data.data(), data.size()));
    const RdmaCookie old = a.cookie();
    ASSERT_OK(a.revoke());
    EXPECT_ERR(a.revoke(), EINVAL);
    EXPECT_ERR(r.check(), ESTALE);
    const std::uint64_t late = ~std::uint64_t{0};
    EXPECT_ERR(r.write(0, &late, 8), ESTALE);
    EXPECT_ERR(r.publish(8, late), ESTALE);
    if (mapped) std::memset(r.data(), 0xff, 8192);  // whatever the peer does
    EXPECT_TRUE(is_pattern(a.region(), 3, 0));
    EXPECT_ERR(RemoteAperture::import(c.peer, old), ESTALE);
    // Again, under a new cookie; the old one stays dead.
    auto again = must(mapped ? Aperture::export_memory(c.owner, memory, 0, 8192, Rights::kReadWrite)
                             : Aperture::export_region(c.owner, own, Rights::kReadWrite));
    EXPECT_ERR(RemoteAperture::import(c.peer, old), ESTALE);
    // into a mapping of the old memory it may go nowhere without a word
    (void)r.write(0, &late, 8);
    EXPECT_ERR(r.check(), ESTALE);
    EXPECT_TRUE(is_pattern(again.region(), 3, 0));
    auto r2 = must(RemoteAperture::import(c.peer, again.cookie()));
    ASSERT_OK(r2.write(0, &late, 8));
    EXPECT_EQ(again.region()[0], std::byte{0xff});
  }
}

TEST(Aperture, WriterCannotBeSeenAfterRevokeHoweverHardItTries) {
  OwnerAndPeer c;
  for (bool mapped : {true, false}) {
    for (int round = 0; round < 30; ++round) {
      auto memory = must(Memory::allocate(4096));
      std::vector<std::byte> own(4096);
      std::optional<Aperture> a =
          must(mapped ? Aperture::export_memory(c.owner, memory, 0, 4096, Rights::kReadWrite)
                      : Aperture::export_region(c.owner, own, Rights::kReadWrite));
      auto r = must(RemoteAperture::import(c.peer, a->cookie()));
      std::atomic<bool> stop{false};
      std::atomic<int> writes{0};
      std::thread writer([&] {
        std::vector<std::byte> data(4096);
        for (int i = 1; !stop.load(); ++i) {
          std::memset(data.data(), i, data.size());
          if (!r.write(0, data.data(), data.size())) break;
          writes.fetch_add(1);
        }
      });
      while (writes.load() == 0) std::this_thread::yield();
      ASSERT_OK(a->revoke());
      const std::vector<std::byte> seen(a->region().begin(), a->region().end());
      for (int i = 0; i < 20; ++i) {
        ASSERT_EQ(std::memcmp(seen.data(), a->region().data(), seen.size()), 0);
        std::this_thread::yield();
      }
      stop.store(true);
      writer.join();
      ASSERT_EQ(std::memcmp(seen.data(), a->region().data(), seen.size()), 0);
    }
  }
}

TEST(Aperture, EndsWithItsObjectEvenWhileATripwireIsLeft) {
  OwnerAndPeer c;
  std::vector<std::byte> own(4096);
  std::optional<Aperture> a = must(Aperture::export_region(c.owner, own, Rights::kReadWrite));
  auto t = must(Tripwire::create(*a, 0, 8));
  auto r = must(RemoteAperture::import(c.peer, a->cookie()));
  a.reset();
  const std::uint64_t word = 1;
  EXPECT_ERR(r.write(0, &word, 8), ESTALE);
  EXPECT_EQ(own[0], std::byte{0});
  EXPECT_ERR(t.wait(2000), ESTALE);
}

TEST(Aperture, SharingAPageCannotBeRevokedAlone) {
  OwnerAndPeer c;
  auto memory = must(Memory::allocate(8192));
  auto a = must(Aperture::export_memory(c.owner, memory, 0, 100, Rights::kReadWrite));
  auto b = must(Aperture::export_memory(c.owner, memory, 100, 100, Rights::kReadWrite));
  EXPECT_ERR(a.revoke(), EBUSY);
  auto r = must(RemoteAperture::import(c.peer, a.cookie()));  // still there
  EXPECT_OK(r.check());
  { auto gone = std::move(b); }
  EXPECT_OK(a.revoke());
}

TEST(ApertureBetweenProcesses, CarriesDataAndWakeUpsBothWays) {
  struct Notes {
    RdmaCookie parents, childs;
  };
  Shared<Notes> shared;
  Notes& notes = *shared;
  Gate parent_known, child_known;
  auto child = Process::start([&] {
    auto context = must(Context::create());
    auto memory = must(Memory::allocate(8192));
    auto mine = must(Aperture::export_memory(context, memory, 0, 8192, Rights::kReadWrite));
    notes.childs = mine.cookie();
    child_known.open();
    CHILD_CHECK(parent_known.wait());
    auto r = must(RemoteAperture::import(context, notes.parents));
    auto t = must(Tripwire::create(mine, 0, 8));
    auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(memory.data());
    for (std::uint64_t i = 1; i <= 300; ++i) {
      while (word.load(std::memory_order_acquire) < i) {
        t.arm();
        if (word.load(std::memory_order_acquire) >= i) break;
        auto s = t.wait(10'000);
        CHILD_OK(s);
      }
      CHILD_CHECK(is_pattern({memory.data() + 64, 4000}, i, 0));
      const auto answer = pattern(4000, i + 1000);
      auto s = r.write(64, answer.data(), answer.size());
      CHILD_OK(s);
      s = r.publish(0, i);
      CHILD_OK(s);
    }
    return 0;
  });
  auto context = must(Context::create());
  std::vector<std::byte> own(8192);  // copied into, not mapped
  auto mine = must(Aperture::export_region(context, own, Rights::kReadWrite));
  notes.parents = mine.cookie();
  ASSERT_TRUE(child_known.wait());
  parent_known.open();
  auto r = must(RemoteAperture::import(context, notes.childs));
  auto t = must(Tripwire::create(mine, 0, 8));
  auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(own.data());
  for (std::uint64_t i = 1; i <= 300; ++i) {
    const auto question = pattern(4000, i);
    ASSERT_OK(r.write(64, question.data(), question.size()));
    ASSERT_OK(r.publish(0, i));
    while (word.load(std::memory_order_acquire) < i) {
      t.arm();
      if (word.load(std::memory_order_acquire) >= i) break;
      ASSERT_OK(t.wait(10'000));
    }
    ASSERT_TRUE(is_pattern({own.data() + 64, 4000}, i + 1000, 0));
  }
  EXPECT_TRUE(child.wait().clean());
}

TEST(ApertureBetweenProcesses, IsNotInheritedOverFork) {
  OwnerAndPeer c;
  auto memory = must(Memory::allocate(4096));
  auto a = must(Aperture::export_memory(c.owner, memory, 0, 4096, Rights::kReadWrite));
  auto r = must(RemoteAperture::import(c.peer, a.cookie()));
  auto t = must(Tripwire::create(a, 0, 8));
  auto child = Process::start([&] {
    CHILD_CHECK(!a.revoke());
    CHILD_CHECK(!Tripwire::create(a, 0, 8));
    CHILD_CHECK(!Aperture::export_memory(c.owner, memory, 0, 8, Rights::kReadWrite));
    CHILD_CHECK(!RemoteAperture::import(c.peer, a.cookie(), 1000));
    CHILD_CHECK(r.check().error().err == ESHUTDOWN);
    CHILD_CHECK(t.wait(100).error().err == ESHUTDOWN);
    t.arm();
    return 0;
  });
  EXPECT_TRUE(child.wait().clean());
  EXPECT_FALSE(t.test_and_clear());
  std::uint64_t word = 5;
  ASSERT_OK(r.write(0, &word, 8));
  EXPECT_EQ(memory.data()[0], std::byte{5});
}

TEST(ApertureOverPackets, WorksTheSame) {
  PlainNetwork network;
  OwnerAndPeer c;
  network.join(*c.owner.core(), *c.peer.core());
  auto memory = must(Memory::allocate(8192));
  auto a = must(Aperture::export_memory(c.owner, memory, 0, 8192, Rights::kReadWrite));
  auto r = must(RemoteAperture::import(c.peer, a.cookie()));
  EXPECT_EQ(r.data(), nullptr);
  auto t = must(Tripwire::create(a, 0, 8));
  t.arm();
  const auto data = pattern(8000, 1);
  ASSERT_OK(r.write(64, data.data(), data.size()));
  ASSERT_OK(r.publish(0, 1));
  ASSERT_OK(t.wait(5000));
  EXPECT_TRUE(is_pattern({memory.data() + 64, 8000}, 1, 0));
  std::vector<std::byte> back(8000);
  ASSERT_OK(r.read(64, back.data(), back.size()));
  EXPECT_EQ(back, data);
  ASSERT_OK(a.revoke());
  std::uint64_t word = 7;
  EXPECT_TRUE(eventually([&] { return !r.write(0, &word, 8).ok(); }));
  EXPECT_EQ(memory.data()[0], std::byte{1});
}

}  // namespace
}  // namespace clan
