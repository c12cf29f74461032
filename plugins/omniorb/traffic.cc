#include "traffic.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

namespace clan::orb {
namespace {

constexpr std::size_t kTableBytes = sizeof(TrafficHead) + kTrafficRows * sizeof(TrafficRow);

}  // namespace

Traffic::Traffic() {
  memfd_ = ::memfd_create(kTrafficName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memfd_ < 0) return;
  void* memory = MAP_FAILED;
  if (::ftruncate(memfd_, kTableBytes) == 0 &&
      ::fcntl(memfd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
    memory = ::mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_, 0);
  }
  if (memory == MAP_FAILED) return;
  head_ = static_cast<TrafficHead*>(memory);
  head_->pid = static_cast<std::uint32_t>(::getpid());
  head_->magic = kTrafficMagic;
}

Traffic::~Traffic() {
  if (head_ != nullptr) ::munmap(head_, kTableBytes);
  if (memfd_ >= 0) ::close(memfd_);
}

TrafficRow* Traffic::take() {
  std::lock_guard lock(mutex_);
  if (head_ == nullptr) return nullptr;
  std::uint32_t number;
  if (!free_.empty()) {
    number = free_.back();
    free_.pop_back();
  } else {
    number = head_->used.load(std::memory_order_relaxed);  // relaxed: under the lock
    if (number == kTrafficRows) return nullptr;
    // relaxed: readers check each row's role
    head_->used.store(number + 1, std::memory_order_relaxed);
  }
  return rows() + number;
}

void Traffic::give_back(TrafficRow* row) {
  row->role = 0;
  std::lock_guard lock(mutex_);
  free_.push_back(static_cast<std::uint32_t>(row - rows()));
}

TrafficEntry::TrafficEntry(Traffic& traffic, const PeerInfo& peer, bool client)
    : traffic_(traffic), row_(traffic.take()) {
  if (row_ == nullptr) {
    row_ = &own_;
    return;
  }
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  row_->peer_pid = static_cast<std::uint32_t>(peer.pid);
  row_->peer_uid = peer.uid;
  row_->remote = peer.address.empty() ? 0 : 1;
  row_->created_ns = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
                     static_cast<std::uint64_t>(now.tv_nsec);
  for (auto* counter : {&row_->bytes_out, &row_->bytes_in, &row_->messages_out, &row_->messages_in})
    *counter = 0;
  row_->role = client ? 1 : 2;
}

TrafficEntry::~TrafficEntry() {
  if (row_ != &own_) traffic_.give_back(row_);
}

}  // namespace clan::orb
