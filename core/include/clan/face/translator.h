// Translator: a context's NIC TLB (clan/tlb.h), for a face that copies memory its application names
// by address, as the NIC does (U-Net/MM, section 4).
//
// With ContextOptions::keep_translations a copied page keeps its entry: the next copy is a look-up
// and the copy. Otherwise, or where unmaps are not reported, entries go with each copy.
//
// Any thread. Errors are errno values, 0 for none.
#pragma once

#include <clan/context.h>
#include <clan/pinner.h>
#include <clan/tlb_types.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace clan {

namespace nic {
class Translations;
}
namespace engine {
class RdmaDriver;
}

class CLAN_EXPORT Translator {
 public:
  /// ENOSYS: before Linux 5.14.
  static Result<Translator> of(Context& context);
  Translator(Translator&&) noexcept = default;
  Translator& operator=(Translator&&) noexcept = default;

  /// Copies from memory that may not be there: EFAULT. EAGAIN: the driver thread brings a page in.
  int copy_from(void* to, const void* from, std::size_t bytes);
  /// The same to memory that may not be there, or not be writable.
  int copy_to(void* to, const void* from, std::size_t bytes);
  /// Gives pages entries ahead of use; takes their page faults in this thread. EFAULT; EMSGSIZE:
  /// more than the TLB has; EAGAIN: it is full of transfers under way.
  int pre_translate(const void* memory, std::size_t bytes, PageAccess access);

  /// Takes page faults that have been put off, in this thread: for one that has nothing else to do.
  bool resolve();
  /// Whether entries outlive what they were made for.
  bool keeps() const;
  TlbStats stats() const;

 private:
  Translator(std::shared_ptr<engine::ContextCore> core, engine::RdmaDriver* driver,
             nic::Translations* translations)
      : core_(std::move(core)), driver_(driver), translations_(translations) {}
  int answer(int error);
  std::shared_ptr<engine::ContextCore> core_;
  engine::RdmaDriver* driver_;
  nic::Translations* translations_;
};

}  // namespace clan
