// SPDX-License-Identifier: Apache-2.0
// The products of a linear layer on a device against sums in double.
#include "models/kernels/matrix_products.h"

#include "models/kernels/gelu.h"
#include "tests/cuda/device_kernels.h"

namespace droptest::models::matrix_products_cuda_test {
namespace {

template <class E>
class MatrixProductsCuda : public DeviceTest {
 protected:
  /// The library's epilogues, and own kernels.
  std::vector<std::unique_ptr<MatrixProducts<E>>> both() {
    std::vector<std::unique_ptr<MatrixProducts<E>>> result;
    for (const auto epilogues : {MatrixProducts<E>::Epilogues::kFused, MatrixProducts<E>::Epilogues::kOwnKernels}) {
      result.push_back(std::make_unique<MatrixProducts<E>>(this->stream(), epilogues));
    }
    return result;
  }
};
TYPED_TEST_SUITE(MatrixProductsCuda, DeviceElementTypes);

/// A layer's numbers, and its products in double.
template <class E>
struct Layer {
  explicit Layer(const ProductShape& s)
      : shape(s),
        stride(s.output_stride == 0 ? s.outputs : s.output_stride),
        input(random_elems<E>(1, s.rows * s.inputs)),
        weight(random_elems<E>(2, s.inputs * s.outputs)),
        bias(random_elems<E>(3, s.outputs)),
        grad_output(random_elems<E>(4, s.rows * stride)) {}

  double weight_at(std::int64_t i, std::int64_t o) const {
    const bool by_outputs = shape.layout == WeightLayout::kInputsByOutputs;
    return static_cast<double>(to_float(weight[by_outputs ? i * shape.outputs + o : o * shape.inputs + i]));
  }
  double input_at(std::int64_t r, std::int64_t i) const {
    return static_cast<double>(to_float(input[r * shape.inputs + i]));
  }
  double grad_at(std::int64_t r, std::int64_t o) const {
    return static_cast<double>(to_float(grad_output[r * stride + o]));
  }

  /// [rows, stride], NaN in the gaps.
  std::vector<double> output(bool with_bias) const {
    std::vector<double> result(static_cast<std::size_t>(shape.rows * stride), std::nan(""));
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      for (std::int64_t o = 0; o < shape.outputs; ++o) {
        double sum = with_bias ? static_cast<double>(to_float(bias[o])) : 0;
        for (std::int64_t i = 0; i < shape.inputs; ++i) sum += input_at(r, i) * weight_at(i, o);
        result[r * stride + o] = sum;
      }
    }
    return result;
  }
  std::vector<double> grad_input(double factor) const {
    std::vector<double> result(input.size());
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      for (std::int64_t i = 0; i < shape.inputs; ++i) {
        for (std::int64_t o = 0; o < shape.outputs; ++o) {
          result[r * shape.inputs + i] += factor * grad_at(r, o) * weight_at(i, o);
        }
      }
    }
    return result;
  }
  void add_grad_weight(double factor, std::vector<double>& grad_weight) const {
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      for (std::int64_t i = 0; i < shape.inputs; ++i) {
        for (std::int64_t o = 0; o < shape.outputs; ++o) {
          const bool by_outputs = shape.layout == WeightLayout::kInputsByOutputs;
          grad_weight[by_outputs ? i * shape.outputs + o : o * shape.inputs + i] +=
              factor * input_at(r, i) * grad_at(r, o);
        }
      }
    }
  }

  ProductShape shape;
  std::int64_t stride;
  std::vector<E> input;
  std::vector<E> weight;
  std::vector<E> bias;
  std::vector<E> grad_output;
};

constexpr auto kByOutputs = WeightLayout::kInputsByOutputs;
constexpr auto kByInputs = WeightLayout::kOutputsByInputs;
const std::vector<ProductShape> kShapes = {
    {1, 1, 1, kByOutputs},   {5, 7, 3, kByOutputs},   {5, 7, 3, kByInputs},        {24, 32, 48, kByOutputs},
    {24, 32, 48, kByInputs}, {9, 64, 40, kByOutputs}, {17, 24, 13, kByInputs, 16}, {0, 8, 8, kByOutputs},
    {4, 0, 8, kByOutputs},   {4, 8, 0, kByOutputs},   {4, 0, 3, kByInputs},        {3, 8, 1027, kByInputs, 1032},
    {3, 8, 1027, kByInputs}};

std::string text_of(const ProductShape& s) {
  return std::to_string(s.rows) + " x " + std::to_string(s.inputs) + " x " + std::to_string(s.outputs) +
         (s.layout == kByOutputs ? "" : " transposed");
}

// Sums of up to 64 products of size 1 in float. With own kernels a bias or a slope meets a product of up to 16 that was
// rounded already: then there are two roundings, and the first one may be larger than the result.
constexpr double kSumNoise = 1e-5;
template <class E>
constexpr double kTwice = kSumNoise + 16 * kRounding<E>;

/// Sums of 1,027 products are less exact, and the last three products of 16-bit numbers are rounded on their own.
template <class E>
double noise_of_many(const ProductShape& shape) {
  return shape.outputs > 1024 ? 10 * kSumNoise + 3 * kRounding<E> : 0;
}

/// Only the columns that are outputs.
template <class T>
std::vector<T> without_gaps(const std::vector<T>& values, const ProductShape& shape, std::int64_t stride) {
  std::vector<T> result;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t o = 0; o < shape.outputs; ++o) result.push_back(values[r * stride + o]);
  }
  return result;
}

TYPED_TEST(MatrixProductsCuda, ForwardWithAndWithoutABias) {
  using E = TypeParam;
  for (const std::unique_ptr<MatrixProducts<E>>& products : this->both()) {
    for (const ProductShape& shape : kShapes) {
      const Layer<E> layer(shape);
      DeviceArray<E> input(layer.input, this->stream());
      DeviceArray<E> weight(layer.weight, this->stream());
      for (const bool with_bias : {false, true}) {
        if (with_bias && layer.stride != shape.outputs) continue;
        DeviceArray<E> bias(with_bias ? layer.bias : std::vector<E>{}, this->stream());
        // Twice: the second call uses the choice that the first one made, at another address.
        for (int round = 0; round < 2; ++round) {
          DeviceArray<E> output = poisoned<E>(shape.rows * layer.stride, this->stream());
          products->forward(shape, input.read(), weight.read(), bias.read(), output.elems());
          expect_close(without_gaps(output.values(), shape, layer.stride),
                       without_gaps(layer.output(with_bias), shape, layer.stride), with_bias ? kTwice<E> : kSumNoise,
                       1.01, text_of(shape));
        }
      }
    }
  }
}

TYPED_TEST(MatrixProductsCuda, ForwardWithGelu) {
  using E = TypeParam;
  for (const std::unique_ptr<MatrixProducts<E>>& products : this->both()) {
    for (const ProductShape& shape : kShapes) {
      const Layer<E> layer(shape);
      if (layer.stride != shape.outputs) continue;
      const std::vector<double> sums = layer.output(true);
      std::vector<double> slopes = sums;
      std::vector<double> want(sums.size());
      bias_gelu_forward<double>(std::vector<double>(static_cast<std::size_t>(shape.outputs)), shape.rows, slopes, want,
                                1);
      DeviceArray<E> input(layer.input, this->stream());
      DeviceArray<E> weight(layer.weight, this->stream());
      DeviceArray<E> bias(layer.bias, this->stream());
      DeviceArray<E> pre_gelu = poisoned<E>(shape.rows * shape.outputs, this->stream());
      DeviceArray<E> output = poisoned<E>(shape.rows * shape.outputs, this->stream());
      products->forward_gelu(shape, input.read(), weight.read(), bias.read(), pre_gelu.elems(), output.elems());
      expect_close(pre_gelu.values(), sums, kTwice<E>, 1.01, text_of(shape));
      // The slope of gelu is at most 1.13.
      expect_close(output.values(), want, 1.2 * kTwice<E>, 1.01, text_of(shape));
    }
  }
}

TYPED_TEST(MatrixProductsCuda, GradientOfTheInput) {
  using E = TypeParam;
  for (const std::unique_ptr<MatrixProducts<E>>& products : this->both()) {
    for (const ProductShape& shape : kShapes) {
      const Layer<E> layer(shape);
      DeviceArray<E> grad_output(layer.grad_output, this->stream());
      DeviceArray<E> weight(layer.weight, this->stream());
      for (const double factor : {1.0, 0.125}) {
        DeviceArray<E> grad_input = poisoned<E>(shape.rows * shape.inputs, this->stream());
        products->backward_input(shape, grad_output.read(), weight.read(), static_cast<float>(factor),
                                 grad_input.elems());
        const std::vector<double> want = layer.grad_input(factor);
        expect_close(grad_input.values(), want, kSumNoise + noise_of_many<E>(shape), 1.01, text_of(shape));

        const auto pre_gelu = random_elems<E>(5, shape.rows * shape.inputs, 8);
        std::vector<double> slopes = as<double>(pre_gelu);
        std::vector<double> gelus(slopes.size());
        bias_gelu_forward<double>(std::vector<double>(static_cast<std::size_t>(shape.inputs)), shape.rows, slopes,
                                  gelus, 1);
        for (std::size_t i = 0; i < slopes.size(); ++i) slopes[i] *= want[i];
        DeviceArray<E> device_pre_gelu(pre_gelu, this->stream());
        grad_input = poisoned<E>(shape.rows * shape.inputs, this->stream());
        products->backward_input_gelu(shape, grad_output.read(), weight.read(), static_cast<float>(factor),
                                      device_pre_gelu.read(), grad_input.elems());
        const std::vector<E> got = grad_input.values();
        for (std::size_t i = 0; i < got.size(); ++i) {
          // A slope of 16-bit numbers, by the library, is rounded itself.
          const double slope = sizeof(E) == 2 ? kRounding<E> * std::abs(want[i]) : 0;
          ASSERT_NEAR(static_cast<double>(to_float(got[i])), slopes[i],
                      1.2 * (kSumNoise + noise_of_many<E>(shape)) + slope + 2.02 * kRounding<E> * std::abs(slopes[i]))
              << text_of(shape) << " element " << i;
        }
      }
    }
  }
}

TYPED_TEST(MatrixProductsCuda, GradientsOfWeightAndBias) {
  using E = TypeParam;
  for (const std::unique_ptr<MatrixProducts<E>>& products : this->both()) {
    for (const ProductShape& shape : kShapes) {
      const Layer<E> layer(shape);
      DeviceArray<E> grad_output(layer.grad_output, this->stream());
      DeviceArray<E> input(layer.input, this->stream());
      for (const GradientMode mode : {GradientMode::kSet, GradientMode::kAdd}) {
        for (const bool with_bias : {false, true}) {
          const bool adds = mode == GradientMode::kAdd;
          const double factor = with_bias ? 1.0 : 0.5;
          const auto weight_before = random_elems<float>(6, shape.inputs * shape.outputs);
          const auto bias_before = random_elems<float>(7, with_bias ? shape.outputs : 0);
          std::vector<double> want = adds ? as<double>(weight_before) : std::vector<double>(weight_before.size());
          std::vector<double> want_bias = adds ? as<double>(bias_before) : std::vector<double>(bias_before.size());
          layer.add_grad_weight(factor, want);
          for (std::int64_t r = 0; r < shape.rows; ++r) {
            for (std::size_t o = 0; o < want_bias.size(); ++o) {
              want_bias[o] += layer.grad_at(r, static_cast<std::int64_t>(o));
            }
          }
          DeviceArray<float> grad_weight(weight_before, this->stream());
          DeviceArray<float> grad_bias(bias_before, this->stream());
          products->backward_weight(shape, input.read(), grad_output.read(), static_cast<float>(factor), mode,
                                    grad_weight.elems(), grad_bias.elems());
          expect_close(grad_weight.values(), want, kSumNoise, 1.01, text_of(shape));
          expect_close(grad_bias.values(), want_bias, kSumNoise, 1.01, text_of(shape));
        }
      }
    }
  }
}

TYPED_TEST(MatrixProductsCuda, ArraysThatDoNotBeginAtAMultipleOf16Bytes) {
  using E = TypeParam;
  const ProductShape shape{8, 16, 24, kByOutputs};
  const Layer<E> layer(shape);
  for (const std::unique_ptr<MatrixProducts<E>>& products : this->both()) {
    DeviceArray<E> input(layer.input, this->stream(), Start::kOdd);
    DeviceArray<E> weight(layer.weight, this->stream(), Start::kOdd);
    DeviceArray<E> bias(layer.bias, this->stream(), Start::kOdd);
    DeviceArray<E> output = poisoned<E>(shape.rows * shape.outputs, this->stream(), Start::kOdd);
    DeviceArray<E> pre_gelu = poisoned<E>(shape.rows * shape.outputs, this->stream(), Start::kOdd);
    products->forward_gelu(shape, input.read(), weight.read(), bias.read(), pre_gelu.elems(), output.elems());
    expect_close(pre_gelu.values(), layer.output(true), kTwice<E>);
  }
}

TYPED_TEST(MatrixProductsCuda, RefusesShortRangesAndBiasesInGaps) {
  using E = TypeParam;
  MatrixProducts<E> products(this->stream());
  DeviceArray<E> many = poisoned<E>(64, this->stream());
  const comm::DeviceSpan<const E> few = many.read().first(63);
  EXPECT_THROW(products.forward({8, 8, 8}, few, many.read(), {}, many.elems()), CheckError);
  EXPECT_THROW(products.forward({8, 8, 8}, many.read(), few, {}, many.elems()), CheckError);
  EXPECT_THROW(products.forward({8, 8, 8}, many.read(), many.read(), {}, many.elems().first(63)), CheckError);
  EXPECT_THROW(products.forward({8, 8, 4, kByOutputs, 8}, many.read(), many.read(), many.read().first(4), many.elems()),
               CheckError);
  EXPECT_THROW(products.forward({8, 8, 8, kByOutputs, 4}, many.read(), many.read(), {}, many.elems()), CheckError);
}

}  // namespace
}  // namespace droptest::models::matrix_products_cuda_test
