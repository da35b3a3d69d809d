// SPDX-License-Identifier: Apache-2.0
// Pieces of tensors, filled from the pieces of files that cut the same tensors in other ways.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "experiments/files/manifest.h"
#include "models/files/safetensors.h"
#include "models/gpt2/tensor_slice.h"

namespace droptest::experiments {

/// The distance between stored copies of the same elements.
struct CopiesDifference {
  double max = 0;
  std::uint64_t tensors = 0;  ///< pieces with copies that differ
};

/// A run of `count` elements, from `full` on in the whole tensor, and from `local` on in a piece of it.
struct ElementRun {
  std::uint64_t full = 0;
  std::uint64_t local = 0;
  std::uint64_t count = 0;
};

/// A wanted piece, and the elements of it that are there.
struct WantedPiece {
  /// A piece of `count` elements from `first` on of a slice of a tensor. `type` as safetensors has it.
  WantedPiece(std::string of_tensor, std::string of_field, std::string stored_type, std::size_t element_bytes,
              const models::TensorSlice& slice, std::uint64_t first, std::uint64_t count);

  std::string tensor;
  std::string field;
  std::string type;
  std::vector<std::uint64_t> full_shape;
  std::vector<ElementRun> runs;
  std::vector<std::byte> bytes;
  std::vector<bool> has;
  std::uint64_t lacking = 0;
};

/// Fills wanted pieces from files. If several files have an element, the first one counts, and the others are compared
/// with it.
class PieceFiller {
 public:
  void want(WantedPiece piece) { pieces_[{piece.field, piece.tensor}].push_back(std::move(piece)); }
  /// Throws: ConfigError for a tensor that the file lacks, or that has another shape or type than is wanted.
  void take(const std::string& folder, const RankFile& file, const models::StoredTensors& tensors);
  /// The pieces by field and tensor, in the order in which they were wanted.
  std::map<std::pair<std::string, std::string>, std::vector<WantedPiece>>& pieces() { return pieces_; }
  const CopiesDifference& difference() const { return difference_; }

 private:
  void copy(const std::string& where, const StoredPiece& stored, const std::vector<ElementRun>& runs,
            const models::StoredTensor& from, WantedPiece& piece);

  std::map<std::pair<std::string, std::string>, std::vector<WantedPiece>> pieces_;
  CopiesDifference difference_;
};

}  // namespace droptest::experiments
