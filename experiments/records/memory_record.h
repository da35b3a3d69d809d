// SPDX-License-Identifier: Apache-2.0
// The peaks of memory of a run, and the steps at which they were reached.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "comm/buffer_use.h"

namespace droptest::experiments {

struct MemoryPeak {
  std::uint64_t bytes = 0;
  std::uint64_t step = 0;  ///< last finished step when the peak was first seen
};

/// The member `memory` of summary.json: the memory of rank 0, since the run was last started.
struct MemoryRecord {
  /// Peaks of the model by kind, with the buffers of collectives and the loss layer.
  std::map<std::string, MemoryPeak> of_model;
  std::map<std::string, comm::BufferUse> pools;  ///< buffers that are used again, by name
  MemoryPeak of_process;                         ///< resident memory; 0 if the system does not tell it
  std::optional<MemoryPeak> of_device;           ///< memory in use on rank 0's GPU, by all programs

  /// Notes memory of the model; `kind` is one of the model's.
  void note(const std::string& kind, std::uint64_t bytes, std::uint64_t step);
  /// Notes the largest resident memory of this process so far.
  void note_process(std::uint64_t step);
  /// Notes the value of RankUsageMeter::device_peak_bytes().
  void note_device(std::uint64_t bytes, std::uint64_t step);
};

nlohmann::json to_json(const MemoryRecord& record);

}  // namespace droptest::experiments
