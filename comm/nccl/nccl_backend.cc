// SPDX-License-Identifier: Apache-2.0
// The making of communicators over NCCL.
#include "comm/nccl/nccl_backend.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/cuda_error.h"
#include "comm/device/device_tensor.h"
#include "comm/host_name.h"
#include "comm/nccl/device_choice.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/nccl_handles.h"
#include "comm/nccl/nccl_result.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

// A digest that is equal for all processes of a host, as NCCL identifies hosts: by name and boot.
std::uint64_t host_digest() {
  std::string text = host_name();
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  for (std::string line; std::getline(boot, line);) text += line;
  std::vector<std::uint64_t> letters(text.begin(), text.end());
  return digest_of_counts(letters);
}

int visible_devices(int rank) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess) return devices;
  cudaGetLastError();
  throw DeviceError("nccl: rank " + std::to_string(rank) + ": this process sees no CUDA device: " +
                    std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status));
}

void check_version(int rank) {
  constexpr int kFirst = 21800;  // ncclCommSplit
  int version = 0;
  const ncclResult_t result = ncclGetVersion(&version);
  const std::string here = "nccl: rank " + std::to_string(rank) + ": ";
  if (is_error(result)) throw DeviceError(here + "the library says no version: " + result_text(result, nullptr));
  if (version >= kFirst) return;
  throw DeviceError(here + "the library is NCCL " + std::to_string(version / 10000) + "." +
                    std::to_string(version / 100 % 100) + "." + std::to_string(version % 100) + ", want 2.18 or newer");
}

// Ranks are counted by host if the launcher does not give the local rank.
PlaceOnHost place_on_host(const ProcessGroupOptions& options, GlooCommunicator& control, int devices) {
  const auto n = static_cast<std::size_t>(control.world_size());
  std::uint64_t own = host_digest();
  std::vector<std::uint64_t> hosts(n);
  const std::vector<std::uint64_t> ones(n, 1);
  control.all_gather(ConstTensor(std::span<const std::uint64_t>(&own, 1)), Tensor(std::span(hosts)), ones,
                     {.name = "hosts"});
  PlaceOnHost place;
  place.rank = control.rank();
  place.devices = devices;
  place.devices_chosen = std::getenv("CUDA_VISIBLE_DEVICES") != nullptr;
  place.host_faked = std::getenv("NCCL_HOSTID") != nullptr;
  place.local_world_size = 0;
  for (std::size_t r = 0; r < n; ++r) {
    if (hosts[r] != own) continue;
    ++place.local_world_size;
    if (r < static_cast<std::size_t>(control.rank())) ++place.local_rank;
  }
  if (options.local_rank >= 0) place.local_rank = options.local_rank;
  return place;
}

NcclId shared_id(GlooCommunicator& control) {
  NcclId id{};
  if (control.rank() == 0) {
    ncclUniqueId unique_id;
    const ncclResult_t result = ncclGetUniqueId(&unique_id);
    if (is_error(result)) throw CommError("nccl: rank 0: no id for the group: " + result_text(result, nullptr));
    std::memcpy(id.data(), &unique_id, sizeof unique_id);
  }
  control.broadcast(Tensor(std::span<std::uint64_t>(id)), 0, {.name = "NCCL's id"});
  return id;
}

}  // namespace

const bool kNcclBuilt = true;

std::unique_ptr<Communicator> connect_nccl(const ProcessGroupOptions& options) {
  const int devices = visible_devices(options.rank);
  check_version(options.rank);
  const auto mesh = std::make_shared<GlooMesh>(options);
  auto control = std::make_unique<GlooCommunicator>(mesh);
  try {
    const int device = device_of_rank(place_on_host(options, *control, devices));
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    const auto world = std::make_shared<NcclWorld>(mesh, device, options.timeout);
    const NcclHandles::Made made = world->handles().connect(shared_id(*control));
    if (made.failure) {
      world->watchdog().end(*made.failure);
      throw CommError("nccl: rank " + std::to_string(mesh->rank()) + " of " + std::to_string(mesh->size()) + ": " +
                      mesh->failure().value_or(*made.failure).cause);
    }
    auto communicator = std::make_unique<NcclCommunicator>(world, std::move(control), made.comm);
    communicator->check_connections();
    return communicator;
  } catch (const std::exception& error) {
    mesh->abort(error.what());
    throw;
  }
}

int nccl_device(const Communicator& communicator) {
  const auto* const rank = dynamic_cast<const NcclCommunicator*>(&communicator);
  return rank == nullptr ? 0 : rank->device();
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  receives_.run_all();
  hand_over();
  wait_for_last();
  std::unique_ptr<GlooCommunicator> control = control_->split_group(color, key);
  const Call call(Operation::kSplit, ElementType::kFloat32, 0, {.name = "split"}, step());
  const int nccl_color = color < 0 ? NCCL_SPLIT_NOCOLOR : color;
  const NcclHandles::Made made = [&] {
    const GlooMesh::CallScope scope(world_->mesh(), call);
    check_cuda(cudaSetDevice(world_->device()), "cudaSetDevice");
    return world_->handles().split(comm_, *world_ranks_, nccl_color, key);
  }();
  if (made.failure) world_->fail(*made.failure, call);
  if (control == nullptr) return nullptr;
  DROPTEST_CHECK(made.comm != nullptr, "NCCL has no communicator for this rank's color");
  auto part = std::make_unique<NcclCommunicator>(world_, std::move(control), made.comm);
  part->check_connections();
  return part;
}

void NcclCommunicator::check_connections() {
  const auto n = static_cast<std::uint64_t>(world_size());
  if (n == 1) return;
  const auto message = [n](int from, int to) {
    return static_cast<std::uint64_t>(from) * n + static_cast<std::uint64_t>(to) + 1;
  };
  std::vector<std::uint64_t> sent;
  std::vector<std::uint64_t> wanted;
  for (int r = 0; r < world_size(); ++r) {
    sent.push_back(message(rank(), r));
    wanted.push_back(message(r, rank()));
  }
  Stream stream(world_->device());
  DeviceBuffer<std::uint64_t> to(n, "test of the connections");
  DeviceBuffer<std::uint64_t> from(n, "test of the connections");
  const std::vector<std::uint64_t> ones(n, 1);
  std::vector<std::uint64_t> received(n);
  const Message about{.name = "test of the connections"};
  copy_to_device(std::span<const std::uint64_t>(sent), to.elems(), stream);
  all_to_all(device_tensor(to.elems(), stream), ones, device_tensor(from.elems(), stream), ones, about);
  copy_to_host(DeviceSpan<const std::uint64_t>(from.elems()), std::span(received), stream);
  stream.synchronize();
  const Call call(Operation::kAllToAll, ElementType::kUint64, n, about, step());
  if (const auto failure = world_->mesh().failure()) world_->fail(*failure, call);
  std::vector<int> wrong;
  for (int r = 0; r < world_size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (received[i] != wanted[i]) wrong.push_back(world_rank(r));
  }
  if (wrong.empty()) return;
  const std::string self = "rank " + std::to_string(world_rank(rank()));
  world_->fail({world_rank(rank()), "connect",
                "the data that NCCL brings to " + self + " from " + rank_list(wrong) +
                    " differs from the sent data; does NCCL_P2P_DISABLE=1 help?"},
               call);
}

}  // namespace droptest::comm
