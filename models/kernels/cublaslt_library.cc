// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's functions as the products call them. The library, of hundreds of megabytes, is loaded by the first call,
// so that a program that can use it starts quickly, and where it is missing, as long as it computes on the CPU.
#include <cublasLt.h>

#include <string>

#include "comm/device/shared_library.h"

namespace droptest::models {
namespace {

// All at once: a function that is missing is found before anything has begun.
struct Functions {
  explicit Functions(const comm::SharedLibrary& library)
      : create(library.function<decltype(cublasLtCreate)>("cublasLtCreate")),
        destroy(library.function<decltype(cublasLtDestroy)>("cublasLtDestroy")),
        matmul_desc_create(library.function<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate")),
        matmul_desc_destroy(library.function<decltype(cublasLtMatmulDescDestroy)>("cublasLtMatmulDescDestroy")),
        matmul_desc_set_attribute(
            library.function<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute")),
        matrix_layout_create(library.function<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate")),
        matrix_layout_destroy(library.function<decltype(cublasLtMatrixLayoutDestroy)>("cublasLtMatrixLayoutDestroy")),
        matmul_preference_create(
            library.function<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate")),
        matmul_preference_destroy(
            library.function<decltype(cublasLtMatmulPreferenceDestroy)>("cublasLtMatmulPreferenceDestroy")),
        matmul_preference_set_attribute(
            library.function<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute")),
        matmul_algo_get_heuristic(
            library.function<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic")),
        matmul(library.function<decltype(cublasLtMatmul)>("cublasLtMatmul")) {}

  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute;
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) matmul_preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) matmul_preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic;
  decltype(&cublasLtMatmul) matmul;
};

const Functions& cublaslt() {
  static const Functions functions(comm::SharedLibrary(
      {"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR), DROPTEST_CUBLASLT_LIBRARY}, "device \"cuda\""));
  return functions;
}

}  // namespace
}  // namespace droptest::models

cublasStatus_t CUBLASWINAPI cublasLtCreate(cublasLtHandle_t* light_handle) {
  return droptest::models::cublaslt().create(light_handle);
}

cublasStatus_t CUBLASWINAPI cublasLtDestroy(cublasLtHandle_t light_handle) {
  return droptest::models::cublaslt().destroy(light_handle);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmul_desc,
                                                     cublasComputeType_t compute_type, cudaDataType_t scale_type) {
  return droptest::models::cublaslt().matmul_desc_create(matmul_desc, compute_type, scale_type);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul_desc) {
  return droptest::models::cublaslt().matmul_desc_destroy(matmul_desc);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul_desc,
                                                           cublasLtMatmulDescAttributes_t attr, const void* buf,
                                                           size_t size_in_bytes) {
  return droptest::models::cublaslt().matmul_desc_set_attribute(matmul_desc, attr, buf, size_in_bytes);
}

cublasStatus_t CUBLASWINAPI cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* mat_layout, cudaDataType type,
                                                       uint64_t rows, uint64_t cols, int64_t ld) {
  return droptest::models::cublaslt().matrix_layout_create(mat_layout, type, rows, cols, ld);
}

cublasStatus_t CUBLASWINAPI cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t mat_layout) {
  return droptest::models::cublaslt().matrix_layout_destroy(mat_layout);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* pref) {
  return droptest::models::cublaslt().matmul_preference_create(pref);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) {
  return droptest::models::cublaslt().matmul_preference_destroy(pref);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                                 cublasLtMatmulPreferenceAttributes_t attr,
                                                                 const void* buf, size_t size_in_bytes) {
  return droptest::models::cublaslt().matmul_preference_set_attribute(pref, attr, buf, size_in_bytes);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t light_handle, cublasLtMatmulDesc_t operation_desc, cublasLtMatrixLayout_t adesc,
    cublasLtMatrixLayout_t bdesc, cublasLtMatrixLayout_t cdesc, cublasLtMatrixLayout_t ddesc,
    cublasLtMatmulPreference_t preference, int requested_algo_count,
    cublasLtMatmulHeuristicResult_t heuristic_results_array[], int* return_algo_count) {
  return droptest::models::cublaslt().matmul_algo_get_heuristic(light_handle, operation_desc, adesc, bdesc, cdesc,
                                                                ddesc, preference, requested_algo_count,
                                                                heuristic_results_array, return_algo_count);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmul(cublasLtHandle_t light_handle, cublasLtMatmulDesc_t compute_desc,
                                           const void* alpha, const void* a, cublasLtMatrixLayout_t adesc,
                                           const void* b, cublasLtMatrixLayout_t bdesc, const void* beta, const void* c,
                                           cublasLtMatrixLayout_t cdesc, void* d, cublasLtMatrixLayout_t ddesc,
                                           const cublasLtMatmulAlgo_t* algo, void* workspace,
                                           size_t workspace_size_in_bytes, cudaStream_t stream) {
  return droptest::models::cublaslt().matmul(light_handle, compute_desc, alpha, a, adesc, b, bdesc, beta, c, cdesc, d,
                                             ddesc, algo, workspace, workspace_size_in_bytes, stream);
}
