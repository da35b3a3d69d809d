// SPDX-License-Identifier: Apache-2.0
// A rank's parameters on a device, with their gradients and AdamW's moments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/parameter_arena.h"
#include "models/host_buffer.h"
#include "models/kernels/tensor_segments.h"
#include "models/optimizer.h"
#include "models/parameter.h"

namespace droptest::models {

/// Values, gradients and moments are float; products read a copy of the values in E, float or Bf16, which every update
/// of the values renews (the values themselves where E is float). Each is one array, laid out as parameter_arena()
/// says. Owner: one rank's model, whose stream all work is put on.
template <class E>
class DeviceParameters {
 public:
  /// Moments and gradients are zero, values unspecified. `rank` counts replicated tensors in norms where it is 0.
  /// Throws: DeviceError that says what wanted how much, where the device has too little memory.
  DeviceParameters(std::vector<Gpt2Tensor> tensors, int rank, const AdamWConfig& adamw, comm::Stream& stream);

  const std::vector<Gpt2Tensor>& tensors() const { return tensors_; }
  /// Of tensor number i, as products read it.
  comm::DeviceSpan<const E> weight(std::size_t i) const;
  comm::DeviceSpan<float> gradient(std::size_t i);

  /// sum[0] = the sum of squares of the gradients that this rank counts.
  void sum_gradient_squares(comm::DeviceSpan<double> sum);
  /// One update of all values. The first call is step 1.
  void step(double learning_rate, double gradient_scale);

  /// Copies in host memory.
  std::span<Parameter<float>> host() { return host_parameters_; }
  /// Returns when the copies are the device's.
  void download_values();
  void download_gradients();
  /// Returns when the device's values are the copies.
  void upload_values();

  /// What the arrays of these tensors take.
  static std::uint64_t device_bytes(const std::vector<Gpt2Tensor>& tensors);
  std::uint64_t device_bytes() const { return device_bytes(tensors_); }

 private:
  comm::DeviceSpan<const E> weights() const;

  std::vector<Gpt2Tensor> tensors_;
  ParameterArena arena_;
  AdamWConfig adamw_;
  comm::Stream& stream_;
  std::uint64_t step_ = 0;
  comm::DeviceBuffer<float> values_;
  comm::DeviceBuffer<float> gradients_;
  comm::DeviceBuffer<float> first_moments_;
  comm::DeviceBuffer<float> second_moments_;
  comm::DeviceBuffer<E> rounded_;  ///< empty where E is float
  TensorSegments all_;
  TensorSegments counted_;  ///< in the gradient norm, on this rank
  comm::DeviceBuffer<double> partial_squares_;
  HostBuffer<float> host_values_;
  HostBuffer<float> host_gradients_;
  std::vector<Parameter<float>> host_parameters_;
};

}  // namespace droptest::models
