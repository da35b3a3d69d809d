// SPDX-License-Identifier: Apache-2.0
// The memory of a run, before it runs: by kind, for each strategy, and the largest micro-batch that fits.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "experiments/spec/dry_run.h"
#include "experiments/spec/run_config.h"
#include "models/gpt2/parameter_store.h"
#include "models/gpt2/pipeline_plan.h"

namespace droptest::experiments {

/// Bytes of the rank that takes most of them.
struct MemoryEstimate {
  models::MemoryUse model;        ///< exact
  std::uint64_t slot = 0;         ///< the part of activations that one micro-batch saves between its passes
  std::uint64_t slots = 1;        ///< most micro-batches between their passes at a time
  std::uint64_t offload = 0;      ///< buffers of residual streams on their way to an offload file
  std::uint64_t offloaded = 0;    ///< data in the file or in page-locked host memory; no part of the total
  std::uint64_t collectives = 0;  ///< copies of messages on their way: an allowance
  std::uint64_t loss_layer = 0;   ///< values and residuals that fills and error feedback keep
  std::uint64_t outer = 0;        ///< references, momentum and messages of outer steps
  std::uint64_t context = 0;      ///< a process's allowance for CUDA's context and code of kernels; 0 on the CPU
  std::uint64_t of_process = 0;   ///< the process's ranks, data and program; on CUDA its device memory

  std::uint64_t total() const { return model.total() + offload + collectives + loss_layer + outer; }
};

/// The most bytes that Gpt2::memory_use() has for activations, over the ranks with that pipeline coordinate and the
/// tensor coordinate 0. Needs no device. `plan`: the pipeline's; null: one stage.
std::uint64_t largest_activation_bytes(const RunConfig& config, const models::OpsForm& form,
                                       const models::PipelinePlan* plan, const LazyDryRun& run, int pipeline_rank);

/// An allowance on CUDA for copies of messages on their way, below the loss layer.
std::uint64_t message_buffer_bytes(const RunConfig& config);

/// Device memory that a process of a run on CUDA takes at most: it has all ranks with `local`, one rank with other
/// backends. The model's bytes are exact; CUDA, its libraries and messages on their way have allowances. Outer steps
/// are on the host. Throws: ConfigError.
std::uint64_t run_device_bytes(const RunConfig& config);

/// The estimate for a run: a pure function of the config and of the sizes of its data's files. Throws: ConfigError.
MemoryEstimate estimate_memory(const RunConfig& config);

/// The largest training.batch_sequences with which a process takes at most `bytes`, of host memory on the CPU, of
/// device memory on CUDA; 0: not one sequence fits.
int largest_micro_batch(const RunConfig& config, std::uint64_t bytes);

/// The members of the run's estimate; "strategies": the estimate of each strategy that the run can have;
/// "all_offloaded": the estimate of the last strategy with parameters and optimizer state offloaded, too. If `bytes` is
/// given, each estimate has "largest_micro_batch".
nlohmann::json memory_plan_json(const RunConfig& config, std::optional<std::uint64_t> bytes);

/// Bytes of parameters, gradients and moments of the ranks on this machine, which no strategy makes smaller.
std::uint64_t state_bytes(const RunConfig& config);

/// The section `memory` with which a process takes at most that many bytes, as JSON: the first such strategy, or the
/// offload of everything that can be offloaded; empty: none.
std::string memory_that_fits(const RunConfig& config, std::uint64_t bytes);

}  // namespace droptest::experiments
