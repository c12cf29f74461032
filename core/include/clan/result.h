// Result<T>: a value or an Error, how every fallible CLAN call answers. No exceptions cross into
// other people's processes. An Error is an errno value and a constant sentence that says what was
// being done. C++20 has no std::expected.
#pragma once

#if __cplusplus < 202002L
#error "CLAN's headers need C++20: compile with -std=c++20 or later (g++ 12 defaults to C++17)"
#endif

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace clan {

/// Why a call failed. `err` is an errno value, never 0; `what` is a string literal.
struct Error {
  int err = EINVAL;
  const char* what = "";

  /// "what: strerror(err)", for messages to people.
  std::string message() const { return std::string(what) + ": " + std::strerror(err); }
};

/// Ends the program over a Result whose value was used though it holds an Error, and says which.
[[noreturn, gnu::cold, gnu::noinline]] inline void fail_unchecked(const Error& error) {
  std::fprintf(stderr, "clan: value of a failed Result used: %s\n", error.message().c_str());
  std::abort();
}

/// The value, or the Error that kept us from having one.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : v_(std::in_place_index<1>, error) {}

  bool ok() const { return v_.index() == 0; }
  explicit operator bool() const { return ok(); }

  /// Precondition: ok(). Otherwise aborts with the error on stderr: that is the caller's bug.
  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

  /// Precondition: !ok().
  const Error& error() const { return std::get<1>(v_); }

 private:
  T& checked() {
    if (!ok()) [[unlikely]]
      fail_unchecked(error());
    return *std::get_if<0>(&v_);
  }
  std::variant<T, Error> v_;
};

/// The same for what fits a register, as the byte count of every send and receive: returned in two
/// registers, where the general form goes through memory and costs 10 ns a call.
template <typename T>
requires(std::is_trivially_copyable_v<T>&& std::is_default_constructible_v<T> &&
         sizeof(T) <= sizeof(const char*)) class [[nodiscard]] Result<T> {
 public:
  Result(T value) : value_(value) {}
  Result(Error error) : err_(error.err), failed_(true), what_(error.what) {}

  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }

  /// Precondition: ok(). Aborts otherwise, with the error on stderr.
  T& value() { return checked(); }
  const T& value() const { return const_cast<Result*>(this)->checked(); }
  T& operator*() { return checked(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

  /// Precondition: !ok().
  Error error() const { return Error{err_, what_}; }

 private:
  T& checked() {
    if (failed_) [[unlikely]]
      fail_unchecked(error());
    return value_;
  }
  std::int32_t err_ = 0;
  bool failed_ = false;
  union {
    T value_;
    const char* what_;
  };
};

/// Success or an Error. Two words: returned in registers.
class [[nodiscard]] Status {
 public:
  constexpr Status() = default;
  constexpr Status(Error error) : error_(error) {}

  constexpr bool ok() const { return error_.err == 0; }
  constexpr explicit operator bool() const { return ok(); }
  /// Precondition: !ok().
  constexpr const Error& error() const { return error_; }

 private:
  Error error_{0, ""};
};

/// The Error of the system call that just failed.
inline Error errno_error(const char* what) { return Error{errno, what}; }

}  // namespace clan
