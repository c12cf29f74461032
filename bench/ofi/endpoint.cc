#include "endpoint.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <array>

namespace clan::bench::ofi {
namespace {

constexpr std::uint64_t kTag = 0x10;

std::uint64_t capabilities(std::string_view family) {
  if (family == "tagged") return FI_TAGGED;
  if (family == "rma") return FI_MSG | FI_RMA;
  if (family == "atomic") return FI_MSG | FI_ATOMIC;
  return FI_MSG;
}

}  // namespace

Endpoint::Endpoint(const Channel& channel) : channel_(channel) {
  for (std::uint8_t** buffer : {&out_, &in_}) {
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(4096, kMostBytes));
    if (*buffer == nullptr) give_up("buffers", "no memory");
    std::memset(*buffer, 0x5a, kMostBytes);
  }
}

std::string Endpoint::open(const char* provider, std::string_view family) {
  tagged_ = family == "tagged";
  const bool waits = family == "wait", regions = family == "rma" || family == "atomic";
  fi_info* hints = fi_allocinfo();
  hints->fabric_attr->prov_name = ::strdup(provider);
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = capabilities(family);
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  // shm takes its own process for its address; with a node both sides would have the same.
  const char* node = std::strcmp(provider, "shm") == 0 ? nullptr : "127.0.0.1";
  const int found =
      fi_getinfo(FI_VERSION(1, 17), node, nullptr, node != nullptr ? FI_SOURCE : 0, hints, &info_);
  fi_freeinfo(hints);
  if (found != 0) return std::string("fi_getinfo: ") + fi_strerror(-found);
  MUST(fi_fabric(info_->fabric_attr, &fabric_, nullptr));
  MUST(fi_domain(fabric_, info_, &domain_, nullptr));
  if (std::string reason = open_queues(waits); !reason.empty()) return reason;
  exchange_names();
  if (regions) register_regions();
  return "";
}

std::string Endpoint::open_queues(bool waits) {
  fi_cq_attr cq{};
  cq.format = FI_CQ_FORMAT_CONTEXT;
  cq.wait_obj = FI_WAIT_NONE;
  MUST(fi_cq_open(domain_, &cq, &sent_, nullptr));
  if (waits) cq.wait_obj = FI_WAIT_FD;
  if (const int rc = fi_cq_open(domain_, &cq, &received_, nullptr); rc != 0) {
    if (!waits) must(rc, "fi_cq_open");
    return std::string("FI_WAIT_FD: ") + fi_strerror(-rc);
  }
  if (waits) MUST(fi_control(&received_->fid, FI_GETWAIT, &fd_));
  return "";
}

void Endpoint::exchange_names() {
  fi_av_attr av{};
  av.type = FI_AV_TABLE;
  MUST(fi_av_open(domain_, &av, &av_, nullptr));
  MUST(fi_endpoint(domain_, info_, &ep_, nullptr));
  MUST(fi_ep_bind(ep_, &av_->fid, 0));
  MUST(fi_ep_bind(ep_, &sent_->fid, FI_TRANSMIT));
  MUST(fi_ep_bind(ep_, &received_->fid, FI_RECV));
  MUST(fi_enable(ep_));

  // Names are blobs of the provider's.
  std::array<char, 256> name{};
  std::size_t length = name.size();
  MUST(fi_getname(&ep_->fid, name.data(), &length));
  channel_.send(name.data(), name.size());
  channel_.receive(name.data(), name.size());
  if (fi_av_insert(av_, name.data(), 1, &peer_, 0, nullptr) != 1)
    give_up("fi_av_insert", "refused");
}

void Endpoint::register_regions() {
  constexpr std::uint64_t kAll = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  MUST(fi_mr_reg(domain_, in_, kMostBytes, kAll, 0, 1, 0, &in_mr_, nullptr));
  MUST(fi_mr_reg(domain_, out_, kMostBytes, kAll, 0, 2, 0, &out_mr_, nullptr));
  desc_ = fi_mr_desc(out_mr_);
  const bool by_address = (info_->domain_attr->mr_mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC)) != 0;
  RemoteRegion mine{by_address ? reinterpret_cast<std::uint64_t>(in_) : 0, fi_mr_key(in_mr_)};
  channel_.send(&mine, sizeof mine);
  channel_.receive(&remote_, sizeof remote_);
}

void Endpoint::close() {
  for (fid* f : {in_mr_ ? &in_mr_->fid : nullptr, out_mr_ ? &out_mr_->fid : nullptr,
                 ep_ ? &ep_->fid : nullptr, received_ ? &received_->fid : nullptr,
                 sent_ ? &sent_->fid : nullptr, av_ ? &av_->fid : nullptr,
                 domain_ ? &domain_->fid : nullptr, fabric_ ? &fabric_->fid : nullptr}) {
    if (f != nullptr) (void)fi_close(f);
  }
  if (info_ != nullptr) fi_freeinfo(info_);
}

bool Endpoint::take(fid_cq* cq, const char* what) {
  fi_cq_entry entry;
  const ssize_t n = fi_cq_read(cq, &entry, 1);
  if (n == 1) return true;
  if (n == -FI_EAGAIN) return false;
  if (n == -FI_EAVAIL) {
    fi_cq_err_entry error{};
    (void)fi_cq_readerr(cq, &error, 0);
    give_up(what, fi_strerror(error.err));
  }
  must(n, what);
  return false;
}

void Endpoint::wait(fid_cq* cq, int count, const char* what) {
  Patience patience(what);
  while (count > 0) {
    if (take(cq, what)) {
      --count;
    } else {
      patience();
    }
  }
}

void Endpoint::receive(void* to, std::size_t bytes, fi_context2* context) {
  post(
      [&] {
        return tagged_ ? fi_trecv(ep_, to, bytes, nullptr, FI_ADDR_UNSPEC, kTag, 0, context)
                       : fi_recv(ep_, to, bytes, nullptr, FI_ADDR_UNSPEC, context);
      },
      "receive");
}

void Endpoint::post_send(std::size_t bytes, int slot) {
  post(
      [&] {
        return tagged_ ? fi_tsend(ep_, out_, bytes, nullptr, peer_, kTag, &sends_[slot])
                       : fi_send(ep_, out_, bytes, nullptr, peer_, &sends_[slot]);
      },
      "send");
}

void Endpoint::inject(const void* from, std::size_t bytes) {
  post(
      [&] {
        return tagged_ ? fi_tinject(ep_, from, bytes, peer_, kTag)
                       : fi_inject(ep_, from, bytes, peer_);
      },
      "inject");
}

void Endpoint::inject_write(std::size_t bytes) {
  post([&] { return fi_inject_write(ep_, out_, bytes, peer_, remote_.address, remote_.key); },
       "inject write");
}

void Endpoint::send(std::size_t bytes) {
  if (injects(bytes)) return inject(bytes);
  post_send(bytes);
  wait(sent_, 1, "a send");
}

void Endpoint::access(bool write, std::size_t bytes, int slot) {
  post(
      [&] {
        return write ? fi_write(ep_, out_, bytes, desc_, peer_, remote_.address, remote_.key,
                                &sends_[slot])
                     : fi_read(ep_, out_, bytes, desc_, peer_, remote_.address, remote_.key,
                               &sends_[slot]);
      },
      write ? "write" : "read");
}

}  // namespace clan::bench::ofi
