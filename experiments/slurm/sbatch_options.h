// SPDX-License-Identifier: Apache-2.0
// Options of sbatch that a user adds to a submission.
#pragma once

#include <string>
#include <vector>

namespace droptest::experiments {

/// Checks the words that follow `--` on the command line. Throws: ConfigError for an option that droptest sets itself,
/// or that would change what a submission does, and if the first word is no option.
void check_sbatch_options(const std::vector<std::string>& words);

/// Whether the words ask for GPUs, in one of Slurm's ways: --gpus, -G, --gpus-per-node, --gres and so on.
bool asks_for_gpus(const std::vector<std::string>& words);

}  // namespace droptest::experiments
