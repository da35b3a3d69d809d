// SPDX-License-Identifier: Apache-2.0
// One backend for host and device memory: PyTorch makes one where all devices have the same name.
#pragma once

#include <torch/extension.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "messages.h"

namespace c10d::droptest {

/// Calls with tensors go to the backend of their device. `by_device.inc`, made from the installed header, has the
/// functions of the base class.
class ByDevice final : public Backend {
 public:
  /// `host`: for CPU tensors; `cuda`: for all others. Both are of the same group.
  ByDevice(c10::intrusive_ptr<Backend> host, c10::intrusive_ptr<Backend> cuda)
      : Backend(host->getRank(), host->getSize()), host_(std::move(host)), cuda_(std::move(cuda)) {}

  ~ByDevice() override {
    end_without_python(std::move(host_));
    end_without_python(std::move(cuda_));
  }

#include "by_device.inc"

 private:
  /// Works of several backends.
  class Works final : public Work {
   public:
    explicit Works(std::vector<c10::intrusive_ptr<Work>> works) : works_(std::move(works)) {}
    bool isCompleted() override {
      return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
    }
    bool isSuccess() const override {
      return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
    }
    std::exception_ptr exception() const override {
      for (const auto& work : works_) {
        if (work->exception() != nullptr) return work->exception();
      }
      return nullptr;
    }
    bool wait(std::chrono::milliseconds timeout) override {
      for (const auto& work : works_) work->wait(timeout);
      return true;
    }
    void synchronize() override {
      for (const auto& work : works_) work->synchronize();
    }

   private:
    const std::vector<c10::intrusive_ptr<Work>> works_;
  };

  // gloo has no coalesced calls: it begins each at once. The work of all waits for gloo's works, too.
  void start_coalescing() {
    {
      const std::lock_guard lock(mutex_);
      is_coalescing_ = true;
      host_works_.clear();  // of calls that an exception ended
    }
    cuda_->startCoalescing();
  }
  c10::intrusive_ptr<Work> end_coalescing() {
    std::vector<c10::intrusive_ptr<Work>> works;
    {
      const std::lock_guard lock(mutex_);
      is_coalescing_ = false;
      works.swap(host_works_);
    }
    const auto of_cuda = cuda_->endCoalescing();  // null: no call was among them
    if (works.empty()) return of_cuda;
    if (of_cuda) works.push_back(of_cuda);
    return c10::make_intrusive<Works>(std::move(works));
  }

  /// The first tensor in a tensor, an optional value, or a list of any of these; null: there is none.
  template <class Value>
  static const at::Tensor* first(const Value& value) {
    if constexpr (std::is_convertible_v<const Value*, const at::Tensor*>) {
      return &value;
    } else if constexpr (IsOptional<Value>::value) {
      return value ? first(*value) : nullptr;
    } else {
      for (const auto& one : value) {
        if (const at::Tensor* const found = first(one)) return found;
      }
      return nullptr;
    }
  }
  template <class Value>
  struct IsOptional : std::false_type {};
  template <class Value>
  struct IsOptional<std::optional<Value>> : std::true_type {};
  enum class Place { kHost, kCuda };
  /// By the first tensor. Without one the host's backend refuses the call by its name.
  template <class... Tensors>
  static Place place_of(const Tensors&... tensors) {
    const at::Tensor* tensor = nullptr;
    ((tensor = tensor != nullptr ? tensor : first(tensors)), ...);
    return tensor == nullptr || tensor->device().is_cpu() ? Place::kHost : Place::kCuda;
  }
  const c10::intrusive_ptr<Backend>& of(Place place) const { return place == Place::kHost ? host_ : cuda_; }
  c10::intrusive_ptr<Work> begun(Place place, c10::intrusive_ptr<Work> work) {
    const std::lock_guard lock(mutex_);
    if (is_coalescing_ && place == Place::kHost) host_works_.push_back(work);
    return work;
  }

  c10::intrusive_ptr<Backend> host_;
  c10::intrusive_ptr<Backend> cuda_;
  std::mutex mutex_;
  bool is_coalescing_ = false;
  std::vector<c10::intrusive_ptr<Work>> host_works_;  // begun since startCoalescing()
};

}  // namespace c10d::droptest
