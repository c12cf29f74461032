// <clan/face/translator.h>: the public face of the RDMA driver's TLB.
#include "clan/face/translator.h"

#include "engine/context/context_core.h"
#include "engine/rdma/rdma_driver.h"

namespace clan {

Result<Translator> Translator::of(Context& context) {
  auto driver = context.core()->rdma();
  if (!driver) return driver.error();
  nic::Translations* const translations = (*driver)->translations();
  if (translations == nullptr) return Error{ENOSYS, "the NIC has no TLB here"};
  return Translator(context.core(), *driver, translations);
}

// What is not in memory is for the driver thread to bring in.
int Translator::answer(int error) {
  if (error == EAGAIN && translations_->has_deferred()) driver_->kick();
  return error;
}

int Translator::copy_from(void* to, const void* from, std::size_t bytes) {
  if (!core_->usable()) return ESHUTDOWN;
  return answer(translations_->copy_from(to, from, bytes));
}

int Translator::copy_to(void* to, const void* from, std::size_t bytes) {
  if (!core_->usable()) return ESHUTDOWN;
  return answer(translations_->copy_to(to, from, bytes));
}

int Translator::pre_translate(const void* memory, std::size_t bytes, PageAccess access) {
  if (!core_->usable()) return ESHUTDOWN;
  return translations_->pre_translate(memory, bytes, access);
}

bool Translator::resolve() { return core_->usable() && translations_->resolve(); }
bool Translator::keeps() const { return core_->usable() && translations_->keeps(); }
TlbStats Translator::stats() const { return core_->usable() ? translations_->stats() : TlbStats(); }

Status Context::pre_translate(std::span<const std::byte> memory, PageAccess access) {
  auto translator = Translator::of(*this);
  if (!translator) return translator.error();
  const int error = translator->pre_translate(memory.data(), memory.size(), access);
  return error == 0 ? Status() : Error{error, "translating memory ahead of its use"};
}

}  // namespace clan
