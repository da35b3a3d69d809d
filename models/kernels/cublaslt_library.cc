// SPDX-License-Identifier: Apache-2.0
// The functions of cuBLASLt that the GEMMs call. The library has hundreds of megabytes and is loaded by the first call.
// So a program starts quickly, and runs on the CPU without the library.
#include <cublasLt.h>

#include <string>
#include <type_traits>

#include "comm/device/shared_library.h"

namespace droptest::models {
namespace {

const comm::SharedLibrary& library() {
  static const comm::SharedLibrary opened(
      {"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR), DROPTEST_CUBLASLT_LIBRARY}, "device \"cuda\"");
  return opened;
}

/// The library's function of that name, with the type of kDeclared.
template <auto* kDeclared>
auto* loaded(const char* name) {
  static auto* const function = library().function<std::remove_pointer_t<decltype(kDeclared)>>(name);
  return function;
}

}  // namespace
}  // namespace droptest::models

using droptest::models::loaded;

cublasStatus_t CUBLASWINAPI cublasLtCreate(cublasLtHandle_t* light_handle) {
  return loaded<cublasLtCreate>("cublasLtCreate")(light_handle);
}

cublasStatus_t CUBLASWINAPI cublasLtDestroy(cublasLtHandle_t light_handle) {
  return loaded<cublasLtDestroy>("cublasLtDestroy")(light_handle);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmul_desc,
                                                     cublasComputeType_t compute_type, cudaDataType_t scale_type) {
  return loaded<cublasLtMatmulDescCreate>("cublasLtMatmulDescCreate")(matmul_desc, compute_type, scale_type);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul_desc) {
  return loaded<cublasLtMatmulDescDestroy>("cublasLtMatmulDescDestroy")(matmul_desc);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul_desc,
                                                           cublasLtMatmulDescAttributes_t attr, const void* buf,
                                                           size_t size_in_bytes) {
  return loaded<cublasLtMatmulDescSetAttribute>("cublasLtMatmulDescSetAttribute")(matmul_desc, attr, buf,
                                                                                  size_in_bytes);
}

cublasStatus_t CUBLASWINAPI cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* mat_layout, cudaDataType type,
                                                       uint64_t rows, uint64_t cols, int64_t ld) {
  return loaded<cublasLtMatrixLayoutCreate>("cublasLtMatrixLayoutCreate")(mat_layout, type, rows, cols, ld);
}

cublasStatus_t CUBLASWINAPI cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t mat_layout) {
  return loaded<cublasLtMatrixLayoutDestroy>("cublasLtMatrixLayoutDestroy")(mat_layout);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* pref) {
  return loaded<cublasLtMatmulPreferenceCreate>("cublasLtMatmulPreferenceCreate")(pref);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) {
  return loaded<cublasLtMatmulPreferenceDestroy>("cublasLtMatmulPreferenceDestroy")(pref);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                                 cublasLtMatmulPreferenceAttributes_t attr,
                                                                 const void* buf, size_t size_in_bytes) {
  return loaded<cublasLtMatmulPreferenceSetAttribute>("cublasLtMatmulPreferenceSetAttribute")(pref, attr, buf,
                                                                                              size_in_bytes);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t light_handle, cublasLtMatmulDesc_t operation_desc, cublasLtMatrixLayout_t adesc,
    cublasLtMatrixLayout_t bdesc, cublasLtMatrixLayout_t cdesc, cublasLtMatrixLayout_t ddesc,
    cublasLtMatmulPreference_t preference, int requested_algo_count,
    cublasLtMatmulHeuristicResult_t heuristic_results_array[], int* return_algo_count) {
  return loaded<cublasLtMatmulAlgoGetHeuristic>("cublasLtMatmulAlgoGetHeuristic")(
      light_handle, operation_desc, adesc, bdesc, cdesc, ddesc, preference, requested_algo_count,
      heuristic_results_array, return_algo_count);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                                 cublasLtMatmulAlgoConfigAttributes_t attr, void* buf,
                                                                 size_t size_in_bytes, size_t* size_written) {
  return loaded<cublasLtMatmulAlgoConfigGetAttribute>("cublasLtMatmulAlgoConfigGetAttribute")(
      algo, attr, buf, size_in_bytes, size_written);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmul(cublasLtHandle_t light_handle, cublasLtMatmulDesc_t compute_desc,
                                           const void* alpha, const void* a, cublasLtMatrixLayout_t adesc,
                                           const void* b, cublasLtMatrixLayout_t bdesc, const void* beta, const void* c,
                                           cublasLtMatrixLayout_t cdesc, void* d, cublasLtMatrixLayout_t ddesc,
                                           const cublasLtMatmulAlgo_t* algo, void* workspace,
                                           size_t workspace_size_in_bytes, cudaStream_t stream) {
  return loaded<cublasLtMatmul>("cublasLtMatmul")(light_handle, compute_desc, alpha, a, adesc, b, bdesc, beta, c, cdesc,
                                                  d, ddesc, algo, workspace, workspace_size_in_bytes, stream);
}
