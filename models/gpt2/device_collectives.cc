// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/device_collectives.h"

#include "comm/device/device_tensor.h"

namespace droptest::models {

DeviceCollectives::DeviceCollectives(comm::Communicator& group, comm::Stream& compute)
    : group_(group), compute_(compute) {
  if (group.world_size() > 1) own_.emplace(compute.device());
}

template <class T>
void DeviceCollectives::begin_all_reduce(comm::DeviceSpan<T> data, comm::ReduceOp op, const comm::Message& message) {
  if (!own_) return group_.all_reduce(comm::device_tensor(data, compute_), op, message);
  produced_.record(compute_);
  own_->wait(produced_);
  group_.all_reduce(comm::device_tensor(data, *own_), op, message);
  reduced_.record(*own_);
}

void DeviceCollectives::join() {
  if (own_) compute_.wait(reduced_);
}

template void DeviceCollectives::begin_all_reduce(comm::DeviceSpan<float>, comm::ReduceOp, const comm::Message&);
template void DeviceCollectives::begin_all_reduce(comm::DeviceSpan<comm::Bf16>, comm::ReduceOp, const comm::Message&);

}  // namespace droptest::models
