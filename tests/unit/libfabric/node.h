// Objects of libfabric for tests, by its public interface alone. A Node is a domain with one
// endpoint and what it needs; two of them in one process are strangers to each other, as two
// processes would be.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace clan::test {

/// 0 or more, or the end of the program: for set-up that is not what a test is about.
template <typename T>
T must(T rc, const char* what) {
  if (rc < 0) {
    std::fprintf(stderr, "test set-up: %s: %s\n", what, fi_strerror(static_cast<int>(-rc)));
    std::abort();
  }
  return rc;
}
#define MUST(call) ::clan::test::must((call), #call)

struct InfoDeleter {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoDeleter>;

struct FidDeleter {
  template <typename T>
  void operator()(T* object) const {
    const int rc = fi_close(&object->fid);
    EXPECT_EQ(rc, 0) << "fi_close: " << fi_strerror(-rc);
  }
};
template <typename T>
using Object = std::unique_ptr<T, FidDeleter>;

inline Info make_hints(fi_ep_type type = FI_EP_RDM, std::uint64_t caps = 0) {
  Info hints(fi_allocinfo());
  hints->fabric_attr->prov_name = ::strdup("clan");
  hints->ep_attr->type = type;
  hints->caps = caps;
  return hints;
}

inline Info get_info(const Info& hints, const char* node = nullptr, const char* service = nullptr,
                     std::uint64_t flags = 0, std::uint32_t version = FI_VERSION(1, 17)) {
  fi_info* info = nullptr;
  return fi_getinfo(version, node, service, flags, hints.get(), &info) == 0 ? Info(info) : nullptr;
}

struct NodeOptions {
  std::uint64_t caps = 0;  ///< 0: all
  std::uint64_t send_bind = FI_TRANSMIT;
  fi_wait_obj wait = FI_WAIT_NONE;
  fi_progress progress = FI_PROGRESS_UNSPEC;
  int mr_mode = 0;
  std::uint16_t port = 0;
  fi_ep_type type = FI_EP_RDM;
  const char* av_name = nullptr;
  std::uint64_t av_flags = 0;
};

class Node {
 public:
  explicit Node(const NodeOptions& options = {}) {
    Info hints = make_hints(options.type, options.caps);
    hints->domain_attr->data_progress = options.progress;
    hints->domain_attr->mr_mode = options.mr_mode;
    const std::string service = std::to_string(options.port);
    info = get_info(hints, "127.0.0.1", service.c_str(), FI_SOURCE);
    if (!info) MUST(-FI_ENODATA);
    fid_fabric* f;
    MUST(fi_fabric(info->fabric_attr, &f, nullptr));
    fabric.reset(f);
    fid_domain* d;
    MUST(fi_domain(f, info.get(), &d, nullptr));
    domain.reset(d);
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_TAGGED;
    cq_attr.wait_obj = options.wait;
    fid_cq* c;
    MUST(fi_cq_open(d, &cq_attr, &c, nullptr));
    cq.reset(c);
    fi_av_attr av_attr{};
    av_attr.type = FI_AV_TABLE;
    av_attr.name = options.av_name;
    av_attr.flags = options.av_flags;
    fid_av* a;
    MUST(fi_av_open(d, &av_attr, &a, nullptr));
    av.reset(a);
    fid_ep* e;
    MUST(fi_endpoint(d, info.get(), &e, nullptr));
    ep.reset(e);
    MUST(fi_ep_bind(e, &c->fid, options.send_bind | FI_RECV));
    MUST(fi_ep_bind(e, &a->fid, 0));
  }

  void enable() { MUST(fi_enable(ep.get())); }

  std::vector<char> name() {
    std::vector<char> address(64);
    std::size_t length = address.size();
    MUST(fi_getname(&ep->fid, address.data(), &length));
    address.resize(length);
    return address;
  }

  fi_addr_t insert(const std::vector<char>& address) {
    fi_addr_t result = FI_ADDR_NOTAVAIL;
    EXPECT_EQ(fi_av_insert(av.get(), address.data(), 1, &result, 0, nullptr), 1);
    return result;
  }

  Info info;
  Object<fid_fabric> fabric;
  Object<fid_domain> domain;
  Object<fid_cq> cq;
  Object<fid_av> av;
  Object<fid_ep> ep;
};

/// Calls both until it is true. False: it took longer than 20 seconds.
inline bool eventually(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
  }
  return true;
}

/// Repeats a call while there is no room or the peer has yet to accept us, and makes progress
/// meanwhile. What it answers in the end; -FI_EAGAIN after a minute.
inline ssize_t sent(const std::function<ssize_t()>& call, Node& node) {
  ssize_t rc = -FI_EAGAIN;
  (void)eventually([&] {
    if ((rc = call()) != -FI_EAGAIN) return true;
    fi_cq_tagged_entry nothing;
    (void)fi_cq_read(node.cq.get(), &nothing, 0);
    return false;
  });
  return rc;
}

/// Two enabled nodes that know each other.
struct Two {
  explicit Two(const NodeOptions& options_a = {}, const NodeOptions& options_b = {})
      : a(options_a), b(options_b) {
    a.enable();
    b.enable();
    to_b = a.insert(b.name());
    to_a = b.insert(a.name());
  }

  /// The next completion of a node, while the other makes progress too. `source` may be null.
  ::testing::AssertionResult completes(Node& node, fi_cq_tagged_entry* entry,
                                       fi_addr_t* source = nullptr) {
    Node& other = &node == &a ? b : a;
    ssize_t n = 0;
    const bool came = eventually([&] {
      fi_cq_tagged_entry nothing;
      (void)fi_cq_read(other.cq.get(), &nothing, 0);
      n = fi_cq_readfrom(node.cq.get(), entry, 1, source);
      return n != -FI_EAGAIN;
    });
    if (!came) return ::testing::AssertionFailure() << "no completion in time";
    if (n == 1) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "fi_cq_read: " << fi_strerror(static_cast<int>(-n));
  }

  /// The next completion, which is an error.
  ::testing::AssertionResult fails(Node& node, fi_cq_err_entry* error) {
    fi_cq_tagged_entry entry;
    if (completes(node, &entry)) return ::testing::AssertionFailure() << "it succeeded";
    *error = {};
    if (fi_cq_readerr(node.cq.get(), error, 0) != 1)
      return ::testing::AssertionFailure() << "no error entry";
    return ::testing::AssertionSuccess();
  }

  /// Lets both work for a while.
  void idle(int times = 200) {
    fi_cq_tagged_entry nothing;
    for (int i = 0; i < times; ++i) {
      (void)fi_cq_read(a.cq.get(), &nothing, 0);
      (void)fi_cq_read(b.cq.get(), &nothing, 0);
    }
  }

  Node a, b;
  fi_addr_t to_a = 0, to_b = 0;
};

/// Memory that this process has. Sanitizers keep more of it than they are asked for.
inline std::size_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long pages = 0, resident = 0;
  if (file == nullptr || std::fscanf(file, "%lu %lu", &pages, &resident) != 2) std::abort();
  std::fclose(file);
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsMemory = false;
#else
inline constexpr bool kCountsMemory = true;
#endif

inline std::vector<char> pattern(std::size_t bytes, unsigned seed) {
  std::vector<char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<char>((i * 31 + (i >> 8) + seed * 17) & 0xff);
  return data;
}

}  // namespace clan::test
