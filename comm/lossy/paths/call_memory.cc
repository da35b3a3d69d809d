// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/call_memory.h"

#include "comm/communicator.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/paths/path_registry.h"

namespace droptest::comm {

std::uint64_t SizedCall::part() const {
  return shape.counts.empty() ? even_counts(shape.elements, ranks).front() : *std::ranges::max_element(shape.counts);
}

bool SizedCall::remembers_contributions() const {
  return reduces(shape.operation) && can_lose(network.reduce) && network.reduce.rule().remembers();
}

bool SizedCall::remembers_results() const { return can_lose(network.gather) && network.gather.rule().remembers(); }

CallMemory memory_of(const SizedCall& call, bool is_sampled) {
  using Slot = CallMemory::Slot;
  CallMemory memory;
  const ClassNetwork& network = call.network;
  const std::uint64_t elements = call.shape.elements;
  const bool scatters = call.shape.operation == Operation::kReduceScatter;
  if (is_sampled) memory.take(Slot::kExact, scatters ? call.part() : elements);
  // The buffer for the divergence of results that are equal on all ranks without loss.
  if (is_sampled && !scatters) memory.take(Slot::kUnused, call.part());
  const ClassRecovery& recovery = network.recovery;
  if (recovery.error_feedback != ClassRecovery::ErrorFeedback::kOff && reduces(call.shape.operation)) {
    memory.take(Slot::kCorrected, elements);
    memory.remembered += elements;
  }
  if (recovery.hadamard_block_elems > 0 || recovery.interleave_packets > 1) {
    memory.take(Slot::kTransformed, call.shape.operation == Operation::kAllGather ? call.part() : elements);
  }
  if (!scatters && can_lose(network.gather) && network.gather.rule().keeps_own()) {
    memory.take(Slot::kInputCopy, elements);
  }
  if (!scatters && call.remembers_results()) memory.remembered += elements;
  path_in(network, elements).add_memory(call, memory);
  return memory;
}

}  // namespace droptest::comm
