// SPDX-License-Identifier: Apache-2.0
// Objects for one call at a time, kept for later calls.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "comm/buffer_use.h"

namespace droptest::comm {

/// Lends objects; it makes a new one only if all are on loan. Thread safety: none; take and give back on one thread.
template <class T>
class Pool {
 public:
  /// An object on loan: it goes back when this is destroyed. The pool outlives it.
  class Loan {
   public:
    Loan() = default;
    Loan(Pool& pool, std::unique_ptr<T> object) : pool_(&pool), object_(std::move(object)) {}
    Loan(Loan&&) noexcept = default;
    Loan& operator=(Loan&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(object_, other.object_);
      return *this;
    }
    ~Loan() {
      if (object_ != nullptr) pool_->idle_.push_back(std::move(object_));
    }
    T* get() const { return object_.get(); }
    T& operator*() const { return *object_; }
    T* operator->() const { return object_.get(); }

   private:
    Pool* pool_ = nullptr;
    std::unique_ptr<T> object_;
  };

  /// `make` gives a new object if none is idle.
  template <class Make>
  Loan take(const Make& make) {
    ++use_.taken;
    if (idle_.empty()) {
      Loan loan(*this, make());
      ++use_.allocated;
      return loan;
    }
    std::unique_ptr<T> object = std::move(idle_.back());
    idle_.pop_back();
    return {*this, std::move(object)};
  }

  /// The use of the objects, without their bytes.
  const BufferUse& use() const { return use_; }
  /// The objects that are not on loan.
  const std::vector<std::unique_ptr<T>>& idle() const { return idle_; }

 private:
  std::vector<std::unique_ptr<T>> idle_;
  BufferUse use_;
};

}  // namespace droptest::comm
