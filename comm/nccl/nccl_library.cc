// SPDX-License-Identifier: Apache-2.0
// NCCL's functions, as the backend calls them. The first call loads the library, so that a program with the backend
// also starts on machines without NCCL.
#include <nccl.h>

#include "comm/device/shared_library.h"

namespace droptest::comm {
namespace {

// Loads all functions at once: a missing function is found before any work has begun.
struct Functions {
  explicit Functions(const SharedLibrary& library)
      : get_version(library.function<decltype(ncclGetVersion)>("ncclGetVersion")),
        get_unique_id(library.function<decltype(ncclGetUniqueId)>("ncclGetUniqueId")),
        init_rank_config(library.function<decltype(ncclCommInitRankConfig)>("ncclCommInitRankConfig")),
        split(library.function<decltype(ncclCommSplit)>("ncclCommSplit")),
        get_async_error(library.function<decltype(ncclCommGetAsyncError)>("ncclCommGetAsyncError")),
        finalize(library.function<decltype(ncclCommFinalize)>("ncclCommFinalize")),
        destroy(library.function<decltype(ncclCommDestroy)>("ncclCommDestroy")),
        abort(library.function<decltype(ncclCommAbort)>("ncclCommAbort")),
        get_error_string(library.function<decltype(ncclGetErrorString)>("ncclGetErrorString")),
        get_last_error(library.function<decltype(ncclGetLastError)>("ncclGetLastError")),
        group_start(library.function<decltype(ncclGroupStart)>("ncclGroupStart")),
        group_end(library.function<decltype(ncclGroupEnd)>("ncclGroupEnd")),
        all_reduce(library.function<decltype(ncclAllReduce)>("ncclAllReduce")),
        reduce_scatter(library.function<decltype(ncclReduceScatter)>("ncclReduceScatter")),
        reduce(library.function<decltype(ncclReduce)>("ncclReduce")),
        all_gather(library.function<decltype(ncclAllGather)>("ncclAllGather")),
        broadcast(library.function<decltype(ncclBroadcast)>("ncclBroadcast")),
        send(library.function<decltype(ncclSend)>("ncclSend")),
        recv(library.function<decltype(ncclRecv)>("ncclRecv")) {}

  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank_config;
  decltype(&ncclCommSplit) split;
  decltype(&ncclCommGetAsyncError) get_async_error;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclReduce) reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
};

const Functions& nccl() {
  static const Functions functions(SharedLibrary({"libnccl.so.2", DROPTEST_NCCL_LIBRARY}, "backend \"nccl\""));
  return functions;
}

}  // namespace
}  // namespace droptest::comm

using droptest::comm::nccl;

// Each function throws DeviceError if the library cannot be loaded.
extern "C" {

ncclResult_t ncclGetVersion(int* version) { return nccl().get_version(version); }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return nccl().get_unique_id(id); }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return nccl().init_rank_config(comm, ranks, id, rank, config);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config) {
  return nccl().split(comm, color, key, part, config);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  return nccl().get_async_error(comm, result);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return nccl().finalize(comm); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return nccl().destroy(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return nccl().abort(comm); }
const char* ncclGetErrorString(ncclResult_t result) { return nccl().get_error_string(result); }
const char* ncclGetLastError(ncclComm_t comm) { return nccl().get_last_error(comm); }
ncclResult_t ncclGroupStart() { return nccl().group_start(); }
ncclResult_t ncclGroupEnd() { return nccl().group_end(); }
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return nccl().all_reduce(in, out, count, type, op, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return nccl().reduce_scatter(in, out, count, type, op, comm, stream);
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return nccl().reduce(in, out, count, type, op, root, comm, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return nccl().all_gather(in, out, count, type, comm, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return nccl().broadcast(in, out, count, type, root, comm, stream);
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return nccl().send(data, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return nccl().recv(data, count, type, peer, comm, stream);
}

}  // extern "C"
