// Plain message passing: a thread that finds the word changed sees what its writer did before. For
// words on which nothing else hangs, in shared memory, too. Words with a protocol name their own
// orders and tags; two sides that store and then check: <clan/detail/dekker.h>.
//
// tests/unit/base/words_test.cc hands plain data over by each of these, tests/model/orders weakens
// the orders one at a time. docs/shared-memory.md has the rules.
#pragma once

#include <atomic>
#include <type_traits>

namespace clan::words {

template <typename Word>
using value_of = typename std::remove_cvref_t<Word>::value_type;

/// By the only writer, or where it does not matter which one is last.
template <typename Word>
void store_release(Word&& word, value_of<Word> value) {
  word.store(value, std::memory_order_release);  // PAIR words: publishes what came before
}

/// What was done before the word became what is returned is visible behind this.
template <typename Word>
auto load_acquire(const Word& word) {
  return word.load(std::memory_order_acquire);  // PAIR words: sees what came before
}

// Those below do both, in the one order of <clan/detail/dekker.h>: no processor that CLAN runs on
// does less for acquire and release together.

/// Where the word is `expected`; else that becomes what it is, and the answer is false.
template <typename Word>
bool cas(Word&& word, value_of<Word>& expected, value_of<Word> next) {
  // PAIR words: sees what the one before has done, and publishes
  return word.compare_exchange_strong(expected, next, std::memory_order_seq_cst);
}

/// Answers what the word was, as the others below.
template <typename Word>
auto swap(Word&& word, value_of<Word> value) {
  return word.exchange(value, std::memory_order_seq_cst);  // PAIR words: sees and publishes
}

template <typename Word>
auto add(Word&& word, value_of<Word> value) {
  return word.fetch_add(value, std::memory_order_seq_cst);  // PAIR words: sees and publishes
}

template <typename Word>
auto subtract(Word&& word, value_of<Word> value) {
  return word.fetch_sub(value, std::memory_order_seq_cst);  // PAIR words: sees and publishes
}

template <typename Word>
auto set_bits(Word&& word, value_of<Word> bits) {
  return word.fetch_or(bits, std::memory_order_seq_cst);  // PAIR words: sees and publishes
}

template <typename Word>
auto clear_bits(Word&& word, value_of<Word> bits) {
  // PAIR words: sees and publishes
  return word.fetch_and(static_cast<value_of<Word>>(~bits), std::memory_order_seq_cst);
}

}  // namespace clan::words
