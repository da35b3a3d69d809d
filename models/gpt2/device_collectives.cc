// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/device_collectives.h"

#include "comm/device/device_tensor.h"
#include "models/kernels/bf16.h"
#include "sim/error.h"

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

template <class E>
void DeviceCollectives::begin_sum(comm::DeviceSpan<E> sum, const MessageBuffer<E>& buffer,
                                  const comm::Message& message) {
  if (buffer.empty()) return begin_all_reduce(sum, comm::ReduceOp::kSum, message);
  DROPTEST_CHECK(own_.has_value(), "a lone rank sends no messages");
  using M = MessageElement<E>;
  produced_.record(compute_);
  own_->wait(produced_);
  if constexpr (std::is_same_v<E, float>) convert<M, E>(sum, buffer, *own_);
  group_.all_reduce(comm::device_tensor(buffer, *own_), comm::ReduceOp::kSum, message);
  convert<E, M>(buffer, sum, *own_);
  reduced_.record(*own_);
}

void DeviceCollectives::join() {
  if (own_) compute_.wait(reduced_);
}

template void DeviceCollectives::begin_all_reduce(comm::DeviceSpan<float>, comm::ReduceOp, const comm::Message&);
template void DeviceCollectives::begin_all_reduce(comm::DeviceSpan<comm::Bf16>, comm::ReduceOp, const comm::Message&);
template void DeviceCollectives::begin_sum<float>(comm::DeviceSpan<float>, const MessageBuffer<float>&,
                                                  const comm::Message&);
template void DeviceCollectives::begin_sum<comm::Bf16>(comm::DeviceSpan<comm::Bf16>, const MessageBuffer<comm::Bf16>&,
                                                       const comm::Message&);

}  // namespace droptest::models
