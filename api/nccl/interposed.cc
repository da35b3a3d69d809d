// SPDX-License-Identifier: Apache-2.0
// NCCL's functions that lose packets. Along the path `contribution`, a sum gets a copy of this rank's input without its
// lost packets, so that `sendbuff` stays as it is. Received messages lose packets after NCCL has put its work on the
// stream.
#include <exception>
#include <string>

#include "api/nccl/interposer.h"
#include "api/nccl/last_error.h"
#include "api/nccl/newer_nccl.h"
#include "api/nccl/real_nccl.h"

namespace {

using droptest::nccl_shim::bytes_of;
using droptest::nccl_shim::failed;
using droptest::nccl_shim::Fill;
using droptest::nccl_shim::Interposer;
using droptest::nccl_shim::Member;
using droptest::nccl_shim::NcclCall;
using droptest::nccl_shim::passed_on;
using droptest::nccl_shim::within_real_call;

// Runs `lossy(interposer)`, or `plain()` if nothing is lost in this process.
template <class Plain, class Lossy>
ncclResult_t interposed(const Plain& plain, const Lossy& lossy) {
  if (within_real_call()) return plain();
  Interposer* const interposer = Interposer::get();
  if (interposer == nullptr) return plain();
  try {
    return lossy(*interposer);
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

bool has_neutral_value(ncclRedOp_t op) { return op != ncclProd && op != ncclMin; }

// The input of a sum: the buffer itself, or a copy without the lost packets.
const void* contribution(Interposer& interposer, const NcclCall& call, ncclRedOp_t op, ncclComm_t comm,
                         const void* input, void* output) {
  const std::shared_ptr<Member> member = interposer.member(comm);
  if (call.count == 0) return input;
  if (!has_neutral_value(op)) {
    member->exempt(call);
    return input;
  }
  const auto traffic_class = member->class_of(call);
  if (!traffic_class) return input;
  if (output == nullptr) output = interposer.scratch(member, call, call.count * bytes_of(call.type));
  member->lose_contribution(*traffic_class, call, op == ncclMax ? DROPTEST_MAX : DROPTEST_SUM, input, output);
  return output;
}

// Runs `call_nccl()`, then the losses that `losses(member, class)` gives.
template <class CallNccl, class Losses>
ncclResult_t then_lose(Interposer& interposer, const NcclCall& call, ncclComm_t comm, const CallNccl& call_nccl,
                       const Losses& losses) {
  const std::shared_ptr<Member> member = interposer.member(comm);
  if (call.count == 0) return call_nccl();
  const auto traffic_class = member->class_of(call);
  if (!traffic_class) return call_nccl();
  const Fill fill = losses(*member, *traffic_class);
  const ncclResult_t result = call_nccl();
  interposer.lose_after(comm, member, fill, result);
  return result;
}

template <class CallNccl>
ncclResult_t count_and_call(Interposer& interposer, const NcclCall& call, ncclComm_t comm, const CallNccl& call_nccl) {
  if (const auto member = interposer.member(comm); call.count > 0) member->class_of(call);
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

// The collectives call `call`: NCCL's function with the rest of the arguments.

template <class Call>
ncclResult_t all_reduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                        cudaStream_t stream, const Call& call) {
  return interposed([&] { return call(in); },
                    [&](Interposer& i) {
                      return call(contribution(i, {"all_reduce", count, type, stream}, op, comm, in, out));
                    });
}

template <class Call>
ncclResult_t reduce_scatter(const void* in, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream, const Call& call) {
  return interposed(
      [&] { return call(in); },
      [&](Interposer& i) {
        return call(contribution(i, {"reduce_scatter", count * ranks_of(comm), type, stream}, op, comm, in, nullptr));
      });
}

template <class Call>
ncclResult_t reduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                    ncclComm_t comm, cudaStream_t stream, const Call& call) {
  return interposed([&] { return call(in); },
                    [&](Interposer& i) {
                      return call(contribution(i, {"reduce", count, type, stream}, op, comm, in,
                                               rank_of(comm) == root ? out : nullptr));
                    });
}

template <class Call>
ncclResult_t all_gather(void* out, const NcclCall& message, ncclComm_t comm, const Call& call) {
  return interposed(call, [&](Interposer& i) {
    return then_lose(i, message, comm, call,
                     [&](Member& member, droptest_class c) { return member.gathered(c, message, out); });
  });
}

template <class Call>
ncclResult_t all_to_all(void* out, const NcclCall& message, ncclComm_t comm, const Call& call) {
  return interposed(call, [&](Interposer& i) {
    return then_lose(i, message, comm, call,
                     [&](Member& member, droptest_class c) { return member.exchanged(c, message, out); });
  });
}

// Broadcasts and similar calls are only counted.
template <class Call>
ncclResult_t exempt(const NcclCall& message, ncclComm_t comm, const Call& call) {
  return interposed(call, [&](Interposer& i) { return count_and_call(i, message, comm, call); });
}

}  // namespace

extern "C" {

#pragma GCC visibility push(default)

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return all_reduce(in, out, count, type, op, comm, stream, [&](const void* input) {
    return DROPTEST_REAL(ncclAllReduce, input, out, count, type, op, comm, stream);
  });
}
ncclResult_t ncclAllReduceConfig(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return all_reduce(in, out, count, type, op, comm, stream, [&](const void* input) {
    return DROPTEST_REAL(ncclAllReduceConfig, input, out, count, type, op, comm, stream, config);
  });
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return reduce_scatter(in, count, type, op, comm, stream, [&](const void* input) {
    return DROPTEST_REAL(ncclReduceScatter, input, out, count, type, op, comm, stream);
  });
}
ncclResult_t ncclReduceScatterConfig(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                     ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return reduce_scatter(in, count, type, op, comm, stream, [&](const void* input) {
    return DROPTEST_REAL(ncclReduceScatterConfig, input, out, count, type, op, comm, stream, config);
  });
}

ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return reduce(in, out, count, type, op, root, comm, stream, [&](const void* input) {
    return DROPTEST_REAL(ncclReduce, input, out, count, type, op, root, comm, stream);
  });
}
ncclResult_t ncclReduceConfig(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                              ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return reduce(in, out, count, type, op, root, comm, stream, [&](const void* input) {
    return DROPTEST_REAL(ncclReduceConfig, input, out, count, type, op, root, comm, stream, config);
  });
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return all_gather(out, {"all_gather", count, type, stream}, comm,
                    [&] { return DROPTEST_REAL(ncclAllGather, in, out, count, type, comm, stream); });
}
ncclResult_t ncclAllGatherConfig(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t* config) {
  return all_gather(out, {"all_gather", count, type, stream}, comm,
                    [&] { return DROPTEST_REAL(ncclAllGatherConfig, in, out, count, type, comm, stream, config); });
}

ncclResult_t ncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return all_to_all(out, {"all_to_all", count, type, stream}, comm,
                    [&] { return DROPTEST_REAL(ncclAlltoAll, in, out, count, type, comm, stream); });
}
ncclResult_t ncclAlltoAllConfig(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                                cudaStream_t stream, const ncclCollConfig_t* config) {
  return all_to_all(out, {"all_to_all", count, type, stream}, comm,
                    [&] { return DROPTEST_REAL(ncclAlltoAllConfig, in, out, count, type, comm, stream, config); });
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return exempt({"broadcast", count, type, stream}, comm,
                [&] { return DROPTEST_REAL(ncclBroadcast, in, out, count, type, root, comm, stream); });
}
ncclResult_t ncclBroadcastConfig(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return exempt({"broadcast", count, type, stream}, comm,
                [&] { return DROPTEST_REAL(ncclBroadcastConfig, in, out, count, type, root, comm, stream, config); });
}
ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}

ncclResult_t ncclGather(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return exempt({"gather", count, type, stream}, comm,
                [&] { return DROPTEST_REAL(ncclGather, in, out, count, type, root, comm, stream); });
}
ncclResult_t ncclGatherConfig(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                              cudaStream_t stream, const ncclCollConfig_t* config) {
  return exempt({"gather", count, type, stream}, comm,
                [&] { return DROPTEST_REAL(ncclGatherConfig, in, out, count, type, root, comm, stream, config); });
}

ncclResult_t ncclScatter(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return exempt({"scatter", count, type, stream}, comm,
                [&] { return DROPTEST_REAL(ncclScatter, in, out, count, type, root, comm, stream); });
}
ncclResult_t ncclScatterConfig(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config) {
  return exempt({"scatter", count, type, stream}, comm,
                [&] { return DROPTEST_REAL(ncclScatterConfig, in, out, count, type, root, comm, stream, config); });
}

// The receiver loses packets; the sender's call is only counted if it is exempt.
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return exempt({"send", count, type, stream}, comm,
                [&] { return DROPTEST_REAL(ncclSend, data, count, type, peer, comm, stream); });
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

// No call of the receiver tells when such a message has come, or how long it is.
ncclResult_t ncclPutSignal(const void* in, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
                           size_t offset, int signal, int context, unsigned int flags, ncclComm_t comm,
                           cudaStream_t stream) {
  const auto call = [&] {
    return DROPTEST_REAL(ncclPutSignal, in, count, type, peer, window, offset, signal, context, flags, comm, stream);
  };
  return interposed(call, [&](Interposer& i) {
    const NcclCall message{"send", count, type, stream};
    const std::shared_ptr<Member> member = i.member(comm);
    if (const auto traffic_class = member->class_of(message)) {
      member->refuse_loss("ncclPutSignal", {*traffic_class}, "want ncclSend and ncclRecv");
      member->exempt(message);
    }
    return call();
  });
}

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void* requirements, void* made) {
  const auto call = [&] { return DROPTEST_REAL(ncclDevCommCreate, comm, requirements, made); };
  return interposed(call, [&](Interposer& i) {
    std::vector<droptest_class> all;
    for (int c = DROPTEST_TP_FORWARD; c <= DROPTEST_TP_RECOMPUTATION; ++c)
      all.push_back(static_cast<droptest_class>(c));
    i.member(comm)->refuse_loss("ncclDevCommCreate", all, "want collectives of the host in place of those of kernels");
    return call();
  });
}

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

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  const auto call = [&] { return DROPTEST_REAL(ncclGroupSimulateEnd, info); };
  return interposed(call, [&](Interposer& i) {
    const ncclResult_t result = call();
    i.group_simulated();
    return result;
  });
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

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int ids, ncclUniqueId* id,
                                      ncclConfig_t* config) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommInitRankScalable, comm, ranks, rank, ids, id, config); };
  return interposed(call, [&](Interposer& i) {
    i.check_network(rank, ranks);
    return i.made({{comm, nullptr, nullptr}}, call());
  });
}

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
    return i.made({{part, comm, i.member(comm)->shared_losses()}}, call());
  });
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* part, ncclConfig_t* config,
                            int flags) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommShrink, comm, excluded, count, part, config, flags); };
  return interposed(call, [&](Interposer& i) {
    return i.made({{part, comm, i.member(comm)->shared_losses()}}, call());
  });
}

// The ranks of the communicator keep their numbers and world ranks; new ranks have no communicator yet.
ncclResult_t ncclCommGrow(ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* grown,
                          ncclConfig_t* config) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommGrow, comm, ranks, id, rank, grown, config); };
  return interposed(call, [&](Interposer& i) {
    if (comm == nullptr) {
      i.check_network(rank, ranks);
      return i.made({{grown, nullptr, nullptr}}, call());
    }
    return i.made({{grown, comm, i.member(comm)->shared_losses()}}, call());
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const auto call = [&] { return DROPTEST_REAL(ncclCommGetAsyncError, comm, state); };
  return interposed(call, [&](Interposer& i) {
    const ncclResult_t result = call();
    if (result == ncclSuccess) *state = i.queried(comm, passed_on(*state));
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
    const ncclResult_t result = call();  // the call is made whatever became of the counts
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
  return within_real_call() ? DROPTEST_REAL(ncclGetLastError, comm) : droptest::nccl_shim::last_error(comm);
}

#pragma GCC visibility pop

}  // extern "C"
