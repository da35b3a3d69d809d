// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "models/kernels/bf16.h"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/fp16.h"
#include "models/kernels/segment_elements.cuh"
#include "models/kernels/sgd.h"

namespace droptest::models {
namespace {

/// The arrays of all tensors.
template <class D>
struct SgdArrays {
  float* value;
  const float* gradient;
  float* velocity;
  D* rounded;  ///< null: not wanted
};

struct SgdScalars {
  float rate, scale, momentum, decay;
};

template <int V, class D>
__device__ void update_at(const SgdArrays<D>& arrays, std::uint64_t i, const SgdScalars& s, float rate, float decay) {
  Floats<V> p = load_floats<V>(arrays.value + i);
  const Floats<V> g = load_floats<V>(arrays.gradient + i);
  Floats<V> v = load_floats<V>(arrays.velocity + i);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    v.at[k] = s.momentum * v.at[k] + (g.at[k] * s.scale + decay * p.at[k]);
    p.at[k] -= rate * v.at[k];
  }
  store_floats<V>(p, arrays.value + i);
  store_floats<V>(v, arrays.velocity + i);
  if (arrays.rounded != nullptr) store_floats<V>(p, arrays.rounded + i);
}

template <class D>
__global__ void sgd_update_kernel(const TensorSegments::Chunk* chunks, std::int64_t count, SgdArrays<D> arrays,
                                  int aligned, SgdScalars scalars, const double* factor) {
  if (factor != nullptr) {
    if (*factor != *factor) return;  // NaN
    scalars.scale = static_cast<float>(*factor);
  }
  for_segment_elements(chunks, count, aligned, [&](auto width, const TensorSegments::Chunk& chunk, std::uint64_t i) {
    const float decay = chunk.decays != 0 ? scalars.decay : 0.0F;
    update_at<decltype(width)::value>(arrays, i, scalars, chunk.learning_rate_factor * scalars.rate, decay);
  });
}

}  // namespace

template <class E>
void sgd_update(const TensorSegments& segments, comm::DeviceSpan<float> value, comm::DeviceSpan<const float> gradient,
                comm::DeviceSpan<float> velocity, comm::DeviceSpan<E> rounded, const SgdStep& step,
                comm::DeviceSpan<const double> factor, comm::Stream& stream) {
  using D = DeviceElement<E>;
  const std::uint64_t extent = segments.extent();
  DROPTEST_CHECK(value.size() >= extent && gradient.size() >= extent && velocity.size() >= extent &&
                     (rounded.empty() || rounded.size() >= extent),
                 "sgd_update: " + std::to_string(value.size()) + " values, " + std::to_string(gradient.size()) +
                     " gradients, " + std::to_string(velocity.size()) + " velocities, " +
                     std::to_string(rounded.size()) + " rounded values for tensors that reach to " +
                     std::to_string(extent));
  const SgdArrays<D> arrays{value.data(), gradient.data(), velocity.data(),
                            rounded.empty() ? nullptr : device_elems(rounded)};
  const bool aligned = packs_fit(value.data(), gradient.data(), velocity.data(), arrays.rounded);
  const SgdScalars scalars{static_cast<float>(step.learning_rate), static_cast<float>(step.gradient_scale),
                           static_cast<float>(step.momentum), static_cast<float>(step.weight_decay)};
  const comm::DeviceSpan<const TensorSegments::Chunk> chunks = segments.chunks();
  comm::launch("sgd_update", sgd_update_kernel<D>, {std::min<std::uint64_t>(chunks.size(), kMostBlocks), 256, 0},
               stream, chunks.data(), static_cast<std::int64_t>(chunks.size()), arrays, aligned ? 1 : 0, scalars,
               factor.empty() ? nullptr : factor.data());
}

template void sgd_update<float>(const TensorSegments&, comm::DeviceSpan<float>, comm::DeviceSpan<const float>,
                                comm::DeviceSpan<float>, comm::DeviceSpan<float>, const SgdStep&,
                                comm::DeviceSpan<const double>, comm::Stream&);
template void sgd_update<Bf16>(const TensorSegments&, comm::DeviceSpan<float>, comm::DeviceSpan<const float>,
                               comm::DeviceSpan<float>, comm::DeviceSpan<Bf16>, const SgdStep&,
                               comm::DeviceSpan<const double>, comm::Stream&);
template void sgd_update<Fp16>(const TensorSegments&, comm::DeviceSpan<float>, comm::DeviceSpan<const float>,
                               comm::DeviceSpan<float>, comm::DeviceSpan<Fp16>, const SgdStep&,
                               comm::DeviceSpan<const double>, comm::Stream&);

}  // namespace droptest::models
