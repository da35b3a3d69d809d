// SPDX-License-Identifier: Apache-2.0
// A finished run that is run once more: its records stay until the new ones are complete.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "experiments/checkpoint/checkpointer.h"
#include "experiments/records/run_records.h"
#include "experiments/spec/resolve.h"

namespace droptest::experiments {

/// Whether the run may continue from checkpoints in its folder, so that its records so far stay.
bool may_resume(const RunDirectory& directory, CheckpointPlace::Resume resume);

/// The folder of the next attempt of a run: the run's folder, or the folder `again` in it if the run's records must
/// stay meanwhile (keeps_records()).
RunDirectory attempt_folder(const RunDirectory& directory);

/// Makes the folder of the next attempt ready and returns it. Nothing in it is taken for a result. Its metrics and
/// checkpoints are those from which the next attempt goes on: with `from_step` the checkpoints up to that step and the
/// earlier records; with kNever none; else those of the last attempt, in `again` only those of the same spec. The
/// caller holds the run's lock until complete_repetition(). Throws: ConfigError for a checkpoint that is damaged,
/// before anything is removed.
RunDirectory prepare_attempt(const ResolvedRun& run, const RunDirectory& directory, CheckpointPlace::Resume resume,
                             std::optional<std::uint64_t> from_step = std::nullopt);

/// The error text of a finished run that is to go on from a step without Again::kYes.
std::string finished_text(const RunDirectory& directory, std::uint64_t from_step);

/// Puts the records of a complete repetition in the place of the run's, the summary last, and removes `again`. If it is
/// killed on the way, the next call completes it. Does nothing if there is no complete repetition. The caller holds the
/// run's lock. Throws: ConfigError with the path and the system's reason.
void complete_repetition(const RunDirectory& directory);

}  // namespace droptest::experiments
