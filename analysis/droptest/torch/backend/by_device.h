// SPDX-License-Identifier: Apache-2.0
// One backend for host and device memory: PyTorch makes one where all devices have the same name.
#pragma once

#include <torch/extension.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace c10d::droptest {

/// Calls with tensors go to the backend of their device. `by_device.inc`, made from the installed header, has all
/// functions that are not here.
class ByDevice final : public Backend {
 public:
  /// `host`: for CPU tensors; `cuda`: for all others. Both are of the same group.
  ByDevice(c10::intrusive_ptr<Backend> host, c10::intrusive_ptr<Backend> cuda)
      : Backend(host->getRank(), host->getSize()), host_(std::move(host)), cuda_(std::move(cuda)) {}

  void setGroupUid(const std::string& name) override {
    Backend::setGroupUid(name);
    host_->setGroupUid(name);
    cuda_->setGroupUid(name);
  }

  // gloo has no coalesced calls: it begins each at once, and the work of all waits for them, too.
  void startCoalescing() override {
    {
      const std::lock_guard lock(mutex_);
      is_coalescing_ = true;
    }
    cuda_->startCoalescing();
  }
  c10::intrusive_ptr<Work> endCoalescing() override {
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

  // The two would each need options of their own.
  bool supportsSplitting() const override { return false; }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<Store>& /*store*/, const std::vector<int>& /*ranks*/,
                                    const c10::intrusive_ptr<Options>& /*opts*/) override {
    TORCH_CHECK(false, "droptest: split is for groups with one device; want new_group, or \"cuda:droptest\"");
  }

#include "by_device.inc"

 private:
  /// Works of several backends.
  class Works final : public Work {
   public:
    explicit Works(std::vector<c10::intrusive_ptr<Work>> works) : works_(std::move(works)) {}
    bool isCompleted() override {
      for (const auto& work : works_) {
        if (!work->isCompleted()) return false;
      }
      return true;
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

  static const at::Tensor* first(const at::Tensor& tensor) { return &tensor; }
  template <class Element>
  static const at::Tensor* first(const std::vector<Element>& tensors) {
    for (const Element& one : tensors) {
      if (const at::Tensor* const found = first(one)) return found;
    }
    return nullptr;
  }
  /// By the first tensor. Without one the host's backend refuses the call by its name.
  template <class... Tensors>
  static bool is_host(const Tensors&... tensors) {
    const at::Tensor* tensor = nullptr;
    ((tensor = tensor != nullptr ? tensor : first(tensors)), ...);
    return tensor == nullptr || tensor->device().is_cpu();
  }
  c10::intrusive_ptr<Work> begun(bool host, c10::intrusive_ptr<Work> work) {
    const std::lock_guard lock(mutex_);
    if (is_coalescing_ && host) host_works_.push_back(work);
    return work;
  }

  const c10::intrusive_ptr<Backend> host_;
  const c10::intrusive_ptr<Backend> cuda_;
  std::mutex mutex_;
  bool is_coalescing_ = false;
  std::vector<c10::intrusive_ptr<Work>> host_works_;  // begun since startCoalescing()
};

}  // namespace c10d::droptest
