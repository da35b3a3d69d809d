// SPDX-License-Identifier: Apache-2.0
// Tensors and reductions as the C interface takes them.
#pragma once

#include <torch/extension.h>

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "droptest.h"

namespace c10d::droptest {

using at::Tensor;
using c10::intrusive_ptr;
using Tensors = std::vector<Tensor>;

/// The elements of a tensor as the library counts them; complex numbers are two each.
struct Message {
  std::uint64_t elements = 0;
  droptest_type type = DROPTEST_UINT8;
};

inline Message message_of(const Tensor& tensor) {
  const auto count = static_cast<std::uint64_t>(tensor.numel());
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return {count, DROPTEST_FLOAT32};
    case at::kDouble:
      return {count, DROPTEST_FLOAT64};
    case at::kBFloat16:
      return {count, DROPTEST_BFLOAT16};
    case at::kHalf:
      return {count, DROPTEST_FLOAT16};
    case at::kComplexFloat:
      return {2 * count, DROPTEST_FLOAT32};
    case at::kComplexDouble:
      return {2 * count, DROPTEST_FLOAT64};
    case at::kInt:
      return {count, DROPTEST_INT32};
    case at::kLong:
      return {count, DROPTEST_INT64};
    default:
      return {count * tensor.element_size(), DROPTEST_UINT8};
  }
}

// Streams have native_handle() in newer versions; before, Python knows the handle.
template <class Stream>
auto native_stream(const Stream& stream, int) -> decltype(stream.native_handle()) {
  return stream.native_handle();
}
template <class Stream>
void* native_stream(const Stream& stream, long) {
  const pybind11::gil_scoped_acquire gil;
  const auto current = pybind11::module_::import("torch.cuda").attr("current_stream")(stream.device().index());
  return reinterpret_cast<void*>(current.attr("cuda_stream").template cast<std::uintptr_t>());
}

/// Where the elements of a tensor are; absent: in host memory.
inline std::optional<droptest_memory> memory_of(const Tensor& tensor) {
  if (!tensor.is_cuda()) return std::nullopt;
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  return droptest_memory{1, tensor.device().index(), native_stream(device.getStream(tensor.device()), 0)};
}

/// The neutral value of a reduction; absent: the loss layer has none, the call is exempt.
inline std::optional<droptest_reduction> reduction_of(const ReduceOp& op) {
  switch (static_cast<ReduceOp::RedOpType>(op)) {
    case ReduceOp::SUM:
    case ReduceOp::AVG:
    case ReduceOp::PREMUL_SUM:
      return DROPTEST_SUM;
    case ReduceOp::MAX:
      return DROPTEST_MAX;
    default:
      return std::nullopt;
  }
}

/// Whether the bytes of a tensor lie in those of another one.
inline bool lies_in(const Tensor& part, const Tensor& whole) {
  const auto* const begin = static_cast<const char*>(part.data_ptr());
  const auto* const outer = static_cast<const char*>(whole.data_ptr());
  return begin >= outer && begin < outer + whole.nbytes();
}

/// Lets go of a backend without Python's lock: the end of gloo's waits for its threads, and these take that lock to
/// free tensors that Python knows.
inline void end_without_python(intrusive_ptr<Backend> backend) {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return;
  const pybind11::gil_scoped_release released;
  backend.reset();
}

/// The network of this process's rank, shared by its process groups.
struct RankNetwork {
  std::atomic<droptest_network*> network = nullptr;  ///< owned by Python's droptest.Network; null: closed
  int rank = 0;
  std::uint32_t next_group = 0;  ///< larger than the numbers of this rank's groups so far
  std::mutex mutex;

  /// Throws: c10::Error where the program has closed it; its flows and groups ended with it.
  droptest_network* open() const {
    droptest_network* const opened = network;
    TORCH_CHECK(opened != nullptr, "droptest: rank ", rank, ": network: got a closed one");
    return opened;
  }
  void check(droptest_status status) const {
    TORCH_CHECK(status == DROPTEST_OK, "droptest: rank ", rank, ": ", droptest_last_error());
  }

  /// Whether packets of any traffic class can be lost on any link.
  bool can_lose() const {
    for (int number = DROPTEST_CONTROL + 1; droptest_class_name(static_cast<droptest_class>(number)); ++number) {
      std::int32_t can_lose = 0;
      check(droptest_network_can_lose(open(), static_cast<droptest_class>(number), &can_lose));
      if (can_lose != 0) return true;
    }
    return false;
  }
  /// Throws: c10::Error if packets can be lost. For functions of c10d::Backend that move data which the loss layer
  /// does not see.
  void refuse_loss(const char* function) const {
    TORCH_CHECK(!can_lose(), "droptest: rank ", rank, ": c10d::Backend::", function, " of torch ", TORCH_VERSION,
                " is not supported under packet loss, because none of its packets would be lost");
  }
};

}  // namespace c10d::droptest
