#include "provider.h"

#include <clan/detail/fork_lock.h>
#include <clan/detail/log.h>
#include <clan/detail/words.h>
#include <clan/face/counter_page.h>
#include <clan/face/settings.h>
#include <unistd.h>

namespace clan::via {
namespace {

std::mutex making;
// Never destroyed: other threads may use it until the process ends. A child makes one of its own.
std::atomic<Provider*> the_one{nullptr};

void in_child() {
  words::store_release(the_one, nullptr);
  words::add(forks, 1u);
}

Provider* make_provider() {
  const Settings settings = settings_of_environment("VIs are not to be had");
  if (settings.disable) return nullptr;
  auto context = create_context(settings.context_options(), "VIs");
  if (!context) {
    CLAN_WARN("no VIs: %s", context.error().message().c_str());
    return nullptr;
  }
  auto* const provider = new Provider(std::move(*context));
  provider->network = provider->context.network_port() != 0;
  provider->page = make_counter_page<ViaPage>(kViaMemfdName);
  return provider;
}

}  // namespace

Object::Object(std::uint32_t kind) : magic(kind), generation(via::generation()) {}

Provider* provider() {
  if (Provider* const there = words::load_acquire(the_one)) return there;
  std::lock_guard lock(making);
  if (words::load_acquire(the_one) == nullptr) words::store_release(the_one, make_provider());
  // Behind the engine's, which has been asked for by then: so fork takes this lock before those of
  // the engine, as this function does.
  (void)hold_over_forks<making, in_child>();
  return words::load_acquire(the_one);
}

void tell(Reports& reports) {
  for (VIP_ERROR_DESCRIPTOR& error : reports) {
    Nic& nic = *static_cast<Nic*>(error.NicHandle);
    std::unique_lock lock(nic.mutex);
    const VIP_ERROR_HANDLER handler = nic.handler;
    const VIP_PVOID context = nic.handler_context;
    lock.unlock();
    nic.leave();  // the handler may close it
    if (handler != nullptr) {
      handler(context, &error);
    } else {
      CLAN_WARN("VI %p: asynchronous error %d", error.ViHandle, static_cast<int>(error.ErrorCode));
    }
  }
  reports.clear();
}

// --- registered memory ---------------------------------------------------------------------------

Region* Memory::add() {
  std::uint32_t number;
  if (!free_.empty()) {
    number = free_.back();
    free_.pop_back();
  } else if (used_ < kMost) {
    number = used_++;
    if (number % kChunk == 0) words::store_release(chunks_[number / kChunk], new Region[kChunk]);
  } else {
    return nullptr;
  }
  Region* const region = at(number);
  if (++region->lives == 0) region->lives = 1;
  region->next_handle = static_cast<VIP_MEM_HANDLE>(region->lives) << 16 | (number + 1);
  return region;
}

void Memory::publish(Region& region) { words::store_release(region.handle, region.next_handle); }

void Memory::remove(Region& region) {
  words::store_release(region.handle, 0u);
  change();
  region.receive.reset();
  region.rdma.reset();
  free_.push_back((region.next_handle & 0xffff) - 1);
}

}  // namespace clan::via
