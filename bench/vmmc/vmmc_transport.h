// VMMC as a transport: each end exports a buffer that the other one writes, by deliberate update or
// by an alias. A message is its bytes and, in the word before them, its number; one of up to 56
// bytes is one line. What has come is copied out: the paper's "+1copy".
#pragma once

#include <unistd.h>
#include <vmmc.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "support/clock.h"
#include "transports/transport.h"

namespace clan::bench {

inline std::string vmmc_name() {
  static int number = 0;
  return "b" + std::to_string(::getpid()) + "." + std::to_string(++number);
}

/// An open VMMC with a buffer of its own, and the peer's.
class VmmcPair {
 public:
  VmmcPair(const std::string& own, const std::string& peer, std::size_t bytes, unsigned flags = 0,
           vmmc_handler_t handler = nullptr, void* context = nullptr, bool mapped = true)
      : own_(mapped ? 0 : bytes) {
    if (vmmc_open(flags, &v) != 0) return;
    memory = mapped ? static_cast<std::byte*>(vmmc_alloc(v, bytes)) : own_.data();
    if (vmmc_export(v, own.c_str(), memory, bytes, nullptr, handler, context, &buffer) != 0) return;
    int rc = -ENOENT;
    while (rc == -ENOENT) rc = vmmc_import(v, nullptr, peer.c_str(), 10'000, &remote);
    ready = rc == 0;
  }
  bool ready = false;
  vmmc_t* v = nullptr;
  std::byte* memory = nullptr;
  vmmc_buffer_t* buffer = nullptr;
  vmmc_remote_t* remote = nullptr;

 private:
  std::vector<std::byte> own_;
};

enum class VmmcWay { kDeliberate, kAlias };

class VmmcEnd {
 public:
  VmmcEnd(const std::string& own, const std::string& peer, std::size_t bytes, VmmcWay way)
      : pair_(own, peer, bytes + 64), copy_(64) {
    if (!pair_.ready || way == VmmcWay::kDeliberate) return;
    pair_.ready = vmmc_bind(pair_.remote, 0, nullptr, bytes + 64, VMMC_ALIAS, 0, &alias_) == 0;
    if (pair_.ready) out_ = static_cast<std::byte*>(vmmc_bound(alias_));
  }
  bool ready() const { return pair_.ready; }

  bool send(std::span<const std::byte> message) {
    ++sent_;
    if (out_ != nullptr) {
      std::memcpy(out_ + kWord, message.data(), message.size());
      word(out_).store(sent_, std::memory_order_release);  // PAIR bench.vmmc: to recv()
      return true;
    }
    if (message.size() == kWord) {  // both in one store of 16 bytes
      std::memcpy(copy_.data(), &sent_, kWord);
      std::memcpy(copy_.data() + kWord, message.data(), kWord);
      return vmmc_send(pair_.remote, 0, copy_.data(), 2 * kWord, 0) == 0;
    }
    return vmmc_send(pair_.remote, kWord, message.data(), message.size(), 0) == 0 &&
           vmmc_put_word(pair_.remote, 0, sent_) == 0;
  }
  bool recv(std::span<std::byte> message) {
    ++received_;
    Spinner spin;
    // PAIR bench.vmmc: sees the message
    while (word(pair_.memory).load(std::memory_order_acquire) != received_) spin();
    std::memcpy(message.data(), pair_.memory + kWord, message.size());
    return true;
  }
  bool flush() { return true; }

 private:
  static constexpr std::size_t kWord = 8;
  static std::atomic<std::uint64_t>& word(std::byte* at) {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(at);
  }
  VmmcPair pair_;
  vmmc_binding_t* alias_ = nullptr;
  std::byte* out_ = nullptr;
  std::vector<std::byte> copy_;
  std::uint64_t sent_ = 0, received_ = 0;
};

class VmmcTransport {
 public:
  explicit VmmcTransport(VmmcWay way) : way_(way) {}
  std::string name() const { return way_ == VmmcWay::kAlias ? "vmmc, alias" : "vmmc"; }
  std::string prepare(std::size_t bytes) {
    name_ = vmmc_name();
    bytes_ = bytes;
    return "";
  }
  std::optional<VmmcEnd> open(Side side) {
    const bool client = side == Side::kClient;
    VmmcEnd end(name_ + (client ? "c" : "s"), name_ + (client ? "s" : "c"), bytes_, way_);
    if (!end.ready()) return std::nullopt;
    return end;
  }

 private:
  VmmcWay way_;
  std::string name_;
  std::size_t bytes_ = 0;
};

}  // namespace clan::bench
