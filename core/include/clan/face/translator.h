// Translator: the NIC's TLB (clan/tlb.h) of a context, for a face that moves bytes of memory which
// its application names by address (U-Net/MM, section 4): it copies as the NIC does.
//
// With ContextOptions::keep_translations a page that has been copied from or to keeps its entry,
// and the next copy is a look-up and the copy itself. Without it, or where the kernel does not
// report unmaps, entries go with each copy, and the kernel is asked each time.
//
// Thread-safety: any thread. Errors are errno values, 0 for none.
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

  /// Copies `bytes` from memory that may not be there: EFAULT. EAGAIN: a page is not in memory; the
  /// context's driver thread has it brought in.
  int copy_from(void* to, const void* from, std::size_t bytes);
  /// The same to memory that may not be there, or not be writable.
  int copy_to(void* to, const void* from, std::size_t bytes);
  /// Gives the pages entries ahead of their use, and takes their page faults in this thread.
  /// EFAULT; EMSGSIZE: more than the TLB has; EAGAIN: it is full of transfers under way.
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
