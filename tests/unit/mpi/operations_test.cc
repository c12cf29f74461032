#include "plugins/mpi/operations.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "plugins/mpi/registration.h"

namespace clan::mpi {
namespace {

struct Cell : AskedOperation {
  Cell(Operation what, std::uint16_t size, std::uint64_t operand, std::uint64_t compared = 0)
      : AskedOperation{} {
    operation = what;
    bytes = size;
    data[0] = operand;
    data[1] = compared;
  }
};

template <typename Word>
void expect_operation(Operation operation, Word before, Word operand, Word after,
                      Word compared = 0) {
  Word word = before;
  Cell cell(operation, sizeof(Word), static_cast<std::uint64_t>(operand),
            static_cast<std::uint64_t>(compared));
  ASSERT_EQ(carry_out(cell, reinterpret_cast<std::byte*>(&word)), 0);
  EXPECT_EQ(word, after) << "operation " << static_cast<int>(operation);
  Word answer;
  std::memcpy(&answer, cell.data, sizeof answer);
  EXPECT_EQ(answer, before) << "operation " << static_cast<int>(operation);
}

template <typename Word>
void expect_all_operations() {
  expect_operation<Word>(Operation::kAdd, 12, -20, -8);
  expect_operation<Word>(Operation::kAnd, 12, 10, 8);
  expect_operation<Word>(Operation::kOr, 12, 10, 14);
  expect_operation<Word>(Operation::kXor, 12, 10, 6);
  expect_operation<Word>(Operation::kLogicalAnd, 12, 10, 1);
  expect_operation<Word>(Operation::kLogicalAnd, 12, 0, 0);
  expect_operation<Word>(Operation::kLogicalOr, 0, 0, 0);
  expect_operation<Word>(Operation::kLogicalOr, 0, 5, 1);
  expect_operation<Word>(Operation::kLogicalXor, 12, 10, 0);
  expect_operation<Word>(Operation::kLogicalXor, 12, 0, 1);
  expect_operation<Word>(Operation::kSwap, 12, -10, -10);
  expect_operation<Word>(Operation::kMin, 12, -3, -3);
  expect_operation<Word>(Operation::kMin, -12, 3, -12);
  expect_operation<Word>(Operation::kMax, -12, 3, 3);
  expect_operation<Word>(Operation::kCompareAndSwap, 12, 7, 7, 12);
  expect_operation<Word>(Operation::kCompareAndSwap, 12, 7, 12, 13);
}

TEST(Operations, OnWordsOf64BitsAnswerWhatWasThereBefore) { expect_all_operations<std::int64_t>(); }
TEST(Operations, OnWordsOf32BitsAnswerWhatWasThereBefore) { expect_all_operations<std::int32_t>(); }

TEST(Operations, OfOtherSizesOrKindsOrPlacesAreRefused) {
  alignas(8) std::byte memory[32]{};
  Cell odd(Operation::kAdd, 5, 1);
  EXPECT_EQ(carry_out(odd, memory), EINVAL);
  Cell unknown(static_cast<Operation>(99), 8, 1);
  EXPECT_EQ(carry_out(unknown, memory), EINVAL);
  Cell crooked(Operation::kAdd, 8, 1);
  EXPECT_EQ(carry_out(crooked, memory + 4), EINVAL);
  Cell long_put(Operation::kPut, 25, 1);
  EXPECT_EQ(carry_out(long_put, memory), EINVAL);
  for (const std::byte b : memory) EXPECT_EQ(b, std::byte{0});
}

TEST(Operations, PutAndGetMoveTheirBytesAndNoOthers) {
  for (std::uint16_t bytes = 1; bytes <= kCellData; ++bytes) {
    std::vector<std::byte> memory(64, std::byte{7});
    Cell put(Operation::kPut, bytes, 0);
    std::memset(put.data, 9, kCellData);
    ASSERT_EQ(carry_out(put, memory.data() + 3), 0);
    for (std::size_t i = 0; i < memory.size(); ++i) {
      EXPECT_EQ(memory[i], std::byte(i >= 3 && i < 3u + bytes ? 9 : 7)) << i << " of " << bytes;
    }
    Cell get(Operation::kGet, bytes, 0);
    ASSERT_EQ(carry_out(get, memory.data() + 3), 0);
    const std::vector<std::byte> nines(bytes, std::byte{9});
    EXPECT_EQ(std::memcmp(get.data, nines.data(), bytes), 0);
  }
}

TEST(Operations, AreDoneAsTheyWereWhenTheyWereTaken) {
  std::vector<std::byte> memory(64, std::byte{7});
  OperationCell cell{};
  cell.operation = Operation::kPut;
  cell.bytes = 4;
  cell.address = 1000;
  cell.key = 5;
  cell.aperture = 6;
  std::memset(cell.data, 9, sizeof cell.data);
  AskedOperation asked = asked_in(cell);
  cell.bytes = 24;
  cell.address = 2000;
  cell.key = cell.aperture = 0;
  cell.operation = Operation::kAdd;
  std::memset(cell.data, 1, sizeof cell.data);
  EXPECT_EQ(asked.address, 1000u);
  EXPECT_EQ(asked.key, 5u);
  EXPECT_EQ(asked.aperture, 6u);
  ASSERT_EQ(carry_out(asked, memory.data()), 0);
  for (std::size_t i = 0; i < memory.size(); ++i)
    EXPECT_EQ(memory[i], std::byte(i < 4 ? 9 : 7)) << i;
}

TEST(Operations, OfTwoThreadsOnOneWordAreAllCounted) {
  std::int64_t word = 0;
  const auto add = [&] {
    for (int i = 0; i < 100'000; ++i) {
      Cell cell(i % 2 == 0 ? Operation::kAdd : Operation::kMax, 8, i % 2 == 0 ? 1 : 0);
      (void)carry_out(cell, reinterpret_cast<std::byte*>(&word));
    }
  };
  std::thread other(add);
  add();
  other.join();
  EXPECT_EQ(word, 100'000);
}

TEST(Registrations, OpenToTheRightKeyWithinTheRegionOnly) {
  auto context = Context::create();
  ASSERT_TRUE(context.ok());
  std::vector<std::byte> memory(100);
  auto aperture = Aperture::export_region(*context, memory, Rights::kRead);
  ASSERT_TRUE(aperture.ok());
  Registration registration{{}, std::move(*aperture)};
  registration.handle.cookie = registration.aperture.cookie();
  const auto base = reinterpret_cast<std::uint64_t>(memory.data());
  registration.handle.base = base;
  const RdmaCookie cookie = registration.handle.cookie;

  Registrations registrations;
  const auto ask = [&](std::uint32_t number, std::uint64_t key, std::uint64_t address,
                       std::size_t bytes, bool write) {
    return registrations.with(number, key, address, bytes, write, [](std::byte*) { return 0; });
  };
  EXPECT_EQ(ask(cookie.aperture, cookie.key, base, 8, false), ESTALE);
  registrations.add(registration);
  EXPECT_EQ(ask(cookie.aperture, cookie.key, base, 8, false), 0);
  EXPECT_EQ(ask(cookie.aperture, cookie.key, base + 92, 8, false), 0);
  EXPECT_EQ(ask(cookie.aperture, cookie.key, base + 93, 8, false), ERANGE);
  EXPECT_EQ(ask(cookie.aperture, cookie.key, base - 1, 8, false), ERANGE);
  EXPECT_EQ(ask(cookie.aperture, cookie.key, ~std::uint64_t{0}, 8, false), ERANGE);
  EXPECT_EQ(ask(cookie.aperture, cookie.key, base, ~std::size_t{0}, false), ERANGE);
  EXPECT_EQ(ask(cookie.aperture, cookie.key ^ 1, base, 8, false), EACCES);
  EXPECT_EQ(ask(cookie.aperture, cookie.key, base, 8, true), EACCES) << "exported for reading";
  EXPECT_EQ(ask(cookie.aperture + 1, cookie.key, base, 8, false), ESTALE);
  registrations.remove(registration);
  EXPECT_EQ(ask(cookie.aperture, cookie.key, base, 8, false), ESTALE);
}

Handle handle_of(std::uint32_t aperture, std::uint64_t base, std::uint64_t length) {
  Handle handle;
  handle.cookie.aperture = aperture;
  handle.cookie.key = aperture * 0x1234567u;
  handle.cookie.length = length;
  handle.base = base;
  handle.lasting = 1;
  handle.check = check_of(handle);
  return handle;
}

TEST(Handles, HalfOverwrittenByAnotherAreNotTaken) {
  const Handle before = handle_of(1, 0x10000, 0x3000), after = handle_of(2, 0x20000, 0x1000);
  Handle read;
  ASSERT_TRUE(read_handle(before, &read));
  EXPECT_EQ(std::memcmp(&read, &before, sizeof read), 0);
  for (std::size_t word = 1; word < 8; ++word) {
    Handle torn = before;
    std::memcpy(static_cast<void*>(&torn), &after, word * 8);
    if (std::memcmp(&torn, &after, sizeof torn) == 0) continue;
    if (std::memcmp(&torn, &before, sizeof torn) == 0) continue;
    EXPECT_FALSE(read_handle(torn, &read)) << word << " words are new";
  }
}

TEST(Handles, CoverTheirRegionAndNoMore) {
  const Handle handle = handle_of(1, 0x10000, 0x3000);
  EXPECT_TRUE(covers(handle, 0x10000, 0x3000));
  EXPECT_TRUE(covers(handle, 0x13000, 0));
  EXPECT_FALSE(covers(handle, 0x10000, 0x3001));
  EXPECT_FALSE(covers(handle, 0xffff, 1));
  EXPECT_FALSE(covers(handle, 0x12fff, 2));
  EXPECT_FALSE(covers(handle, ~std::uint64_t{0}, 2));
  EXPECT_FALSE(covers(handle, 0x10001, ~std::size_t{0}));
}

}  // namespace
}  // namespace clan::mpi
