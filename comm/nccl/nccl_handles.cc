// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_handles.h"

#include <cuda_runtime_api.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "comm/nccl/nccl_result.h"

namespace droptest::comm {
namespace {

// NCCL accepts most calls within microseconds, on a thread of its own; connections take longer.
constexpr int kYields = 1000;
constexpr std::chrono::microseconds kPause{200};

ncclConfig_t non_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

// The ranks that cannot take part any more; "": none.
std::string gone_text(const GlooMesh::Roll& roll) {
  if (!roll.silent.empty()) return "no answer from " + rank_list(roll.silent) + ": dead, stopped or cut off?";
  return roll.left.empty() ? "" : rank_list(roll.left) + " left the group without taking part";
}

}  // namespace

NcclHandles::Made NcclHandles::connect(const NcclId& id) {
  static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
  constexpr std::string_view kDoing = "connect";
  ncclUniqueId unique_id;
  std::memcpy(&unique_id, id.data(), sizeof unique_id);
  ncclConfig_t config = non_blocking();
  ncclComm_t comm = nullptr;
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return {nullptr, mesh_->failure()};
    result = ncclCommInitRankConfig(&comm, mesh_->size(), unique_id, mesh_->rank(), &config);
    if (comm != nullptr) live_.push_back({comm, false});
  }
  std::vector<int> world_ranks;
  for (int r = 0; r < mesh_->size(); ++r) world_ranks.push_back(r);
  const Outcome outcome = await(comm, result, kDoing, "(NCCL's communicator)", world_ranks);
  if (outcome.failure) return {nullptr, outcome.failure};
  if (outcome.result != ncclSuccess) {
    return {nullptr, failed(kDoing, "cannot make a communicator: " + init_failure_text(outcome.result, comm))};
  }
  const std::lock_guard lock(mutex_);
  set_ready(comm, true);
  return {comm, std::nullopt};
}

NcclHandles::Made NcclHandles::split(ncclComm_t parent, const std::vector<int>& world_ranks, int color, int key) {
  constexpr std::string_view kDoing = "split";
  const std::string context = "(NCCL's communicator)";
  ncclConfig_t config = non_blocking();
  // NCCL writes it later, from a thread of its own, possibly after this rank has given up.
  ncclComm_t& place = parts_.emplace_back(nullptr);
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return {nullptr, mesh_->failure()};
    set_ready(parent, false);
    result = ncclCommSplit(parent, color, key, &place, &config);
  }
  if (result == ncclSuccess) result = ncclInProgress;  // NCCL calls a split a success while it is under way
  const Outcome outcome = await(parent, result, kDoing, context, world_ranks);
  if (outcome.failure) return {nullptr, outcome.failure};
  if (outcome.result != ncclSuccess) {
    return {nullptr, failed(kDoing, "cannot split a communicator: " + init_failure_text(outcome.result, parent))};
  }
  const std::lock_guard lock(mutex_);
  if (ended_) return {nullptr, mesh_->failure()};
  set_ready(parent, true);
  if (place != nullptr) live_.push_back({place, true});
  return {place, std::nullopt};
}

std::optional<Failure> NcclHandles::run(ncclComm_t comm, const Call& call, const std::vector<int>& world_ranks,
                                        const std::function<ncclResult_t()>& enqueue) {
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return mesh_->failure();
    result = enqueue();
  }
  const Outcome outcome = await(comm, result, operation_name(call.operation), call_context(call), world_ranks);
  if (outcome.failure) return outcome.failure;
  if (outcome.result == ncclSuccess) return std::nullopt;
  return failed(operation_name(call.operation), result_text(outcome.result, comm) + " " + call_context(call));
}

std::optional<Failure> NcclHandles::close(ncclComm_t comm, const std::vector<int>& world_ranks) {
  constexpr std::string_view kDoing = "close";
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return std::nullopt;  // given back already
    set_ready(comm, false);
    result = ncclCommFinalize(comm);
  }
  const Outcome outcome = await(comm, result, kDoing, "(NCCL's communicator)", world_ranks);
  if (outcome.failure) return outcome.failure;
  if (outcome.result != ncclSuccess) return failed(kDoing, result_text(outcome.result, comm));
  const std::lock_guard lock(mutex_);
  if (ended_) return std::nullopt;
  std::erase_if(live_, [comm](const Live& live) { return live.comm == comm; });
  const ncclResult_t destroyed = ncclCommDestroy(comm);
  if (is_error(destroyed)) return failed(kDoing, result_text(destroyed, nullptr));
  return std::nullopt;
}

NcclHandles::Outcome NcclHandles::await(ncclComm_t comm, ncclResult_t result, std::string_view doing,
                                        const std::string& context, const std::vector<int>& world_ranks) {
  const auto deadline = mesh_->clock().now() + timeout_;
  for (int looks = 0; result == ncclInProgress; ++looks) {
    if (looks < kYields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kPause);
      if (auto found = mesh_->failure()) return {ncclSuccess, std::move(found)};
      if (mesh_->clock().now() > deadline) return {ncclSuccess, stalled(doing, context, world_ranks)};
    }
    const std::lock_guard lock(mutex_);
    if (ended_) return {ncclSuccess, mesh_->failure()};
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
    if (is_error(asked)) result = asked;
  }
  return {result, std::nullopt};
}

// Called with the mutex held.
void NcclHandles::set_ready(ncclComm_t comm, bool ready) {
  for (Live& live : live_) {
    if (live.comm == comm) live.ready = ready;
  }
}

std::optional<Failure> NcclHandles::failure() {
  if (auto found = mesh_->failure()) return found;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    for (const Live& live : live_) {
      if (!live.ready) continue;
      ncclResult_t result = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(live.comm, &result);
      if (is_error(asked)) result = asked;
      if (is_error(result)) text = result_text(result, live.comm);
    }
  }
  if (text.empty()) return std::nullopt;
  return failed("a transfer between GPUs", text);
}

// NCCL reports an error, but not the rank that caused it: a rank that does not answer is the likely cause.
Failure NcclHandles::failed(std::string_view doing, const std::string& text) {
  std::string cause = "NCCL failed on rank " + std::to_string(mesh_->rank()) + ": " + text;
  try {
    const GlooMesh::Roll roll = mesh_->call_roll();
    if (roll.failure) return *roll.failure;
    if (const std::string gone = gone_text(roll); !gone.empty()) cause += "; " + gone;
  } catch (const std::exception&) {
    // The launch store is gone: no rank can be asked.
  }
  return {mesh_->rank(), std::string(doing), cause};
}

Failure NcclHandles::stalled(std::string_view doing, const std::string& context, const std::vector<int>& world_ranks) {
  std::string cause =
      "no progress in " + std::string(doing) + " for " + std::to_string(timeout_.count()) + " ms " + context + "; ";
  try {
    const GlooMesh::Roll roll = mesh_->call_roll();
    if (roll.failure) return *roll.failure;
    std::vector<int> idle;
    for (const int rank : roll.idle) {
      if (std::find(world_ranks.begin(), world_ranks.end(), rank) != world_ranks.end()) idle.push_back(rank);
    }
    if (const std::string gone = gone_text(roll); !gone.empty()) {
      cause += gone;
    } else if (!idle.empty()) {
      cause += "nothing is under way on " + rank_list(idle);
    } else {
      cause += "under way are: " + roll.doing;
    }
  } catch (const std::exception&) {
    cause += "the launch store is gone, so the cause is not known";
  }
  return {mesh_->rank(), std::string(doing), cause};
}

Failure NcclHandles::explain_stall(const Call& call, const std::vector<int>& world_ranks) {
  return stalled(operation_name(call.operation), call_context(call), world_ranks);
}

Failure NcclHandles::device_failure(const Call& call, const std::string& reason) {
  return {mesh_->rank(), std::string(operation_name(call.operation)),
          "the device of rank " + std::to_string(mesh_->rank()) + " failed: " + reason + " " + call_context(call)};
}

// Tells the peers first: their kernels wait for ours, and ours for theirs. The mutex is not held, so that the rank's
// own thread sees the failure at once, even if NCCL takes long or never returns.
void NcclHandles::end(const Failure& found) noexcept {
  mesh_->end(found);
  std::vector<Live> ending;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    ending.swap(live_);
  }
  cudaSetDevice(device_);
  // The communicators end as a group: none may end before another one's kernels do.
  if (ending.size() > 1) ncclGroupStart();
  for (const Live& live : ending) ncclCommAbort(live.comm);
  if (ending.size() > 1) ncclGroupEnd();
}

}  // namespace droptest::comm
