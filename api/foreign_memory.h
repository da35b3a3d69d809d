// SPDX-License-Identifier: Apache-2.0
// Messages of other programs as tensors, in host memory or in the order of a foreign CUDA stream.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "api/droptest.h"
#include "comm/device/stream.h"
#include "comm/tensor.h"

namespace droptest::api {

/// Borrowed streams with their staging memory, which is kept for later calls.
/// Thread safety: none.
class ForeignMemory {
 public:
  /// Throws: the errors of change(), before anything is done.
  static void check(const droptest_memory* memory);
  /// Calls `change` with the elements, on the stream's device. A null `memory` is host memory. Throws: DeviceError for
  /// device memory in a build without CUDA, and for a stream that is being captured.
  void change(const droptest_memory* memory, comm::Tensor elements, const std::function<void(comm::Tensor)>& change);

 private:
  static void check_device(const droptest_memory& memory);
  void change_on_device(const droptest_memory& memory, comm::Tensor elements,
                        const std::function<void(comm::Tensor)>& change);

  std::map<std::pair<int, void*>, std::unique_ptr<comm::Stream>> streams_;  ///< streams by device and handle
};

}  // namespace droptest::api
