// SPDX-License-Identifier: Apache-2.0
// AdamW and the sum of squares over tables of tensors, and conversions, on a device.
#include "models/kernels/adamw.h"
#include "models/kernels/sgd.h"
#include "models/kernels/tensor_segments.h"
#include "tests/cuda/device_kernels.h"

namespace droptest::models::optimizer_cuda_test {
namespace {

template <class E>
class OptimizerCuda : public DeviceTest {};
TYPED_TEST_SUITE(OptimizerCuda, DeviceElementTypes);

/// Tensors with gaps, on and off multiples of 16 bytes, longer than a chunk, and one that is empty.
const std::vector<ParameterRange> kSegments = {{0, 8, Decay::kDecays},          {8, 3, Decay::kKeeps},
                                               {13, 70, Decay::kDecays, 0.125}, {96, 0, Decay::kDecays},
                                               {96, 9001, Decay::kKeeps, 0.7},  {9100, 16400, Decay::kDecays}};
constexpr std::int64_t kArray = 25600;

TYPED_TEST(OptimizerCuda, UpdatesEachTensorAsTheHostDoes) {
  using E = TypeParam;
  AdamWStep step;
  step.learning_rate = 0.01;
  step.gradient_scale = 0.5;
  step.beta1 = 0.9;
  step.beta2 = 0.95;
  step.epsilon = 1e-8;
  step.bias_correction1 = 0.19;
  step.bias_correction2 = 0.0975;
  const TensorSegments segments(kSegments, this->stream());
  EXPECT_EQ(segments.extent(), 25500U);
  for (const Start start : {Start::kAligned, Start::kOdd}) {
    const auto value = random_elems<float>(1, kArray);
    const auto gradient = random_elems<float>(2, kArray);
    const auto first = random_elems<float>(3, kArray);
    std::vector<float> second = random_elems<float>(4, kArray);
    for (float& v : second) v = std::abs(v);
    std::vector<float> want_value = value;
    std::vector<float> want_first = first;
    std::vector<float> want_second = second;
    for (const ParameterRange& segment : kSegments) {
      AdamWStep own = step;
      own.weight_decay = segment.decay == Decay::kDecays ? 0.1 : 0.0;
      own.learning_rate *= segment.learning_rate_factor;
      const auto part = [&segment](std::vector<float>& all) {
        return std::span(all).subspan(segment.offset, segment.count);
      };
      adamw_update<float>(part(want_value), std::span(gradient).subspan(segment.offset, segment.count),
                          part(want_first), part(want_second), own, 1);
    }
    step.weight_decay = 0.1;
    DeviceArray<float> device_value(value, this->stream(), start);
    DeviceArray<float> device_gradient(gradient, this->stream(), start);
    DeviceArray<float> device_first(first, this->stream(), start);
    DeviceArray<float> device_second(second, this->stream(), start);
    const auto rounded_before = random_elems<E>(5, kArray);
    DeviceArray<E> rounded(rounded_before, this->stream(), start);
    adamw_update<E>(segments, device_value.elems(), device_gradient.read(), device_first.elems(), device_second.elems(),
                    rounded.elems(), step, {}, this->stream());
    // A device may round a multiplication and an addition once, while the host rounds twice; the quotient has the size
    // 3.
    const std::vector<float> got = device_value.values();
    expect_close(got, as<double>(want_value), 1e-7, 4);
    expect_close(device_first.values(), as<double>(want_first), 2e-7, 4);
    expect_close(device_second.values(), as<double>(want_second), 2e-7, 4);
    std::vector<E> want_rounded = rounded_before;
    for (const ParameterRange& segment : kSegments) {
      for (std::uint64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
        want_rounded[i] = to_elem<E>(static_cast<double>(got[i]));
      }
    }
    EXPECT_EQ(bytes_of(rounded.values()), bytes_of(want_rounded));
    // Elements outside of all tensors stay, to the bit.
    for (const std::int64_t gap : {11, 12, 83, 95, 9097, 9099, 25500, 25599}) {
      EXPECT_EQ(got[gap], value[gap]) << gap;
    }
    // An update without a rounded copy has the same values.
    DeviceArray<float> again(value, this->stream(), start);
    DeviceArray<float> first_again(first, this->stream(), start);
    DeviceArray<float> second_again(second, this->stream(), start);
    adamw_update<E>(segments, again.elems(), device_gradient.read(), first_again.elems(), second_again.elems(), {},
                    step, {}, this->stream());
    EXPECT_EQ(again.values(), got);
  }
}

TYPED_TEST(OptimizerCuda, ConvertsFloats) {
  using E = TypeParam;
  for (const std::int64_t count : {0, 1, 7, 8, 1029}) {
    for (const Start start : {Start::kAligned, Start::kOdd}) {
      const auto values = random_elems<float>(1, count);
      std::vector<E> want;
      for (const float value : values) want.push_back(to_elem<E>(static_cast<double>(value)));
      DeviceArray<float> input(values, this->stream(), start);
      DeviceArray<E> output = poisoned<E>(count, this->stream(), start);
      convert<E, float>(input.read(), output.elems(), this->stream());
      EXPECT_EQ(bytes_of(output.values()), bytes_of(want)) << count;
    }
  }
}

TYPED_TEST(OptimizerCuda, DescendsAsTheHostDoes) {
  using E = TypeParam;
  const TensorSegments segments(kSegments, this->stream());
  SgdStep step{.learning_rate = 0.25, .gradient_scale = 0.5, .momentum = 0.75, .weight_decay = 0.125};
  for (const Start start : {Start::kAligned, Start::kOdd}) {
    const auto value = random_elems<float>(1, kArray);
    const auto gradient = random_elems<float>(2, kArray);
    const auto velocity = random_elems<float>(3, kArray);
    std::vector<float> want_value = value;
    std::vector<float> want_velocity = velocity;
    for (const ParameterRange& segment : kSegments) {
      SgdStep own = step;
      if (segment.decay == Decay::kKeeps) own.weight_decay = 0;
      own.learning_rate *= segment.learning_rate_factor;
      sgd_update<float>(std::span(want_value).subspan(segment.offset, segment.count),
                        std::span(gradient).subspan(segment.offset, segment.count),
                        std::span(want_velocity).subspan(segment.offset, segment.count), own, 1);
    }
    DeviceArray<float> device_value(value, this->stream(), start);
    DeviceArray<float> device_gradient(gradient, this->stream(), start);
    DeviceArray<float> device_velocity(velocity, this->stream(), start);
    std::vector<E> want_rounded = random_elems<E>(5, kArray);
    DeviceArray<E> rounded(want_rounded, this->stream(), start);
    sgd_update<E>(segments, device_value.elems(), device_gradient.read(), device_velocity.elems(), rounded.elems(),
                  step, {}, this->stream());
    const std::vector<float> got = device_value.values();
    expect_close(got, as<double>(want_value), 2e-7, 4);
    expect_close(device_velocity.values(), as<double>(want_velocity), 2e-7, 4);
    for (const ParameterRange& segment : kSegments) {
      for (std::uint64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
        want_rounded[i] = to_elem<E>(static_cast<double>(got[i]));
      }
    }
    EXPECT_EQ(bytes_of(rounded.values()), bytes_of(want_rounded));
    // A factor that is not a number skips the step.
    DeviceArray<double> factor(std::vector<double>{std::nan("")}, this->stream());
    sgd_update<E>(segments, device_value.elems(), device_gradient.read(), device_velocity.elems(), rounded.elems(),
                  step, factor.read(), this->stream());
    EXPECT_EQ(device_value.values(), got);
  }
}

class TensorSegmentsCuda : public DeviceTest {};

TEST_F(TensorSegmentsCuda, SumOfSquares) {
  const TensorSegments segments(kSegments, stream());
  EXPECT_EQ(segments.chunks().size(), 1 + 1 + 1 + 2 + 3U);
  const auto values = random_elems<float>(1, kArray);
  double want = 0;
  for (const ParameterRange& segment : kSegments) {
    for (std::uint64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      want += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
  }
  for (const Start start : {Start::kAligned, Start::kOdd}) {
    DeviceArray<float> device_values(values, stream(), start);
    DeviceArray<double> scratch = poisoned<double>(segments.chunks().size(), stream());
    DeviceArray<double> sum = poisoned<double>(1, stream());
    squares_of_chunks(segments, device_values.read(), scratch.elems(), stream());
    add_in_order(scratch.elems(), sum.elems(), stream());
    EXPECT_NEAR(sum.values()[0] / want, 1, 1e-12);  // 25,000 additions in double
  }
  const TensorSegments none(std::vector<ParameterRange>{}, stream());
  DeviceArray<float> device_values(values, stream());
  DeviceArray<double> sum = poisoned<double>(1, stream());
  squares_of_chunks(none, device_values.read(), {}, stream());
  add_in_order({}, sum.elems(), stream());
  EXPECT_EQ(sum.values(), std::vector<double>{0.0});
  DeviceArray<double> scratch = poisoned<double>(segments.chunks().size(), stream());
  EXPECT_THROW(squares_of_chunks(segments, device_values.read().first(25499), scratch.elems(), stream()), CheckError);
  EXPECT_THROW(squares_of_chunks(segments, device_values.read(), scratch.elems().first(7), stream()), CheckError);
}

}  // namespace
}  // namespace droptest::models::optimizer_cuda_test
