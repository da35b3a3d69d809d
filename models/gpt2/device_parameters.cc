// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/device_parameters.h"

#include <type_traits>
#include <utility>

#include "models/kernels/adamw.h"
#include "models/kernels/bf16.h"

namespace droptest::models {
namespace {

enum class Counted : std::uint8_t { kAll, kSharded };

std::vector<TensorSegment> segments_of(std::span<const Gpt2Tensor> tensors, const ParameterArena& arena,
                                       Counted counted) {
  std::vector<TensorSegment> segments;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (counted == Counted::kSharded && tensors[i].placement == Placement::kReplicated) continue;
    segments.push_back({arena.offsets[i], tensors[i].slice.local_elems(), tensors[i].decay});
  }
  return segments;
}

}  // namespace

template <class E>
DeviceParameters<E>::DeviceParameters(std::vector<Gpt2Tensor> tensors, int rank, const AdamWConfig& adamw,
                                      comm::Stream& stream)
    : tensors_(std::move(tensors)),
      arena_(parameter_arena(tensors_)),
      adamw_(adamw),
      stream_(stream),
      values_(arena_.elems, "float values of the parameters"),
      gradients_(arena_.elems, "float gradients"),
      first_moments_(arena_.elems, "AdamW's first moments"),
      second_moments_(arena_.elems, "AdamW's second moments"),
      rounded_(std::is_same_v<E, float> ? 0 : arena_.elems, "bfloat16 copy of the parameters"),
      all_(segments_of(tensors_, arena_, Counted::kAll), stream),
      counted_(segments_of(tensors_, arena_, rank == 0 ? Counted::kAll : Counted::kSharded), stream),
      partial_squares_(counted_.chunks().size(), "partial sums of the gradient norm"),
      host_values_(arena_.elems),
      host_gradients_(arena_.elems),
      host_parameters_(parameters_in<float>(arena_, tensors_, host_values_.elems(), host_gradients_.elems())) {
  for (comm::DeviceBuffer<float>* zeros : {&gradients_, &first_moments_, &second_moments_}) {
    comm::zero_on_device(zeros->elems(), stream_);
  }
}

template <class E>
comm::DeviceSpan<const E> DeviceParameters<E>::weights() const {
  if constexpr (std::is_same_v<E, float>) {
    return values_.elems();
  } else {
    return rounded_.elems();
  }
}

template <class E>
comm::DeviceSpan<const E> DeviceParameters<E>::weight(std::size_t i) const {
  return weights().subspan(arena_.offsets[i], tensors_[i].slice.local_elems());
}

template <class E>
comm::DeviceSpan<float> DeviceParameters<E>::gradient(std::size_t i) {
  return gradients_.elems().subspan(arena_.offsets[i], tensors_[i].slice.local_elems());
}

template <class E>
void DeviceParameters<E>::sum_gradient_squares(comm::DeviceSpan<double> sum) {
  sum_of_squares(counted_, gradients_.elems(), partial_squares_.elems(), sum, stream_);
}

template <class E>
void DeviceParameters<E>::step(double learning_rate, double gradient_scale) {
  const AdamWStep update = adamw_step(adamw_, ++step_, learning_rate, gradient_scale);
  adamw_update<E>(all_, values_.elems(), gradients_.elems(), first_moments_.elems(), second_moments_.elems(),
                  rounded_.elems(), update, stream_);
}

template <class E>
void DeviceParameters<E>::download_values() {
  comm::copy_to_host(comm::DeviceSpan<const float>(values_.elems()), host_values_.elems(), stream_);
  stream_.synchronize();
}

template <class E>
void DeviceParameters<E>::download_gradients() {
  comm::copy_to_host(comm::DeviceSpan<const float>(gradients_.elems()), host_gradients_.elems(), stream_);
  stream_.synchronize();
}

template <class E>
void DeviceParameters<E>::upload_values() {
  comm::copy_to_device(std::span<const float>(host_values_.elems()), values_.elems(), stream_);
  if constexpr (!std::is_same_v<E, float>) convert<E, float>(values_.elems(), rounded_.elems(), stream_);
  stream_.synchronize();
}

template <class E>
std::uint64_t DeviceParameters<E>::device_bytes(const std::vector<Gpt2Tensor>& tensors) {
  // Values, gradients and two moments, and where E is not float, the rounded values.
  return parameter_arena(tensors).elems * (4 * sizeof(float) + (std::is_same_v<E, float> ? 0 : sizeof(E)));
}

template class DeviceParameters<float>;
template class DeviceParameters<Bf16>;

}  // namespace droptest::models
