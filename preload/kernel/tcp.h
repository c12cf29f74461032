// What the kernel says of one TCP socket, by its descriptor.
#pragma once

#include <cstddef>
#include <cstdint>

struct tcp_info;

namespace clan::preload {

/// Bytes the kernel has taken from the application for this connection, ever.
/// False: it does not say.
bool sent_by_tcp(int fd, std::uint64_t* bytes);
/// The same, to another host, where packets are lost: two ways of counting must agree.
/// `connected`: this end's SYN is counted as a byte.
bool sent_for_sure(int fd, bool connected, std::uint64_t* bytes);
/// Asks for TCP_INFO, and for what lies in the queue at the same moment. False: the kernel does not
/// say.
bool received_by_tcp(int fd, tcp_info* info, std::size_t* queued);
/// Bytes that TCP has ever received.
std::uint64_t arrived(int fd);
/// The kernel's name of a socket, the same wherever its descriptors are. 0: it has none.
std::uint64_t cookie_of(int fd);
/// BPF_TCP_CLOSE and so on; -1: it is no socket of TCP.
int tcp_state_of(int fd);
/// The kernel says that the other end has not ended its side of TCP. poll() and recv() report an
/// end also if this end has shut down reading.
bool other_end_is_open(int fd);
/// When nothing else is right any more.
void reset_connection(int fd);

}  // namespace clan::preload
