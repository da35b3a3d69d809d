// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tests/fake_cuda/device_array.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace droptest::fake_cuda::cublaslt_test {
namespace {

constexpr int kM = 5;
constexpr int kN = 3;
constexpr int kK = 4;
constexpr int kLd = 8;  // leading dimension of every matrix: more than its rows, and a multiple of 8 for aux

float value_of(float x) { return x; }
float value_of(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
T as(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return __float2bfloat16_rn(x);
  }
}
template <class T>
constexpr cudaDataType kType = std::is_same_v<T, float> ? CUDA_R_32F : CUDA_R_16BF;

// Multiples of 1/4 in [-1, 1]: sums of products are exact.
template <class T>
std::vector<T> numbers(int count, int seed) {
  std::vector<T> values;
  for (int i = 0; i < count; ++i) values.push_back(as<T>(static_cast<float>((i * 7 + seed * 5) % 9 - 4) / 4));
  return values;
}

float gelu(float x) { return 0.5F * x * (1 + std::tanh(std::sqrt(2 / 3.14159265F) * (x + 0.044715F * x * x * x))); }
float gelu_slope(float x) {
  constexpr double kStep = 1e-4;
  const auto exact = [](double y) {
    return 0.5 * y * (1 + std::tanh(std::sqrt(2 / M_PI) * (y + 0.044715 * y * y * y)));
  };
  return static_cast<float>((exact(x + kStep) - exact(x - kStep)) / (2 * kStep));
}

struct Case {
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  float alpha = 1;
  float beta = 0;
};

// A product on the fake device, with the handles and descriptions of its call.
template <class In, class Out>
struct Product {
  explicit Product(const Case& of) : alpha(of.alpha), beta(of.beta) {
    const bool plain_a = of.transpose_a == CUBLAS_OP_N;
    const bool plain_b = of.transpose_b == CUBLAS_OP_N;
    EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&a_layout, kType<In>, plain_a ? kM : kK, plain_a ? kK : kM, kLd),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&b_layout, kType<In>, plain_b ? kK : kN, plain_b ? kN : kK, kLd),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&d_layout, kType<Out>, kM, kN, kLd), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    set(CUBLASLT_MATMUL_DESC_TRANSA, static_cast<std::int32_t>(of.transpose_a));
    set(CUBLASLT_MATMUL_DESC_TRANSB, static_cast<std::int32_t>(of.transpose_b));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(of.epilogue));
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(bias.data()));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(aux.data()));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{kLd});
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{64});
  }
  ~Product() {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    cudaStreamDestroy(stream);
    cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : {a_layout, b_layout, d_layout}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(description);
    cublasLtDestroy(handle);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
  }
  template <class T>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
  }
  cublasStatus_t find() {
    int found = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle, description, a_layout, b_layout, d_layout, d_layout, preference, 1,
                                          &algorithm, &found);
  }
  cublasStatus_t run(int offset = 0) {
    return cublasLtMatmul(handle, description, &alpha, a.data() + offset, a_layout, b.data(), b_layout, &beta, d.data(),
                          d_layout, d.data(), d_layout, &algorithm.algo, workspace.data(), 64, stream);
  }

  float alpha;
  float beta;
  DeviceArray<In> a{numbers<In>(kLd * kLd, 1)};
  DeviceArray<In> b{numbers<In>(kLd * kLd, 2)};
  DeviceArray<Out> d{numbers<Out>(kLd * kN, 3)};
  DeviceArray<Out> bias{numbers<Out>(kM, 4)};
  DeviceArray<Out> aux{numbers<Out>(kLd * kN, 5)};
  DeviceArray<char> workspace{64};
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a_layout = nullptr;
  cublasLtMatrixLayout_t b_layout = nullptr;
  cublasLtMatrixLayout_t d_layout = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t algorithm = {};
  cudaStream_t stream = nullptr;
};

// Against loops that index as the documentation does. Results of the type's own rounding; gelu within 1e-3, since its
// slope is a difference here.
template <class In, class Out>
void check(const Case& of) {
  SCOPED_TRACE("epilogue " + std::to_string(of.epilogue) + ", op " + std::to_string(of.transpose_a) +
               std::to_string(of.transpose_b));
  const Scope scope;
  Product<In, Out> product(of);
  const std::vector<In> a = product.a.host();
  const std::vector<In> b = product.b.host();
  const std::vector<Out> before = product.d.host();
  const std::vector<Out> bias = product.bias.host();
  const std::vector<Out> aux = product.aux.host();
  ASSERT_EQ(product.find(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(product.algorithm.workspaceSize, 64U);
  ASSERT_EQ(product.run(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(value_of(product.d.host()[0]), value_of(before[0])) << "ran before somebody waited";
  ASSERT_EQ(cudaStreamSynchronize(product.stream), cudaSuccess);
  const std::vector<Out> after = product.d.host();
  const std::vector<Out> bias_after = product.bias.host();
  const std::vector<Out> aux_after = product.aux.host();
  const auto a_at = [&](int i, int k) {
    return value_of(a[of.transpose_a == CUBLAS_OP_N ? k * kLd + i : i * kLd + k]);
  };
  const auto b_at = [&](int k, int j) {
    return value_of(b[of.transpose_b == CUBLAS_OP_N ? j * kLd + k : k * kLd + j]);
  };
  const double tolerance = std::is_same_v<Out, float> ? 1e-3 : 1.0 / 64;  // bfloat16: half a unit of values under 4
  std::vector<float> bias_gradient(of.epilogue == CUBLASLT_EPILOGUE_BGRADB ? kN : kM);
  for (int j = 0; j < kN; ++j) {
    for (int i = 0; i < kM; ++i) {
      float want = 0;
      for (int k = 0; k < kK; ++k) want += a_at(i, k) * b_at(k, j);
      want = of.alpha * want + of.beta * value_of(before[j * kLd + i]);
      float want_aux = value_of(aux[j * kLd + i]);
      switch (of.epilogue) {
        case CUBLASLT_EPILOGUE_BIAS:
          want += value_of(bias[i]);
          break;
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
          want_aux = want + value_of(bias[i]);
          want = gelu(want_aux);
          break;
        case CUBLASLT_EPILOGUE_DGELU:
        case CUBLASLT_EPILOGUE_DGELU_BGRAD:
          want *= gelu_slope(want_aux);
          bias_gradient[i] += want;
          break;
        default:
          break;
      }
      EXPECT_NEAR(value_of(after[j * kLd + i]), want, tolerance) << i << " " << j;
      EXPECT_NEAR(value_of(aux_after[j * kLd + i]), want_aux, tolerance) << i << " " << j;
    }
    for (int i = kM; i < kLd; ++i) EXPECT_EQ(value_of(after[j * kLd + i]), value_of(before[j * kLd + i]));
  }
  if (of.epilogue == CUBLASLT_EPILOGUE_BGRADA) {
    for (int i = 0; i < kM; ++i) {
      for (int k = 0; k < kK; ++k) bias_gradient[i] += a_at(i, k);
    }
  }
  if (of.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
    for (int j = 0; j < kN; ++j) {
      for (int k = 0; k < kK; ++k) bias_gradient[j] += b_at(k, j);
    }
  }
  const bool gradient = of.epilogue == CUBLASLT_EPILOGUE_BGRADA || of.epilogue == CUBLASLT_EPILOGUE_BGRADB ||
                        of.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
  for (int i = 0; i < kM; ++i) {
    const bool written = gradient && i < static_cast<int>(bias_gradient.size());
    EXPECT_NEAR(value_of(bias_after[i]), written ? bias_gradient[i] : value_of(bias[i]), tolerance) << i;
  }
}

TEST(FakeCublasLt, EveryEpilogueIsThatOfPlainLoops) {
  for (const cublasLtEpilogue_t epilogue :
       {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
        CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
    for (const cublasOperation_t a : {CUBLAS_OP_N, CUBLAS_OP_T}) {
      for (const cublasOperation_t b : {CUBLAS_OP_N, CUBLAS_OP_T}) {
        const Case of{a, b, epilogue, 0.5F, 1};
        check<float, float>(of);
        check<__nv_bfloat16, float>(of);
        check<__nv_bfloat16, __nv_bfloat16>(of);
      }
    }
  }
}

using FloatProduct = Product<float, float>;

TEST(FakeCublasLt, WhatTheRealOneHasNoKernelForIsRefused) {
  const Scope scope;
  FloatProduct product({CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 1, 0});
  ASSERT_EQ(product.find(), CUBLAS_STATUS_SUCCESS);
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{kLd + 4});
  EXPECT_EQ(product.find(), CUBLAS_STATUS_NOT_SUPPORTED);
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{0});
  EXPECT_EQ(product.run(), CUBLAS_STATUS_NOT_SUPPORTED);
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{kLd});
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(product.aux.data() + 1));
  EXPECT_EQ(product.run(), CUBLAS_STATUS_NOT_SUPPORTED);
  product.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t{CUDA_R_16BF});
  EXPECT_EQ(product.find(), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST(FakeCublasLt, AnAlgorithmsAlignmentAndWorkspaceAreHeld) {
  const Scope scope;
  FloatProduct product(Case{});
  ASSERT_EQ(product.find(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(product.run(1), CUBLAS_STATUS_NOT_SUPPORTED);
  product.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{4});
  ASSERT_EQ(product.find(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(product.run(1), CUBLAS_STATUS_SUCCESS);
  product.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{65});
  ASSERT_EQ(product.find(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(product.run(), CUBLAS_STATUS_INVALID_VALUE);
}

TEST(FakeCublasLt, SizesThatDoNotFitTogetherAreInvalid) {
  const Scope scope;
  FloatProduct product(Case{});
  const std::uint64_t rows = kM + 1;
  ASSERT_EQ(cublasLtMatrixLayoutSetAttribute(product.a_layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(product.find(), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(product.a_layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, 4),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST(FakeCublasLt, TestsRefuseEpiloguesAndCalls) {
  Settings settings;
  settings.refused_epilogues = {CUBLASLT_EPILOGUE_BIAS};
  const Scope scope(settings);
  FloatProduct with_bias({CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_BIAS, 1, 0});
  EXPECT_EQ(with_bias.find(), CUBLAS_STATUS_NOT_SUPPORTED);
  FloatProduct plain(Case{});
  EXPECT_EQ(plain.find(), CUBLAS_STATUS_SUCCESS);
  fail_call("cublasLtMatmul", 1, CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(plain.run(), CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(plain.run(), CUBLAS_STATUS_SUCCESS);
}

TEST(FakeCublasLtDeathTest, MatricesThatLeaveTheirMemoryAreNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    FloatProduct product(Case{});
    const std::int64_t ld = 1000;
    cublasLtMatrixLayoutSetAttribute(product.b_layout, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
    product.find();
    product.run();
  };
  EXPECT_DEATH(run(), "cublasLtMatmul, B, uses bytes 0 to [0-9]+ of allocation");
}

}  // namespace
}  // namespace droptest::fake_cuda::cublaslt_test
