// SPDX-License-Identifier: Apache-2.0
// NCCL's functions that lose packets. Path `contribution`: a sum gets a copy of this rank's input without its lost
// packets, so that `sendbuff` stays as it is; received messages lose packets after NCCL has put its work on the stream.
#include <cstdio>
#include <exception>
#include <string>

#include "api/nccl/interposer.h"
#include "api/nccl/real_nccl.h"

namespace {

using droptest::nccl_shim::bytes_of;
using droptest::nccl_shim::Fill;
using droptest::nccl_shim::Interposer;
using droptest::nccl_shim::Member;
using droptest::nccl_shim::NcclCall;
using droptest::nccl_shim::within_real_call;

thread_local std::string last_error;  // of the thread, as NCCL's own is

ncclResult_t fail(const std::exception& error) {
  last_error = error.what();
  std::fprintf(stderr, "droptest: %s\n", error.what());
  return ncclInvalidUsage;
}

// Runs `lossy(interposer)`, or `plain()` where nothing is lost in this process.
template <class Plain, class Lossy>
ncclResult_t interposed(const Plain& plain, const Lossy& lossy) {
  if (within_real_call()) return plain();
  Interposer* const interposer = Interposer::get();
  if (interposer == nullptr) return plain();
  try {
    return lossy(*interposer);
  } catch (const std::exception& error) {
    return fail(error);
  }
}

bool is_sum(ncclRedOp_t op) { return op != ncclProd && op != ncclMax && op != ncclMin; }

// The input of a sum: the buffer itself, or a copy without the lost packets.
const void* contribution(Interposer& interposer, const NcclCall& call, ncclRedOp_t op, ncclComm_t comm,
                         const void* input, void* output) {
  const std::shared_ptr<Member> member = interposer.member(comm);
  if (member == nullptr || call.count == 0) return input;
  if (!is_sum(op)) {
    member->exempt(call);
    return input;
  }
  const auto traffic_class = member->class_of(call);
  if (!traffic_class) return input;
  if (output == nullptr) output = interposer.scratch(member, call, call.count * bytes_of(call.type));
  member->lose_contribution(*traffic_class, call, input, output);
  return output;
}

// `call_nccl()`, then the losses that `losses(member, class)` gives.
template <class CallNccl, class Losses>
ncclResult_t then_lose(Interposer& interposer, const NcclCall& call, ncclComm_t comm, const CallNccl& call_nccl,
                       const Losses& losses) {
  const std::shared_ptr<Member> member = interposer.member(comm);
  if (member == nullptr || call.count == 0) return call_nccl();
  const auto traffic_class = member->class_of(call);
  if (!traffic_class) return call_nccl();
  const Fill fill = losses(*member, *traffic_class);
  const ncclResult_t result = call_nccl();
  interposer.lose_after(comm, member, fill, result);
  return result;
}

template <class CallNccl>
ncclResult_t count_and_call(Interposer& interposer, const NcclCall& call, ncclComm_t comm, const CallNccl& call_nccl) {
  if (const auto member = interposer.member(comm); member != nullptr && call.count > 0) member->class_of(call);
  return call_nccl();
}

int rank_of(ncclComm_t comm) {
  int rank = -1;
  DROPTEST_REAL(ncclCommUserRank, comm, &rank);
  return rank;
}
std::size_t ranks_of(ncclComm_t comm) {
  int ranks = 0;
  DROPTEST_REAL(ncclCommCount, comm, &ranks);
  return static_cast<std::size_t>(ranks);
}

}  // namespace

extern "C" {

#pragma GCC visibility push(default)

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  const auto call = [&](const void* input) {
    return DROPTEST_REAL(ncclAllReduce, input, out, count, type, op, comm, stream);
  };
  return interposed([&] { return call(in); },
                    [&](Interposer& i) {
                      return call(contribution(i, {"all_reduce", count, type, stream}, op, comm, in, out));
                    });
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  const auto call = [&](const void* input) {
    return DROPTEST_REAL(ncclReduceScatter, input, out, count, type, op, comm, stream);
  };
  return interposed(
      [&] { return call(in); },
      [&](Interposer& i) {
        return call(contribution(i, {"reduce_scatter", count * ranks_of(comm), type, stream}, op, comm, in, nullptr));
      });
}

ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  const auto call = [&](const void* input) {
    return DROPTEST_REAL(ncclReduce, input, out, count, type, op, root, comm, stream);
  };
  return interposed([&] { return call(in); },
                    [&](Interposer& i) {
                      return call(contribution(i, {"reduce", count, type, stream}, op, comm, in,
                                               rank_of(comm) == root ? out : nullptr));
                    });
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const auto call = [&] { return DROPTEST_REAL(ncclAllGather, in, out, count, type, comm, stream); };
  return interposed(call, [&](Interposer& i) {
    const NcclCall message{"all_gather", count, type, stream};
    return then_lose(i, message, comm, call,
                     [&](Member& member, droptest_class c) { return member.gathered(c, message, out); });
  });
}

// Broadcasts and their like are exempt: their calls are only counted.
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  const auto call = [&] { return DROPTEST_REAL(ncclBroadcast, in, out, count, type, root, comm, stream); };
  return interposed(call, [&](Interposer& i) {
    return count_and_call(i, {"broadcast", count, type, stream}, comm, call);
  });
}

ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}

// The receiver loses packets; of the sender's call, only an exemption is counted.
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const auto call = [&] { return DROPTEST_REAL(ncclSend, data, count, type, peer, comm, stream); };
  return interposed(call, [&](Interposer& i) { return count_and_call(i, {"send", count, type, stream}, comm, call); });
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  const auto call = [&] { return DROPTEST_REAL(ncclRecv, data, count, type, peer, comm, stream); };
  return interposed(call, [&](Interposer& i) {
    const NcclCall message{"recv", count, type, stream};
    if (peer == rank_of(comm)) return call();
    return then_lose(i, message, comm, call,
                     [&](Member& member, droptest_class c) { return member.received(c, message, peer, data); });
  });
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
ncclResult_t ncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  const auto call = [&] { return DROPTEST_REAL(ncclAlltoAll, in, out, count, type, comm, stream); };
  return interposed(call, [&](Interposer& i) {
    const NcclCall message{"all_to_all", count, type, stream};
    return then_lose(i, message, comm, call,
                     [&](Member& member, droptest_class c) { return member.exchanged(c, message, out); });
  });
}

ncclResult_t ncclGather(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  const auto call = [&] { return DROPTEST_REAL(ncclGather, in, out, count, type, root, comm, stream); };
  return interposed(call, [&](Interposer& i) {
    return count_and_call(i, {"gather", count, type, stream}, comm, call);
  });
}

ncclResult_t ncclScatter(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  const auto call = [&] { return DROPTEST_REAL(ncclScatter, in, out, count, type, root, comm, stream); };
  return interposed(call, [&](Interposer& i) {
    return count_and_call(i, {"scatter", count, type, stream}, comm, call);
  });
}
#endif

ncclResult_t ncclGroupStart() {
  const auto call = [] { return DROPTEST_REAL(ncclGroupStart); };
  return interposed(call, [&](Interposer& i) {
    const ncclResult_t result = call();
    if (result == ncclSuccess) i.group_started();
    return result;
  });
}

ncclResult_t ncclGroupEnd() {
  const auto call = [] { return DROPTEST_REAL(ncclGroupEnd); };
  return interposed(call, [&](Interposer& i) { return i.group_ended(call()); });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommInitRankConfig, comm, ranks, id, rank, config); };
  return interposed(call, [&](Interposer& i) {
    i.check_network(rank, ranks);
    return i.made({{comm, nullptr, nullptr}}, call());
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommInitRank, comm, ranks, id, rank); };
  return interposed(call, [&](Interposer& i) {
    i.check_network(rank, ranks);
    return i.made({{comm, nullptr, nullptr}}, call());
  });
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 23, 0)
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int ids, ncclUniqueId* id,
                                      ncclConfig_t* config) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommInitRankScalable, comm, ranks, rank, ids, id, config); };
  return interposed(call, [&](Interposer& i) {
    i.check_network(rank, ranks);
    return i.made({{comm, nullptr, nullptr}}, call());
  });
}

#endif

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int devices, const int* list) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommInitAll, comms, devices, list); };
  return interposed(call, [&](Interposer& i) {
    i.check_network(0, devices);
    std::vector<droptest::nccl_shim::NewCommunicator> made;
    for (int device = 0; device < devices; ++device) made.push_back({comms + device, nullptr, nullptr});
    return i.made(std::move(made), call());
  });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommSplit, comm, color, key, part, config); };
  return interposed(call, [&](Interposer& i) {
    const auto member = i.member(comm);
    return i.made({{part, comm, member == nullptr ? nullptr : member->shared_losses()}}, call());
  });
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* part, ncclConfig_t* config,
                            int flags) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommShrink, comm, excluded, count, part, config, flags); };
  return interposed(call, [&](Interposer& i) {
    const auto member = i.member(comm);
    return i.made({{part, comm, member == nullptr ? nullptr : member->shared_losses()}}, call());
  });
}

#endif

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommGetAsyncError, comm, state); };
  return interposed(call, [&](Interposer& i) {
    const ncclResult_t result = call();
    if (result == ncclSuccess) *state = i.queried(comm, *state);
    return result;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommDestroy, comm); };
  return interposed(call, [&](Interposer& i) {
    std::exception_ptr failed;
    try {
      i.ends(comm);
    } catch (...) {
      failed = std::current_exception();
    }
    const ncclResult_t result = call();  // whatever became of the counts
    if (failed != nullptr && result == ncclSuccess) std::rethrow_exception(failed);
    return result;
  });
}

// Work that never ends must not be waited for: the counts are written at the end of the process.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommAbort, comm); };
  return interposed(call, [&](Interposer& i) {
    const auto until_aborted = i.forget(comm);
    return call();
  });
}

const char* ncclGetLastError(ncclComm_t comm) {
  if (!within_real_call() && !last_error.empty()) return last_error.c_str();
  return DROPTEST_REAL(ncclGetLastError, comm);
}

#pragma GCC visibility pop

}  // extern "C"
