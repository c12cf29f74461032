#include "operations.h"

#include <cerrno>
#include <cstring>

namespace clan::mpi {
namespace {

template <typename Word, typename Change>
Word change(std::atomic_ref<Word> word, Change next) {
  Word old = word.load(std::memory_order_relaxed);  // relaxed: the exchange decides
  while (!word.compare_exchange_weak(old, next(old), std::memory_order_acq_rel)) {
  }
  return old;
}

// Signed: as Open MPI has them.
template <typename Word>
int carry_out_atomic(AskedOperation& asked, std::byte* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(Word) != 0) return EINVAL;
  std::atomic_ref<Word> word(*reinterpret_cast<Word*>(address));
  const auto operand = static_cast<Word>(asked.data[0]);
  const auto compared = static_cast<Word>(asked.data[1]);
  Word old;
  switch (asked.operation) {
    case Operation::kAdd: old = word.fetch_add(operand); break;
    case Operation::kAnd: old = word.fetch_and(operand); break;
    case Operation::kOr: old = word.fetch_or(operand); break;
    case Operation::kXor: old = word.fetch_xor(operand); break;
    case Operation::kLogicalAnd:
      old = change(word, [&](Word w) { return Word{w != 0 && operand != 0}; });
      break;
    case Operation::kLogicalOr:
      old = change(word, [&](Word w) { return Word{w != 0 || operand != 0}; });
      break;
    case Operation::kLogicalXor:
      old = change(word, [&](Word w) { return Word{(w != 0) != (operand != 0)}; });
      break;
    case Operation::kSwap: old = word.exchange(operand); break;
    case Operation::kMin:
      old = change(word, [&](Word w) { return operand < w ? operand : w; });
      break;
    case Operation::kMax:
      old = change(word, [&](Word w) { return operand > w ? operand : w; });
      break;
    case Operation::kCompareAndSwap:
      old = compared;
      word.compare_exchange_strong(old, operand);
      break;
    default: return EINVAL;
  }
  std::memcpy(&asked.data[0], &old, sizeof old);
  return 0;
}

/// Volatile: the compiler makes neither two loads of it nor a later one.
template <typename T>
T once(const T& word) {
  return *static_cast<const volatile T*>(&word);
}

}  // namespace

AskedOperation asked_in(const OperationCell& cell) {
  return {once(cell.operation), once(cell.bytes),
          once(cell.aperture),  once(cell.address),
          once(cell.key),       {once(cell.data[0]), once(cell.data[1]), once(cell.data[2])}};
}

int carry_out(AskedOperation& asked, std::byte* address) {
  const Operation operation = asked.operation;
  const std::uint16_t bytes = asked.bytes;
  if (operation == Operation::kPut || operation == Operation::kGet) {
    if (bytes > kCellData) return EINVAL;
    const bool word = bytes == 8 && reinterpret_cast<std::uintptr_t>(address) % 8 == 0;
    if (operation == Operation::kPut && word) {  // one store: a reader sees all of it or nothing
      std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(address))
          .store(asked.data[0]);
    } else if (operation == Operation::kPut) {
      std::memcpy(address, asked.data, bytes);
    } else if (word) {
      asked.data[0] =
          std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(address)).load();
    } else {
      std::memcpy(asked.data, address, bytes);
    }
    return 0;
  }
  if (bytes == 8) return carry_out_atomic<std::int64_t>(asked, address);
  if (bytes == 4) return carry_out_atomic<std::int32_t>(asked, address);
  return EINVAL;
}

}  // namespace clan::mpi
