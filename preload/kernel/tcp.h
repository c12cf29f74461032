// What the kernel says of one TCP socket, by its descriptor.
#pragma once

#include <cstddef>
#include <cstdint>

struct tcp_info;

namespace clan::preload {

/// The kernel's counts of a connection, in bytes; those sent again count once.
struct TcpCounters {
  bool counted = false;  ///< the kernel gave them
  std::uint64_t sent = 0, acked = 0, received = 0;
};
/// Reads the counters in `size` bytes of TCP_INFO.
TcpCounters counters_in(const tcp_info& info, std::size_t size);

/// Counts the bytes that the kernel has taken from the application for this connection, ever.
/// False: the kernel does not say.
bool sent_by_tcp(int fd, std::uint64_t* bytes);
/// Does the same for another host, where packets are lost: two ways of counting must agree.
/// `connected`: this end's SYN counts as a byte.
bool sent_for_sure(int fd, bool connected, std::uint64_t* bytes);
/// Reads TCP_INFO and the bytes in the queue of the same moment. False: the kernel does not say.
bool received_by_tcp(int fd, tcp_info* info, std::size_t* queued);
/// Returns the bytes that TCP has ever received.
std::uint64_t arrived(int fd);
/// Returns the kernel's name of a socket, which all its descriptors share. 0: it has none.
std::uint64_t cookie_of(int fd);
/// Returns BPF_TCP_CLOSE and so on; -1: not a socket of TCP.
int tcp_state_of(int fd);
/// Tells whether the other end has not ended its side of TCP. poll() and recv() report an end also
/// if this end has shut down reading.
bool other_end_is_open(int fd);
/// Resets the connection.
void reset_connection(int fd);

}  // namespace clan::preload
