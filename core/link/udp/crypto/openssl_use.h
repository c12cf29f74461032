// OpenSslUse: a call of OpenSSL while OpenSSL is there. exit() takes it down (OPENSSL_cleanup)
// while another thread may be at a handshake: a handler before that waits for those inside, and
// lets no other in. What exists by then, as a session's cipher, goes on.
//
//   a thread    OpenSslUse use; if (use) ... EVP_...()          one that is inside: waited for
//   exit()      OPENSSL_cleanup -> the handler: waits, shuts -> OpenSSL frees what it has
//
// Any thread; not twice by the same one at a time.
#pragma once

#include <shared_mutex>

namespace clan::udp {

class OpenSslUse {
 public:
  /// False: OpenSSL has been taken down, or is about to be.
  explicit operator bool() const { return lock_.owns_lock(); }
  OpenSslUse();

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

/// Before the first use in a process.
void watch_for_the_end_of_openssl();

}  // namespace clan::udp
