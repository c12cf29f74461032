#include "link/udp/crypto/aead.h"

namespace clan::udp {

std::unique_ptr<Aead> make_aead(AeadKey key) {
  if (auto fast = make_ipsec_mb_aead(key)) return fast;
  return make_openssl_aead(key);
}

}  // namespace clan::udp
