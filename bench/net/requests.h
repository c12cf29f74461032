// What the programs of `clan bench net` do over a connection, whatever carries it, and what they
// print: net.py reads it.
//
// A client's first 16 bytes are a Request. ping: the server sends each message back; bulk: it
// answers with a byte when all have come; checked: the same, and it checks each byte; flood: the
// client sends for so long, one of many, and there is no answer.
#pragma once

#include <sys/resource.h>

#include <span>
#include <string>
#include <utility>

#include "support/load.h"

namespace clan::bench {

struct Request {
  static constexpr std::uint64_t kRdma = ~std::uint64_t{0}, kFlood = kRdma - 1;
  static constexpr std::uint64_t kChecked = std::uint64_t{1} << 62;  ///< in the bytes of a bulk
  std::uint64_t bytes;                                               ///< of each message
  std::uint64_t total;  ///< 0: ping; kRdma; kFlood; or the bytes of a bulk

  static Request of(const std::string& role, std::size_t bytes, double seconds) {
    const std::uint64_t bulk = static_cast<std::uint64_t>(seconds * 1e9) / bytes * bytes;
    return {bytes, role == "ping"      ? 0
                   : role == "rdma"    ? kRdma
                   : role == "flood"   ? kFlood
                   : role == "checked" ? bulk | kChecked
                                       : bulk};
  }
};

inline void print_round_trips(std::vector<std::uint64_t> ns) {
  if (ns.empty()) give_up("ping", "no round trip");
  std::sort(ns.begin(), ns.end());
  const auto us = [](std::uint64_t t) { return static_cast<double>(t) / 1e3; };
  std::printf("%zu round trips: min %.2f p50 %.2f p99 %.2f us\n", ns.size(), us(ns[0]),
              us(part(ns, 50)), us(part(ns, 99)));
}

inline void print_rate(std::uint64_t bytes, std::uint64_t begin_ns) {
  std::printf("%.5f GB/s\n", static_cast<double>(bytes) / 1e9 / seconds_since(begin_ns));
}

inline void print_processor_time() {
  rusage use;
  (void)::getrusage(RUSAGE_SELF, &use);
  const auto s = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  std::printf("  %.2f s of processor, %.2f of it in the kernel\n",
              s(use.ru_utime) + s(use.ru_stime), s(use.ru_stime));
}

/// Bytes that tell where in the stream they belong; whole words.
inline void fill(std::span<std::byte> bytes, std::uint64_t at) {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = (at + i) * 0x9e37'79b9'7f4a'7c15u;
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
}

/// Answers what comes by a connection until it ends. `end` has read() and write() of a whole span,
/// which are false at the end.
template <typename End>
void serve_request(End& end, const Request& request) {
  std::vector<std::byte> buffer(std::max<std::size_t>(request.bytes, 1)), right(buffer.size());
  const bool checked = request.total < Request::kFlood && (request.total & Request::kChecked) != 0;
  const std::uint64_t total = checked ? request.total & ~Request::kChecked : request.total;
  bool all_right = true;
  for (std::uint64_t got = 0; end.read(buffer);) {
    if (checked) {
      fill(right, got);
      all_right = all_right && buffer == right;
    }
    got += buffer.size();
    const std::byte answer{all_right};
    if (total == 0 ? !end.write(buffer) : got >= total && !end.write({&answer, 1})) return;
  }
}

/// The client, behind its request.
template <typename End>
void run_request(End& end, const std::string& role, std::size_t bytes, double seconds) {
  const std::uint64_t total = Request::of("bulk", bytes, seconds).total;
  std::vector<std::byte> buffer(bytes);
  const std::uint64_t begin = now_ns(), until = begin + static_cast<std::uint64_t>(seconds * 1e9);
  if (role != "ping") {
    std::uint64_t sent = 0;
    for (; role == "flood" ? now_ns() < until : sent < total; sent += bytes) {
      if (role == "checked") fill(buffer, sent);
      if (!end.write(buffer)) give_up("send", "the connection has ended");
    }
    if (role != "flood" && !end.read(std::span(buffer).first(1))) give_up("answer", "none");
    if (role != "flood" && buffer[0] != std::byte{1}) give_up("answer", "bytes were wrong");
    return print_rate(sent, begin);
  }
  std::vector<std::uint64_t> trips;
  for (std::uint64_t now = begin; now < until;) {
    if (!end.write(buffer) || !end.read(buffer)) give_up("ping", "no answer");
    const std::uint64_t then = std::exchange(now, now_ns());
    trips.push_back(now - then);
  }
  print_round_trips(std::move(trips));
}

}  // namespace clan::bench
