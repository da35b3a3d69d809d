// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/layernorm.h"

#include <cmath>

#include "models/kernels/chunks.h"
#include "models/kernels/lanes.h"

namespace droptest::models {

namespace {

template <class T>
struct RowMoments {
  T mean;
  T inverse_deviation;
};

template <class T>
RowMoments<T> normalise_row(const T* x, const T* gain, const T* bias, std::int64_t width, T* y) {
  const T m = lane_sum<T>(width, [x](std::int64_t j) { return x[j]; }) / static_cast<T>(width);
  const T variance =
      lane_sum<T>(width, [x, m](std::int64_t j) { return (x[j] - m) * (x[j] - m); }) / static_cast<T>(width);
  const T r = T(1) / std::sqrt(variance + static_cast<T>(kLayerNormEpsilon));
  for (std::int64_t j = 0; j < width; ++j) y[j] = (x[j] - m) * r * gain[j] + bias[j];
  return {m, r};
}

}  // namespace

template <class T>
void layernorm_forward(std::span<const T> input, std::span<const T> gain, std::span<const T> bias, std::int64_t rows,
                       std::int64_t width, std::span<T> output, std::span<T> mean, std::span<T> inverse_deviation,
                       const Team& team) {
  for_vector_chunks(rows, chunk_items(rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const RowMoments<T> moments =
          normalise_row(input.data() + i * width, gain.data(), bias.data(), width, output.data() + i * width);
      mean[i] = moments.mean;
      inverse_deviation[i] = moments.inverse_deviation;
    }
  });
}

template <class T>
void residual_layernorm_forward(std::span<const T> residual, std::span<const T> branch, std::span<const T> branch_bias,
                                std::span<const T> gain, std::span<const T> bias, std::int64_t rows, std::int64_t width,
                                std::span<T> stream, std::span<T> output, std::span<T> mean,
                                std::span<T> inverse_deviation, const Team& team) {
  for_vector_chunks(rows, chunk_items(rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    const T* c = branch_bias.data();
    for (std::int64_t i = begin; i < end; ++i) {
      const T* a = residual.data() + i * width;
      const T* b = branch.data() + i * width;
      T* x = stream.data() + i * width;
      for (std::int64_t j = 0; j < width; ++j) x[j] = a[j] + (b[j] + c[j]);
      const RowMoments<T> moments = normalise_row<T>(x, gain.data(), bias.data(), width, output.data() + i * width);
      mean[i] = moments.mean;
      inverse_deviation[i] = moments.inverse_deviation;
    }
  });
}

template <class T>
void add_branch(std::span<const T> residual, std::span<const T> branch, std::span<const T> branch_bias,
                std::int64_t rows, std::int64_t width, std::span<T> stream, const Team& team) {
  for_vector_chunks(rows, chunk_items(rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    const T* c = branch_bias.data();
    for (std::int64_t i = begin; i < end; ++i) {
      const T* a = residual.data() + i * width;
      const T* b = branch.data() + i * width;
      T* x = stream.data() + i * width;
      for (std::int64_t j = 0; j < width; ++j) x[j] = a[j] + (b[j] + c[j]);
    }
  });
}

template <class T>
void layernorm_backward(std::span<const T> grad_output, std::span<const T> input, std::span<const T> gain,
                        std::span<const T> mean, std::span<const T> inverse_deviation, std::int64_t rows,
                        std::int64_t width, std::span<T> grad_input, std::span<T> grad_gain, std::span<T> grad_bias,
                        const Team& team) {
  // With n = (x - mean) r and d = grad_output x gain: grad_x = r (d - mean(d) - n mean(d n)).
  const T* g = gain.data();
  for_vector_chunks(rows, chunk_items(rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T* x = input.data() + i * width;
      const T* dy = grad_output.data() + i * width;
      T* dx = grad_input.data() + i * width;
      const T m = mean[i];
      const T r = inverse_deviation[i];
      const T mean_d = lane_sum<T>(width, [=](std::int64_t j) { return dy[j] * g[j]; }) / static_cast<T>(width);
      const T mean_dn =
          lane_sum<T>(width, [=](std::int64_t j) { return dy[j] * g[j] * ((x[j] - m) * r); }) / static_cast<T>(width);
      for (std::int64_t j = 0; j < width; ++j) dx[j] += r * (dy[j] * g[j] - mean_d - (x[j] - m) * r * mean_dn);
    }
  });
  // Columns are cut here, so that each sum runs over all rows in order.
  for_vector_chunks(width, chunk_columns(width), team, [&](std::int64_t begin, std::int64_t end) {
    T* dg = grad_gain.data();
    T* db = grad_bias.data();
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* x = input.data() + i * width;
      const T* dy = grad_output.data() + i * width;
      const T m = mean[i];
      const T r = inverse_deviation[i];
      for (std::int64_t j = begin; j < end; ++j) {
        dg[j] += dy[j] * ((x[j] - m) * r);
        db[j] += dy[j];
      }
    }
  });
}

template void layernorm_forward<float>(std::span<const float>, std::span<const float>, std::span<const float>,
                                       std::int64_t, std::int64_t, std::span<float>, std::span<float>, std::span<float>,
                                       const Team&);
template void layernorm_forward<double>(std::span<const double>, std::span<const double>, std::span<const double>,
                                        std::int64_t, std::int64_t, std::span<double>, std::span<double>,
                                        std::span<double>, const Team&);
template void residual_layernorm_forward<float>(std::span<const float>, std::span<const float>, std::span<const float>,
                                                std::span<const float>, std::span<const float>, std::int64_t,
                                                std::int64_t, std::span<float>, std::span<float>, std::span<float>,
                                                std::span<float>, const Team&);
template void residual_layernorm_forward<double>(std::span<const double>, std::span<const double>,
                                                 std::span<const double>, std::span<const double>,
                                                 std::span<const double>, std::int64_t, std::int64_t, std::span<double>,
                                                 std::span<double>, std::span<double>, std::span<double>, const Team&);
template void layernorm_backward<float>(std::span<const float>, std::span<const float>, std::span<const float>,
                                        std::span<const float>, std::span<const float>, std::int64_t, std::int64_t,
                                        std::span<float>, std::span<float>, std::span<float>, const Team&);
template void layernorm_backward<double>(std::span<const double>, std::span<const double>, std::span<const double>,
                                         std::span<const double>, std::span<const double>, std::int64_t, std::int64_t,
                                         std::span<double>, std::span<double>, std::span<double>, const Team&);

template void add_branch<float>(std::span<const float>, std::span<const float>, std::span<const float>, std::int64_t,
                                std::int64_t, std::span<float>, const Team&);
template void add_branch<double>(std::span<const double>, std::span<const double>, std::span<const double>,
                                 std::int64_t, std::int64_t, std::span<double>, const Team&);

}  // namespace droptest::models
