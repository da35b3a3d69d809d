// SPDX-License-Identifier: Apache-2.0
// manifest.json of a checkpoint: its files and the places of the model's tensors in them (docs/checkpoints.md).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/parallel_layout.h"
#include "models/gpt2/tensor_slice.h"

namespace droptest::experiments {

/// The version of the state in checkpoints. Each change of a visit_state() raises it.
inline constexpr int kCheckpointVersion = 4;
/// The oldest version with manifests and weights of the present form, whatever its state.
inline constexpr int kOldestCheckpointVersion = 3;

/// Consecutive elements of a rank's slice of a tensor of the model, stored as one tensor of the rank's file.
struct StoredPiece {
  std::string tensor;  ///< tensor of the model: "h.0.ln_1.weight"
  std::string field;   ///< "values", "first moments", ...
  std::string key;     ///< its name in the file
  models::TensorSlice slice;
  std::uint64_t first = 0;  ///< first element in the slice
  std::uint64_t count = 0;
};

/// One rank's file.
struct RankFile {
  int rank = 0;
  std::string file;  ///< path within the checkpoint's folder
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  std::optional<int> replica_of;                 ///< the rank with a file that has the tensors shared by all replicas
  std::map<std::string, std::uint64_t> numbers;  ///< numbers of the model and its optimizer
  std::vector<StoredPiece> pieces;
};

struct Manifest {
  std::uint64_t step = 0;
  std::string name;         ///< name of the experiment
  std::string run_id;       ///< id of the run that wrote it
  std::string spec_sha256;  ///< hash of the run's resolved spec
  std::string attention;    ///< kernel that computed attention, if that depends on the machine; else empty
  int membership = 0;       ///< number of the membership, from 0, over all layouts of the training; `epoch` in JSON
  comm::ParallelLayout parallel;
  std::vector<RankFile> ranks;
  /// Whether ranks that outlived others have left it (rescue.h): the run goes on from it in a new membership.
  bool is_rescue = false;
  /// The losses of each membership up to the step, from the earliest to the own one (schema `checkpoint`).
  nlohmann::json memberships = nlohmann::json::array();
  nlohmann::json provenance = nlohmann::json::object();  ///< version and commit of the program, time
};

/// Whether a run with that layout goes on from the checkpoint with all of its state, and with the same links.
bool continues(const Manifest& manifest, const comm::ParallelLayout& layout);

/// A checksum as manifests have it: eight hexadecimal digits.
std::string crc_text(std::uint32_t crc);

nlohmann::json to_json(const RankFile& file);
/// Throws: ConfigError that names `where`, for an object without meaning.
RankFile rank_file_from_json(const nlohmann::json& object, const std::string& where);

/// The text of a manifest.json, with a checksum of its own.
std::string manifest_text(const Manifest& manifest);
/// The parts of a manifest's files that a reader takes.
enum class ManifestUse : std::uint8_t {
  kState,       ///< the states of all ranks, which have the present version
  kOwnState,    ///< the state of one rank, which has the present version
  kParameters,  ///< the parameters on all ranks; versions from kOldestCheckpointVersion on
};
/// Throws: ConfigError that names `where`: no JSON, another version, a checksum that does not fit, a member without
/// meaning, files of other ranks than `use` says.
Manifest parse_manifest(const std::string& text, const std::string& where, ManifestUse use = ManifestUse::kState);

}  // namespace droptest::experiments
