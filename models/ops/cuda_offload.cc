// SPDX-License-Identifier: Apache-2.0
#include "models/ops/cuda_offload.h"

#include <algorithm>

#include "sim/error.h"

namespace droptest::models {

CudaOffload::Passage& CudaOffload::next(std::array<Passage, kPassages>& passages, std::size_t& turn, std::size_t bytes,
                                        comm::Stream& first) {
  Passage& passage = passages[turn++ % kPassages];
  if (passage.memory.bytes() < bytes) {
    compute_.synchronize();
    copies_.synchronize();
    passage.memory = comm::DeviceMemory(bytes, "buffer of an offload");
  }
  if (passage.is_used) first.wait(passage.emptied);
  passage.is_used = true;
  return passage;
}

std::uint64_t CudaOffload::buffer_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto* passages : {&out_, &in_}) {
    for (const Passage& passage : *passages) bytes += passage.memory.bytes();
  }
  return bytes;
}

void CudaOffload::put(std::uint64_t key, comm::ConstTensor values) {
  const std::size_t bytes = values.bytes.size();
  Record& record = records_[key];
  if (record.room < bytes) {
    copies_.synchronize();
    record.memory = comm::PinnedMemory(bytes);
    record.room = bytes;
  }
  record.bytes = bytes;
  Passage& passage = next(out_, out_turn_, bytes, compute_);
  comm::copy_on_device(values.bytes.data(), passage.memory.data(), bytes, compute_);
  passage.filled.record(compute_);
  copies_.wait(passage.filled);
  comm::copy_to_host(passage.memory.data(), {record.memory.data(), bytes}, copies_);
  passage.emptied.record(copies_);
}

CudaOffload::Passage& CudaOffload::bring(std::uint64_t key) {
  const auto record = records_.find(key);
  DROPTEST_CHECK(record != records_.end(), "offload: values that were never put");
  Passage& passage = next(in_, in_turn_, record->second.bytes, copies_);
  comm::copy_to_device({record->second.memory.data(), record->second.bytes}, passage.memory.data(), copies_);
  passage.filled.record(copies_);
  passage.key = key;
  return passage;
}

void CudaOffload::expect(std::uint64_t key) {
  const auto is_expected = [&](const Passage& passage) { return passage.key == key; };
  if (std::any_of(in_.begin(), in_.end(), is_expected)) return;
  if (!in_[in_turn_ % kPassages].key.has_value()) bring(key);
}

void CudaOffload::take(std::uint64_t key, comm::Tensor values) {
  const auto found = std::find_if(in_.begin(), in_.end(), [&](const Passage& passage) { return passage.key == key; });
  Passage& passage = found == in_.end() ? bring(key) : *found;
  DROPTEST_CHECK(records_.at(key).bytes == values.bytes.size(), "offload: values of another size");
  compute_.wait(passage.filled);
  comm::copy_on_device(passage.memory.data(), values.bytes.data(), values.bytes.size(), compute_);
  passage.emptied.record(compute_);
  passage.key.reset();
}

}  // namespace droptest::models
