// Whether to offer a long copy to the peer's processor: not if it has left the last ones alone,
// being busy with its own, as a copy in chunks costs a system call for each. One thread at a time.
#pragma once

#include <cstdint>

namespace clan::link {

class CopyOffers {
 public:
  /// Whether to offer this one.
  bool next() {
    if (alone_ == 0) return true;
    --alone_;
    return false;
  }
  /// What has become of one that was offered: whether the peer took a part.
  void ended(bool helped) {
    if (helped) {
      unhelped_ = 0;
    } else if (++unhelped_ >= kMostUnhelped) {
      unhelped_ = kMostUnhelped - 1;  // one more offer then
      alone_ = kAlone;
    }
  }

 private:
  static constexpr std::uint32_t kMostUnhelped = 8, kAlone = 32;

  std::uint32_t unhelped_ = 0;  ///< offers in a row that the peer left alone
  std::uint32_t alone_ = 0;     ///< copies of which none is offered from now on
};

}  // namespace clan::link
