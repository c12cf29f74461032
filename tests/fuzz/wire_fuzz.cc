// Fuzzes an endpoint of the libfabric provider with a peer that speaks its wire and means no good:
// messages of every kind with any numbers, keys and lengths, whole or offered, answers that nobody
// has asked for, introductions as somebody else, access words scribbled on. The endpoint has
// receives, sends and accesses to memory under way. Each operation ends once at most, memory that
// peers may only read stays as it is, and none beside what they may write is touched.
//
// Input: steps. The engine carries the messages, as always; both ends are in this process.
#include <arpa/inet.h>
#include <clan/context.h>
#include <clan/message.h>
#include <netinet/in.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "input.h"
#include "wire/access_word.h"
#include "wire/wire.h"

extern "C" fi_provider* fi_prov_ini(void);

namespace {

using namespace clan::ofi;
using clan::fuzz::Input;
using Bytes = std::vector<std::byte>;

void expect(bool holds) {
  if (!holds) std::abort();
}

template <typename T>
void append(Bytes& to, const T& value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof value);
}

constexpr std::size_t kRegion = 1000;
constexpr std::uint64_t kWritable = 1, kReadable = 2;  ///< keys

/// What stays from one input to the next: a domain with two regions of exactly their size.
struct Domain {
  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_mr* regions[2] = {};
  std::byte* writable = static_cast<std::byte*>(std::calloc(1, kRegion));
  std::byte* readable = static_cast<std::byte*>(std::calloc(1, kRegion));

  Domain() {
    fi_provider* const provider = ::fi_prov_ini();
    fi_info* const hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = 0;
    expect(provider->getinfo(FI_VERSION(1, 17), "127.0.0.1", "0", FI_SOURCE, hints, &info) == 0);
    fi_freeinfo(hints);
    expect(provider->fabric(info->fabric_attr, &fabric, nullptr) == 0);
    expect(fi_domain(fabric, info, &domain, nullptr) == 0);
    expect(fi_mr_reg(domain, writable, kRegion, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, kWritable, 0,
                     &regions[0], nullptr) == 0);
    expect(fi_mr_reg(domain, readable, kRegion, FI_REMOTE_READ, 0, kReadable, 0, &regions[1],
                     nullptr) == 0);
  }
};

/// An endpoint, and what it has under way.
class Victim {
 public:
  explicit Victim(Domain& domain) {
    fi_cq_attr cq{};
    cq.format = FI_CQ_FORMAT_TAGGED;
    expect(fi_cq_open(domain.domain, &cq, &cq_, nullptr) == 0);
    fi_av_attr av{};
    av.type = FI_AV_TABLE;
    expect(fi_av_open(domain.domain, &av, &av_, nullptr) == 0);
    expect(fi_endpoint(domain.domain, domain.info, &ep_, nullptr) == 0);
    expect(fi_ep_bind(ep_, &cq_->fid, FI_TRANSMIT | FI_RECV) == 0);
    expect(fi_ep_bind(ep_, &av_->fid, 0) == 0);
    expect(fi_enable(ep_) == 0);
  }
  ~Victim() {
    expect(fi_close(&ep_->fid) == 0);
    expect(fi_close(&av_->fid) == 0);
    expect(fi_close(&cq_->fid) == 0);
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  std::uint16_t port() {
    sockaddr_in address{};
    std::size_t size = sizeof address;
    expect(fi_getname(&ep_->fid, &address, &size) == 0);
    return ntohs(address.sin_port);
  }
  void know(const sockaddr_in& address) {
    expect(fi_av_insert(av_, &address, 1, &peer_, 0, nullptr) == 1);
  }
  void work(int times) {
    for (int i = 0; i < times; ++i) {
      fi_cq_tagged_entry entry{};
      const ssize_t n = fi_cq_read(cq_, &entry, 1);
      if (n == 1) end(entry.op_context);
      if (n != -FI_EAVAIL) continue;
      fi_cq_err_entry error{};
      if (fi_cq_readerr(cq_, &error, 0) == 1) end(error.op_context);
    }
  }
  /// Starts something. Its buffer is exactly as large as it says, and stays.
  void start(Input& in) {
    Operation& operation = operations_.emplace_back();
    operation.buffer.resize(in.byte() % 4 == 3 ? 9000 + in.byte() : in.byte());
    char* const at = operation.buffer.data();
    const std::size_t n = operation.buffer.size();
    const std::uint64_t key = in.byte() % 4, address = in.byte();
    ssize_t rc = -1;
    switch (in.byte() % 7) {
      case 0: rc = fi_recv(ep_, at, n, nullptr, FI_ADDR_UNSPEC, &operation); break;
      case 1:
        rc = fi_trecv(ep_, at, n, nullptr, FI_ADDR_UNSPEC, key, ~std::uint64_t{3}, &operation);
        break;
      case 2: rc = fi_send(ep_, at, n, nullptr, peer_, &operation); break;
      case 3: {
        const iovec io{at, n};
        const fi_msg message{&io, nullptr, 1, peer_, &operation, 0};
        rc = fi_sendmsg(ep_, &message, FI_DELIVERY_COMPLETE);
        break;
      }
      case 4: rc = fi_write(ep_, at, n, nullptr, peer_, address, key, &operation); break;
      case 5: rc = fi_read(ep_, at, n, nullptr, peer_, address, key, &operation); break;
      default: {
        operation.result.resize(n / 8 * 8);
        rc = fi_fetch_atomic(ep_, at, n / 8, nullptr, operation.result.data(), nullptr, peer_,
                             address, key, FI_UINT64, FI_SUM, &operation);
      }
    }
    operation.under_way = rc == 0;
  }

 private:
  struct Operation {
    std::vector<char> buffer, result;
    bool under_way = false;
  };
  static void end(void* context) {
    if (context == nullptr) return;  // an access that a peer has made
    auto& operation = *static_cast<Operation*>(context);
    expect(std::exchange(operation.under_way, false));
  }

  fid_cq* cq_ = nullptr;
  fid_av* av_ = nullptr;
  fid_ep* ep_ = nullptr;
  fi_addr_t peer_ = FI_ADDR_NOTAVAIL;
  std::deque<Operation> operations_;
};

clan::MessageEndpoint take_any_name(clan::Context& context, std::uint16_t* port) {
  static std::uint16_t next = static_cast<std::uint16_t>(20'000 + ::getpid() % 10'000);
  for (;;) {
    *port = ++next;
    auto made = clan::MessageEndpoint::create(context, "ofi." + std::to_string(next));
    if (made) return std::move(*made);
    expect(made.error().err == EADDRINUSE);
  }
}

class Peer {
 public:
  Peer(Input& in, clan::Context& context) : in_(in), messages_(take_any_name(context, &port_)) {}

  sockaddr_in address() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  bool connect(std::uint16_t port) {
    auto to = messages_.connect("ofi." + std::to_string(port), 5'000);
    if (to) to_ = *to;
    return to.ok();
  }
  void introduce(std::uint16_t as) {
    Hello hello;
    hello.length = sizeof(sockaddr_in);
    sockaddr_in self = address();
    self.sin_port = htons(as);
    std::memcpy(&hello.address, &self, sizeof self);
    Bytes body;
    append(body, hello);
    say(WireHeader{.op = Op::kHello}, body, false);
  }
  std::uint16_t port() const { return port_; }

  /// A message of any kind.
  void speak() {
    WireHeader header;
    header.op = static_cast<Op>(in_.byte() % 16);
    header.flags = in_.byte() % 8;
    header.context = in_.byte() % 4 == 3 ? in_.byte() : 0;
    header.id = in_.byte() % 4 == 3 ? in_.take<std::uint32_t>() : in_.byte() % 8;
    header.tag = in_.byte() % 4 == 3 ? in_.take<std::uint64_t>() : in_.byte() % 4;
    header.data = in_.byte() % 4 == 3 ? in_.take<std::uint64_t>() : in_.byte() * 8u;
    Bytes body;
    add_request(header.op, body);
    const auto more = in_.bytes(in_.byte());
    body.insert(body.end(), more.begin(), more.end());
    const std::uint8_t how = in_.byte();
    if (how % 8 == 6) body.resize(body.size() + 8 * how);
    if (how % 8 == 7) body.resize(body.size() / 2);
    say(header, body, how % 4 == 3);
  }
  /// Reads what has come, scribbles on its word, answers it or leaves it.
  void listen() {
    auto message = messages_.peek();
    if (!message) return;
    WireHeader header;
    const auto head = message->offered ? message->header : message->bytes;
    if (head.size() >= sizeof header) std::memcpy(&header, head.data(), sizeof header);
    const std::uint8_t how = in_.byte();
    if ((header.op == Op::kPut || header.op == Op::kGet) && how % 2 == 1) {
      if (auto* const word = messages_.shared_word(sizeof header))
        word->store(how % 16 == 15 ? in_.take<std::uint64_t>() : in_.byte() % 6);
    }
    if (header.op == Op::kHello) to_ = message->from;
    if (how % 4 < 3) messages_.drop();
    if (how % 8 < 4) return;
    Bytes body;
    if (header.op == Op::kAtomic || header.op == Op::kLongAtomic) append(body, AtomicReply{});
    body.resize(body.size() + in_.byte() * 8u);
    constexpr Op kAnswers[] = {Op::kAck, Op::kAtomicReply, Op::kGetReply, Op::kRmaDone};
    say(WireHeader{.op = kAnswers[in_.byte() % 4], .flags = 0, .id = header.id}, body, false);
  }

 private:
  /// What an honest peer would put there, now and then with something else.
  void add_request(Op op, Bytes& body) {
    if (op == Op::kPut || op == Op::kGet) append(body, AccessWord{in_.byte() % 8u});
    if (op == Op::kGet) append(body, GetRequest{in_.number(64)});
    if (op == Op::kRmaDone) append(body, RmaNotice{in_.byte(), in_.number(64), in_.byte(), 0});
    if (op == Op::kHello) append(body, Hello{});
    if (op == Op::kAtomicReply) append(body, AtomicReply{in_.byte(), 0});
    if (op != Op::kAtomic && op != Op::kLongAtomic) return;
    AtomicRequest request;
    request.address = in_.number(64);
    request.count = static_cast<std::uint32_t>(in_.number(64));
    request.type = in_.byte() % 16;
    request.op = in_.byte() % 24;
    request.kind = in_.byte() % 4;
    append(body, request);
    if (op == Op::kLongAtomic) {
      for (int n = in_.byte() % 6; n > 0; --n)
        append(body, AtomicTarget{in_.number(64), in_.number(64), in_.byte() % 4u});
    }
    body.resize(body.size() + in_.byte() * 8u);
  }
  void say(const WireHeader& header, const Bytes& body, bool offer) {
    Bytes message;
    append(message, header);
    message.insert(message.end(), body.begin(), body.end());
    if (!offer) {
      auto room = messages_.reserve(to_, message.size());
      if (!room) return;
      std::memcpy(room->data(), message.data(), message.size());
      messages_.commit(to_, message.size());
      return;
    }
    Bytes& kept = offered_.emplace_back(body);
    kept.resize(kept.size() + 9000);
    (void)messages_.post(to_, std::as_bytes(std::span(&header, 1)), kept, offered_.size());
  }

  Input& in_;
  std::uint16_t port_ = 0;
  std::deque<Bytes> offered_;  ///< outlive the endpoint that offers them
  clan::MessageEndpoint messages_;
  clan::PeerIndex to_ = 0;
};

void run(Input& in, Domain& domain, clan::Context& context) {
  Victim victim(domain);
  Peer peer(in, context);
  const std::uint8_t begin = in.byte();
  victim.know(peer.address());
  if (peer.connect(victim.port())) {
    if (begin % 8 != 7) peer.introduce(begin % 8 == 6 ? victim.port() : peer.port());
  }
  while (!in.empty()) {
    switch (in.byte() % 8) {
      case 0: victim.start(in); break;
      case 1: peer.listen(); break;
      case 2: victim.work(in.byte() % 8); break;
      default: peer.speak(); break;
    }
  }
  victim.work(16);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Domain& domain = *new Domain;
  static clan::Context& context = *new clan::Context(clan::Context::create().value());
  Input in(data, size);
  run(in, domain, context);
  for (std::size_t i = 0; i < kRegion; ++i) expect(domain.readable[i] == std::byte{0});
  return 0;
}
