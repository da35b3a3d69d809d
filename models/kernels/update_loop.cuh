// SPDX-License-Identifier: Apache-2.0
// The loop over parameters that the updates of all optimizers share on a device.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "models/kernels/element_pack.cuh"
#include "models/kernels/narrow_floats.h"
#include "models/kernels/segment_elements.cuh"
#include "sim/error.h"

namespace droptest::models {

/// The arrays of all tensors.
template <int kMoments, class D>
struct UpdateArrays {
  float* value;
  const float* gradient;
  float* moments[kMoments];
  D* rounded;  ///< null: no rounded values are written
};

/// Rule has kMoments; `scale`, the factor of gradients; of(chunk), the rule for the tensor of a chunk; and
/// update(value, gradient, moments), the update of one element with kMoments moments.
template <class Rule, class D>
__global__ void update_kernel(const TensorSegments::Chunk* chunks, std::int64_t count,
                              UpdateArrays<Rule::kMoments, D> arrays, int aligned, Rule rule, const double* factor) {
  if (factor != nullptr) {
    if (*factor != *factor) return;  // NaN
    rule.scale = static_cast<float>(*factor);
  }
  for_segment_elements(chunks, count, aligned, [&](auto width, const TensorSegments::Chunk& chunk, std::uint64_t i) {
    constexpr int V = decltype(width)::value;
    const Rule of_tensor = rule.of(chunk);
    Floats<V> p = load_floats<V>(arrays.value + i);
    const Floats<V> g = load_floats<V>(arrays.gradient + i);
    Floats<V> m[Rule::kMoments];
#pragma unroll
    for (int moment = 0; moment < Rule::kMoments; ++moment) m[moment] = load_floats<V>(arrays.moments[moment] + i);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      float of_element[Rule::kMoments];
#pragma unroll
      for (int moment = 0; moment < Rule::kMoments; ++moment) of_element[moment] = m[moment].at[k];
      of_tensor.update(p.at[k], g.at[k], of_element);
#pragma unroll
      for (int moment = 0; moment < Rule::kMoments; ++moment) m[moment].at[k] = of_element[moment];
    }
    store_floats<V>(p, arrays.value + i);
#pragma unroll
    for (int moment = 0; moment < Rule::kMoments; ++moment) store_floats<V>(m[moment], arrays.moments[moment] + i);
    if (arrays.rounded != nullptr) store_floats<V>(p, arrays.rounded + i);
  });
}

/// Updates all tensors of a table in one launch with the name `name`. adamw_update() describes the arrays.
template <class Rule, class E>
void update(const char* name, const Rule& rule, const TensorSegments& segments, comm::DeviceSpan<float> value,
            comm::DeviceSpan<const float> gradient, const std::array<comm::DeviceSpan<float>, Rule::kMoments>& moments,
            comm::DeviceSpan<E> rounded, comm::DeviceSpan<const double> factor, comm::Stream& stream) {
  using D = DeviceElement<E>;
  const std::uint64_t extent = segments.extent();
  UpdateArrays<Rule::kMoments, D> arrays{
      value.data(), gradient.data(), {}, rounded.empty() ? nullptr : device_elems(rounded)};
  bool fits = value.size() >= extent && gradient.size() >= extent && (rounded.empty() || rounded.size() >= extent);
  bool aligned = packs_fit(value.data(), gradient.data(), arrays.rounded);
  for (std::size_t moment = 0; moment < moments.size(); ++moment) {
    arrays.moments[moment] = moments[moment].data();
    fits = fits && moments[moment].size() >= extent;
    aligned = aligned && packs_fit(moments[moment].data());
  }
  if (!fits) {
    std::string sizes = std::to_string(value.size()) + " values, " + std::to_string(gradient.size()) + " gradients, " +
                        std::to_string(rounded.size()) + " rounded values";
    for (const comm::DeviceSpan<float>& moment : moments) sizes += ", " + std::to_string(moment.size()) + " moments";
    throw CheckError(std::string(name) + ": " + sizes + " for tensors that reach to " + std::to_string(extent));
  }
  const comm::DeviceSpan<const TensorSegments::Chunk> chunks = segments.chunks();
  comm::launch(name, update_kernel<Rule, D>, {std::min<std::uint64_t>(chunks.size(), kMostBlocks), 256, 0}, stream,
               chunks.data(), static_cast<std::int64_t>(chunks.size()), arrays, aligned ? 1 : 0, rule,
               factor.empty() ? nullptr : factor.data());
}

}  // namespace droptest::models
