// libfabric between two hosts, both ends asleep, beside the rows of clan-net-stream.
//
//   clan-net-ofi serve PATH HOST:PORT
//   clan-net-ofi ping PATH HOST:PORT [BYTES [SECONDS]]
//
// PATH: ofi-sleep (CLAN), ofi-tcp-sleep (tcp;ofi_rxm): in fi_cq_sread(). A library that spins
// before it sleeps would spin through a ping-pong, so each end takes kThink before it sends: by
// then the other one is asleep. What is printed is a round trip less the server's kThink, which it
// measures. ofi-fd, ofi-tcp-fd: in epoll_wait() on the queue's descriptor, behind fi_trywait(). No
// library spins there, so nothing is waited for. net.py runs it.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <sys/epoll.h>

#include "requests.h"

namespace {

using clan::bench::now_ns;

constexpr std::uint64_t kThinkUs = 300;
constexpr int kPatienceMs = 10'000;
constexpr std::size_t kAnswerBytes = 64, kMostBytes = 4096;

[[noreturn]] void fail(const char* what, long rc) {
  clan::bench::give_up(what, fi_strerror(static_cast<int>(-rc)));
}
long must(long rc, const char* what) {
  if (rc < 0) fail(what, rc);
  return rc;
}
#define MUST(call) must(call, #call)

/// The first bytes of each message.
struct Head {
  std::uint64_t thought_ns = 0;  ///< of an answer: what the server took before it
  char name[64] = {};            ///< of a request: where the answer goes
};

class End {
 public:
  End(const std::string& path, const char* node, const char* service, std::uint64_t flags) {
    fi_info* hints = fi_allocinfo();
    const bool tcp = path.find("tcp") != std::string::npos;
    by_descriptor_ = path.ends_with("fd");
    hints->fabric_attr->prov_name = ::strdup(tcp ? "tcp;ofi_rxm" : "clan");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->mode = FI_CONTEXT;
    MUST(fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &info_));
    fi_freeinfo(hints);
    MUST(fi_fabric(info_->fabric_attr, &fabric_, nullptr));
    MUST(fi_domain(fabric_, info_, &domain_, nullptr));
    fi_cq_attr cq{};
    cq.format = FI_CQ_FORMAT_CONTEXT;
    MUST(fi_cq_open(domain_, &cq, &sent_, nullptr));
    cq.wait_obj = by_descriptor_ ? FI_WAIT_FD : FI_WAIT_UNSPEC;
    MUST(fi_cq_open(domain_, &cq, &received_, nullptr));
    if (by_descriptor_) watch();
    fi_av_attr av{};
    av.type = FI_AV_TABLE;
    MUST(fi_av_open(domain_, &av, &av_, nullptr));
    MUST(fi_endpoint(domain_, info_, &ep_, nullptr));
    MUST(fi_ep_bind(ep_, &av_->fid, 0));
    MUST(fi_ep_bind(ep_, &sent_->fid, FI_TRANSMIT));
    MUST(fi_ep_bind(ep_, &received_->fid, FI_RECV));
    MUST(fi_enable(ep_));
    post();
  }
  fi_addr_t server() { return insert(info_->dest_addr); }
  fi_addr_t insert(const void* name) {
    fi_addr_t to = FI_ADDR_NOTAVAIL;
    if (fi_av_insert(av_, name, 1, &to, 0, nullptr) != 1) fail("fi_av_insert", 0);
    return to;
  }
  Head& out() { return *reinterpret_cast<Head*>(out_.data()); }
  void name_yourself() {
    std::size_t size = sizeof out().name;
    MUST(fi_getname(&ep_->fid, out().name, &size));
  }
  void send(fi_addr_t to, std::size_t bytes) {
    for (;;) {
      const long rc = fi_send(ep_, out_.data(), bytes, nullptr, to, &send_context_);
      if (rc != -FI_EAGAIN) {
        must(rc, "fi_send");
        break;
      }
      (void)fi_cq_read(received_, nullptr, 0);
    }
    fi_cq_entry entry;
    for (long n = -FI_EAGAIN; n == -FI_EAGAIN;) {
      n = fi_cq_read(sent_, &entry, 1);
      if (n != -FI_EAGAIN) must(n, "a message was not sent");
    }
  }
  /// What an end takes before it sends, where libraries may spin.
  void think() const {
    if (!by_descriptor_) ::usleep(kThinkUs);
  }
  /// Asleep. The buffer is used again by the next call.
  const Head& receive(int patience_ms) {
    if (by_descriptor_) {
      receive_by_descriptor(patience_ms);
    } else {
      fi_cq_entry entry;
      must(fi_cq_sread(received_, &entry, 1, nullptr, patience_ms), "fi_cq_sread");
    }
    got_.swap(in_);
    post();
    return *reinterpret_cast<const Head*>(got_.data());
  }

 private:
  void watch() {
    int fd = -1;
    MUST(fi_control(&received_->fid, FI_GETWAIT, &fd));
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll", -errno);
  }
  // As fabtests do.
  void receive_by_descriptor(int patience_ms) {
    fid* fids[] = {&received_->fid};
    for (;;) {
      fi_cq_entry entry;
      const long n = fi_cq_read(received_, &entry, 1);
      if (n == 1) return;
      if (n != -FI_EAGAIN) fail("fi_cq_read", n);
      const int rc = fi_trywait(fabric_, fids, 1);
      if (rc == -FI_EAGAIN) continue;
      must(rc, "fi_trywait");
      epoll_event event{};
      if (::epoll_wait(epoll_, &event, 1, patience_ms) == 0) fail("epoll_wait", -FI_ETIMEDOUT);
    }
  }
  void post() {
    must(fi_recv(ep_, in_.data(), in_.size(), nullptr, FI_ADDR_UNSPEC, &receive_context_),
         "fi_recv");
  }
  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_cq *sent_ = nullptr, *received_ = nullptr;
  fid_av* av_ = nullptr;
  fid_ep* ep_ = nullptr;
  bool by_descriptor_ = false;
  int epoll_ = -1;
  fi_context2 send_context_{}, receive_context_{};
  std::vector<std::byte> out_ = std::vector<std::byte>(kMostBytes), in_ = out_, got_ = out_;
};

void serve(const std::string& path, const std::string& host, const std::string& port) {
  End end(path, host.c_str(), port.c_str(), FI_SOURCE);
  fi_addr_t to = FI_ADDR_NOTAVAIL;
  for (;;) {
    const Head& request = end.receive(-1);
    const std::uint64_t came = now_ns();
    if (to == FI_ADDR_NOTAVAIL) to = end.insert(request.name);
    end.think();
    end.out().thought_ns = now_ns() - came;
    end.send(to, kAnswerBytes);
  }
}

void ping(const std::string& path, const std::string& host, const std::string& port,
          std::size_t bytes, double seconds) {
  End end(path, host.c_str(), port.c_str(), 0);
  const fi_addr_t to = end.server();
  end.name_yourself();
  end.send(to, sizeof(Head));
  (void)end.receive(kPatienceMs);
  rusage before;
  (void)::getrusage(RUSAGE_SELF, &before);
  std::vector<std::uint64_t> trips;
  for (const auto until = now_ns() + static_cast<std::uint64_t>(seconds * 1e9); now_ns() < until;) {
    end.think();
    const std::uint64_t begin = now_ns();
    end.send(to, bytes);
    const std::uint64_t thought = end.receive(kPatienceMs).thought_ns;
    trips.push_back(now_ns() - begin - thought);
  }
  rusage after;
  (void)::getrusage(RUSAGE_SELF, &after);
  const auto n = static_cast<double>(trips.size());
  clan::bench::print_round_trips(std::move(trips));
  // The wait before each request is one.
  const double sleeps = static_cast<double>(after.ru_nvcsw - before.ru_nvcsw);
  std::printf("  %.2f sleeps of all threads for one\n",
              sleeps / n - (path.ends_with("fd") ? 0 : 1));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string to = argc > 3 ? argv[3] : "";
  const auto colon = to.rfind(':');
  if (colon == std::string::npos) {
    std::fprintf(stderr, "usage: %s serve|ping PATH HOST:PORT [BYTES [SECONDS]]\n", argv[0]);
    return 2;
  }
  const std::string host = to.substr(0, colon), port = to.substr(colon + 1);
  if (std::strcmp(argv[1], "serve") == 0) serve(argv[2], host, port);
  const std::size_t bytes = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 64;
  ping(argv[2], host, port, std::clamp<std::size_t>(bytes, 8, kMostBytes),
       argc > 5 ? std::atof(argv[5]) : 1);
  clan::bench::print_processor_time();
  return 0;
}
