#include <clan/event_queue.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <map>
#include <set>
#include <thread>

#include "clan/detail/clock.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;
using Mode = WaitOptions::Mode;

// Polls until nothing is there; tags in the order of arrival.
std::vector<std::uint64_t> drain(EventQueue& queue) {
  std::vector<std::uint64_t> tags;
  Event events[16];
  while (std::size_t n = queue.poll(events)) {
    for (std::size_t i = 0; i < n; ++i) tags.push_back(events[i].tag);
  }
  return tags;
}

TEST(EventQueue, SaysWhichStreamHasSomething) {
  StreamPair pair;
  auto queue = must(EventQueue::create(pair.server_context));
  ASSERT_OK(pair.server.register_with(queue, 0xfeedfacecafebeefu));
  Event events[4];
  EXPECT_EQ(queue.poll(events), 0u);
  ASSERT_OK(pair.client.send(text("x")));
  auto n = queue.wait(events, 5000);
  ASSERT_OK(n);
  ASSERT_EQ(*n, 1u);
  EXPECT_EQ(events[0].tag, 0xfeedfacecafebeefu);
  EXPECT_EQ(events[0].kind, EventKind::kStream);
  EXPECT_EQ(queue.poll(events), 0u);
}

TEST(EventQueue, HasAnEventOfANudgeWithNothingToReceive) {
  StreamPair pair;
  auto queue = must(EventQueue::create(pair.server_context));
  ASSERT_OK(pair.server.register_with(queue, 1));
  pair.client.nudge();
  Event events[4];
  EXPECT_EQ(queue.poll(events), 1u);
  EXPECT_FALSE(pair.server.readable());
}

TEST(EventQueue, HoldsEachEventAtMostOnce) {
  StreamPair pair;
  auto queue = must(EventQueue::create(pair.server_context));
  ASSERT_OK(pair.server.register_with(queue, 1));
  for (int i = 0; i < 100; ++i) ASSERT_OK(pair.client.send(text("again")));
  EXPECT_EQ(drain(queue).size(), 1u);
  EXPECT_EQ(drain(queue).size(), 0u);
  ASSERT_OK(pair.client.send(text("and after it was taken")));
  EXPECT_EQ(drain(queue).size(), 1u);
}

TEST(EventQueue, HasNoEventOfWhatIsCommittedQuietly) {
  StreamPair pair;
  auto queue = must(EventQueue::create(pair.server_context));
  ASSERT_OK(pair.server.register_with(queue, 1));
  (void)drain(queue);  // of what was there before
  ASSERT_OK(pair.client.append_quietly(text("quiet")));
  EXPECT_EQ(drain(queue).size(), 0u);
  auto room = pair.client.reserve(4);
  ASSERT_OK(room);
  std::memcpy(room->data(), "loud", 4);
  pair.client.commit(4);
  EXPECT_EQ(drain(queue).size(), 1u);
  EXPECT_EQ(receive_text(pair.server), "quietloud");
}

TEST(EventQueue, HearsOfBytesThatArrivedBeforeRegistration) {
  StreamPair pair;
  ASSERT_OK(pair.client.send(text("early")));
  auto queue = must(EventQueue::create(pair.server_context));
  ASSERT_OK(pair.server.register_with(queue, 2));
  EXPECT_EQ(drain(queue), std::vector<std::uint64_t>{2});
  // And of a peer that has gone.
  pair.client.close();
  EXPECT_TRUE(eventually([&] { return !pair.server.try_send(text("x")).ok(); }));
  pair.server.unregister();
  drain(queue);
  ASSERT_OK(pair.server.register_with(queue, 3));
  EXPECT_EQ(drain(queue), std::vector<std::uint64_t>{3});
}

TEST(EventQueue, HearsOfThePeersCloseAndOfItsEnd) {
  for (bool whole_context : {false, true}) {
    StreamPair pair(with_mode(Mode::kSleep));
    auto queue = must(EventQueue::create(pair.server_context));
    ASSERT_OK(pair.server.register_with(queue, 4));
    std::thread closer([&] {
      ::usleep(10'000);
      if (whole_context) {
        Context gone = std::move(pair.client_context);
      } else {
        pair.client.close();
      }
    });
    Event events[4];
    std::byte b;
    for (;;) {
      auto n = queue.wait(events, 5000);
      ASSERT_OK(n);
      EXPECT_EQ(events[0].tag, 4u);
      auto got = pair.server.try_recv({&b, 1});
      if (!got.ok() && got.error().err == EAGAIN) continue;  // a hint
      if (whole_context) {
        EXPECT_ERR(got, ECONNRESET);
      } else {
        ASSERT_OK(got);
        EXPECT_EQ(*got, 0u);
      }
      break;
    }
    closer.join();
  }
}

TEST(EventQueue, HearsOfRoomAfterTheRingWasFull) {
  StreamPair pair(with_mode(Mode::kAdaptive, 1024));
  auto queue = must(EventQueue::create(pair.client_context));
  ASSERT_OK(pair.client.register_with(queue, 5));
  auto data = pattern(4096, 1);
  for (int round = 0; round < 20; ++round) {
    std::uint64_t sent = 0;
    while (auto n = pair.client.try_send(std::span(data).subspan(sent))) sent += *n;
    while (pair.client.try_send(text("x")).ok()) {
    }
    drain(queue);
    std::byte buffer[4096];
    std::thread reader([&] { ASSERT_OK(pair.server.recv(buffer, 5000)); });
    Event events[1];
    ASSERT_OK(queue.wait(events, 5000));
    EXPECT_TRUE(eventually([&] { return pair.client.try_send(text("y")).ok(); }));
    reader.join();
    while (pair.server.try_recv(buffer).ok()) {
    }
  }
}

TEST(EventQueue, HearsOfRoomThatCameBeforeRegistration) {
  StreamPair pair(with_mode(Mode::kAdaptive, 1024));
  auto data = pattern(4096, 1);
  while (pair.client.try_send(data).ok()) {
  }
  std::byte buffer[4096];
  while (pair.server.try_recv(buffer).ok()) {
  }
  auto queue = must(EventQueue::create(pair.client_context));
  ASSERT_OK(pair.client.register_with(queue, 6));
  EXPECT_EQ(drain(queue), std::vector<std::uint64_t>{6});
}

TEST(EventQueue, IsQuietAfterUnregisterAndClose) {
  StreamPair pair;
  auto queue = must(EventQueue::create(pair.server_context));
  ASSERT_OK(pair.server.register_with(queue, 7));
  pair.server.unregister();
  pair.server.unregister();
  ASSERT_OK(pair.client.send(text("x")));
  EXPECT_TRUE(drain(queue).empty());
  ASSERT_OK(pair.server.register_with(queue, 8));
  ASSERT_OK(pair.server.register_with(queue, 9)) << "once more moves it";
  EXPECT_EQ(drain(queue), std::vector<std::uint64_t>{9});
  pair.server.close();
  EXPECT_TRUE(drain(queue).empty());
}

TEST(EventQueue, AnnouncesEachWaitingConnection) {
  auto server = must(Context::create(with_mode(Mode::kAdaptive, 1024)));
  auto client = must(Context::create(with_mode(Mode::kAdaptive, 1024)));
  const std::string name = unique_name("events");
  auto listener = must(Listener::create(server, name));
  auto early = must(Stream::connect(client, name, 5000));
  auto queue = must(EventQueue::create(server));
  ASSERT_OK(listener.register_with(queue, 10));
  std::vector<Stream> streams;
  for (int i = 0; i < 5; ++i) streams.push_back(must(Stream::connect(client, name, 5000)));
  // One connection for each event must find all of them.
  std::vector<Stream> accepted;
  Event events[4];
  while (accepted.size() < 6) {
    auto n = queue.wait(events, 5000);
    ASSERT_OK(n);
    ASSERT_EQ(events[0].kind, EventKind::kConnection);
    ASSERT_EQ(events[0].tag, 10u);
    auto stream = listener.try_accept();
    if (stream.ok()) accepted.push_back(std::move(*stream));
  }
  EXPECT_ERR(listener.try_accept(), EAGAIN);
}

TEST(EventQueue, ServesManyStreamsOverOneQueue) {
  constexpr std::size_t kStreams = 200;
  constexpr std::uint64_t kBytes = 3000;
  StreamPair pair(with_mode(Mode::kAdaptive, 1024));
  const std::string name = unique_name("fan-in");
  auto listener = must(Listener::create(pair.server_context, name));
  auto queue = must(EventQueue::create(pair.server_context));
  std::vector<Stream> clients, servers;
  for (std::size_t i = 0; i < kStreams; ++i) {
    clients.push_back(must(Stream::connect(pair.client_context, name, 5000)));
    servers.push_back(must(listener.accept(5000)));
    ASSERT_OK(servers.back().register_with(queue, i));
  }
  std::thread sender([&] {
    std::vector<std::uint64_t> at(kStreams, 0);
    Random random(17);
    for (std::size_t open = kStreams; open > 0;) {
      const std::size_t i = random.below(kStreams);
      if (at[i] == kBytes) continue;
      const std::size_t n = std::min<std::size_t>(random.size_up_to(500), kBytes - at[i]);
      ASSERT_OK(clients[i].send(pattern(n, i, at[i]), 10'000));
      at[i] += n;
      if (at[i] == kBytes) {
        clients[i].close();
        --open;
      }
    }
  });
  std::vector<std::uint64_t> at(kStreams, 0);
  std::size_t finished = 0;
  std::byte buffer[4096];
  Event events[8];
  while (finished < kStreams) {
    auto n = queue.wait(events, 10'000);
    ASSERT_OK(n);
    for (std::size_t e = 0; e < *n; ++e) {
      const std::size_t i = events[e].tag;
      ASSERT_LT(i, kStreams);
      for (;;) {  // edge: until nothing is left
        auto got = servers[i].try_recv(buffer);
        if (!got.ok()) {
          ASSERT_EQ(got.error().err, EAGAIN);
          break;
        }
        if (*got == 0) {
          ASSERT_EQ(at[i], kBytes);
          servers[i].close();
          at[i] = ~std::uint64_t{0};
          ++finished;
        }
        if (at[i] == ~std::uint64_t{0}) break;
        ASSERT_TRUE(is_pattern({buffer, *got}, i, at[i]));
        at[i] += *got;
      }
    }
  }
  sender.join();
}

TEST(EventQueue, DoesNotLetABusyStreamStarveAQuietOne) {
  // More than 64 streams, so that they lie in more than one word of the queue.
  constexpr std::size_t kStreams = 130;
  StreamPair pair(with_mode(Mode::kAdaptive, 1024));
  const std::string name = unique_name("fair");
  auto listener = must(Listener::create(pair.server_context, name));
  auto queue = must(EventQueue::create(pair.server_context));
  std::vector<Stream> clients, servers;
  for (std::size_t i = 0; i < kStreams; ++i) {
    clients.push_back(must(Stream::connect(pair.client_context, name, 5000)));
    servers.push_back(must(listener.accept(5000)));
    ASSERT_OK(servers.back().register_with(queue, i));
  }
  std::byte buffer[64];
  ASSERT_OK(clients[kStreams - 1].send(text("quiet")));
  std::size_t taken = 0;
  for (bool heard = false; !heard; ++taken) {
    ASSERT_LT(taken, 2 * kStreams);
    for (std::size_t i = 0; i < 64; ++i) (void)clients[i].try_send(text("busy"));
    Event e;
    ASSERT_EQ(queue.poll({&e, 1}), 1u);
    heard = e.tag == kStreams - 1;
    while (servers[e.tag].try_recv(buffer).ok()) {
    }
  }
}

TEST(EventQueue, TimesOutAndNeverBefore) {
  for (Mode mode : {Mode::kAdaptive, Mode::kSleep, Mode::kPoll}) {
    auto context = must(Context::create(with_mode(mode)));
    auto queue = must(EventQueue::create(context));
    Event e[1];
    EXPECT_ERR(queue.wait(e, 0), ETIMEDOUT);
    const std::uint64_t start = monotonic_ns();
    EXPECT_ERR(queue.wait(e, 30), ETIMEDOUT);
    EXPECT_GE(monotonic_ns() - start, 29'000'000u);
    EXPECT_ERR(queue.wait({}, 0), EINVAL);
  }
}

TEST(EventQueue, TellsASleeperThatASignalArrived) {
  struct sigaction action {
  }, old{};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &old), 0);
  auto context = must(Context::create(with_mode(Mode::kSleep)));
  auto queue = must(EventQueue::create(context));
  std::atomic<int> err{-1};
  std::thread sleeper([&] {
    Event e[1];
    auto n = queue.wait(e, -1);
    err = n.ok() ? 0 : n.error().err;
  });
  EXPECT_TRUE(eventually([&] {
    ::pthread_kill(sleeper.native_handle(), SIGUSR1);
    return err.load() != -1;
  }));
  sleeper.join();
  EXPECT_EQ(err, EINTR);
  ::sigaction(SIGUSR1, &old, nullptr);
}

TEST(EventQueue, WakesItsSleeperEveryTime) {
  StreamPair pair(with_mode(Mode::kSleep));
  auto queue = must(EventQueue::create(pair.server_context));
  ASSERT_OK(pair.server.register_with(queue, 1));
  std::thread echo([&] {
    Event events[1];
    std::byte b;
    for (int done = 0; done < 2000;) {
      auto n = queue.wait(events, 10'000);
      ASSERT_OK(n);
      while (pair.server.try_recv({&b, 1}).ok()) {
        ASSERT_OK(pair.server.send({&b, 1}, 5000));
        ++done;
      }
    }
  });
  std::byte b{7};
  for (int i = 0; i < 2000; ++i) {
    ASSERT_OK(pair.client.send({&b, 1}, 5000));
    auto n = pair.client.recv({&b, 1}, 10'000);
    ASSERT_OK(n);
  }
  echo.join();
}

TEST(EventQueue, WakesAnEpollLoopThatArmedItsDescriptor) {
  StreamPair pair(with_mode(Mode::kAdaptive));
  auto queue = must(EventQueue::create(pair.server_context));
  int fd = must(queue.fd());
  EXPECT_EQ(must(queue.fd()), fd);
  ASSERT_OK(pair.server.register_with(queue, 1));
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event interest{};
  interest.events = EPOLLIN;
  ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &interest), 0);
  std::thread sender([&] {
    std::byte b;
    for (int i = 0; i < 1000; ++i) {
      b = static_cast<std::byte>(i);
      ASSERT_OK(pair.client.send({&b, 1}, 5000));
      ASSERT_OK(pair.client.recv({&b, 1}, 10'000));
    }
  });
  int slept = 0;
  for (int done = 0; done < 1000;) {
    Event events[4];
    if (queue.poll(events) == 0) {
      if (!queue.arm_fd()) continue;
      epoll_event ready;
      const int n = ::epoll_wait(epoll.get(), &ready, 1, 10'000);
      ASSERT_EQ(n, 1) << "an event arrived after arm_fd() and the descriptor stayed silent";
      ++slept;
      continue;
    }
    std::byte b;
    while (pair.server.try_recv({&b, 1}).ok()) {
      ASSERT_OK(pair.server.send({&b, 1}, 5000));
      ++done;
    }
  }
  sender.join();
  EXPECT_GT(slept, 0);
}

TEST(EventQueue, ArmedDescriptorIsRefusedWhileEventsAreThere) {
  StreamPair pair;
  auto queue = must(EventQueue::create(pair.server_context));
  ASSERT_OK(pair.server.register_with(queue, 1));
  EXPECT_TRUE(queue.arm_fd());
  ASSERT_OK(pair.client.send(text("x")));
  EXPECT_FALSE(queue.arm_fd());
  EXPECT_EQ(drain(queue).size(), 1u);
  EXPECT_TRUE(queue.arm_fd());
}

TEST(EventQueue, DisarmedDescriptorIsNotRungAndIsRefusedTheNextTime) {
  Context context = must(Context::create());
  auto queue = must(EventQueue::create(context));
  const auto event = must(queue.add_user(7));
  pollfd p{must(queue.fd()), POLLIN, 0};
  ASSERT_TRUE(queue.arm_fd_for_sleep());
  queue.disarm_fd();
  queue.post_user(event);
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  EXPECT_FALSE(queue.arm_fd_for_sleep());
  Event taken[2];
  EXPECT_EQ(queue.poll(taken), 1u);
  ASSERT_TRUE(queue.arm_fd_for_sleep());
  queue.post_user(event);
  EXPECT_EQ(::poll(&p, 1, 0), 1);
}

TEST(EventQueue, DescriptorMadeBeforeThePeerWasLinkedIsRungToo) {
  auto server = must(Context::create());
  auto queue = must(EventQueue::create(server));
  int fd = must(queue.fd());
  const std::string name = unique_name("late");
  auto listener = must(Listener::create(server, name));
  auto client_context = must(Context::create());
  auto client = must(Stream::connect(client_context, name, 5000));
  auto stream = must(listener.accept(5000));
  ASSERT_OK(stream.register_with(queue, 1));
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event interest{};
  interest.events = EPOLLIN;
  ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &interest), 0);
  for (int i = 0; i < 20; ++i) {
    drain(queue);
    ASSERT_TRUE(queue.arm_fd());
    ASSERT_OK(client.send(text("x")));
    epoll_event ready;
    ASSERT_EQ(::epoll_wait(epoll.get(), &ready, 1, 10'000), 1);
  }
}

// It has armed the descriptor, and does something else: the event is for the thread that waits.
TEST(EventQueue, WakesAThreadThatWaitsBesideOneThatArmedTheDescriptor) {
  auto context = must(Context::create(with_mode(Mode::kSleep)));
  auto queue = must(EventQueue::create(context));
  const std::uint32_t event = must(queue.add_user(7));
  for (const bool asked_before : {false, true}) {
    std::atomic<bool> heard{false};
    std::thread waits([&] {
      Event e;
      auto n = queue.wait({&e, 1}, 30'000);  // and looks once more then
      ASSERT_OK(n);
      EXPECT_EQ(e.tag, 7u);
      heard = true;
    });
    ::usleep(20'000);  // it sleeps by now, most likely
    EXPECT_TRUE(queue.arm_fd());
    queue.post_user(event);
    EXPECT_TRUE(eventually([&] { return heard.load(); })) << asked_before;
    waits.join();
  }
}

TEST(EventQueue, GivesEachEventToOneOfSeveralConsumers) {
  for (Mode mode : {Mode::kAdaptive, Mode::kSleep}) {
    constexpr std::size_t kStreams = 100;
    constexpr int kConsumers = 3;
    StreamPair pair(with_mode(mode, 1024));
    const std::string name = unique_name("consumers");
    auto listener = must(Listener::create(pair.server_context, name));
    auto queue = must(EventQueue::create(pair.server_context));
    std::vector<Stream> clients, servers;
    for (std::size_t i = 0; i < kStreams; ++i) {
      clients.push_back(must(Stream::connect(pair.client_context, name, 5000)));
      servers.push_back(must(listener.accept(5000)));
      ASSERT_OK(servers.back().register_with(queue, i));
    }
    std::vector<std::atomic<int>> heard(kStreams);
    std::atomic<std::size_t> total{0};
    std::atomic<bool> over{false};
    std::vector<std::thread> consumers;
    for (int t = 0; t < kConsumers; ++t) {
      consumers.emplace_back([&] {
        while (!over) {
          Event e;  // room for one: the rest of a word stays for the others
          auto n = queue.wait({&e, 1}, 100);
          if (!n.ok()) continue;
          heard[e.tag]++;
          total++;
        }
      });
    }
    for (int round = 1; round <= 20; ++round) {
      for (auto& client : clients) ASSERT_OK(client.send(text("x"), 5000));
      // Every stream has one event per round: twice would be the same event given to two.
      ASSERT_TRUE(eventually([&] { return total >= kStreams * static_cast<std::size_t>(round); }))
          << total << " in round " << round;
      std::byte buffer[64];
      for (auto& server : servers) {
        while (server.try_recv(buffer).ok()) {
        }
      }
    }
    over = true;
    for (auto& c : consumers) c.join();
    for (auto& h : heard) EXPECT_EQ(h, 20);
  }
}

TEST(EventQueue, LeavesNoEventBehindWhenAConsumerStopsHalfWayThroughAWord) {
  // One consumer takes one of several events and goes away; the sleeping other one must get the
  // rest.
  StreamPair pair(with_mode(Mode::kSleep, 1024));
  const std::string name = unique_name("half-way");
  auto listener = must(Listener::create(pair.server_context, name));
  auto queue = must(EventQueue::create(pair.server_context));
  std::vector<Stream> clients, servers;
  for (std::size_t i = 0; i < 8; ++i) {
    clients.push_back(must(Stream::connect(pair.client_context, name, 5000)));
    servers.push_back(must(listener.accept(5000)));
    ASSERT_OK(servers.back().register_with(queue, i));
  }
  std::byte buffer[64];
  for (int round = 0; round < 300; ++round) {
    std::atomic<std::size_t> heard{0};
    std::thread once([&] {
      Event e;
      while (heard < 8) {
        if (queue.poll({&e, 1}) == 0) continue;
        ++heard;
        break;
      }
    });
    std::thread rest([&] {
      Event e;
      while (heard < 8) {
        auto n = queue.wait({&e, 1}, 3000);
        ASSERT_OK(n) << "slept through an event in round " << round;
        ++heard;
      }
    });
    for (auto& client : clients) ASSERT_OK(client.send(text("x"), 5000));
    once.join();
    if (heard == 8) (void)clients[0].send(text("y"));  // rest may wait for a ninth
    rest.join();
    drain(queue);
    for (auto& server : servers) {
      while (server.try_recv(buffer).ok()) {
      }
    }
    drain(queue);
  }
}

TEST(EventQueue, ExistsFourThousandTimesPerContextAndItsNumberIsUsedAgain) {
  auto context = must(Context::create());
  std::vector<EventQueue> queues;
  for (int i = 0; i < 4096; ++i) queues.push_back(must(EventQueue::create(context)));
  EXPECT_ERR(EventQueue::create(context), ENOSPC);
  queues.erase(queues.begin() + 1000);
  queues.push_back(must(EventQueue::create(context)));
  // The first, the last and the one in between are queues like any other.
  for (EventQueue* queue : {&queues[0], &queues[4094], &queues[4095]}) {
    const std::uint32_t event = must(queue->add_user(7));
    queue->post_user(event);
    Event got[2];
    ASSERT_EQ(queue->poll(got), 1u);
    EXPECT_EQ(got[0].tag, 7u);
  }
}

TEST(EventQueue, UsedAgainHasNoEventsOfItsPredecessor) {
  StreamPair pair;
  {
    auto queue = must(EventQueue::create(pair.server_context));
    ASSERT_OK(pair.server.register_with(queue, 1));
    ASSERT_OK(pair.client.send(text("x")));
    pair.server.unregister();
  }
  auto queue = must(EventQueue::create(pair.server_context));
  EXPECT_TRUE(drain(queue).empty());
  ASSERT_OK(pair.server.register_with(queue, 2));
  EXPECT_EQ(drain(queue), std::vector<std::uint64_t>{2});
}

TEST(EventQueue, MayGoBeforeTheStreamsThatAreRegisteredWithIt) {
  StreamPair pair;
  {
    auto queue = must(EventQueue::create(pair.server_context));
    ASSERT_OK(pair.server.register_with(queue, 1));
  }
  ASSERT_OK(pair.client.send(text("x")));
  EXPECT_EQ(receive_text(pair.server), "x");
  pair.server.unregister();
}

}  // namespace
}  // namespace clan
