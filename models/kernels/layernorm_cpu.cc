// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/layernorm.h"

#include <cmath>

#include "models/kernels/chunks.h"
#include "models/kernels/lanes.h"

namespace droptest::models {
namespace {

/// Row i of residual_after = residual + dropout(branch + branch_bias).
template <class T>
const T* add_branch_to_row(const NormForward& n, std::int64_t i) {
  const T* a = n.residual.as<T>().data() + i * n.width;
  const T* b = n.branch.as<T>().data() + i * n.width;
  const T* c = n.branch_bias.as<T>().data();
  T* x = n.residual_after.as<T>().data() + i * n.width;
  if (n.dropout.is_on()) {
    for_dropped_row<T>(DropoutRow::of_row(n.dropout, i), 0, n.width,
                       [=](std::int64_t j, T factor) { x[j] = a[j] + factor * (b[j] + c[j]); });
  } else {
    for (std::int64_t j = 0; j < n.width; ++j) x[j] = a[j] + (b[j] + c[j]);
  }
  return x;
}

}  // namespace

template <class T>
void layernorm_forward(const NormForward& n, const Team& team) {
  for_vector_chunks(n.rows, chunk_items(n.rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t width = n.width;
    const T* gain = n.gain.as<T>().data();
    const T* bias = n.bias.as<T>().data();
    for (std::int64_t i = begin; i < end; ++i) {
      const T* x = n.branch.bytes.empty() ? n.residual.as<T>().data() + i * width : add_branch_to_row<T>(n, i);
      T* y = n.output.as<T>().data() + i * width;
      const T m = lane_sum<T>(width, [x](std::int64_t j) { return x[j]; }) / static_cast<T>(width);
      const T variance =
          lane_sum<T>(width, [x, m](std::int64_t j) { return (x[j] - m) * (x[j] - m); }) / static_cast<T>(width);
      const T r = T(1) / std::sqrt(variance + static_cast<T>(kLayerNormEpsilon));
      for (std::int64_t j = 0; j < width; ++j) y[j] = (x[j] - m) * r * gain[j] + bias[j];
      n.mean.as<T>()[static_cast<std::size_t>(i)] = m;
      n.inverse_deviation.as<T>()[static_cast<std::size_t>(i)] = r;
    }
  });
}

template <class T>
void add_branch(const NormForward& n, const Team& team) {
  for_vector_chunks(n.rows, chunk_items(n.rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) add_branch_to_row<T>(n, i);
  });
}

template <class T>
void layernorm_backward(const NormBackward& norm, const Team& team) {
  const std::int64_t width = norm.width;
  const T* input = norm.residual_after.as<T>().data();
  const T* grad_output = norm.grad_output.as<T>().data();
  const T* mean = norm.mean.as<T>().data();
  const T* inverse_deviation = norm.inverse_deviation.as<T>().data();
  // grad_x = r (d - mean(d) - n mean(d n)) with n = (x - mean) r and d = grad_output x gain.
  for_vector_chunks(norm.rows, chunk_items(norm.rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    const T* g = norm.gain.as<T>().data();
    for (std::int64_t i = begin; i < end; ++i) {
      const T* x = input + i * width;
      const T* dy = grad_output + i * width;
      T* dx = norm.grad_residual.as<T>().data() + i * width;
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
    T* dg = norm.grad_gain.as<T>().data();
    T* db = norm.grad_bias.as<T>().data();
    for (std::int64_t i = 0; i < norm.rows; ++i) {
      const T* x = input + i * width;
      const T* dy = grad_output + i * width;
      const T m = mean[i];
      const T r = inverse_deviation[i];
      for (std::int64_t j = begin; j < end; ++j) {
        dg[j] += dy[j] * ((x[j] - m) * r);
        db[j] += dy[j];
      }
    }
  });
}

#define DROPTEST_LAYERNORM(T)                                          \
  template void layernorm_forward<T>(const NormForward&, const Team&); \
  template void add_branch<T>(const NormForward&, const Team&);        \
  template void layernorm_backward<T>(const NormBackward&, const Team&);
DROPTEST_LAYERNORM(float)
DROPTEST_LAYERNORM(double)
#undef DROPTEST_LAYERNORM

}  // namespace droptest::models
