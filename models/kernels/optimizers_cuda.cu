// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/adamw.h"
#include "models/kernels/sgd.h"
#include "models/kernels/update_loop.cuh"

namespace droptest::models {
namespace {

struct AdamWRule {
  static constexpr int kMoments = 2;
  explicit AdamWRule(const AdamWScalars<float>& s)
      : scale(s.scale),
        keep(s.keep),
        beta1(s.beta1),
        beta2(s.beta2),
        new1(s.new1),
        new2(s.new2),
        rate(s.rate),
        root(s.root),
        epsilon(s.epsilon) {}
  float scale, keep, beta1, beta2, new1, new2, rate, root, epsilon;

  /// If `keep` is at least 0.5, the differences are exact, and a factor of 1 leaves `keep` as it is.
  __device__ AdamWRule of(const TensorSegments::Chunk& chunk) const {
    AdamWRule rule = *this;
    rule.rate = chunk.learning_rate_factor * rate;
    rule.keep = chunk.decays != 0 ? 1.0F - chunk.learning_rate_factor * (1.0F - keep) : 1.0F;
    return rule;
  }
  __device__ void update(float& p, float g, float (&moments)[kMoments]) const {
    auto& [m, v] = moments;
    const float d = g * scale;
    m = beta1 * m + new1 * d;
    v = beta2 * v + new2 * (d * d);
    p = p * keep - rate * (m / (sqrtf(v) * root + epsilon));
  }
};

struct SgdRule {
  static constexpr int kMoments = 1;
  float rate, scale, momentum, decay;

  __device__ SgdRule of(const TensorSegments::Chunk& chunk) const {
    return {chunk.learning_rate_factor * rate, scale, momentum, chunk.decays != 0 ? decay : 0.0F};
  }
  __device__ void update(float& p, float g, float (&moments)[kMoments]) const {
    float& v = moments[0];
    v = momentum * v + (g * scale + decay * p);
    p -= rate * v;
  }
};

}  // namespace

template <class E>
void adamw_update(const TensorSegments& segments, comm::DeviceSpan<float> value, comm::DeviceSpan<const float> gradient,
                  comm::DeviceSpan<float> first_moment, comm::DeviceSpan<float> second_moment,
                  comm::DeviceSpan<E> rounded, const AdamWStep& step, comm::DeviceSpan<const double> factor,
                  comm::Stream& stream) {
  update("adamw_update", AdamWRule(AdamWScalars<float>(step)), segments, value, gradient, {first_moment, second_moment},
         rounded, factor, stream);
}

template <class E>
void sgd_update(const TensorSegments& segments, comm::DeviceSpan<float> value, comm::DeviceSpan<const float> gradient,
                comm::DeviceSpan<float> velocity, comm::DeviceSpan<E> rounded, const SgdStep& step,
                comm::DeviceSpan<const double> factor, comm::Stream& stream) {
  const SgdRule rule{static_cast<float>(step.learning_rate), static_cast<float>(step.gradient_scale),
                     static_cast<float>(step.momentum), static_cast<float>(step.weight_decay)};
  update("sgd_update", rule, segments, value, gradient, {velocity}, rounded, factor, stream);
}

#define DROPTEST_OPTIMIZERS(E)                                                                                 \
  template void adamw_update<E>(const TensorSegments&, comm::DeviceSpan<float>, comm::DeviceSpan<const float>, \
                                comm::DeviceSpan<float>, comm::DeviceSpan<float>, comm::DeviceSpan<E>,         \
                                const AdamWStep&, comm::DeviceSpan<const double>, comm::Stream&);              \
  template void sgd_update<E>(const TensorSegments&, comm::DeviceSpan<float>, comm::DeviceSpan<const float>,   \
                              comm::DeviceSpan<float>, comm::DeviceSpan<E>, const SgdStep&,                    \
                              comm::DeviceSpan<const double>, comm::Stream&);
DROPTEST_OPTIMIZERS(float)
DROPTEST_OPTIMIZERS(Bf16)
DROPTEST_OPTIMIZERS(Fp16)
#undef DROPTEST_OPTIMIZERS

}  // namespace droptest::models
