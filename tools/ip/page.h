// The page of this process (clan/face/ip_face.h), and what `clan ip` makes of those of others.
#pragma once

#include <clan/face/ip_face.h>

#include <atomic>
#include <string>

namespace clan::ip {

/// Made once, and never unmapped; private memory where the kernel gives no memfd.
IpPage& own_page();

template <typename T>
void count(std::atomic<T>& counter, T n = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + n,  // relaxed: for people; one writer
                std::memory_order_relaxed);
}
template <typename T>
void show(std::atomic<T>& value, T now) {
  value.store(now, std::memory_order_relaxed);  // relaxed: for people
}

/// `clan ip status`: of one device, or of all of this host where `device` is empty. The exit code.
int print_status(const std::string& device, bool json);
/// `clan ip down`: ends the process that has the device in this network namespace, and waits. The
/// exit code.
int take_down(const std::string& device);

}  // namespace clan::ip
