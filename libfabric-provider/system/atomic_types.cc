#include "system/atomic_types.h"

#include <complex>
#include <cstring>
#include <type_traits>

namespace clan::ofi {
namespace {

template <typename T>
constexpr bool kComplex = false;
template <typename T>
constexpr bool kComplex<std::complex<T>> = true;
template <typename T>
constexpr bool kInteger = std::is_integral_v<T>;
// Not integral to a compiler that is asked for plain C++.
template <>
constexpr bool kInteger<__int128> = true;
template <>
constexpr bool kInteger<unsigned __int128> = true;

template <typename T>
constexpr bool valid_for(fi_op op) {
  switch (op) {
    case FI_MIN:
    case FI_MAX:
    case FI_CSWAP_LE:
    case FI_CSWAP_LT:
    case FI_CSWAP_GE:
    case FI_CSWAP_GT: return !kComplex<T>;
    case FI_BOR:
    case FI_BAND:
    case FI_BXOR:
    case FI_MSWAP: return kInteger<T>;
    case FI_SUM:
    case FI_PROD:
    case FI_LOR:
    case FI_LAND:
    case FI_LXOR:
    case FI_ATOMIC_READ:
    case FI_ATOMIC_WRITE:
    case FI_CSWAP:
    case FI_CSWAP_NE: return true;
    default: return false;
  }
}

// Returns the new value of a place that had `old`. Sums wrap, as the processor's do.
template <typename T>
T result_of(fi_op op, T old, T operand, T comparand) {
  const auto truth = [](T value) { return value != T(0); };
  switch (op) {
    case FI_SUM:
      if constexpr (kInteger<T>) {
        return static_cast<T>(static_cast<unsigned __int128>(old) +
                              static_cast<unsigned __int128>(operand));
      } else {
        return old + operand;
      }
    case FI_PROD:
      if constexpr (kInteger<T>) {
        return static_cast<T>(static_cast<unsigned __int128>(old) *
                              static_cast<unsigned __int128>(operand));
      } else {
        return old * operand;
      }
    case FI_LOR: return T(truth(old) || truth(operand) ? 1 : 0);
    case FI_LAND: return T(truth(old) && truth(operand) ? 1 : 0);
    case FI_LXOR: return T(truth(old) != truth(operand) ? 1 : 0);
    case FI_ATOMIC_WRITE: return operand;
    case FI_CSWAP: return comparand == old ? operand : old;
    case FI_CSWAP_NE: return comparand != old ? operand : old;
    default: break;
  }
  if constexpr (!kComplex<T>) {
    switch (op) {
      case FI_MIN: return operand < old ? operand : old;
      case FI_MAX: return old < operand ? operand : old;
      case FI_CSWAP_LE: return comparand <= old ? operand : old;
      case FI_CSWAP_LT: return comparand < old ? operand : old;
      case FI_CSWAP_GE: return comparand >= old ? operand : old;
      case FI_CSWAP_GT: return comparand > old ? operand : old;
      default: break;
    }
  }
  if constexpr (kInteger<T>) {
    switch (op) {
      case FI_BOR: return static_cast<T>(old | operand);
      case FI_BAND: return static_cast<T>(old & operand);
      case FI_BXOR: return static_cast<T>(old ^ operand);
      case FI_MSWAP: return static_cast<T>((operand & comparand) | (old & ~comparand));
      default: break;
    }
  }
  return old;  // FI_ATOMIC_READ
}

template <std::size_t kBytes, std::size_t kIs, typename Is, typename Else>
using Either = std::conditional_t<kBytes == kIs, Is, Else>;
/// The integer of that many bytes, or void.
template <std::size_t kBytes>
using WordOf =
    Either<kBytes, 1, std::uint8_t,
           Either<kBytes, 2, std::uint16_t,
                  Either<kBytes, 4, std::uint32_t, Either<kBytes, 8, std::uint64_t, void>>>>;

template <typename T>
T apply_one(fi_op op, std::byte* target, T operand, T comparand) {
  using Word = WordOf<sizeof(T)>;
  if constexpr (!std::is_void_v<Word>) {
    if (reinterpret_cast<std::uintptr_t>(target) % sizeof(Word) == 0) {
      auto* const word = reinterpret_cast<Word*>(target);
      Word before = __atomic_load_n(word, __ATOMIC_SEQ_CST);
      for (;;) {
        T old;
        std::memcpy(static_cast<void*>(&old), &before, sizeof old);
        if (op == FI_ATOMIC_READ) return old;
        const T fresh = result_of(op, old, operand, comparand);
        Word after;
        std::memcpy(&after, &fresh, sizeof after);
        if (__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
          return old;
      }
    }
  }
  T old;
  std::memcpy(&old, target, sizeof old);
  const T fresh = result_of(op, old, operand, comparand);
  if (op != FI_ATOMIC_READ) std::memcpy(target, &fresh, sizeof fresh);
  return old;
}

template <typename T>
void apply(fi_op op, std::byte* target, const std::byte* operands, const std::byte* comparands,
           std::byte* found, std::size_t count) {
  const bool brings = op != FI_ATOMIC_READ;
  const bool compares = op >= FI_CSWAP;
  for (std::size_t i = 0; i < count; ++i) {
    T operand{}, comparand{};
    if (brings) std::memcpy(&operand, operands + i * sizeof(T), sizeof(T));
    if (compares) std::memcpy(&comparand, comparands + i * sizeof(T), sizeof(T));
    const T old = apply_one<T>(op, target + i * sizeof(T), operand, comparand);
    if (found != nullptr) std::memcpy(found + i * sizeof(T), &old, sizeof(T));
  }
}

// Calls f with a value of the type. False: there is no such type.
template <typename F>
bool with_type(fi_datatype type, F&& f) {
  switch (static_cast<int>(type)) {
    case FI_INT8: f(std::int8_t{}); return true;
    case FI_UINT8: f(std::uint8_t{}); return true;
    case FI_INT16: f(std::int16_t{}); return true;
    case FI_UINT16: f(std::uint16_t{}); return true;
    case FI_INT32: f(std::int32_t{}); return true;
    case FI_UINT32: f(std::uint32_t{}); return true;
    case FI_INT64: f(std::int64_t{}); return true;
    case FI_UINT64: f(std::uint64_t{}); return true;
    case FI_INT128: f(static_cast<__int128>(0)); return true;
    case FI_UINT128: f(static_cast<unsigned __int128>(0)); return true;
    case FI_FLOAT: f(float{}); return true;
    case FI_DOUBLE: f(double{}); return true;
    case FI_LONG_DOUBLE: f(static_cast<long double>(0)); return true;
    case FI_FLOAT_COMPLEX: f(std::complex<float>{}); return true;
    case FI_DOUBLE_COMPLEX: f(std::complex<double>{}); return true;
    case FI_LONG_DOUBLE_COMPLEX: f(std::complex<long double>{}); return true;
    default: return false;
  }
}

}  // namespace

std::size_t atomic_size(fi_datatype type) {
  std::size_t size = 0;
  with_type(type, [&](auto value) { size = sizeof value; });
  return size;
}

bool atomic_valid(fi_datatype type, fi_op op, AtomicKind kind) {
  if (op < FI_MIN || op >= FI_ATOMIC_OP_LAST) return false;
  const bool compares = op >= FI_CSWAP;
  if (compares != (kind == AtomicKind::kCompare)) return false;
  if (op == FI_ATOMIC_READ && kind != AtomicKind::kFetch) return false;
  bool valid = false;
  with_type(type, [&](auto value) { valid = valid_for<decltype(value)>(op); });
  return valid;
}

void apply_atomic(fi_datatype type, fi_op op, std::byte* target, const std::byte* operands,
                  const std::byte* comparands, std::byte* found, std::size_t count) {
  with_type(type, [&](auto value) {
    apply<decltype(value)>(op, target, operands, comparands, found, count);
  });
}

}  // namespace clan::ofi
