// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/matmul.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <vector>

namespace droptest::fake_cuda {
namespace {

constexpr std::uint32_t kBiasGradient = 16;  // the flag of DGELU_BGRAD

float read(const void* data, cudaDataType type, std::uint64_t index) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[index];
  if (type == CUDA_R_16F) return __half2float(static_cast<const __half*>(data)[index]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]);
}

void write(void* data, cudaDataType type, std::uint64_t index, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[index] = value;
  } else if (type == CUDA_R_16F) {
    static_cast<__half*>(data)[index] = __float2half_rn(value);
  } else {
    static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16_rn(value);
  }
}

// Columns one after another, without gaps.
std::vector<float> columns_of(const void* data, const MatrixLayout& layout, std::int32_t transpose,
                              std::uint64_t first) {
  std::vector<float> values(layout.rows * layout.cols);
  for (std::uint64_t col = 0; col < layout.cols; ++col) {
    for (std::uint64_t row = 0; row < layout.rows; ++row) {
      const float value = read(data, layout.type, first + col * layout.ld + row);
      values[transpose == CUBLAS_OP_N ? col * layout.rows + row : row * layout.cols + col] = value;
    }
  }
  return values;
}

// gelu(x) = x (1 + tanh u) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3)
constexpr float kGeluFactor = 0.7978845608F;
constexpr float kGeluCubic = 0.044715F;

float gelu(float x) { return 0.5F * x * (1 + std::tanh(kGeluFactor * (x + kGeluCubic * x * x * x))); }

float gelu_derivative(float x) {
  const float tanh_u = std::tanh(kGeluFactor * (x + kGeluCubic * x * x * x));
  const float du = kGeluFactor * (1 + 3 * kGeluCubic * x * x);
  return 0.5F * (1 + tanh_u) + 0.5F * x * (1 - tanh_u * tanh_u) * du;
}

cudaDataType or_else(std::int32_t type, cudaDataType otherwise) {
  return type == -1 ? otherwise : static_cast<cudaDataType>(type);
}

bool known_type(cudaDataType type) { return type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_16F; }

}  // namespace

std::size_t bytes_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

std::size_t MatrixLayout::extent_bytes() const {
  if (rows == 0 || cols == 0) return 0;
  return ((cols - 1) * ld + rows + (batch_count - 1) * batch_stride_elems) * bytes_of(type);
}

std::uint64_t Matmul::bias_elems() const {
  switch (description.epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
      return m();
    case CUBLASLT_EPILOGUE_BGRADB:
      return n();
    default:
      return 0;
  }
}

cublasStatus_t Matmul::check(const std::set<int>& refused_epilogues) const {
  const bool plain_a = description.transpose_a == CUBLAS_OP_N;
  const bool plain_b = description.transpose_b == CUBLAS_OP_N;
  const std::uint64_t b_rows = plain_b ? b_layout.rows : b_layout.cols;
  const std::uint64_t b_cols = plain_b ? b_layout.cols : b_layout.rows;
  const std::uint64_t a_rows = plain_a ? a_layout.rows : a_layout.cols;
  if (a_rows != m() || b_cols != n() || b_rows != k()) return CUBLAS_STATUS_INVALID_VALUE;
  if (c_layout.rows != m() || c_layout.cols != n()) return CUBLAS_STATUS_INVALID_VALUE;
  for (const MatrixLayout& layout : {a_layout, b_layout, c_layout, d_layout}) {
    if (layout.ld < static_cast<std::int64_t>(layout.rows)) return CUBLAS_STATUS_INVALID_VALUE;
    if (layout.batch_count != d_layout.batch_count || layout.batch_count < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (!known_type(layout.type) || layout.order != CUBLASLT_ORDER_COL) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (m() == 0 || n() == 0 || k() == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (a_layout.type != b_layout.type || c_layout.type != d_layout.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (a_layout.type == CUDA_R_32F && d_layout.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (description.scale_type != CUDA_R_32F || description.pointer_mode != CUBLASLT_POINTER_MODE_HOST) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  switch (description.compute_type) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
    case CUBLAS_COMPUTE_32F_FAST_TF32:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  static const std::set<std::uint32_t> kEpilogues = {CUBLASLT_EPILOGUE_DEFAULT,     CUBLASLT_EPILOGUE_BIAS,
                                                     CUBLASLT_EPILOGUE_GELU,        CUBLASLT_EPILOGUE_GELU_BIAS,
                                                     CUBLASLT_EPILOGUE_GELU_AUX,    CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                                     CUBLASLT_EPILOGUE_DGELU,       CUBLASLT_EPILOGUE_BGRADA,
                                                     CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADB};
  if (kEpilogues.count(description.epilogue) == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (refused_epilogues.count(static_cast<int>(description.epilogue)) > 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (description.epilogue != CUBLASLT_EPILOGUE_DEFAULT && d_layout.batch_count > 1) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (bias_elems() > 0 && or_else(description.bias_type, d_layout.type) != d_layout.type) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (!uses_aux()) return CUBLAS_STATUS_SUCCESS;
  if (or_else(description.aux_type, d_layout.type) != d_layout.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool aux_fits = description.aux_ld >= static_cast<std::int64_t>(m()) && description.aux_ld % 8 == 0;
  return aux_fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

void Matmul::run() const {
  const cudaDataType type = d_layout.type;
  const std::uint64_t rows = m();
  const std::uint64_t cols = n();
  const std::uint64_t depth = k();
  for (std::int32_t batch = 0; batch < d_layout.batch_count; ++batch) {
    const auto first = [batch](const MatrixLayout& layout) {
      return static_cast<std::uint64_t>(batch * layout.batch_stride_elems);
    };
    const std::vector<float> a_values = columns_of(a, a_layout, description.transpose_a, first(a_layout));
    const std::vector<float> b_values = columns_of(b, b_layout, description.transpose_b, first(b_layout));
    std::vector<float> bias_gradient(bias_elems());
    std::vector<float> sums(rows);
    for (std::uint64_t col = 0; col < cols; ++col) {
      sums.assign(rows, 0.0F);
      for (std::uint64_t i = 0; i < depth; ++i) {
        const float b_value = b_values[col * depth + i];
        const float* a_column = a_values.data() + i * rows;
        for (std::uint64_t row = 0; row < rows; ++row) sums[row] += a_column[row] * b_value;
      }
      for (std::uint64_t row = 0; row < rows; ++row) {
        float value = alpha * sums[row];
        if (beta != 0) value += beta * read(c, type, first(c_layout) + col * c_layout.ld + row);
        if (adds_bias()) value += read(description.bias, type, row);
        const std::uint64_t aux_index = col * description.aux_ld + row;
        if (gelu()) {
          if (uses_aux()) write(description.aux, type, aux_index, value);
          value = fake_cuda::gelu(value);
        } else if (gelu_gradient()) {
          value *= gelu_derivative(read(description.aux, type, aux_index));
          if (has(kBiasGradient)) bias_gradient[row] += value;
        }
        write(d, type, first(d_layout) + col * d_layout.ld + row, value);
      }
    }
    for (std::uint64_t i = 0; i < depth && has(CUBLASLT_EPILOGUE_BGRADA); ++i) {
      for (std::uint64_t row = 0; row < rows; ++row) bias_gradient[row] += a_values[i * rows + row];
    }
    for (std::uint64_t col = 0; col < cols && has(CUBLASLT_EPILOGUE_BGRADB); ++col) {
      for (std::uint64_t i = 0; i < depth; ++i) bias_gradient[col] += b_values[col * depth + i];
    }
    if (adds_bias()) continue;
    for (std::uint64_t i = 0; i < bias_gradient.size(); ++i) write(description.bias, type, i, bias_gradient[i]);
  }
}

}  // namespace droptest::fake_cuda
