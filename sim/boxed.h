// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>

namespace droptest::sim {

/// std::optional for a large value that is mostly absent. The value is on the heap, so an absent one takes the space of
/// a pointer. Each copy owns its own value.
template <class Value>
class Boxed {
 public:
  Boxed() = default;
  Boxed(std::nullopt_t) {}                                                   // NOLINT(google-explicit-constructor)
  Boxed(Value value) : value_(std::make_unique<Value>(std::move(value))) {}  // NOLINT(google-explicit-constructor)
  Boxed(const Boxed& other) : value_(other.value_ ? std::make_unique<Value>(*other.value_) : nullptr) {}
  Boxed(Boxed&&) noexcept = default;
  Boxed& operator=(const Boxed& other) {
    if (this != &other) value_ = other.value_ ? std::make_unique<Value>(*other.value_) : nullptr;
    return *this;
  }
  Boxed& operator=(Boxed&&) noexcept = default;
  ~Boxed() = default;

  template <class... Arguments>
  Value& emplace(Arguments&&... arguments) {
    value_ = std::make_unique<Value>(std::forward<Arguments>(arguments)...);
    return *value_;
  }
  void reset() { value_.reset(); }
  void swap(Boxed& other) noexcept { value_.swap(other.value_); }

  bool has_value() const { return value_ != nullptr; }
  explicit operator bool() const { return has_value(); }
  Value& operator*() { return *value_; }
  const Value& operator*() const { return *value_; }
  Value* operator->() { return value_.get(); }
  const Value* operator->() const { return value_.get(); }

 private:
  std::unique_ptr<Value> value_;
};

}  // namespace droptest::sim
