// SPDX-License-Identifier: Apache-2.0
// The form of a DeviceHeadView inside a kernel.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "models/attention/device_token_attention.h"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/narrow_floats.h"
#include "sim/error.h"

namespace droptest::models {

template <class D>
struct View {
  D* data;
  std::int64_t batch_stride, token_stride, head_stride;

  __device__ D* at(std::int64_t batch, std::int64_t token, std::int64_t head) const {
    return data + batch * batch_stride + token * token_stride + head * head_stride;
  }
};

/// The view's form inside a kernel. Throws: CheckError that names the view if it has fewer elements than its shape
/// needs.
template <class E>
auto view_in_kernel(const DeviceHeadView<E>& view, const char* name) {
  const HeadShape& s = view.shape;
  const bool is_empty = s.elems() == 0;
  const std::int64_t last = is_empty ? -1
                                     : (s.batch - 1) * view.batch_stride + (s.tokens - 1) * view.token_stride +
                                           (s.heads - 1) * view.head_stride + s.width - 1;
  DROPTEST_CHECK(last < static_cast<std::int64_t>(view.elems.size()),
                 std::string("attention on a device: ") + name + ": got " + std::to_string(view.elems.size()) +
                     " elements, want at least " + std::to_string(last + 1));
  auto* data = device_elems(view.elems);
  return View<std::remove_pointer_t<decltype(data)>>{data, view.batch_stride, view.token_stride, view.head_stride};
}

}  // namespace droptest::models
