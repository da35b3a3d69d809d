// SPDX-License-Identifier: Apache-2.0
// The part of cuBLASLt that the project uses, on the fake device.
#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tests/fake_cuda/failure.h"
#include "tests/fake_cuda/matmul.h"
#include "tests/fake_cuda/runtime.h"

namespace {

using droptest::fake_cuda::bytes_of;
using droptest::fake_cuda::fail;
using droptest::fake_cuda::Matmul;
using droptest::fake_cuda::MatmulDescription;
using droptest::fake_cuda::MatrixLayout;
using droptest::fake_cuda::Queue;
using droptest::fake_cuda::Runtime;
using droptest::fake_cuda::Work;

// Matrices for which an algorithm was chosen are at least so aligned; none of the real ones asks for more than 16.
struct Preference {
  std::uint64_t most_workspace_bytes = 0;
  std::uint32_t alignment_bytes[4] = {256, 256, 256, 256};  // A, B, C, D
};

// The content of a cublasLtMatmulAlgo_t of the fake.
struct Algorithm {
  std::uint64_t magic = 0;
  std::uint32_t id = 0;
  std::uint64_t workspace_bytes = 0;
  std::uint32_t alignment_bytes[4] = {};
  std::uint64_t m = 0;
  std::uint64_t n = 0;
  std::uint64_t k = 0;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

constexpr std::uint64_t kMagic = 0x64726F7074657374;  // "droptest"
constexpr std::uint64_t kWorkspaceBytes = std::uint64_t{1} << 20U;

template <class Body>
cublasStatus_t call(const char* function, const Body& body) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  if (const int planned = runtime.begin(function)) return static_cast<cublasStatus_t>(planned);
  return body(runtime);
}

template <class T, class Handle>
T& object(Handle handle) {
  if (handle == nullptr) fail("cuBLASLt got a null handle");
  return *reinterpret_cast<T*>(handle);
}

// An attribute's value, if it has the attribute's size.
template <class T>
cublasStatus_t set(T& attribute, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&attribute, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

bool aligned(const void* data, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }

Matmul matmul_of(cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                 cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  Matmul matmul;
  matmul.description = object<MatmulDescription>(description);
  matmul.a_layout = object<MatrixLayout>(a);
  matmul.b_layout = object<MatrixLayout>(b);
  matmul.c_layout = object<MatrixLayout>(c);
  matmul.d_layout = object<MatrixLayout>(d);
  return matmul;
}

// The operands, the result and the workspace of a product are memory of a device when it runs.
void check_memory(const Runtime& runtime, const Matmul& matmul, const void* workspace, std::size_t workspace_bytes) {
  const auto check = [&runtime](const void* data, std::size_t bytes, const char* what) {
    runtime.memory.check_device_range(data, bytes, std::string("cublasLtMatmul, ") + what);
  };
  const std::size_t elem_bytes = bytes_of(matmul.d_layout.type);
  check(matmul.a, matmul.a_layout.extent_bytes(), "A,");
  check(matmul.b, matmul.b_layout.extent_bytes(), "B,");
  if (matmul.beta != 0) check(matmul.c, matmul.c_layout.extent_bytes(), "C,");
  check(matmul.d, matmul.d_layout.extent_bytes(), "D,");
  check(matmul.description.bias, matmul.bias_elems() * elem_bytes, "bias,");
  if (matmul.uses_aux()) {
    check(matmul.description.aux, ((matmul.n() - 1) * matmul.description.aux_ld + matmul.m()) * elem_bytes, "aux,");
  }
  check(workspace, workspace_bytes, "workspace,");
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return call("cublasLtCreate", [&](Runtime& runtime) {
    if (runtime.settings.devices == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = reinterpret_cast<cublasLtHandle_t>(new int(droptest::fake_cuda::current_device()));
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return call("cublasLtDestroy", [&](Runtime&) {
    delete reinterpret_cast<int*>(handle);
    return CUBLAS_STATUS_SUCCESS;
  });
}

std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
std::size_t cublasLtGetCudartVersion() { return CUDART_VERSION; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "a status that the fake device has no name for";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t cols, std::int64_t ld) {
  return call("cublasLtMatrixLayoutCreate", [&](Runtime&) {
    auto created = std::make_unique<MatrixLayout>();
    created->type = type;
    created->rows = rows;
    created->cols = cols;
    created->ld = ld;
    *layout = reinterpret_cast<cublasLtMatrixLayout_t>(created.release());
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return call("cublasLtMatrixLayoutDestroy", [&](Runtime&) {
    delete reinterpret_cast<MatrixLayout*>(layout);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  return call("cublasLtMatrixLayoutSetAttribute", [&](Runtime&) {
    auto& layout = object<MatrixLayout>(handle);
    switch (attribute) {
      case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return set(layout.type, value, bytes);
      case CUBLASLT_MATRIX_LAYOUT_ORDER:
        return set(layout.order, value, bytes);
      case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return set(layout.rows, value, bytes);
      case CUBLASLT_MATRIX_LAYOUT_COLS:
        return set(layout.cols, value, bytes);
      case CUBLASLT_MATRIX_LAYOUT_LD:
        return set(layout.ld, value, bytes);
      case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return set(layout.batch_count, value, bytes);
      case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return set(layout.batch_stride_elems, value, bytes);
      default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
  });
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
  return call("cublasLtMatmulDescCreate", [&](Runtime&) {
    auto created = std::make_unique<MatmulDescription>();
    created->compute_type = compute_type;
    created->scale_type = scale_type;
    *description = reinterpret_cast<cublasLtMatmulDesc_t>(created.release());
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  return call("cublasLtMatmulDescDestroy", [&](Runtime&) {
    delete reinterpret_cast<MatmulDescription*>(description);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  return call("cublasLtMatmulDescSetAttribute", [&](Runtime&) {
    auto& description = object<MatmulDescription>(handle);
    switch (attribute) {
      case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        return set(description.compute_type, value, bytes);
      case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        return set(description.scale_type, value, bytes);
      case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return set(description.pointer_mode, value, bytes);
      case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(description.transpose_a, value, bytes);
      case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(description.transpose_b, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(description.epilogue, value, bytes);
      case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(description.bias, value, bytes);
      case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(description.bias_type, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(description.aux, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(description.aux_ld, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        return set(description.aux_type, value, bytes);
      default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
  });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return call("cublasLtMatmulPreferenceCreate", [&](Runtime&) {
    *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return call("cublasLtMatmulPreferenceDestroy", [&](Runtime&) {
    delete reinterpret_cast<Preference*>(preference);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  return call("cublasLtMatmulPreferenceSetAttribute", [&](Runtime&) {
    auto& preference = object<Preference>(handle);
    std::uint32_t ignored = 0;
    switch (attribute) {
      case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(preference.most_workspace_bytes, value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return set(preference.alignment_bytes[0], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return set(preference.alignment_bytes[1], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return set(preference.alignment_bytes[2], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(preference.alignment_bytes[3], value, bytes);
      case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
      case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:  // there is but one algorithm, without splits of k
        return set(ignored, value, bytes);
      default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
  });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  return call("cublasLtMatmulAlgoGetHeuristic", [&](Runtime& runtime) {
    *found = 0;
    if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
    const Matmul matmul = matmul_of(description, a, b, c, d);
    if (const cublasStatus_t status = matmul.check(runtime.settings.refused_epilogues)) return status;
    const Preference preferred = preference == nullptr ? Preference{} : object<Preference>(preference);
    Algorithm algorithm;
    algorithm.magic = kMagic;
    algorithm.workspace_bytes = std::min(preferred.most_workspace_bytes, kWorkspaceBytes);
    std::copy_n(preferred.alignment_bytes, 4, algorithm.alignment_bytes);
    algorithm.m = matmul.m();
    algorithm.n = matmul.n();
    algorithm.k = matmul.k();
    *found = std::min(requested, runtime.settings.algorithms);
    for (int i = 0; i < *found; ++i) {
      algorithm.id = static_cast<std::uint32_t>(i + 1);
      results[i] = cublasLtMatmulHeuristicResult_t{};
      std::memcpy(&results[i].algo, &algorithm, sizeof algorithm);
      results[i].workspaceSize = algorithm.workspace_bytes;
      results[i].state = CUBLAS_STATUS_SUCCESS;
      results[i].wavesCount = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                    std::size_t bytes, std::size_t* written) {
  return call("cublasLtMatmulAlgoConfigGetAttribute", [&](Runtime&) {
    Algorithm algorithm;
    std::memcpy(static_cast<void*>(&algorithm), algo, sizeof algorithm);
    const bool is_short =
        attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
    const std::uint32_t number = attribute == CUBLASLT_ALGO_CONFIG_ID ? algorithm.id : algorithm.id % 2;
    *written = is_short ? sizeof(std::uint16_t) : sizeof number;
    if (algorithm.magic != kMagic || value == nullptr || bytes != *written) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(value, &number, bytes);  // the lower bytes come first
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  return call("cublasLtMatmul", [&](Runtime& runtime) {
    Matmul matmul = matmul_of(description, a_layout, b_layout, c_layout, d_layout);
    if (const cublasStatus_t status = matmul.check(runtime.settings.refused_epilogues)) return status;
    matmul.alpha = *static_cast<const float*>(alpha);
    matmul.beta = *static_cast<const float*>(beta);
    matmul.a = a;
    matmul.b = b;
    matmul.c = c;
    matmul.d = d;
    if (a == nullptr || b == nullptr || d == nullptr || (c == nullptr && matmul.beta != 0) ||
        (c == d && matmul.c_layout.ld != matmul.d_layout.ld) ||
        (matmul.bias_elems() > 0 && matmul.description.bias == nullptr) ||
        (matmul.uses_aux() && matmul.description.aux == nullptr)) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    Algorithm algorithm;
    if (algo != nullptr) {
      std::memcpy(static_cast<void*>(&algorithm), algo, sizeof algorithm);
      if (algorithm.magic != kMagic || algorithm.m != matmul.m() || algorithm.n != matmul.n() ||
          algorithm.k != matmul.k() || workspace_bytes < algorithm.workspace_bytes ||
          (workspace == nullptr && algorithm.workspace_bytes > 0)) {
        return CUBLAS_STATUS_INVALID_VALUE;
      }
    }
    const void* const matrices[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t most = algo == nullptr ? 1 : std::clamp(algorithm.alignment_bytes[i], 1U, 16U);
      if (!aligned(matrices[i], most)) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (matmul.uses_aux() && !aligned(matmul.description.aux, 16)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (workspace_bytes > 0 && !aligned(workspace, 16)) return CUBLAS_STATUS_INVALID_VALUE;
    const std::shared_ptr<Queue> queue = runtime.queue_of(stream);
    if (!queue) return CUBLAS_STATUS_INVALID_VALUE;
    if (runtime.broken(queue->device) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    runtime.count_product(static_cast<int>(algorithm.id));
    Work work;
    work.name = "cublasLtMatmul";
    work.microseconds += 1e-6 * static_cast<double>(matmul.m() * matmul.n() * matmul.k());
    work.run = [&runtime, matmul, workspace, used = algorithm.workspace_bytes, computes = runtime.settings.computes] {
      check_memory(runtime, matmul, workspace, used);
      if (used > 0) std::memset(workspace, 0xFF, used);  // whoever shares it at the same time sees it
      if (computes) matmul.run();
    };
    runtime.push(queue, std::move(work));
    return CUBLAS_STATUS_SUCCESS;
  });
}

}  // extern "C"
