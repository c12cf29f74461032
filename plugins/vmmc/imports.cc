// Imports: by name, of this host or another one, and by cookie.
#include <cstring>

#include "objects.h"

using namespace clan::vmmc;

namespace clan::vmmc {
namespace {

int add_remote(vmmc_t& v, const RdmaCookie& cookie, BellNumber number, std::uint32_t uid,
               std::uint64_t deadline_ns, vmmc_remote_t** remote) {
  auto made = std::make_unique<vmmc_remote>();
  made->v = &v;
  made->key = cookie.key;
  auto aperture = RemoteAperture::import(v.context, cookie, milliseconds_until(deadline_ns), uid);
  if (!aperture) return -aperture.error().err;
  made->aperture = std::move(*aperture);
  if (number != 0) {
    auto bell = v.bells.connect({cookie.node, number, uid}, milliseconds_until(deadline_ns));
    if (!bell) return -bell.error().err;
    made->bell = std::move(*bell);
  }
  words::add(v.users, 1u);
  count(page().remotes);
  *remote = made.release();
  return 0;
}

// A name that nobody exports has no service, or, for a moment, no aperture.
int error_of(const Error& error, const char* host) {
  return error.err == ECONNREFUSED && host == nullptr ? -ENOENT : -error.err;
}

}  // namespace
}  // namespace clan::vmmc

extern "C" CLAN_EXPORT int vmmc_import_of(vmmc_t* v, const char* host, const char* name,
                                          int64_t owner_uid, int64_t timeout_ms,
                                          vmmc_remote_t** remote) {
  if (const int rc = check(v); rc != 0) return rc;
  if (name == nullptr || remote == nullptr) return -EINVAL;
  const std::uint64_t deadline_ns = clan::deadline_after_ms(timeout_ms);
  auto finder = clan::OobEndpoint::create(v->context);
  if (!finder) return -finder.error().err;
  const std::string service =
      host == nullptr ? service_of(name) : "udp:" + std::string(host) + "/" + service_of(name);
  auto owner = finder->look_up(service, milliseconds_until(deadline_ns), owner_uid);
  if (!owner) return error_of(owner.error(), host);
  auto named = clan::RemoteAperture::look_up(v->context, owner->node, hash_of(name),
                                             milliseconds_until(deadline_ns), owner->uid);
  if (!named) return error_of(named.error(), host);
  BellNumber number = 0;
  if (named->note_bytes == sizeof number) std::memcpy(&number, named->note.data(), sizeof number);
  return add_remote(*v, named->cookie, number, owner->uid, deadline_ns, remote);
}

extern "C" CLAN_EXPORT int vmmc_import(vmmc_t* v, const char* host, const char* name,
                                       int64_t timeout_ms, vmmc_remote_t** remote) {
  return vmmc_import_of(v, host, name, -1, timeout_ms, remote);
}

extern "C" CLAN_EXPORT int vmmc_import_cookie(vmmc_t* v,
                                              const unsigned char bytes[VMMC_COOKIE_BYTES],
                                              int64_t owner_uid, int64_t timeout_ms,
                                              vmmc_remote_t** remote) {
  if (const int rc = check(v); rc != 0) return rc;
  if (bytes == nullptr || remote == nullptr) return -EINVAL;
  clan::RdmaCookie cookie;
  static_assert(sizeof cookie == VMMC_COOKIE_BYTES);
  std::memcpy(static_cast<void*>(&cookie), bytes, sizeof cookie);
  const BellNumber number = std::exchange(cookie.reserved, 0);
  const auto uid = owner_uid < 0 ? v->arrivals.address().uid : static_cast<uint32_t>(owner_uid);
  return add_remote(*v, cookie, number, uid, clan::deadline_after_ms(timeout_ms), remote);
}

extern "C" CLAN_EXPORT int vmmc_unimport(vmmc_remote_t* remote) {
  if (const int rc = check(remote); rc != 0) return rc;
  if (clan::words::load_acquire(remote->bindings) != 0) return -EBUSY;
  (void)remote->v->transfers.drain(*remote);
  clan::words::subtract(remote->v->users, 1u);
  uncount(page().remotes);
  delete remote;
  return 0;
}

extern "C" CLAN_EXPORT size_t vmmc_size(const vmmc_remote_t* remote) {
  return check(remote) != 0 ? 0 : remote->aperture->size();
}

extern "C" CLAN_EXPORT int vmmc_check(vmmc_remote_t* remote) {
  const int rc = check(remote);
  return rc != 0 ? rc : answer(remote->aperture->check());
}
