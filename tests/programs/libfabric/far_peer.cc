// Two ends of a libfabric program on two hosts, with checked data.
//
//   ofi-far-peer serve PORT            says "ready"; answers until it is killed
//   ofi-far-peer ask PORT HOST...      messages, RMA and atomic operations with each host in turns,
//                                      by one endpoint; says "right, N checks"
//   ofi-far-peer use PORT HOST         sends and reads until that fails; says why
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kRegion = 4 << 20;
constexpr std::uint64_t kKey = 77, kReadOnlyKey = 78;
constexpr std::uint64_t kCommandTag = 1, kAnswerTag = 2, kDataTag = 1000;
constexpr int kWords = 700;

int checks = 0;

[[noreturn]] void end(const char* what, long rc) {
  std::printf("%s: %s\n", what, rc < 0 ? fi_strerror(static_cast<int>(-rc)) : "wrong");
  std::fflush(stdout);
  std::_Exit(1);
}
void must(long rc, const char* what) {
  if (rc < 0) end(what, rc);
}
void check(bool right, const char* what) {
  if (!right) end(what, 0);
  ++checks;
}

std::uint8_t byte_at(std::uint64_t seed, std::size_t i) {
  return static_cast<std::uint8_t>((seed * 0x9e3779b97f4a7c15u + i * 167u) >> 13 ^ i);
}
void fill(void* at, std::size_t n, std::uint64_t seed) {
  for (std::size_t i = 0; i < n; ++i) static_cast<std::uint8_t*>(at)[i] = byte_at(seed, i);
}
bool filled(const void* at, std::size_t n, std::uint64_t seed) {
  for (std::size_t i = 0; i < n; ++i)
    if (static_cast<const std::uint8_t*>(at)[i] != byte_at(seed, i)) return false;
  return true;
}

/// What a client asks a server for.
struct Command {
  enum What : std::uint64_t { kHello, kEcho, kCompare, kWordsAre, kSumsAre, kData };
  What what = kHello;
  std::uint64_t length = 0, offset = 0, seed = 0;
  char name[64] = {};
};

class Peer {
 public:
  Peer(const char* node, const char* service, std::uint64_t flags) {
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = ::strdup("clan");
    must(fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &info_), "fi_getinfo");
    fi_freeinfo(hints);
    must(fi_fabric(info_->fabric_attr, &fabric_, nullptr), "fi_fabric");
    must(fi_domain(fabric_, info_, &domain_, nullptr), "fi_domain");
    fi_cq_attr cq{};
    cq.format = FI_CQ_FORMAT_DATA;
    must(fi_cq_open(domain_, &cq, &cq_, nullptr), "fi_cq_open");
    fi_av_attr av{};
    av.type = FI_AV_TABLE;
    must(fi_av_open(domain_, &av, &av_, nullptr), "fi_av_open");
    must(fi_endpoint(domain_, info_, &ep_, nullptr), "fi_endpoint");
    must(fi_ep_bind(ep_, &cq_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    must(fi_ep_bind(ep_, &av_->fid, 0), "fi_ep_bind");
    must(fi_enable(ep_), "fi_enable");
    region.resize(kRegion);
    share(kKey, FI_REMOTE_READ | FI_REMOTE_WRITE);
    share(kReadOnlyKey, FI_REMOTE_READ);
  }

  fi_addr_t insert(const void* address) {
    fi_addr_t at = FI_ADDR_NOTAVAIL;
    if (fi_av_insert(av_, address, 1, &at, 0, nullptr) != 1) end("fi_av_insert", 0);
    return at;
  }
  fi_addr_t insert(const char* node, const char* service) {
    fi_addr_t at = FI_ADDR_NOTAVAIL;
    if (fi_av_insertsvc(av_, node, service, &at, 0, nullptr) != 1) end("fi_av_insertsvc", 0);
    return at;
  }
  void name(char (&to)[64]) {
    std::size_t length = sizeof to;
    must(fi_getname(&ep_->fid, to, &length), "fi_getname");
  }

  /// Until it is not -FI_EAGAIN, with progress in between.
  template <typename Call>
  long again(Call&& call) {
    for (;;) {
      const long rc = call();
      if (rc != -FI_EAGAIN) return rc;
      progress();
    }
  }
  void progress() {
    fi_cq_data_entry entry;
    const ssize_t n = fi_cq_read(cq_, &entry, 1);
    if (n == -FI_EAGAIN) return;
    if (n == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      fi_cq_readerr(cq_, &error, 0);
      error_ = error.err;
      if (error.op_context != nullptr) *static_cast<int*>(error.op_context) = -error.err;
      return;
    }
    must(n, "fi_cq_read");
    if ((entry.flags & FI_REMOTE_CQ_DATA) != 0 && (entry.flags & FI_RMA) != 0) {
      ++data_seen;
      data_last = entry.data;
    }
    if (entry.op_context != nullptr) *static_cast<int*>(entry.op_context) = 1;
  }
  /// 1, or why it has failed.
  int wait(const int& done) {
    while (done == 0) progress();
    return done;
  }
  void send(fi_addr_t to, const void* bytes, std::size_t n, std::uint64_t tag) {
    int done = 0;
    must(again([&] { return fi_tsend(ep_, bytes, n, nullptr, to, tag, &done); }), "fi_tsend");
    if (int rc = wait(done); rc < 0) end("fi_tsend", rc);
  }
  void receive(fi_addr_t from, void* bytes, std::size_t n, std::uint64_t tag) {
    int done = 0;
    must(again([&] { return fi_trecv(ep_, bytes, n, nullptr, from, tag, 0, &done); }), "fi_trecv");
    if (int rc = wait(done); rc < 0) end("fi_trecv", rc);
  }
  int access(bool write, fi_addr_t to, void* bytes, std::size_t n, std::uint64_t offset,
             std::uint64_t key = kKey) {
    int done = 0;
    const long rc = again([&] {
      return write ? fi_write(ep_, bytes, n, nullptr, to, offset, key, &done)
                   : fi_read(ep_, bytes, n, nullptr, to, offset, key, &done);
    });
    return rc != 0 ? static_cast<int>(rc) : wait(done);
  }
  fid_ep* ep() const { return ep_; }
  fi_info* info() const { return info_; }
  int error() const { return error_; }

  std::vector<std::uint8_t> region;
  int data_seen = 0;
  std::uint64_t data_last = 0;

 private:
  void share(std::uint64_t key, std::uint64_t access) {
    fid_mr* mr;
    must(fi_mr_reg(domain_, region.data(), region.size(), access, 0, key, 0, &mr, nullptr),
         "fi_mr_reg");
  }
  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_cq* cq_ = nullptr;
  fid_av* av_ = nullptr;
  fid_ep* ep_ = nullptr;
  int error_ = 0;
};

// --- the server ----------------------------------------------------------------------------------

std::uint64_t answer_of(Peer& peer, const Command& command, fi_addr_t client) {
  switch (command.what) {
    case Command::kEcho: {
      std::vector<std::uint8_t> bytes(command.length);
      peer.receive(client, bytes.data(), bytes.size(), command.seed);
      peer.send(client, bytes.data(), bytes.size(), command.seed);
      return 1;
    }
    case Command::kCompare:
      return filled(peer.region.data() + command.offset, command.length, command.seed);
    case Command::kWordsAre:
    case Command::kSumsAre: {
      std::uint64_t right = 0;
      for (std::size_t i = 0; i < command.length; ++i) {
        std::uint64_t word;
        std::memcpy(&word, peer.region.data() + command.offset + i * sizeof word, sizeof word);
        right += word == command.seed + (command.what == Command::kWordsAre ? i : 0);
      }
      return right == command.length;
    }
    case Command::kData: return peer.data_seen == 1 && peer.data_last == command.seed;
    default: return 1;
  }
}

int serve(const char* port) {
  Peer peer(nullptr, port, FI_SOURCE);
  std::puts("ready");
  std::fflush(stdout);
  fi_addr_t client = FI_ADDR_UNSPEC;
  for (;;) {
    Command command;
    peer.receive(FI_ADDR_UNSPEC, &command, sizeof command, kCommandTag);
    if (command.what == Command::kHello) {
      client = peer.insert(command.name);
      peer.data_seen = 0;
      std::fill(peer.region.begin(), peer.region.end(), std::uint8_t{0});
    }
    const std::uint64_t answer = answer_of(peer, command, client);
    peer.send(client, &answer, sizeof answer, kAnswerTag);
  }
}

// --- the client ----------------------------------------------------------------------------------

bool ask(Peer& peer, fi_addr_t server, const Command& command) {
  std::uint64_t answer = 0;
  peer.send(server, &command, sizeof command, kCommandTag);
  peer.receive(server, &answer, sizeof answer, kAnswerTag);
  return answer == 1;
}

void messages(Peer& peer, fi_addr_t server) {
  for (std::size_t n : {0u, 1u, 32u, 4096u, 16'384u, 65'537u, 1'000'000u, 3'000'001u}) {
    const std::uint64_t tag = kDataTag + n;
    Command echo{Command::kEcho, n, 0, tag};
    peer.send(server, &echo, sizeof echo, kCommandTag);
    std::vector<std::uint8_t> out(n), in(n);
    fill(out.data(), n, n);
    peer.send(server, out.data(), n, tag);
    peer.receive(server, in.data(), n, tag);
    std::uint64_t answer = 0;
    peer.receive(server, &answer, sizeof answer, kAnswerTag);
    check(answer == 1 && filled(in.data(), n, n), "an echo");
  }
}

void memory(Peer& peer, fi_addr_t server) {
  std::vector<std::uint8_t> out(kRegion), in(kRegion);
  for (std::size_t n : {1u, 8u, 300u, 8192u, 8193u, 100'000u, 1'500'000u}) {
    const std::uint64_t offset = n % 1000;
    fill(out.data(), n, n + 1);
    check(peer.access(true, server, out.data(), n, offset) == 1, "a write");
    check(ask(peer, server, {Command::kCompare, n, offset, n + 1}), "what was written");
    std::fill(in.begin(), in.end(), std::uint8_t{0});
    check(peer.access(false, server, in.data(), n, offset) == 1, "a read");
    check(filled(in.data(), n, n + 1), "what was read");
  }
  // Many under way at once; a message sent behind them finds them made.
  std::vector<std::uint64_t> words(kWords);
  std::vector<int> done(kWords);
  for (int i = 0; i < kWords; ++i) {
    words[static_cast<std::size_t>(i)] = 5000 + static_cast<std::uint64_t>(i);
    must(peer.again([&] {
      const auto at = static_cast<std::size_t>(i);
      return fi_write(peer.ep(), &words[at], sizeof words[at], nullptr, server,
                      at * sizeof words[at], kKey, &done[at]);
    }),
         "fi_write");
  }
  check(ask(peer, server, {Command::kWordsAre, kWords, 0, 5000}), "many small writes");
  for (int& one : done) check(peer.wait(one) == 1, "a small write");
  std::uint64_t word = 4711;
  must(peer.again([&] { return fi_inject_write(peer.ep(), &word, sizeof word, server, 0, kKey); }),
       "fi_inject_write");
  word = 0;
  check(ask(peer, server, {Command::kWordsAre, 1, 0, 4711}), "an injected write");
  int told = 0;
  must(peer.again([&] {
    return fi_writedata(peer.ep(), &word, sizeof word, nullptr, 99, server, 0, kKey, &told);
  }),
       "fi_writedata");
  check(ask(peer, server, {Command::kData, 0, 0, 99}), "remote CQ data");
  check(peer.wait(told) == 1, "fi_writedata");
  // What is not allowed.
  check(peer.access(true, server, &word, sizeof word, kRegion - 4) == -FI_EINVAL, "beyond the end");
  check(peer.access(true, server, &word, sizeof word, 0, kReadOnlyKey) == -FI_EACCES, "read only");
  check(peer.access(false, server, &word, sizeof word, 0, 123) == -FI_ENOKEY, "an unknown key");
}

void atomics(Peer& peer, fi_addr_t server) {
  const std::uint64_t offset = 3 << 20, one = 1;
  for (std::uint64_t i = 0; i < 100; ++i) {
    std::uint64_t found = 0;
    int done = 0;
    must(peer.again([&] {
      return fi_fetch_atomic(peer.ep(), &one, 1, nullptr, &found, nullptr, server, offset, kKey,
                             FI_UINT64, FI_SUM, &done);
    }),
         "fi_fetch_atomic");
    check(peer.wait(done) == 1 && found == i, "fetch and add");
  }
  std::uint64_t found = 0, wanted = 100, swap = 9;
  int done = 0;
  must(peer.again([&] {
    return fi_compare_atomic(peer.ep(), &swap, 1, nullptr, &wanted, nullptr, &found, nullptr,
                             server, offset, kKey, FI_UINT64, FI_CSWAP, &done);
  }),
       "fi_compare_atomic");
  check(peer.wait(done) == 1 && found == 100, "compare and swap");
  // More than a message takes, behind a write.
  constexpr std::size_t kMany = 60'000;
  std::vector<std::uint64_t> two(kMany, 2), before(kMany);
  check(peer.access(true, server, two.data(), kMany * 8, offset) == 1, "a write");
  done = 0;
  must(peer.again([&] {
    return fi_fetch_atomic(peer.ep(), two.data(), kMany, nullptr, before.data(), nullptr, server,
                           offset, kKey, FI_UINT64, FI_SUM, &done);
  }),
       "a long fi_fetch_atomic");
  check(peer.wait(done) == 1 && before == two, "a long atomic operation");
  check(ask(peer, server, {Command::kSumsAre, kMany, offset, 4}), "its sums");
}

int ask_all(const char* port, const std::vector<const char*>& hosts) {
  Peer peer(hosts[0], port, 0);
  std::vector<fi_addr_t> servers;
  for (const char* host : hosts) {
    servers.push_back(peer.insert(host, port));
    Command hello;
    peer.name(hello.name);
    check(ask(peer, servers.back(), hello), "hello");
  }
  for (auto* step : {&messages, &memory, &atomics}) {
    for (fi_addr_t server : servers) step(peer, server);
  }
  std::printf("right, %d checks\n", checks);
  return 0;
}

int use_until_it_fails(const char* port, const char* host) {
  Peer peer(host, port, 0);
  const fi_addr_t server = peer.insert(host, port);
  Command hello;
  peer.name(hello.name);
  int rc = 0;
  const auto send = [&] {
    int done = 0;
    rc = static_cast<int>(peer.again(
        [&] { return fi_tsend(peer.ep(), &hello, sizeof hello, nullptr, server, 1, &done); }));
    if (rc == 0) rc = peer.wait(done);
    return rc == 1;
  };
  if (send()) {
    std::puts("connected"), std::fflush(stdout);
    while ((rc = peer.access(false, server, peer.region.data(), 100'000, 0)) == 1) {
    }
    std::printf("read failed: %s\n", fi_strerror(-rc));
    while (send()) {
    }
  }
  std::printf("send failed: %s\n", fi_strerror(-rc));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  if (what == "serve" && argc == 3) return serve(argv[2]);
  if (what == "ask" && argc > 3)
    return ask_all(argv[2], std::vector<const char*>(argv + 3, argv + argc));
  if (what == "use" && argc == 4) return use_until_it_fails(argv[2], argv[3]);
  std::fprintf(stderr, "ofi-far-peer serve PORT | ask PORT HOST... | use PORT HOST\n");
  return 2;
}
