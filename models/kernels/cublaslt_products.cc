// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/cublaslt_products.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "comm/device/cuda_error.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20U;

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(std::string(call) + ": cublasStatus_t " + std::to_string(static_cast<int>(status)));
}

/// Owns one of the library's opaque objects.
template <class Object, cublasStatus_t (*kDestroy)(Object)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Object object) : object_(object) {}
  ~Owned() {
    if (object_ != nullptr) kDestroy(object_);
  }
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Object get() const { return object_; }

 private:
  Object object_ = nullptr;
};

using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

Handle make_handle() {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cublasLtCreate");
  return Handle(handle);
}

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

using StoredKey = std::tuple<int, std::int64_t, std::int64_t, std::int64_t, unsigned>;
using Key = std::tuple<int, StoredKey, int, StoredKey, StoredKey, bool, int, std::int64_t>;

StoredKey key_of(const Stored& matrix) {
  return {static_cast<int>(matrix.type), matrix.rows, matrix.columns, matrix.stride, matrix.alignment()};
}

Key key_of(const CublasLtProduct& product) {
  return {
      static_cast<int>(product.op_a), key_of(product.a), static_cast<int>(product.op_b),     key_of(product.b),
      key_of(product.result),         product.keep != 0, static_cast<int>(product.epilogue), product.pre_gelu_stride};
}

/// The library's descriptions of a GEMM, and the chosen algorithm; absent if the library has none.
struct Plan {
  Operation operation;
  Layout a;
  Layout b;
  Layout result;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
};

Layout make_layout(const Stored& matrix) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, matrix.type, static_cast<std::uint64_t>(matrix.rows),
                                   static_cast<std::uint64_t>(matrix.columns), matrix.stride),
        "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

/// A plan serves calls with any addresses of the same alignment.
void set_addresses(const Operation& operation, const CublasLtProduct& product) {
  if (product.bias != nullptr) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  if (product.pre_gelu != nullptr) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.pre_gelu);
}

cublasComputeType_t compute_type(const CublasLtProduct& product, FloatProducts floats) {
  const bool rounds = floats == FloatProducts::kTf32 && product.a.type == CUDA_R_32F;
  return rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

Operation make_operation(const CublasLtProduct& product, FloatProducts floats) {
  cublasLtMatmulDesc_t handle = nullptr;
  check(cublasLtMatmulDescCreate(&handle, compute_type(product, floats), CUDA_R_32F), "cublasLtMatmulDescCreate");
  Operation operation(handle);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, product.op_a);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, product.op_b);
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, product.epilogue);
  if (product.pre_gelu != nullptr) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.pre_gelu_stride);
  set_addresses(operation, product);
  return operation;
}

Preference make_preference(const CublasLtProduct& product) {
  cublasLtMatmulPreference_t handle = nullptr;
  check(cublasLtMatmulPreferenceCreate(&handle), "cublasLtMatmulPreferenceCreate");
  Preference preference(handle);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kWorkspaceBytes));
  if (product.result.type != CUDA_R_32F) {  // partial sums of a product are added in float, and rounded once
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  }
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(product.a.alignment()));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(product.b.alignment()));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(product.result.alignment()));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(product.result.alignment()));
  return preference;
}

/// The library's description of a GEMM, without an algorithm.
Plan describe(const CublasLtProduct& product, FloatProducts floats) {
  return {
      make_operation(product, floats), make_layout(product.a), make_layout(product.b), make_layout(product.result), {}};
}

/// The library's proposals for a plan's GEMM, at most `most`.
std::vector<cublasLtMatmulAlgo_t> proposed(const Handle& library, const Plan& plan, const CublasLtProduct& product,
                                           int most) {
  const Preference preference = make_preference(product);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library.get(), plan.operation.get(), plan.a.get(), plan.b.get(), plan.result.get(),
                                     plan.result.get(), preference.get(), most, found.data(), &count);
  // Both results mean that the library has no algorithm.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < count; ++i) {
    if (found[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS) {
      algorithms.push_back(found[static_cast<std::size_t>(i)].algo);
    }
  }
  return algorithms;
}

AlgorithmConfig config_of(const cublasLtMatmulAlgo_t& algorithm) {
  AlgorithmConfig config{};
  for (std::size_t i = 0; i < config.size(); ++i) {
    const auto attribute = static_cast<cublasLtMatmulAlgoConfigAttributes_t>(i);
    const bool is_short = attribute >= CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID;
    std::uint16_t short_value = 0;
    std::size_t written = 0;
    check(is_short
              ? cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &short_value, sizeof short_value, &written)
              : cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &config[i], sizeof config[i], &written),
          "cublasLtMatmulAlgoConfigGetAttribute");
    if (is_short) config[i] = short_value;
  }
  return config;
}

int compute_capability_of_current_device() {
  const auto attribute = [](cudaDeviceAttr which) {
    int device = 0;
    int value = 0;
    comm::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    comm::check_cuda(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
  };
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
}

std::string text_of(const Stored& matrix) {
  return "[" + std::to_string(matrix.columns) + ", " + std::to_string(matrix.rows) + "] of stride " +
         std::to_string(matrix.stride) + " at a multiple of " + std::to_string(matrix.alignment());
}

}  // namespace

ProductKind kind_of(const CublasLtProduct& product, FloatProducts floats) {
  return {compute_type(product, floats),
          product.op_a,
          product.op_b,
          product.a.type,
          product.result.type,
          product.result.rows,
          product.result.columns,
          product.op_a == CUBLAS_OP_N ? product.a.columns : product.a.rows,
          product.epilogue,
          product.keep != 0};
}

struct CublasLtProducts::Library {
  Handle handle = make_handle();
  int compute_capability = compute_capability_of_current_device();
  std::vector<ProductChoice> choices;  // the choices for this device
  std::map<Key, Plan> plans;

  Plan plan(const CublasLtProduct& product, FloatProducts floats) const {
    Plan plan = describe(product, floats);
    const auto choice = std::ranges::find(choices, kind_of(product, floats), &ProductChoice::product);
    if (choice != choices.end()) {
      const std::vector<cublasLtMatmulAlgo_t> algorithms = proposed(handle, plan, product, kMostProposals);
      const auto chosen = std::ranges::find(algorithms, choice->algorithm, config_of);
      if (chosen != algorithms.end()) plan.algorithm = *chosen;
    }
    // The library's first proposal may depend on the number of proposals that are requested.
    if (!plan.algorithm) {
      const std::vector<cublasLtMatmulAlgo_t> first = proposed(handle, plan, product, 1);
      if (!first.empty()) plan.algorithm = first.front();
    }
    return plan;
  }
};

CublasLtProducts::CublasLtProducts(comm::Stream& stream, FloatProducts floats, std::span<const ProductChoice> choices)
    : stream_(stream),
      floats_(floats),
      workspace_(kWorkspaceBytes, "workspace of matrix products"),
      library_(std::make_unique<Library>()) {
  std::ranges::copy_if(choices, std::back_inserter(library_->choices), [this](const ProductChoice& choice) {
    return choice.compute_capability == library_->compute_capability;
  });
}
CublasLtProducts::~CublasLtProducts() = default;

std::vector<CublasLtProducts::Proposal> CublasLtProducts::proposals(const CublasLtProduct& product) const {
  std::vector<Proposal> result;
  for (const cublasLtMatmulAlgo_t& algorithm :
       proposed(library_->handle, describe(product, floats_), product, kMostProposals)) {
    result.push_back({config_of(algorithm), algorithm});
  }
  return result;
}

void CublasLtProducts::choose(const CublasLtProduct& product, const Proposal& proposal) {
  Plan plan = describe(product, floats_);
  plan.algorithm = proposal.algorithm;
  library_->plans.insert_or_assign(key_of(product), std::move(plan));
}

int CublasLtProducts::compute_capability() const { return library_->compute_capability; }

bool CublasLtProducts::multiply_if_possible(const CublasLtProduct& product) {
  const Key key = key_of(product);
  auto found = library_->plans.find(key);
  if (found == library_->plans.end()) {
    found = library_->plans.emplace(key, library_->plan(product, floats_)).first;
    if (visitor_ && found->second.algorithm) visitor_(product);
  }
  Plan& plan = found->second;
  if (!plan.algorithm) return false;
  set_addresses(plan.operation, product);
  const cublasStatus_t status = cublasLtMatmul(
      library_->handle.get(), plan.operation.get(), &product.factor, product.a.data, plan.a.get(), product.b.data,
      plan.b.get(), &product.keep, product.result.data, plan.result.get(), const_cast<void*>(product.result.data),
      plan.result.get(), &*plan.algorithm, workspace_.data(), kWorkspaceBytes, stream_.handle());
  if (status == CUBLAS_STATUS_NOT_SUPPORTED && product.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    // The library proposes some algorithms for an epilogue that they do not support.
    plan.algorithm.reset();
    return false;
  }
  check(status, "cublasLtMatmul");
  return true;
}

void CublasLtProducts::multiply(const char* operation, const CublasLtProduct& product) {
  if (multiply_if_possible(product)) return;
  throw DeviceError(std::string(operation) + ": cuBLASLt has no algorithm for " + text_of(product.a) + " and " +
                    text_of(product.b) + " into " + text_of(product.result));
}

}  // namespace droptest::models
