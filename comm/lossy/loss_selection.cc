// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/loss_selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/statistics/device_samples.h"
#include "comm/visit_elements.h"

namespace droptest::comm {
namespace {

template <class T>
double energy_of(std::span<const T> elements) {
  double energy = 0;
  for (const T element : elements) {
    const double value = number_of(element);
    energy += value * value;
  }
  return std::isnan(energy) ? std::numeric_limits<double>::infinity() : energy;
}

double energy_of(ConstTensor data) {
  return visit_elements(data.type, [&]<class T>(std::type_identity<T>) { return energy_of(data.as<T>()); });
}

}  // namespace

void LargestNorm::hit(sim::PacketMask& lost, ConstTensor message, const sim::Packetizer& packets) {
  const std::uint64_t count = packets.packets();
  const std::uint64_t hits = lost.lost_count();
  energies_.clear();
  if (message.stream != nullptr) {
    const std::vector<double> energies = packet_energies_on_device(message, packets);
    for (std::uint64_t packet = 0; packet < count; ++packet) energies_.emplace_back(energies[packet], packet);
  } else {
    for (std::uint64_t packet = 0; packet < count; ++packet) {
      energies_.emplace_back(energy_of(slice(message, packets.elements(packet))), packet);
    }
  }
  const auto larger = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  const auto end = energies_.begin() + static_cast<std::ptrdiff_t>(hits);
  if (end != energies_.end()) std::nth_element(energies_.begin(), end, energies_.end(), larger);
  lost.resize(count);
  for (auto hit = energies_.begin(); hit != end; ++hit) lost.set_lost(hit->second);
}

}  // namespace droptest::comm
