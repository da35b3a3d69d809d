// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "models/kernels/adamw.h"
#include "models/kernels/bf16.h"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/fp16.h"
#include "models/kernels/segment_elements.cuh"

namespace droptest::models {
namespace {

/// The arrays of all tensors.
template <class D>
struct AdamWArrays {
  float* value;
  const float* gradient;
  float* first_moment;
  float* second_moment;
  D* rounded;  ///< null: not wanted
};

template <int V, class D>
__device__ void update_at(const AdamWArrays<D>& arrays, std::uint64_t i, const AdamWScalars<float>& s, float rate,
                          float keep) {
  Floats<V> p = load_floats<V>(arrays.value + i);
  const Floats<V> g = load_floats<V>(arrays.gradient + i);
  Floats<V> m = load_floats<V>(arrays.first_moment + i);
  Floats<V> v = load_floats<V>(arrays.second_moment + i);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const float d = g.at[k] * s.scale;
    m.at[k] = s.beta1 * m.at[k] + s.new1 * d;
    v.at[k] = s.beta2 * v.at[k] + s.new2 * (d * d);
    p.at[k] = p.at[k] * keep - rate * (m.at[k] / (sqrtf(v.at[k]) * s.root + s.epsilon));
  }
  store_floats<V>(p, arrays.value + i);
  store_floats<V>(m, arrays.first_moment + i);
  store_floats<V>(v, arrays.second_moment + i);
  if (arrays.rounded != nullptr) store_floats<V>(p, arrays.rounded + i);
}

template <class D>
__global__ void adamw_update_kernel(const TensorSegments::Chunk* chunks, std::int64_t count, AdamWArrays<D> arrays,
                                    int aligned, AdamWScalars<float> scalars, const double* factor) {
  if (factor != nullptr) {
    if (*factor != *factor) return;  // NaN
    scalars.scale = static_cast<float>(*factor);
  }
  for_segment_elements(chunks, count, aligned, [&](auto width, const TensorSegments::Chunk& chunk, std::uint64_t i) {
    // The differences are exact: a factor of 1 leaves `keep` as it is.
    const float keep = chunk.decays != 0 ? 1.0F - chunk.learning_rate_factor * (1.0F - scalars.keep) : 1.0F;
    update_at<decltype(width)::value>(arrays, i, scalars, chunk.learning_rate_factor * scalars.rate, keep);
  });
}

}  // namespace

template <class E>
void adamw_update(const TensorSegments& segments, comm::DeviceSpan<float> value, comm::DeviceSpan<const float> gradient,
                  comm::DeviceSpan<float> first_moment, comm::DeviceSpan<float> second_moment,
                  comm::DeviceSpan<E> rounded, const AdamWStep& step, comm::DeviceSpan<const double> factor,
                  comm::Stream& stream) {
  using D = DeviceElement<E>;
  const std::uint64_t extent = segments.extent();
  DROPTEST_CHECK(value.size() >= extent && gradient.size() >= extent && first_moment.size() >= extent &&
                     second_moment.size() >= extent && (rounded.empty() || rounded.size() >= extent),
                 "adamw_update: " + std::to_string(value.size()) + " values, " + std::to_string(gradient.size()) +
                     " gradients, moments of " + std::to_string(first_moment.size()) + " and " +
                     std::to_string(second_moment.size()) + ", " + std::to_string(rounded.size()) +
                     " rounded values for tensors that reach to " + std::to_string(extent));
  const AdamWArrays<D> arrays{value.data(), gradient.data(), first_moment.data(), second_moment.data(),
                              rounded.empty() ? nullptr : device_elems(rounded)};
  const bool aligned =
      packs_fit(value.data(), gradient.data(), first_moment.data(), second_moment.data(), arrays.rounded);
  const comm::DeviceSpan<const TensorSegments::Chunk> chunks = segments.chunks();
  comm::launch("adamw_update", adamw_update_kernel<D>, {std::min<std::uint64_t>(chunks.size(), kMostBlocks), 256, 0},
               stream, chunks.data(), static_cast<std::int64_t>(chunks.size()), arrays, aligned ? 1 : 0,
               AdamWScalars<float>(step), factor.empty() ? nullptr : factor.data());
}

template void adamw_update<float>(const TensorSegments&, comm::DeviceSpan<float>, comm::DeviceSpan<const float>,
                                  comm::DeviceSpan<float>, comm::DeviceSpan<float>, comm::DeviceSpan<float>,
                                  const AdamWStep&, comm::DeviceSpan<const double>, comm::Stream&);
template void adamw_update<Bf16>(const TensorSegments&, comm::DeviceSpan<float>, comm::DeviceSpan<const float>,
                                 comm::DeviceSpan<float>, comm::DeviceSpan<float>, comm::DeviceSpan<Bf16>,
                                 const AdamWStep&, comm::DeviceSpan<const double>, comm::Stream&);
template void adamw_update<Fp16>(const TensorSegments&, comm::DeviceSpan<float>, comm::DeviceSpan<const float>,
                                 comm::DeviceSpan<float>, comm::DeviceSpan<float>, comm::DeviceSpan<Fp16>,
                                 const AdamWStep&, comm::DeviceSpan<const double>, comm::Stream&);

}  // namespace droptest::models
