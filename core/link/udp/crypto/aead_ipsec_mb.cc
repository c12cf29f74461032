// AES-256-GCM by IPsec-MB, loaded on first use: only the manager's table and the calls that fill
// it. Never there if compiled without its header.
#include "link/udp/crypto/aead.h"

#ifdef CLAN_IPSEC_MB
#include <dlfcn.h>
#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>

#include <cstdint>
#include <type_traits>

#include "link/udp/wire/security.h"

namespace clan::udp {
namespace {

// Never unloaded or freed: every key reads the manager's table. Null: it cannot be used here.
const IMB_MGR* load_manager() {
  void* library = ::dlopen("libIPSec_MB.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto find = [library](const char* name, auto* call) {
    *call = reinterpret_cast<std::remove_pointer_t<decltype(call)>>(::dlsym(library, name));
    return *call != nullptr;
  };
  decltype(&imb_get_version) version = nullptr;
  decltype(&alloc_mb_mgr) allocate = nullptr;
  decltype(&init_mb_mgr_auto) initialize = nullptr;
  decltype(&imb_get_errno) error = nullptr;
  decltype(&free_mb_mgr) release = nullptr;
  // Where its table has what differs from one minor version to the next.
  if (!find("imb_get_version", &version) || version() >> 8 != IMB_VERSION_NUM >> 8 ||
      !find("alloc_mb_mgr", &allocate) || !find("init_mb_mgr_auto", &initialize) ||
      !find("imb_get_errno", &error) || !find("free_mb_mgr", &release)) {
    return nullptr;
  }
  IMB_MGR* manager = allocate(0);
  if (manager == nullptr) return nullptr;
  initialize(manager, nullptr);
  // It computes AES by tables where the processor does not: not in constant time.
  constexpr std::uint64_t kWanted =
      IMB_FEATURE_AESNI | IMB_FEATURE_PCLMULQDQ | IMB_FEATURE_SELF_TEST_PASS;
  if (error(manager) == 0 && (manager->features & kWanted) == kWanted) return manager;
  release(manager);
  return nullptr;
}

class IpsecMbAead final : public Aead {
 public:
  IpsecMbAead(const IMB_MGR* manager, AeadKey key) : manager_(*manager) {
    IMB_AES256_GCM_PRE(&manager_, key.data(), &key_);
  }
  IpsecMbAead(const IpsecMbAead&) = delete;
  IpsecMbAead& operator=(const IpsecMbAead&) = delete;
  ~IpsecMbAead() override { OPENSSL_cleanse(&key_, sizeof key_); }

  bool encrypt(const Nonce& nonce, Bytes header, std::span<std::byte> body, AeadTag* tag) override {
    gcm_context_data context;
    IMB_AES256_GCM_ENC(&manager_, &key_, &context, raw(body.data()), raw(body.data()), body.size(),
                       raw(nonce.data()), raw(header.data()), header.size(), raw(tag->data()),
                       tag->size());
    return true;
  }

  bool decrypt(const Nonce& nonce, Bytes header, std::span<std::byte> body,
               const AeadTag& tag) override {
    gcm_context_data context;
    AeadTag right;
    IMB_AES256_GCM_DEC(&manager_, &key_, &context, raw(body.data()), raw(body.data()), body.size(),
                       raw(nonce.data()), raw(header.data()), header.size(), raw(right.data()),
                       right.size());
    return same_tag(right, tag);
  }

 private:
  const IMB_MGR& manager_;
  alignas(64) gcm_key_data key_;  // as the library has it for itself
};

}  // namespace

std::unique_ptr<Aead> make_ipsec_mb_aead(AeadKey key) {
  static const IMB_MGR* const manager = load_manager();
  if (manager == nullptr) return nullptr;
  return std::make_unique<IpsecMbAead>(manager, key);
}

}  // namespace clan::udp

#else

namespace clan::udp {
std::unique_ptr<Aead> make_ipsec_mb_aead(AeadKey) { return nullptr; }
}  // namespace clan::udp

#endif
