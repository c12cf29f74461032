// The transport's cryptography: X25519, HKDF-SHA-256, HMAC-SHA-256 by OpenSSL 3, AES-256-GCM by
// aead.h; keys: docs/wire.md, Security. Only this folder, a library of its own, knows OpenSSL.
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "link/udp/crypto/aead.h"
#include "link/udp/crypto/openssl_use.h"
#include "link/udp/wire/security.h"

namespace clan::udp {

static_assert(std::is_same_v<Tag, Aead::AeadTag>);

namespace {

using Bytes = std::span<const std::byte>;

/// 32 bytes that are wiped when they go.
struct Secret {
  std::array<std::byte, 32> bytes{};
  Secret() = default;
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret() { OPENSSL_cleanse(bytes.data(), bytes.size()); }
};

bool hmac(Bytes key, Bytes message, Secret* out) {
  unsigned int n = 0;
  return HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), raw(message.data()),
              message.size(), raw(out->bytes.data()), &n) != nullptr &&
         n == out->bytes.size();
}

// HKDF-Expand (RFC 5869) for at most 32 bytes: one block.
bool expand(const Secret& from, std::string_view label, Bytes context, Secret* out) {
  std::array<std::byte, 128> info;
  if (label.size() + context.size() + 1 > info.size()) return false;
  std::memcpy(info.data(), label.data(), label.size());
  if (!context.empty()) std::memcpy(info.data() + label.size(), context.data(), context.size());
  const std::size_t n = label.size() + context.size();
  info[n] = std::byte{1};
  return hmac(from.bytes, Bytes(info).first(n + 1), out);
}

struct PkeyDeleter {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
};
using Pkey = std::unique_ptr<EVP_PKEY, PkeyDeleter>;
using PkeyContext = std::unique_ptr<EVP_PKEY_CTX, PkeyDeleter>;

/// Leaks once OpenSSL is down. For a destructor's body: members free themselves behind it, when no
/// OpenSslUse holds OpenSSL up.
template <typename Owner>
void free_while_openssl_is_there(Owner& owner) {
  const OpenSslUse use;
  if (use)
    owner.reset();
  else
    (void)owner.release();
}

class Share final : public KeyShare {
 public:
  ~Share() override { free_while_openssl_is_there(key_); }
  bool make() {
    PkeyContext context(EVP_PKEY_CTX_new_id(EVP_PKEY_X25519, nullptr));
    EVP_PKEY* key = nullptr;
    if (!context || EVP_PKEY_keygen_init(context.get()) <= 0 ||
        EVP_PKEY_keygen(context.get(), &key) <= 0)
      return false;
    key_.reset(key);
    std::size_t n = public_.size();
    return EVP_PKEY_get_raw_public_key(key, raw(public_.data()), &n) == 1 && n == public_.size();
  }
  std::span<const std::byte> bytes() const override { return public_; }
  // False for a share that leaves nothing secret (a point of small order): OpenSSL refuses it.
  bool derive(Bytes theirs, Secret* shared) {
    Pkey peer(
        EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, raw(theirs.data()), theirs.size()));
    PkeyContext context(EVP_PKEY_CTX_new(key_.get(), nullptr));
    std::size_t n = shared->bytes.size();
    return peer && context && EVP_PKEY_derive_init(context.get()) > 0 &&
           EVP_PKEY_derive_set_peer(context.get(), peer.get()) > 0 &&
           EVP_PKEY_derive(context.get(), raw(shared->bytes.data()), &n) > 0 &&
           n == shared->bytes.size();
  }

 private:
  Pkey key_;
  std::array<std::byte, kShareBytes> public_{};
};

/// The cipher under one key of one direction.
class DirectionKey {
 public:
  DirectionKey(const Secret& direction, std::uint64_t index) : index_(index) {
    const std::uint64_t number = big_endian(index);
    const Bytes context = std::as_bytes(std::span(&number, 1));
    Secret key, iv;
    const OpenSslUse use;
    if (!use || !expand(direction, "clan key", context, &key) ||
        !expand(direction, "clan iv", context, &iv)) {
      return;
    }
    std::copy_n(iv.bytes.begin(), iv_.size(), iv_.begin());
    aead_ = make_aead(key.bytes);
  }
  ~DirectionKey() { free_while_openssl_is_there(aead_); }
  DirectionKey(const DirectionKey&) = delete;
  DirectionKey& operator=(const DirectionKey&) = delete;
  std::uint64_t index() const { return index_; }

  bool seal(std::uint64_t number, Bytes header, std::span<std::byte> body, Tag* tag) {
    return aead_ && aead_->encrypt(nonce_of(number), header, body, tag);
  }
  bool open(std::uint64_t number, Bytes header, std::span<std::byte> body, const Tag& tag) {
    return aead_ && aead_->decrypt(nonce_of(number), header, body, tag);
  }

 private:
  Nonce nonce_of(std::uint64_t number) const {
    Nonce nonce = iv_;
    for (std::size_t i = 4; i < nonce.size(); ++i)
      nonce[i] ^= static_cast<std::byte>(number >> 8 * (11 - i) & 0xff);
    return nonce;
  }

  std::unique_ptr<Aead> aead_;
  Nonce iv_{};
  std::uint64_t index_;
};

class Keys final : public Session {
 public:
  static constexpr unsigned kNumberBits = 24;  ///< of a packet number, under one key

  Keys(Mode mode, const Secret& sending, const Secret& receiving, const Tag& accept)
      : encrypts_(mode == Mode::kEncrypt),
        sending_(sending),
        receiving_(receiving),
        accept_(accept) {}

  void seal(std::uint64_t number, std::span<std::byte> packet) override {
    const std::uint64_t index = number >> kNumberBits;
    if (!seal_ || seal_->index() != index) seal_ = std::make_unique<DirectionKey>(sending_, index);
    const std::span<std::byte> body = body_of(packet);
    Tag made{};
    if (!seal_->seal(number, packet.first(clear_bytes(packet)), body, &made)) {
      // There is no memory: a packet that nobody accepts, and nothing in clear.
      std::fill(body.begin(), body.end(), std::byte{0});
      made = {};
    }
    std::copy(made.begin(), made.end(), packet.last(kTagBytes).begin());
  }

  bool open(std::uint64_t number, std::span<std::byte> packet) override {
    DirectionKey* key = opening_key(number >> kNumberBits);
    if (key == nullptr) return false;
    Tag tag;
    std::copy_n(packet.last(kTagBytes).begin(), tag.size(), tag.begin());
    if (!key->open(number, packet.first(clear_bytes(packet)), body_of(packet), tag)) return false;
    newest_ = std::max(newest_, key->index());
    return true;
  }

  Tag accept_mac() override { return accept_; }

 private:
  // What is authenticated alone: in mode 1 all that is before the tag.
  std::size_t clear_bytes(Bytes packet) const {
    return encrypts_ ? kDataHeader : packet.size() - kTagBytes;
  }
  std::span<std::byte> body_of(std::span<std::byte> packet) const {
    const std::size_t clear = clear_bytes(packet);
    return packet.subspan(clear, packet.size() - kTagBytes - clear);
  }

  // The key in use, the one before it for late packets, and the next: a stranger's packet number
  // makes us derive no others.
  DirectionKey* opening_key(std::uint64_t index) {
    if (index > newest_ + 1 || index + 1 < newest_) return nullptr;
    std::unique_ptr<DirectionKey>& place = open_[index % open_.size()];
    if (!place || place->index() != index)
      place = std::make_unique<DirectionKey>(receiving_, index);
    return place.get();
  }

  bool encrypts_;
  Secret sending_, receiving_;
  Tag accept_;
  std::unique_ptr<DirectionKey> seal_;
  std::array<std::unique_ptr<DirectionKey>, 3> open_;
  std::uint64_t newest_ = 0;  ///< index of the newest key under which the peer has sealed
};

class CryptoSecurity final : public Security {
 public:
  explicit CryptoSecurity(Mode mode) : mode_(mode) {}

  bool set_key(Bytes key) {
    static constexpr std::string_view kSalt = "clan pre-shared key 1";
    Secret extracted;
    return hmac(std::as_bytes(std::span(kSalt)), key, &extracted) &&
           expand(extracted, "clan salt", {}, &salt_) &&
           expand(extracted, "clan mac", {}, &mac_key_) &&
           make_aead(extracted.bytes) != nullptr;  // loads its library now, and not under a lock
  }

  Mode mode() const override { return mode_; }

  std::unique_ptr<KeyShare> make_share() override {
    auto share = std::make_unique<Share>();
    const OpenSslUse use;
    return use && share->make() ? std::move(share) : nullptr;
  }

  Tag mac(Bytes bytes) override {
    Secret full;
    Tag tag;
    const OpenSslUse use;
    if (use && hmac(mac_key_.bytes, bytes, &full))
      std::copy_n(full.bytes.begin(), tag.size(), tag.begin());
    else
      ::arc4random_buf(tag.data(), tag.size());  // what nobody else can have made
    return tag;
  }

  std::unique_ptr<Session> agree(KeyShare& ours, Bytes theirs, bool client, Bytes hello,
                                 Bytes accept) override {
    Secret shared, extracted, ends[2], confirm;
    const OpenSslUse use;
    if (!use) return nullptr;
    std::array<std::byte, 2 * SHA256_DIGEST_LENGTH> transcript;
    SHA256(raw(hello.data()), hello.size(), raw(transcript.data()));
    SHA256(raw(accept.data()), accept.size(), raw(transcript.data() + SHA256_DIGEST_LENGTH));
    if (theirs.size() != kShareBytes || !static_cast<Share&>(ours).derive(theirs, &shared) ||
        !hmac(salt_.bytes, shared.bytes, &extracted) ||
        !expand(extracted, "clan client", transcript, &ends[0]) ||
        !expand(extracted, "clan server", transcript, &ends[1]) ||
        !expand(extracted, "clan accept", transcript, &confirm)) {
      return nullptr;
    }
    Tag tag;
    std::copy_n(confirm.bytes.begin(), tag.size(), tag.begin());
    return std::make_unique<Keys>(mode_, ends[client ? 0 : 1], ends[client ? 1 : 0], tag);
  }

 private:
  Mode mode_;
  Secret salt_, mac_key_;
};

Security* make(Mode mode, const std::byte* key, std::size_t key_bytes) {
  watch_for_the_end_of_openssl();
  auto security = std::make_unique<CryptoSecurity>(mode);
  const OpenSslUse use;
  if (!use) return nullptr;
  return security->set_key({key, key_bytes}) ? security.release() : nullptr;
}

}  // namespace
}  // namespace clan::udp

extern "C" __attribute__((visibility("default")))
const clan::udp::SecurityLibrary clan_security_library = {clan::udp::kSecurityAbi, clan::udp::make};
