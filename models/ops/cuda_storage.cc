// SPDX-License-Identifier: Apache-2.0
#include "models/ops/cuda_storage.h"

#include <algorithm>

#include "sim/error.h"

namespace droptest::models {

CudaStorage::CudaStorage(comm::Stream& compute, std::uint64_t bytes)
    : compute_(compute), memory_(static_cast<std::size_t>(bytes)), copies_(compute.device()) {
  std::fill_n(memory_.data(), bytes, std::byte{0});
}

void CudaStorage::follow_operations() {
  operations_.record(compute_);
  copies_.wait(operations_);
}

Storage::Ticket CudaStorage::add() {
  copied_[++added_].record(copies_);
  return added_;
}

Storage::Ticket CudaStorage::write(std::uint64_t offset, comm::ConstTensor from) {
  follow_operations();
  comm::copy_to_host(from.bytes.data(), {memory_.data() + offset, from.bytes.size()}, copies_);
  return add();
}

Storage::Ticket CudaStorage::read(std::uint64_t offset, comm::Tensor to) {
  follow_operations();
  comm::copy_to_device({memory_.data() + offset, to.bytes.size()}, to.bytes.data(), copies_);
  return add();
}

void CudaStorage::wait(Ticket ticket) {
  const auto behind = copied_.upper_bound(ticket);
  if (behind == copied_.begin()) return;  // an earlier call has waited for it
  compute_.wait(std::prev(behind)->second);
  copied_.erase(copied_.begin(), behind);
}

}  // namespace droptest::models
