// Every type and operation of libfabric's atomics, by its public interface: what fi_query_atomic
// and fi_atomicvalid offer, and what each does to memory, beside the same computed here.
#include <algorithm>
#include <complex>
#include <cstdint>
#include <type_traits>

#include "libfabric/node.h"

namespace clan::test {
namespace {

constexpr std::uint64_t kKey = 3;
constexpr std::size_t kValues = 5;

template <typename T>
constexpr bool kIsComplex = !std::is_arithmetic_v<T>;

template <typename T>
struct Kind {
  T value;
  fi_datatype type;
};

/// Calls `f` with a Kind of each type that libfabric 1.17 has.
template <typename F>
void for_each_type(F&& f) {
  f(Kind<std::int8_t>{0, FI_INT8});
  f(Kind<std::uint8_t>{0, FI_UINT8});
  f(Kind<std::int16_t>{0, FI_INT16});
  f(Kind<std::uint16_t>{0, FI_UINT16});
  f(Kind<std::int32_t>{0, FI_INT32});
  f(Kind<std::uint32_t>{0, FI_UINT32});
  f(Kind<std::int64_t>{0, FI_INT64});
  f(Kind<std::uint64_t>{0, FI_UINT64});
  f(Kind<float>{0, FI_FLOAT});
  f(Kind<double>{0, FI_DOUBLE});
  f(Kind<long double>{0, FI_LONG_DOUBLE});
  f(Kind<std::complex<float>>{{}, FI_FLOAT_COMPLEX});
  f(Kind<std::complex<double>>{{}, FI_DOUBLE_COMPLEX});
  f(Kind<std::complex<long double>>{{}, FI_LONG_DOUBLE_COMPLEX});
}

/// By the manual: no order among complex numbers, no bits of what is no integer.
template <typename T>
bool is_for_type(fi_op op) {
  switch (op) {
    case FI_MIN:
    case FI_MAX:
    case FI_CSWAP_LE:
    case FI_CSWAP_LT:
    case FI_CSWAP_GE:
    case FI_CSWAP_GT: return !kIsComplex<T>;
    case FI_BOR:
    case FI_BAND:
    case FI_BXOR:
    case FI_MSWAP: return std::is_integral_v<T>;
    default: return true;
  }
}

template <typename T>
T of_truth(bool truth) {
  return truth ? T(1) : T(0);
}

/// What `target` becomes. Compare: as the manual says, `compare` is on the left.
template <typename T>
T expected(fi_op op, T target, T operand, T compare) {
  const T zero(0);
  switch (op) {
    case FI_SUM: return static_cast<T>(target + operand);
    case FI_PROD: return static_cast<T>(target * operand);
    case FI_LOR: return of_truth<T>(target != zero || operand != zero);
    case FI_LAND: return of_truth<T>(target != zero && operand != zero);
    case FI_LXOR: return of_truth<T>((target != zero) != (operand != zero));
    case FI_ATOMIC_READ: return target;
    case FI_ATOMIC_WRITE: return operand;
    case FI_CSWAP: return compare == target ? operand : target;
    case FI_CSWAP_NE: return compare != target ? operand : target;
    default: break;
  }
  if constexpr (!kIsComplex<T>) {
    switch (op) {
      case FI_MIN: return std::min(target, operand);
      case FI_MAX: return std::max(target, operand);
      case FI_CSWAP_LE: return compare <= target ? operand : target;
      case FI_CSWAP_LT: return compare < target ? operand : target;
      case FI_CSWAP_GE: return compare >= target ? operand : target;
      case FI_CSWAP_GT: return compare > target ? operand : target;
      default: break;
    }
  }
  if constexpr (std::is_integral_v<T>) {
    switch (op) {
      case FI_BOR: return static_cast<T>(target | operand);
      case FI_BAND: return static_cast<T>(target & operand);
      case FI_BXOR: return static_cast<T>(target ^ operand);
      case FI_MSWAP: return static_cast<T>((operand & compare) | (target & ~compare));
      default: break;
    }
  }
  ADD_FAILURE() << "operation " << op;
  return zero;
}

/// Targets, operands and values to compare with: less, equal, greater, zero and not.
template <typename T>
struct Values {
  std::vector<T> target{T(7), T(0), T(3), T(5), T(1)};
  std::vector<T> operand{T(2), T(4), T(0), T(6), T(1)};
  std::vector<T> compare{T(7), T(1), T(2), T(6), T(0)};
};

enum class Way { kPlain, kFetch, kCompare };

bool compares(fi_op op) { return op >= FI_CSWAP; }

class Caller {
 public:
  template <typename T>
  int valid(Way way, const Kind<T>& kind, fi_op op, std::size_t* most) {
    fid_ep* ep = two_.a.ep.get();
    switch (way) {
      case Way::kPlain: return fi_atomicvalid(ep, kind.type, op, most);
      case Way::kFetch: return fi_fetch_atomicvalid(ep, kind.type, op, most);
      case Way::kCompare: return fi_compare_atomicvalid(ep, kind.type, op, most);
    }
    return -FI_EINVAL;
  }

  /// Once on all values; then they are as expected, and so is what was there before.
  template <typename T>
  void call(Way way, const Kind<T>& kind, fi_op op) {
    SCOPED_TRACE(testing::Message() << "type " << kind.type << " operation " << op << " way "
                                    << static_cast<int>(way));
    Values<T> values;
    const std::vector<T> before = values.target;
    std::vector<T> found(kValues, T(9));
    fid_mr* region = nullptr;
    MUST(fi_mr_reg(two_.b.domain.get(), values.target.data(), kValues * sizeof(T),
                   FI_REMOTE_READ | FI_REMOTE_WRITE, 0, kKey, 0, &region, nullptr));
    const Object<fid_mr> registered(region);
    fid_ep* ep = two_.a.ep.get();
    const ssize_t rc = sent(
        [&] {
          switch (way) {
            case Way::kPlain:
              return fi_atomic(ep, values.operand.data(), kValues, nullptr, two_.to_b, 0, kKey,
                               kind.type, op, nullptr);
            case Way::kFetch:
              return fi_fetch_atomic(ep, values.operand.data(), kValues, nullptr, found.data(),
                                     nullptr, two_.to_b, 0, kKey, kind.type, op, nullptr);
            default:
              return fi_compare_atomic(ep, values.operand.data(), kValues, nullptr,
                                       values.compare.data(), nullptr, found.data(), nullptr,
                                       two_.to_b, 0, kKey, kind.type, op, nullptr);
          }
        },
        two_.a);
    ASSERT_EQ(rc, 0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two_.completes(two_.a, &entry));
    for (std::size_t i = 0; i < kValues; ++i) {
      EXPECT_EQ(values.target[i],
                (expected<T>(op, before[i], values.operand[i], values.compare[i])))
          << i;
      if (way != Way::kPlain) {
        EXPECT_EQ(found[i], before[i]) << i;
      }
    }
  }

 private:
  Two two_;
};

TEST(FabricEveryAtomic, DoEveryOperationThatTheManualHasForTheType) {
  Caller caller;
  int done = 0;
  for_each_type([&](const auto& kind) {
    using T = std::remove_cvref_t<decltype(kind.value)>;
    for (int number = FI_MIN; number <= FI_MSWAP; ++number) {
      const auto op = static_cast<fi_op>(number);
      for (const Way way : {Way::kPlain, Way::kFetch, Way::kCompare}) {
        if (compares(op) != (way == Way::kCompare)) continue;
        if (op == FI_ATOMIC_READ && way == Way::kPlain) continue;
        std::size_t most = 0;
        const int rc = caller.valid(way, kind, op, &most);
        if (!is_for_type<T>(op)) {
          EXPECT_NE(rc, 0) << "type " << kind.type << " operation " << op;
          continue;
        }
        ASSERT_EQ(rc, 0) << "type " << kind.type << " operation " << op;
        EXPECT_GE(most * sizeof(T), std::size_t{1} << 29);
        caller.call(way, kind, op);
        ++done;
      }
    }
  });
  // Operations that write, twice and with reading once more, and those that compare: of integers,
  // reals, complex ones.
  EXPECT_EQ(done, 8 * (2 * 11 + 1 + 7) + 3 * (2 * 8 + 1 + 6) + 3 * (2 * 6 + 1 + 2));
}

TEST(FabricEveryAtomic, WorkOnAGibibyteInOneCall) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep shadow memory for what is touched";
#else
  constexpr std::size_t kBytes = std::size_t{1} << 30, kCount = kBytes / 8;
  std::uint64_t available_kib = 0;
  if (std::FILE* file = std::fopen("/proc/meminfo", "r")) {
    char line[128];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      unsigned long kib;
      if (std::sscanf(line, "MemAvailable: %lu kB", &kib) == 1) available_kib = kib;
    }
    std::fclose(file);
  }
  if (available_kib * 1024 < 4 * kBytes) GTEST_SKIP() << "less than 4 GiB of memory are available";
  std::vector<std::uint64_t> target(kCount, 40), operand(kCount, 2);
  Two two;
  fid_mr* region = nullptr;
  MUST(fi_mr_reg(two.b.domain.get(), target.data(), kBytes, FI_REMOTE_READ | FI_REMOTE_WRITE, 0,
                 kKey, 0, &region, nullptr));
  const Object<fid_mr> registered(region);
  std::size_t most = 0;
  ASSERT_EQ(fi_atomicvalid(two.a.ep.get(), FI_UINT64, FI_SUM, &most), 0);
  ASSERT_EQ(most, kCount);
  ASSERT_EQ(sent(
                [&] {
                  return fi_atomic(two.a.ep.get(), operand.data(), kCount, nullptr, two.to_b, 0,
                                   kKey, FI_UINT64, FI_SUM, nullptr);
                },
                two.a),
            0);
  fi_cq_tagged_entry entry;
  bool complete = false;
  for (int patience = 0; patience < 4 && !complete; ++patience)
    complete = bool(two.completes(two.a, &entry));
  ASSERT_TRUE(complete);
  EXPECT_EQ(std::count(target.begin(), target.end(), 42u), static_cast<std::ptrdiff_t>(kCount));
  ASSERT_NE(fi_atomic(two.a.ep.get(), operand.data(), kCount + 1, nullptr, two.to_b, 0, kKey,
                      FI_UINT64, FI_SUM, nullptr),
            0);
#endif
}

}  // namespace
}  // namespace clan::test
