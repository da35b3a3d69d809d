// SPDX-License-Identifier: Apache-2.0
// The requests of MatrixProducts to cuBLASLt, and its reaction to a refusal, which only the fake device can show.
#include <cublasLt.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/kernels/cublaslt_products.h"
#include "models/kernels/matrix_products.h"
#include "tests/cuda/device_kernels.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace droptest::models::matrix_products_fake_test {
namespace {

class MatrixProductsFake : public DeviceTest {
 protected:
  /// All GEMMs of a layer with arrays that suit every epilogue.
  std::vector<float> all_products(MatrixProducts<Bf16>& products) {
    std::vector<float> result;
    const auto take = [&result](const std::vector<float>& values) {
      result.insert(result.end(), values.begin(), values.end());
    };
    DeviceArray<Bf16> input(random_elems<Bf16>(1, 16 * 32), stream());
    DeviceArray<Bf16> weight(random_elems<Bf16>(2, 32 * 24), stream());
    DeviceArray<Bf16> bias(random_elems<Bf16>(3, 24), stream());
    DeviceArray<Bf16> grad_output(random_elems<Bf16>(4, 16 * 24), stream());
    DeviceArray<Bf16> inputs_pre_gelu(random_elems<Bf16>(5, 16 * 32), stream());
    DeviceArray<Bf16> output = poisoned<Bf16>(16 * 24, stream());
    DeviceArray<Bf16> pre_gelu = poisoned<Bf16>(16 * 24, stream());
    DeviceArray<Bf16> grad_input = poisoned<Bf16>(16 * 32, stream());
    DeviceArray<float> grad_weight = poisoned<float>(32 * 24, stream());
    DeviceArray<float> grad_bias = poisoned<float>(24, stream());
    products.forward(kShape, input.read(), weight.read(), bias.read(), output.elems());
    take(as<float>(output.values()));
    products.forward_gelu(kShape, input.read(), weight.read(), bias.read(), pre_gelu.elems(), output.elems());
    take(as<float>(pre_gelu.values()));
    take(as<float>(output.values()));
    products.backward_input_gelu(kShape, grad_output.read(), weight.read(), 1.0F, inputs_pre_gelu.read(),
                                 grad_input.elems());
    take(as<float>(grad_input.values()));
    products.backward_weight(kShape, input.read(), grad_output.read(), 1.0F, GradientMode::kSet, grad_weight.elems(),
                             grad_bias.elems());
    take(grad_weight.values());
    take(grad_bias.values());
    return result;
  }

  static constexpr ProductShape kShape{16, 32, 24, WeightLayout::kInputsByOutputs, 0};
  /// Two roundings of numbers of up to 16 in place of one.
  static constexpr double kTwice = 16 * kRounding<Bf16>;
};

TEST_F(MatrixProductsFake, EpiloguesAreTheLibrarysWhereItHasThem) {
  const fake_cuda::Scope scope;
  MatrixProducts<Bf16> products(stream());
  all_products(products);
  EXPECT_EQ(fake_cuda::launches("add_bias"), 0U);
  EXPECT_EQ(fake_cuda::launches("bias_gelu"), 0U);
  EXPECT_EQ(fake_cuda::launches("gelu_backward"), 0U);
  EXPECT_EQ(fake_cuda::launches("column_sums"), 0U);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 4U);
}

TEST_F(MatrixProductsFake, OwnKernelsTakeThePlaceOfRefusedEpilogues) {
  const fake_cuda::Scope scope;
  MatrixProducts<Bf16> fused(stream());
  const std::vector<float> want = all_products(fused);
  fake_cuda::Settings settings;
  settings.refused_epilogues = {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                                CUBLASLT_EPILOGUE_BGRADA};
  fake_cuda::reset();
  fake_cuda::configure(settings);
  MatrixProducts<Bf16> products(stream());
  expect_close(all_products(products), as<double>(want), kTwice);
  EXPECT_EQ(fake_cuda::launches("add_bias"), 1U);
  EXPECT_EQ(fake_cuda::launches("bias_gelu"), 1U);
  EXPECT_EQ(fake_cuda::launches("gelu_backward"), 1U);
  EXPECT_EQ(fake_cuda::launches("column_sums"), 1U);
}

TEST_F(MatrixProductsFake, AnEpilogueThatIsRefusedWhenItRunsIsNotAskedForAgain) {
  const fake_cuda::Scope scope;
  MatrixProducts<Bf16> products(stream());
  DeviceArray<Bf16> input(random_elems<Bf16>(1, 16 * 32), stream());
  DeviceArray<Bf16> weight(random_elems<Bf16>(2, 32 * 24), stream());
  DeviceArray<Bf16> bias(random_elems<Bf16>(3, 24), stream());
  DeviceArray<Bf16> output = poisoned<Bf16>(16 * 24, stream());
  fake_cuda::fail_call("cublasLtMatmul", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  for (const std::uint64_t calls : {2U, 3U}) {
    products.forward(kShape, input.read(), weight.read(), bias.read(), output.elems());
    EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), calls);
  }
  EXPECT_EQ(fake_cuda::launches("add_bias"), 2U);
  stream().synchronize();
}

TEST_F(MatrixProductsFake, TheLibraryChoosesOnceForEachShape) {
  const fake_cuda::Scope scope;
  MatrixProducts<Bf16> products(stream());
  all_products(products);
  const std::uint64_t choices = fake_cuda::calls("cublasLtMatmulAlgoGetHeuristic");
  EXPECT_EQ(choices, 4U);
  all_products(products);
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmulAlgoGetHeuristic"), choices);
}

/// The configuration of an algorithm of the fake.
AlgorithmConfig fake_config(std::uint32_t id) {
  AlgorithmConfig config;
  config.fill(id % 2);
  config[0] = id;
  return config;
}

/// A GEMM of 8 x 8 matrices and its operands, on a fake device with a cuBLASLt that proposes `algorithms` algorithms.
class ChosenProducts {
 public:
  ChosenProducts(comm::Stream& stream, int algorithms) : stream_(stream), elems_(random_elems<Bf16>(1, 64), stream) {
    fake_cuda::Settings settings;
    settings.algorithms = algorithms;
    fake_cuda::configure(settings);
    const Stored square = stored(elems_.read().data(), 8, 8, 8);
    product = {CUBLAS_OP_N, square, CUBLAS_OP_T, square, stored(result_.elems().data(), 8, 8, 8), 1.0F, 0.0F};
  }

  /// The id of the algorithm that the product takes.
  int algorithm_with(std::span<const ProductChoice> choices) {
    CublasLtProducts products(stream_, FloatProducts::kExact, choices);
    return algorithm_of(products);
  }
  int algorithm_of(CublasLtProducts& products) const {
    fake_cuda::Settings settings = fake_cuda::settings();
    fake_cuda::reset();
    fake_cuda::configure(settings);
    products.multiply("product", product);
    stream_.synchronize();
    for (int id = 1; id <= settings.algorithms; ++id) {
      if (fake_cuda::products_by(id) == 1) return id;
    }
    return 0;
  }

  CublasLtProduct product{};

 private:
  comm::Stream& stream_;
  DeviceArray<Bf16> elems_;
  DeviceArray<float> result_ = poisoned<float>(64, stream_);
};

TEST_F(MatrixProductsFake, ARecordedChoiceIsTakenWhereTheLibraryProposesIt) {
  const fake_cuda::Scope scope;
  ChosenProducts chosen(stream(), 5);
  EXPECT_EQ(chosen.algorithm_with({}), 1);
  const ProductKind kind{CUBLAS_COMPUTE_32F,        CUBLAS_OP_N, CUBLAS_OP_T, CUDA_R_16BF, CUDA_R_32F, 8, 8, 8,
                         CUBLASLT_EPILOGUE_DEFAULT, false};
  EXPECT_EQ(kind_of(chosen.product, FloatProducts::kTf32), kind) << "numbers of 16 bits are not rounded";
  CublasLtProduct of_floats = chosen.product;
  of_floats.a.type = of_floats.b.type = CUDA_R_32F;
  EXPECT_EQ(kind_of(of_floats, FloatProducts::kTf32).compute, CUBLAS_COMPUTE_32F_FAST_TF32);
  EXPECT_EQ(kind_of(of_floats, FloatProducts::kExact).compute, CUBLAS_COMPUTE_32F);
  const auto with = [&](int compute_capability, std::uint32_t id, const std::function<void(ProductKind&)>& change) {
    ProductChoice choice{compute_capability, kind, fake_config(id)};
    change(choice.product);
    return chosen.algorithm_with({&choice, 1});
  };
  const auto same = [](ProductKind&) {};
  EXPECT_EQ(with(90, 4, same), 4);
  EXPECT_EQ(with(80, 4, same), 1) << "of another device";
  EXPECT_EQ(with(90, 6, same), 1) << "not proposed";
  EXPECT_EQ(fake_cuda::calls("cublasLtMatmulAlgoGetHeuristic"), 2U) << "then the library is asked for one again";
  for (std::size_t i = 1; i < AlgorithmConfig{}.size(); ++i) {
    ProductChoice other{90, kind, fake_config(4)};
    other.algorithm[i] = 7;
    EXPECT_EQ(chosen.algorithm_with({&other, 1}), 1) << "attribute " << i;
  }
  EXPECT_EQ(with(90, 4, [](ProductKind& k) { k.compute = CUBLAS_COMPUTE_32F_FAST_TF32; }), 1);
  EXPECT_EQ(with(90, 4, [](ProductKind& k) { k.op_a = CUBLAS_OP_T; }), 1);
  EXPECT_EQ(with(90, 4, [](ProductKind& k) { k.op_b = CUBLAS_OP_N; }), 1);
  EXPECT_EQ(with(90, 4, [](ProductKind& k) { k.operands = CUDA_R_16F; }), 1);
  EXPECT_EQ(with(90, 4, [](ProductKind& k) { k.result = CUDA_R_16BF; }), 1);
  EXPECT_EQ(with(90, 4, [](ProductKind& k) { k.m = 16; }), 1);
  EXPECT_EQ(with(90, 4, [](ProductKind& k) { k.n = 16; }), 1);
  EXPECT_EQ(with(90, 4, [](ProductKind& k) { k.k = 16; }), 1);
  EXPECT_EQ(with(90, 4, [](ProductKind& k) { k.epilogue = CUBLASLT_EPILOGUE_BIAS; }), 1);
  EXPECT_EQ(with(90, 4, [](ProductKind& k) { k.adds = true; }), 1);
}

TEST_F(MatrixProductsFake, AProgramThatRecordsChoicesSeesEachNewProductAndTriesWhatIsProposed) {
  const fake_cuda::Scope scope;
  ChosenProducts chosen(stream(), 3);
  CublasLtProducts products(stream());
  EXPECT_EQ(products.compute_capability(), 90);
  std::vector<std::uint32_t> ids;
  int visits = 0;
  products.visit_new_products([&](const CublasLtProduct& product) {
    ++visits;
    for (const CublasLtProducts::Proposal& proposal : products.proposals(product)) {
      ids.push_back(proposal.config[0]);
      products.choose(product, proposal);
    }
  });
  EXPECT_EQ(chosen.algorithm_of(products), 3) << "the one that was chosen last";
  EXPECT_EQ(chosen.algorithm_of(products), 3);
  EXPECT_EQ(ids, (std::vector<std::uint32_t>{1, 2, 3}));
  EXPECT_EQ(visits, 1);
}

/// A head of 1,027 outputs has the same results in rows of 1,032 elements, where GEMMs are cut, and of 1,027, where
/// they are not.
template <class E, class R>
void expect_cut_products(comm::Stream& stream) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kInputs = 8;
  constexpr std::int64_t kOutputs = 1027;
  MatrixProducts<E> products(stream);
  const std::vector<E> grads = random_elems<E>(3, kRows * kOutputs);
  DeviceArray<E> input(random_elems<E>(1, kRows * kInputs), stream);
  DeviceArray<E> weight(random_elems<E>(2, kInputs * kOutputs), stream);
  std::vector<std::vector<double>> outputs;
  std::vector<std::vector<double>> grad_inputs;
  std::vector<std::vector<float>> grad_weights;
  for (const std::int64_t stride : {kOutputs, kOutputs + 5}) {
    const ProductShape shape{kRows, kInputs, kOutputs, WeightLayout::kOutputsByInputs, stride};
    std::vector<E> spread(static_cast<std::size_t>(kRows * stride));
    for (std::int64_t r = 0; r < kRows; ++r) {
      std::copy_n(grads.begin() + r * kOutputs, kOutputs, spread.begin() + r * stride);
    }
    DeviceArray<E> grad_output(spread, stream);
    DeviceArray<R> output = poisoned<R>(kRows * stride, stream);
    DeviceArray<R> grad_input = poisoned<R>(kRows * kInputs, stream);
    DeviceArray<float> grad_weight = poisoned<float>(kInputs * kOutputs, stream);
    fake_cuda::reset();
    products.forward(shape, input.read(), weight.read(), {}, output.elems());
    products.backward_input(shape, grad_output.read(), weight.read(), 0.5F, grad_input.elems());
    for (const GradientMode mode : {GradientMode::kSet, GradientMode::kAdd}) {
      products.backward_weight(shape, input.read(), grad_output.read(), 0.5F, mode, grad_weight.elems(), {});
    }
    EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), stride % 8 == 0 ? 8U : 4U);
    grad_weights.push_back(grad_weight.values());
    std::vector<double>& rows = outputs.emplace_back();
    const std::vector<double> whole = as<double>(output.values());
    for (std::int64_t r = 0; r < kRows; ++r) {
      rows.insert(rows.end(), whole.begin() + r * stride, whole.begin() + r * stride + kOutputs);
    }
    grad_inputs.push_back(as<double>(grad_input.values()));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_EQ(grad_weights[0], grad_weights[1]);
  for (std::size_t i = 0; i < grad_inputs[0].size(); ++i) {
    EXPECT_NEAR(grad_inputs[1][i], grad_inputs[0][i], 1e-4 + kRounding<R> * (3 + 2 * std::abs(grad_inputs[0][i])));
  }
}

TEST_F(MatrixProductsFake, ManyOutputsThatAreNoMultipleOf8TakeTwoProducts) {
  const fake_cuda::Scope scope;
  expect_cut_products<Bf16, Bf16>(stream());
  expect_cut_products<Bf16, float>(stream());
  expect_cut_products<Fp16, Fp16>(stream());
  expect_cut_products<Fp16, float>(stream());
}

TEST_F(MatrixProductsFake, FailuresNameTheCall) {
  const fake_cuda::Scope scope;
  MatrixProducts<float> products(stream());
  DeviceArray<float> elems(random_elems<float>(1, 64), stream());
  DeviceArray<float> output = poisoned<float>(64, stream());
  fake_cuda::fail_call("cublasLtMatmul", 1, CUBLAS_STATUS_EXECUTION_FAILED);
  const auto multiply = [&] { products.forward({8, 8, 8}, elems.read(), elems.read(), {}, output.elems()); };
  EXPECT_THAT(multiply, testing::ThrowsMessage<DeviceError>(testing::HasSubstr("cublasLtMatmul: cublasStatus_t 13")));
  fake_cuda::fail_call("cublasLtCreate", 1, CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_THAT([&] { MatrixProducts<float>{stream()}; },
              testing::ThrowsMessage<DeviceError>(testing::HasSubstr("cublasLtCreate")));
  // No algorithm for a plain product: nothing can take its place.
  fake_cuda::Settings settings;
  settings.refused_epilogues = {CUBLASLT_EPILOGUE_DEFAULT};
  fake_cuda::configure(settings);
  EXPECT_THAT(
      [&] {
        products.forward({4, 8, 8}, elems.read(), elems.read(), {}, output.elems());
      },
      testing::ThrowsMessage<DeviceError>(testing::HasSubstr("no algorithm for [8, 8]")));
}

}  // namespace
}  // namespace droptest::models::matrix_products_fake_test
