// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/fill/ef21.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "comm/device/tensor_operations.h"
#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/on_host.h"
#include "comm/visit_elements.h"

namespace droptest::comm {

const Message kAcknowledgement{sim::TrafficClass::kControl, "packets that arrived"};

void Ef21::plan(StaleMemory& stale, const CallArguments& call, int ranks, std::uint64_t copied_elems,
                std::span<const std::uint64_t> cut) {
  using Use = StaleMemory::Use;
  const bool gathers = call.operation == Operation::kAllReduce;
  const ConstTensor like = call.input;
  copied_elems_ = copied_elems;
  estimate_ = stale.of(gathers ? Use::kAllReduceEstimate : Use::kReduceScatterEstimate, call.message, like,
                       like.count_elems(), cut);
  copies_ = stale.of(gathers ? Use::kAllReduceCopies : Use::kReduceScatterCopies, call.message, like,
                     static_cast<std::uint64_t>(ranks) * copied_elems, cut);
}

ConstTensor Ef21::difference(ConstTensor contribution, Scratch& scratch) const {
  const std::uint64_t elems = contribution.count_elems();
  const Tensor difference = scratch.take(Scratch::Slot::kCorrected, contribution, elems);
  copy(estimate_, difference);
  scale(difference, -1);
  reduce_delivered(ReduceOp::kSum, contribution, difference, nullptr,
                   {elems, element_bytes(contribution.type), element_bytes(contribution.type)});
  return difference;
}

Tensor Ef21::copy_of(int source) const {
  const std::uint64_t begin = static_cast<std::uint64_t>(source) * copied_elems_;
  return slice(copies_, {begin, begin + copied_elems_});
}

EndErrors Ef21::compare(int own, const std::function<void(ConstTensor estimate, Tensor copies)>& gather) const {
  std::vector<std::byte> host;
  DeviceMemory device;
  Tensor estimates(copies_.type, {});
  if (copies_.stream == nullptr) {
    host.resize(copies_.bytes.size());
    estimates = Tensor(copies_.type, host);
  } else {
    device = DeviceMemory(copies_.bytes.size(), "estimates of all ranks");
    estimates = Tensor(copies_.type, {device.data(), copies_.bytes.size()}, copies_.stream);
  }
  gather(estimate_, estimates);
  EndErrors errors;
  const std::uint64_t own_begin = static_cast<std::uint64_t>(own) * copied_elems_;
  read_on_host(estimates, [&](ConstTensor sent) {
    read_on_host(copies_, [&](ConstTensor received) {
      visit_elements(sent.type, [&]<class T>(std::type_identity<T>) {
        const auto states = sent.as<T>();
        const auto copies = received.as<T>();
        for (std::size_t i = 0; i < states.size(); ++i) {
          if (i >= own_begin && i < own_begin + copied_elems_) continue;
          const double state = number_of(states[i]);
          const double error = number_of(copies[i]) - state;
          errors.error_energy += error * error;
          errors.energy += state * state;
        }
      });
    });
  });
  return errors;
}

void add_missing(std::span<const std::uint64_t> words, sim::PacketMask& missing) {
  std::ranges::transform(words, missing.words(), missing.words().begin(), std::bit_or<>());
}

}  // namespace droptest::comm
