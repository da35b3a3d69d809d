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
  std::uint64_t step = 0;  ///< finished when it was first seen
};

/// The member `memory` of summary.json: of rank 0, since the run was last started.
struct MemoryRecord {
  std::map<std::string, MemoryPeak> of_model;    ///< by kind, with the buffers of collectives and the loss layer
  std::map<std::string, comm::BufferUse> pools;  ///< by name: buffers that are used again
  MemoryPeak of_process;                         ///< resident memory; 0 where the system does not say it
  std::optional<MemoryPeak> of_device;           ///< in use on rank 0's GPU, by all programs

  /// `kind` is of the model.
  void note(const std::string& kind, std::uint64_t bytes, std::uint64_t step);
  /// The largest resident memory of this process so far.
  void note_process(std::uint64_t step);
  /// Of RankUsageMeter::device_peak_bytes().
  void note_device(std::uint64_t bytes, std::uint64_t step);
};

nlohmann::json to_json(const MemoryRecord& record);

}  // namespace droptest::experiments
