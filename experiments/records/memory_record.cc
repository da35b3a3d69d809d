// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/memory_record.h"

#include <sys/resource.h>

#include <nlohmann/json.hpp>

namespace droptest::experiments {
namespace {

constexpr std::uint64_t kKibi = 1024;

void raise(MemoryPeak& peak, std::uint64_t bytes, std::uint64_t step) {
  if (bytes > peak.bytes) peak = {bytes, step};
}

nlohmann::json to_json(const MemoryPeak& peak) { return {{"bytes", peak.bytes}, {"step", peak.step}}; }

}  // namespace

void MemoryRecord::note(const std::string& kind, std::uint64_t bytes, std::uint64_t step) {
  raise(of_model[kind], bytes, step);
}

void MemoryRecord::note_process(std::uint64_t step) {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0)
    raise(of_process, static_cast<std::uint64_t>(usage.ru_maxrss) * kKibi, step);
}

void MemoryRecord::note_device(std::uint64_t bytes, std::uint64_t step) {
  if (!of_device) of_device.emplace();
  raise(*of_device, bytes, step);
}

nlohmann::json to_json(const MemoryRecord& record) {
  nlohmann::json out = {{"process", to_json(record.of_process)},
                        {"model", nlohmann::json::object()},
                        {"pools", nlohmann::json::object()}};
  if (record.of_device) out["device"] = to_json(*record.of_device);
  for (const auto& [kind, peak] : record.of_model) out["model"][kind] = to_json(peak);
  for (const auto& [name, use] : record.pools) {
    out["pools"][name] = {{"taken", use.taken}, {"allocated", use.allocated}};
    if (use.bytes > 0) out["pools"][name]["bytes"] = use.bytes;
  }
  return out;
}

}  // namespace droptest::experiments
