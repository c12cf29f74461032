// AES-256-GCM by OpenSSL 3.
#include <openssl/evp.h>

#include "link/udp/crypto/aead.h"

namespace clan::udp {
namespace {

struct ContextDeleter {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

class OpensslAead final : public Aead {
 public:
  bool set_key(AeadKey key) {
    for (auto* context : {&seals_, &opens_}) {
      context->reset(EVP_CIPHER_CTX_new());
      if (!*context || EVP_CipherInit_ex(context->get(), EVP_aes_256_gcm(), nullptr,
                                         raw(key.data()), nullptr, context == &seals_) != 1) {
        return false;
      }
    }
    return true;
  }

  bool encrypt(const Nonce& nonce, Bytes header, std::span<std::byte> body, AeadTag* tag) override {
    EVP_CIPHER_CTX* const c = seals_.get();
    return begin(c, nonce) && add(c, header) && turn(c, body) && end(c) && get_tag(c, tag);
  }

  bool decrypt(const Nonce& nonce, Bytes header, std::span<std::byte> body,
               const AeadTag& tag) override {
    EVP_CIPHER_CTX* const c = opens_.get();
    AeadTag copy = tag;
    return begin(c, nonce) &&
           EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, kAeadTagBytes, copy.data()) == 1 &&
           add(c, header) && turn(c, body) && end(c);
  }

 private:
  static bool begin(EVP_CIPHER_CTX* c, const Nonce& nonce) {
    return EVP_CipherInit_ex(c, nullptr, nullptr, nullptr, raw(nonce.data()), -1) == 1;
  }
  static bool add(EVP_CIPHER_CTX* c, Bytes bytes) {
    int n = 0;
    return bytes.empty() ||
           EVP_CipherUpdate(c, nullptr, &n, raw(bytes.data()), static_cast<int>(bytes.size())) == 1;
  }
  static bool turn(EVP_CIPHER_CTX* c, std::span<std::byte> body) {
    int n = 0;
    return body.empty() || EVP_CipherUpdate(c, raw(body.data()), &n, raw(body.data()),
                                            static_cast<int>(body.size())) == 1;
  }
  static bool end(EVP_CIPHER_CTX* c) {
    unsigned char last[16];
    int n = 0;
    return EVP_CipherFinal_ex(c, last, &n) == 1;
  }

  static bool get_tag(EVP_CIPHER_CTX* c, AeadTag* tag) {
    return EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, kAeadTagBytes, tag->data()) == 1;
  }

  std::unique_ptr<EVP_CIPHER_CTX, ContextDeleter> seals_, opens_;
};

}  // namespace

std::unique_ptr<Aead> make_openssl_aead(AeadKey key) {
  auto aead = std::make_unique<OpensslAead>();
  if (!aead->set_key(key)) return nullptr;
  return aead;
}

std::unique_ptr<Aead> make_aead(AeadKey key) {
  if (auto fast = make_ipsec_mb_aead(key)) return fast;
  return make_openssl_aead(key);
}

}  // namespace clan::udp
