// What every room of the provider needs: libfabric's headers, the provider itself, and the few
// rules by which its objects are made.
//
// Each object derives from the structure that libfabric knows it by (class Domain : fid_domain),
// which starts with a struct fid; object_of<> goes back from the one to the other. An object counts
// those that refer to it, and closing one that is referred to answers -FI_EBUSY. The error numbers
// of libfabric below 256 are errno's, so Error::err is used as it is.
#pragma once

#include <clan/result.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "system/fork_mutex.h"

namespace clan::ofi {

extern fi_provider g_provider;

/// An Error as libfabric's functions return it.
inline int failure(const Error& error) { return -error.err; }

/// For operations that this provider does not have; fits every table.
template <typename R, typename... Arguments>
R not_supported(Arguments...) {
  return static_cast<R>(-FI_ENOSYS);
}

template <auto F>
struct Guarded;
template <typename R, typename... Arguments, R (*F)(Arguments...)>
struct Guarded<F> {
  static R call(Arguments... arguments) {
    try {
      return F(arguments...);
    } catch (const std::bad_alloc&) {
      return static_cast<R>(-FI_ENOMEM);
    }
  }
};
/// A function of a table that may find no memory: then it answers -FI_ENOMEM.
template <auto F>
inline constexpr auto guarded = &Guarded<F>::call;

/// The object behind what libfabric hands us. Object::Face is the structure it derives from.
template <typename Object>
Object& object_of(fid_t id) {
  return static_cast<Object&>(*reinterpret_cast<typename Object::Face*>(id));
}

/// The table that every object begins with. What is left out is not supported.
constexpr fi_ops object_ops(decltype(fi_ops::close) close,
                            decltype(fi_ops::bind) bind = not_supported,
                            decltype(fi_ops::control) control = not_supported) {
  return {sizeof(fi_ops), close, bind, control, not_supported, not_supported, not_supported};
}
/// The same for what an endpoint, or a part of one, can do by itself.
constexpr fi_ops_ep endpoint_ops(decltype(fi_ops_ep::cancel) cancel = not_supported,
                                 decltype(fi_ops_ep::getopt) getopt = not_supported,
                                 decltype(fi_ops_ep::setopt) setopt = not_supported,
                                 decltype(fi_ops_ep::tx_ctx) tx_ctx = not_supported,
                                 decltype(fi_ops_ep::rx_ctx) rx_ctx = not_supported) {
  return {sizeof(fi_ops_ep), cancel, getopt, setopt, tx_ctx, rx_ctx, not_supported, not_supported};
}

/// Ends an object, unless it counts references and has some.
template <typename Object>
int close_object(fid_t id) {
  auto& object = object_of<Object>(id);
  if constexpr (requires { object.references(); }) {
    if (object.references().any()) return -FI_EBUSY;
  }
  delete &object;
  return 0;
}
/// Enables an object that always is.
inline int enable_object(fid_t, int command, void*) {
  return command == FI_ENABLE ? 0 : -FI_ENOSYS;
}

/// Counts the references to an object.
class References {
 public:
  // relaxed: a thread that adds one knows the object by another, or by the program
  void add() { count_.fetch_add(1, std::memory_order_relaxed); }
  // PAIR ofi.references: the holder has done with the object
  void drop() { count_.fetch_sub(1, std::memory_order_release); }
  // PAIR ofi.references: sees what holders have done, before it is deleted
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }

 private:
  std::atomic<int> count_{0};
};

/// A reference that lives as long as its holder.
class Held {
 public:
  Held() = default;
  explicit Held(References& references) : references_(&references) { references_->add(); }
  Held(Held&& other) noexcept : references_(std::exchange(other.references_, nullptr)) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(references_, other.references_);
    return *this;
  }
  ~Held() {
    if (references_ != nullptr) references_->drop();
  }

 private:
  References* references_ = nullptr;
};

/// One per domain: everything in it is changed under this. Free of charge where the application has
/// promised to use the domain from one thread at a time (FI_THREAD_DOMAIN).
class Lock {
 public:
  explicit Lock(bool needed) : needed_(needed) {}
  void lock() {
    if (needed_) mutex_.lock();
  }
  void unlock() {
    if (needed_) mutex_.unlock();
  }
  /// From now on. Before a second thread exists.
  void require() { needed_ = true; }

 private:
  ForkMutex mutex_;
  bool needed_;
};

int open_fabric(fi_fabric_attr* attr, fid_fabric** fabric, void* context);
int get_info(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
             const fi_info* hints, fi_info** info);

}  // namespace clan::ofi
