// The transport under every kind of bad path, by seeds: each byte exactly once and in order, no
// deadlock, bounded memory, bounded time after healing.
//
// CLAN_UDP_SEEDS=100000 runs more; CLAN_UDP_SEED=17 runs one and says what it does.
#include "udp/simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace clan::test {
namespace {

using udp::kMillisecond;
using udp::kSecond;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// A path of moderate to terrible quality.
PathModel bad_path(Random& r) {
  PathModel p;
  const std::uint64_t delays[] = {5'000, 20'000, 100'000, 1'000'000, 20'000'000};
  p.delay = delays[r.below(5)];
  if (r.below(2) == 0) p.jitter = r.below(2 * p.delay + 1);
  const std::uint64_t losses[] = {0, 0, 1'000, 10'000, 50'000, 100'000, 300'000};
  p.loss_ppm = losses[r.below(7)];
  if (r.below(3) == 0) p.copy_ppm = 1 + r.below(200'000);
  if (r.below(3) == 0) p.damage_ppm = 1 + r.below(50'000);
  if (r.below(4) == 0) p.burst_ppm = 1 + r.below(5'000), p.burst_packets = 1 + r.below(100);
  const std::uint64_t rates[] = {0, 0, 1'250'000, 12'500'000, 125'000'000, 1'250'000'000};
  p.bytes_per_second = rates[r.below(6)];
  p.queue_bytes = 20'000 + r.below(500'000);
  const std::size_t mtus[] = {1200, 1300, 1452, 1472, 8952, 65'535};
  p.mtu = mtus[r.below(6)];
  return p;
}

Traffic some_traffic(Random& r) {
  Traffic t;
  t.seed = r.next();
  for (std::uint32_t& n : t.messages)
    n = static_cast<std::uint32_t>(r.below(2) == 0 ? 0 : r.below(60));
  t.messages[3] = static_cast<std::uint32_t>(r.below(8));
  t.interval = 10'000 + r.below(2'000'000);
  return t;
}

udp::Options some_options(Random& r) {
  udp::Options o;
  o.handshake = 30 * kSecond;  // tests of their own check time-outs
  if (r.below(3) == 0) {
    for (std::uint64_t& c : o.credit) c = 4096 + r.below(300'000);
  }
  if (r.below(4) == 0) o.packet_window = 2 + static_cast<std::uint32_t>(r.below(100));
  return o;
}

std::string describe(Network& n) {
  std::string s;
  for (std::size_t i = 0; i < n.nodes(); ++i) {
    for (auto& t : n.node(i).talks()) {
      s += "  node " + std::to_string(i) + (t->client ? " client" : " server") + " of " +
           std::to_string(t->peer) + (t->established ? "" : " not established") +
           (t->down ? " down " + std::to_string(t->err) : "");
      for (std::size_t c = 0; c < udp::kChannels; ++c) {
        s += " | in " + std::to_string(t->next_in[c]) + "/" + std::to_string(t->in.messages[c]) +
             " out " + std::to_string(t->next_out[c]) + "/" + std::to_string(t->out.messages[c]);
      }
      s += "\n";
    }
  }
  const NetworkCounters& c = n.counters();
  return s + "  at " + std::to_string(n.now() / 1000) + " us: " + std::to_string(c.sent) +
         " sent, " + std::to_string(c.delivered) + " delivered, " + std::to_string(c.lost) +
         " lost, " + std::to_string(c.too_big) + " too big, " + std::to_string(c.queue_full) +
         " no room";
}

bool all_done(Network& n) {
  bool any = false;
  for (std::size_t i = 0; i < n.nodes(); ++i) {
    if (n.node(i).busy()) return false;
    any |= !n.node(i).talks().empty();
  }
  return any;
}

// Runs `scenario` for seeds first, first + 1, ...; it returns what went wrong, or "".
template <typename Scenario>
void for_seeds(std::uint64_t first, std::uint64_t count, Scenario&& scenario) {
  const std::uint64_t one = from_environment("CLAN_UDP_SEED", 0);
  count = count * from_environment("CLAN_UDP_SEEDS", 1000) / 1000;
  for (std::uint64_t s = first; s < first + count; ++s) {
    const std::uint64_t seed = one != 0 ? one : s;
    const std::string problem = scenario(seed);
    ASSERT_EQ(problem, "") << "seed " << seed << "; again: CLAN_UDP_SEED=" << seed
                           << " and --gtest_filter of this test";
    if (one != 0) return;
  }
}

// Two nodes, or a few, over bad paths that change; at the end they heal and everything must be
// there soon.
std::string bad_weather(std::uint64_t seed) {
  Network n(seed);
  Random r(mix(seed));
  const std::size_t nodes = r.below(4) == 0 ? 3 + r.below(4) : 2;
  for (std::size_t i = 0; i < nodes; ++i) n.add_node(some_options(r));
  for (std::size_t a = 0; a < nodes; ++a) {
    for (std::size_t b = 0; b < nodes; ++b) n.path(a, b) = bad_path(r);
  }
  for (std::size_t i = 1; i < nodes; ++i) {
    n.node(i).connect(r.below(i), some_traffic(r), some_traffic(r));
  }
  auto done = [&] { return all_done(n); };
  for (std::uint64_t changes = r.below(4); changes > 0; --changes) {
    if (n.run(n.now() + r.below(200 * kMillisecond), done, 16)) break;
    const std::size_t a = r.below(nodes), b = r.below(nodes);
    n.path(a, b) = bad_path(r);
    if (r.below(3) == 0) n.path(a, b).cut = true;  // one direction, for up to 2 s
    if (n.run(n.now() + r.below(2 * kSecond), done, 16)) break;
    n.path(a, b).cut = false;
  }
  if (!n.run(n.now() + 4 * kSecond, done, 16) && n.problem().empty()) {
    PathModel healed;
    healed.delay = 100'000;
    healed.bytes_per_second = 12'500'000;
    healed.mtu = 1200;
    n.set_all_paths(healed);
    if (!n.run(n.now() + 8 * kSecond, done, 16))
      n.report("not finished 8 s after the paths healed");
  }
  for (std::size_t i = 0; i < nodes; ++i) {
    for (auto& t : n.node(i).talks()) {
      if (t->down && n.problem().empty())
        n.report("a connection ended with " + std::to_string(t->err));
    }
  }
  return n.problem().empty() ? "" : n.problem() + "\n" + describe(n);
}

TEST(Simulation, EveryByteComesOnceAndInOrderOverBadPaths) { for_seeds(1, 2000, bad_weather); }

// Clients of one server, restarts at any moment, cuts that outlast every patience. An end that
// loses its connection makes another; after the last trouble all must have been served soon.
class Troubles {
 public:
  explicit Troubles(std::uint64_t seed) : n_(seed), r_(mix(seed + 77)), clients_(1 + r_.below(4)) {
    for (std::size_t i = 0; i <= clients_; ++i) n_.add_node(some_options(r_));
    PathModel p = bad_path(r_);
    p.loss_ppm = std::min<std::uint64_t>(p.loss_ppm, 50'000);
    p.bytes_per_second = 12'500'000;
    n_.set_all_paths(p);
  }

  std::string run() {
    for (std::uint64_t left = 1 + r_.below(5); left > 0; --left) {
      go_on_for(r_.below(300 * kMillisecond));
      const std::size_t a = r_.below(clients_ + 1), b = r_.below(clients_ + 1);
      if (r_.below(2) == 0) {
        n_.node(a).restart();
      } else {
        n_.path(a, b).cut = n_.path(b, a).cut = true;
        go_on_for(r_.below(r_.below(3) == 0 ? 40 * kSecond : kSecond));
        n_.path(a, b).cut = n_.path(b, a).cut = false;
      }
    }
    PathModel healed;
    healed.mtu = 1200;
    healed.bytes_per_second = 12'500'000;
    n_.set_all_paths(healed);
    // At worst a client waits until it knows that the server has forgotten it, and begins again.
    const std::uint64_t end = n_.now() + 30 * kSecond;
    while (!served() && n_.now() < end && n_.problem().empty()) go_on_for(20 * kMillisecond);
    if (!served()) n_.report("not all clients were served 30 s after the last trouble");
    for (std::size_t i = 0; i <= clients_; ++i) {
      if (n_.node(i).most_memory() > 16 << 20) n_.report("a node took more than 16 MB");
    }
    return n_.problem().empty() ? "" : n_.problem() + "\n" + describe(n_);
  }

 private:
  bool served() {
    for (std::size_t i = 1; i <= clients_; ++i) {
      auto& talks = n_.node(i).talks();
      if (talks.empty() || !talks.back()->received_all() || !talks.back()->sent_all()) return false;
    }
    return true;
  }
  void go_on_for(std::uint64_t ns) {
    const std::uint64_t end = n_.now() + ns;
    do {
      for (std::size_t i = 1; i <= clients_; ++i) {
        auto& talks = n_.node(i).talks();
        const bool done =
            !talks.empty() && talks.back()->received_all() && talks.back()->sent_all();
        if (talks.empty() || (talks.back()->down && !done))
          n_.node(i).connect(0, some_traffic(r_), some_traffic(r_));
      }
      n_.run_for(std::min<std::uint64_t>(20 * kMillisecond, end - n_.now()));
    } while (n_.now() < end && n_.problem().empty());
  }

  Network n_;
  Random r_;
  std::size_t clients_;
};

TEST(Simulation, RestartsAndLongCutsEndInConnectionsThatWork) {
  for_seeds(1, 1000, [](std::uint64_t seed) { return Troubles(seed).run(); });
}

// 1,000 senders at once through one port of 10 Gbit/s with a queue of 1 MB.
TEST(Simulation, AThousandSendersShareAPort) {
  constexpr std::size_t kSenders = 1000;
  Network n(11);
  n.add_node({});
  PathModel p;
  p.delay = 20'000;
  p.mtu = 1472;
  Traffic t, nothing;
  t.messages[0] = 20;
  t.messages[3] = 3;
  t.most_bytes[3] = 50'000;
  for (std::uint32_t& m : nothing.messages) m = 0;
  for (std::size_t i = 1; i <= kSenders; ++i) n.add_node({});
  n.set_all_paths(p);
  n.share_arrivals(0, 1'250'000'000, 1 << 20);
  for (std::size_t i = 1; i <= kSenders; ++i) {
    t.seed = i;
    nothing.seed = i + 100'000;
    n.node(i).connect(0, t, nothing);
  }
  const bool done = n.run(
      20 * kSecond,
      [&] {
        for (std::size_t i = 1; i <= kSenders; ++i) {
          if (n.node(i).busy()) return false;
        }
        return true;
      },
      32);
  EXPECT_TRUE(done) << n.now();
  EXPECT_EQ(n.problem(), "");
  EXPECT_LT(n.now(), 5 * kSecond);
  std::size_t ended = 0;
  for (auto& talk : n.node(0).talks()) ended += talk->received_all();
  EXPECT_EQ(ended, kSenders);
  EXPECT_LT(n.node(0).most_memory(), std::int64_t{kSenders} * 64 * 1024);
}

// Ten connections through one bottleneck: Jain's index of what they carry in a second.
TEST(Simulation, TenConnectionsShareAPortFairly) {
  constexpr std::size_t kSenders = 10;
  Network n(12);
  PathModel p;
  p.delay = 200'000;
  p.mtu = 1472;
  for (std::size_t i = 0; i <= kSenders; ++i) n.add_node({});
  n.set_all_paths(p);
  n.share_arrivals(0, 125'000'000, 1 << 20);
  Traffic t, nothing;
  t.messages[0] = 0;
  t.messages[3] = 100'000;
  t.interval = 50'000;
  for (std::uint32_t& m : nothing.messages) m = 0;
  for (std::size_t i = 1; i <= kSenders; ++i) {
    t.seed = i;
    nothing.seed = i + 100;
    n.node(i).connect(0, t, nothing);
    n.run_for(20 * kMillisecond);  // the later ones find a full path
  }
  n.run_for(500 * kMillisecond);
  std::uint64_t before[kSenders], sum = 0;
  double squares = 0;
  for (std::size_t i = 0; i < kSenders; ++i) {
    before[i] = n.node(i + 1).talks()[0]->connection->counters().bytes_sent;
  }
  n.run_for(kSecond);
  for (std::size_t i = 0; i < kSenders; ++i) {
    const std::uint64_t got =
        n.node(i + 1).talks()[0]->connection->counters().bytes_sent - before[i];
    sum += got;
    squares += static_cast<double>(got) * static_cast<double>(got);
  }
  const double jain = static_cast<double>(sum) * static_cast<double>(sum) / (kSenders * squares);
  EXPECT_EQ(n.problem(), "");
  EXPECT_GT(sum, 125'000'000 * 8 / 10);
  EXPECT_GE(jain, 0.97);
  RecordProperty("jain", std::to_string(jain));
}

}  // namespace
}  // namespace clan::test
