// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/top_k_path.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>

#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/on_host.h"
#include "comm/visit_elements.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

template <class T>
constexpr std::size_t kPairBytes = sizeof(std::uint32_t) + sizeof(T);

template <class T>
double magnitude(T value) {
  const double number = std::abs(number_of(value));
  return std::isnan(number) ? std::numeric_limits<double>::infinity() : number;
}

}  // namespace

template <class T>
std::uint64_t add_pairs(std::span<const std::byte> message, const sim::PacketMask* lost, const sim::Packetizer& packets,
                        std::span<T> sums) {
  std::uint64_t dropped = 0;
  PacketRunCursor cursor(lost, packets);
  for (PacketRun run; cursor.next(run);) {
    if (run.fate == PacketRun::Fate::kLost) continue;
    for (std::uint64_t pair = run.elements.begin; pair < run.elements.end; ++pair) {
      const std::byte* const from = message.data() + pair * kPairBytes<T>;
      std::uint32_t index = 0;
      T value;
      std::memcpy(&index, from, sizeof(index));
      std::memcpy(&value, from + sizeof(index), sizeof(value));
      if (index >= sums.size()) {
        ++dropped;
      } else {
        sums[index] = narrowed<T>(widened(sums[index]) + widened(value));
      }
    }
  }
  return dropped;
}

template std::uint64_t add_pairs<float>(std::span<const std::byte>, const sim::PacketMask*, const sim::Packetizer&,
                                        std::span<float>);
template std::uint64_t add_pairs<double>(std::span<const std::byte>, const sim::PacketMask*, const sim::Packetizer&,
                                         std::span<double>);

// A message of pairs stands for all elements of the contribution.
std::vector<SubCall> top_k_calls(const ClassNetwork& network, const CallShape& call, int ranks) {
  SubCall pairs{call, std::vector(static_cast<std::size_t>(ranks), pairs_of(network.compression, call.elements)),
                call.elements * element_bytes(call.type)};
  pairs.shape.operation = Operation::kAllGather;
  return {std::move(pairs)};
}

void TopKPath::add_memory(const SizedCall& call, CallMemory& memory) {
  if (!reduces(call.shape.operation) || !call.network.recovery.keeps_states()) return;
  memory.remembered += call.of_all_ranks(call.shape.elements);
}

TopKPath::TopKPath(const PathContext& context) : context_(context), messages_(context.messages()) {}

void TopKPath::plan(const CallArguments& call, CallFates& fates) {
  const std::uint64_t elems = call.input.count_elems();
  if (elems > std::numeric_limits<std::uint32_t>::max()) {
    throw ConfigError("message \"" + std::string(call.message.name) + "\": got " + std::to_string(elems) +
                      " elements, but compression top_k has indices of 32 bits; want smaller messages");
  }
  if (element_bytes(call.input.type) < sizeof(float)) {
    throw ConfigError("message \"" + std::string(call.message.name) + "\": got elements of type " +
                      std::string(element_type_name(call.input.type)) +
                      ", want float32 or float64 for compression top_k");
  }
  pairs_ = pairs_of(context_.network.compression, elems);
  if (context_.feeds_back()) {
    feedback_.plan(context_.stale, call.input, call.op, StaleMemory::Use::kAllReduceFeedback, {}, call.message);
  }
  if (context_.network.recovery.keeps_states()) {
    states_.plan(context_.stale, call, context_.group.world_size(), elems, {});
  }
  lost_.start(static_cast<std::size_t>(context_.group.world_size()));
  messages_.visit_of(shape_of(call), context_.group.rank(), [&](const PathMessage& message) {
    lost_.take(context_, call.message.traffic_class, fates, message,
               message.to_all ? Interest::kFates : Interest::kNone, static_cast<std::size_t>(message.source));
  });
}

// The bytes of ranks on devices travel from device to device.
void TopKPath::gather_pairs(std::span<const std::uint64_t> counts, const CallArguments& call, Communicator& inner) {
  constexpr ElementType kBytes = ElementType::kUint8;
  Stream* const stream = call.input.stream;
  if (stream == nullptr) {
    return inner.all_gather(ConstTensor(kBytes, sent_), Tensor(kBytes, received_), counts, call.message);
  }
  const DeviceMemory from(sent_.size(), "pairs of a compressed contribution");
  const DeviceMemory to(received_.size(), "pairs of all ranks");
  copy_to_device(std::span<const std::byte>(sent_), from.data(), *stream);
  inner.all_gather(ConstTensor(kBytes, {from.data(), sent_.size()}, stream),
                   Tensor(kBytes, {to.data(), received_.size()}, stream), counts, call.message);
  copy_to_host(to.data(), received_, *stream);
  stream->synchronize();
}

// Every rank tells all others the packets of each source that it misses.
void TopKPath::acknowledge(const sim::Packetizer& packets, Communicator& inner) {
  const auto ranks = static_cast<std::size_t>(context_.group.world_size());
  const std::uint64_t words = mask_words(packets);
  std::vector<std::uint64_t> mine(ranks * words);
  for (std::size_t source = 0; source < ranks; ++source) {
    const sim::PacketMask* lost = lost_.of(source);
    if (lost != nullptr) std::ranges::copy(lost->words(), mine.begin() + static_cast<std::ptrdiff_t>(source * words));
  }
  std::vector<std::uint64_t> all(ranks * mine.size());
  inner.all_gather(ConstTensor(std::span<const std::uint64_t>(mine)), Tensor(std::span(all)),
                   std::vector<std::uint64_t>(ranks, mine.size()), kAcknowledgement);
  missing_.assign(ranks, sim::PacketMask(packets.packets()));
  for (std::size_t i = 0; i < ranks * ranks; ++i) {
    add_missing(std::span(all).subspan(i * words, words), missing_[i % ranks]);
  }
}

template <class T>
void TopKPath::change_states(const sim::Packetizer& packets, std::span<T> sums) {
  const auto me = static_cast<std::size_t>(context_.group.rank());
  const bool acknowledged = !missing_.empty();
  change_on_host(states_.estimate(), [&](Tensor estimate) {
    add_pairs<T>(sent_, acknowledged ? &missing_[me] : nullptr, packets, estimate.as<T>());
  });
  for (std::size_t source = 0; source < static_cast<std::size_t>(context_.group.world_size()); ++source) {
    change_on_host(states_.copy_of(static_cast<int>(source)), [&](Tensor copied) {
      const auto message = std::span<const std::byte>(received_).subspan(source * sent_.size(), sent_.size());
      errors_.dropped_pairs +=
          add_pairs<T>(message, acknowledged ? &missing_[source] : lost_.of(source), packets, copied.as<T>());
      const auto values = copied.as<T>();
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
    });
  }
}

EndErrors TopKPath::compare_ends(Communicator& inner) {
  if (!context_.network.recovery.keeps_states()) return {};
  return states_.compare(context_.group.rank(), [&](ConstTensor estimate, Tensor copies) {
    const auto ranks = static_cast<std::size_t>(context_.group.world_size());
    inner.all_gather(estimate, copies, std::vector<std::uint64_t>(ranks, estimate.count_elems()), kAcknowledgement);
  });
}

template <class T>
void TopKPath::run_on_host(const CallArguments& call, ConstTensor input, Tensor output, Communicator& inner) {
  const auto values = input.as<T>();
  const auto ranks = static_cast<std::size_t>(context_.group.world_size());
  const auto me = static_cast<std::size_t>(context_.group.rank());
  chosen_.resize(values.size());
  std::iota(chosen_.begin(), chosen_.end(), 0U);
  const auto larger = [&values](std::uint32_t a, std::uint32_t b) {
    const double of_a = magnitude(values[a]);
    const double of_b = magnitude(values[b]);
    return of_a > of_b || (of_a == of_b && a < b);
  };
  const auto end = chosen_.begin() + static_cast<std::ptrdiff_t>(pairs_);
  if (end != chosen_.end()) std::nth_element(chosen_.begin(), end, chosen_.end(), larger);
  chosen_.erase(end, chosen_.end());
  std::sort(chosen_.begin(), chosen_.end());

  sent_.resize(pairs_ * kPairBytes<T>);
  for (std::size_t pair = 0; pair < chosen_.size(); ++pair) {
    std::byte* const to = sent_.data() + pair * kPairBytes<T>;
    std::memcpy(to, &chosen_[pair], sizeof(std::uint32_t));
    std::memcpy(to + sizeof(std::uint32_t), &values[chosen_[pair]], sizeof(T));
  }
  received_.resize(ranks * sent_.size());
  const std::vector<std::uint64_t> counts(ranks, sent_.size());
  gather_pairs(counts, call, inner);

  const sim::Packetizer packets = context_.packets(input.type, pairs_);
  std::vector<T> delivered(values.size(), T{0});  // delivered elements of this rank's contribution
  add_pairs<T>(sent_, nullptr, packets, delivered);
  errors_ = {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = number_of(delivered[i]) - number_of(values[i]);
    errors_.error_energy += error * error;
    errors_.energy += number_of(values[i]) * number_of(values[i]);
  }
  if (context_.feeds_back()) {
    if (lost_.of(me) != nullptr) {
      std::ranges::fill(delivered, T{0});
      add_pairs<T>(sent_, lost_.of(me), packets, delivered);
    }
    feedback_.changed(0, input, ConstTensor(std::span<const T>(delivered)));
  }
  const std::span<T> sums = output.as<T>();
  std::ranges::fill(sums, T{0});
  missing_.clear();
  if (context_.network.recovery.error_feedback == ClassRecovery::ErrorFeedback::kEf21Acknowledged) {
    acknowledge(packets, inner);
  }
  if (context_.network.recovery.keeps_states()) change_states<T>(packets, sums);
  for (std::size_t source = 0; source < ranks && !context_.network.recovery.keeps_states(); ++source) {
    const std::uint64_t dropped = add_pairs<T>(std::span(received_).subspan(source * sent_.size(), sent_.size()),
                                               lost_.of(source), packets, sums);
    errors_.dropped_pairs += dropped;
  }
  if (call.op == ReduceOp::kMean) divide(output, static_cast<double>(ranks));
}

void TopKPath::run(const CallArguments& call, Communicator& inner, Scratch& scratch) {
  const ConstTensor input = context_.feeds_back()                      ? feedback_.correct(call.input, scratch)
                            : context_.network.recovery.keeps_states() ? states_.difference(call.input, scratch)
                                                                       : call.input;
  read_on_host(input, [&](ConstTensor values) {
    change_on_host(call.output, [&](Tensor sums) {
      if (values.type == ElementType::kFloat32) return run_on_host<float>(call, values, sums, inner);
      run_on_host<double>(call, values, sums, inner);
    });
  });
}

}  // namespace droptest::comm
