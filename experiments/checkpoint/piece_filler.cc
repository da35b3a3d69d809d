// SPDX-License-Identifier: Apache-2.0
#include "experiments/checkpoint/piece_filler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "models/files/stored_number.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// The elements of a piece, in the order of the whole tensor.
std::vector<ElementRun> runs_of(const models::TensorSlice& slice, std::uint64_t first, std::uint64_t count) {
  std::vector<ElementRun> runs;
  slice.for_each_run([&](std::uint64_t full, std::uint64_t local, std::uint64_t elems) {
    const std::uint64_t begin = std::max(local, first);
    const std::uint64_t end = std::min(local + elems, first + count);
    if (begin < end) runs.push_back({full + (begin - local), begin - first, end - begin});
  });
  return runs;
}

/// Calls body(offset in a, offset in b, count) for the elements that both have.
template <class Body>
void for_each_common(const std::vector<ElementRun>& a, const std::vector<ElementRun>& b, const Body& body) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::uint64_t begin = std::max(a[i].full, b[j].full);
    const std::uint64_t end = std::min(a[i].full + a[i].count, b[j].full + b[j].count);
    if (begin < end) body(a[i].local + (begin - a[i].full), b[j].local + (begin - b[j].full), end - begin);
    (a[i].full + a[i].count < b[j].full + b[j].count ? i : j) += 1;
  }
}

}  // namespace

WantedPiece::WantedPiece(std::string of_tensor, std::string of_field, std::string stored_type,
                         std::size_t element_bytes, const models::TensorSlice& slice, std::uint64_t first,
                         std::uint64_t count)
    : tensor(std::move(of_tensor)),
      field(std::move(of_field)),
      type(std::move(stored_type)),
      full_shape(slice.full_shape),
      runs(runs_of(slice, first, count)),
      bytes(static_cast<std::size_t>(count) * element_bytes),
      has(static_cast<std::size_t>(count)),
      lacking(count) {}

void PieceFiller::take(const std::string& folder, const RankFile& file, const models::StoredTensors& tensors) {
  for (const StoredPiece& stored : file.pieces) {
    const auto wanted = pieces_.find({stored.field, stored.tensor});
    if (wanted == pieces_.end()) continue;
    const std::string where = folder + "/" + file.file + ": tensor \"" + stored.key + "\"";
    const auto found = tensors.find(stored.key);
    if (found == tensors.end()) throw ConfigError(where + " is missing");
    const std::vector<ElementRun> runs = runs_of(stored.slice, stored.first, stored.count);
    for (WantedPiece& piece : wanted->second) copy(where, stored, runs, found->second, piece);
  }
}

void PieceFiller::copy(const std::string& where, const StoredPiece& stored, const std::vector<ElementRun>& runs,
                       const models::StoredTensor& from, WantedPiece& piece) {
  if (piece.full_shape != stored.slice.full_shape) throw ConfigError(where + ": its shape is that of another model");
  if (piece.type != from.dtype) {
    throw ConfigError(where + ": got elements of type " + from.dtype + ", want " + piece.type);
  }
  const std::size_t size = piece.has.empty() ? 1 : piece.bytes.size() / piece.has.size();
  if (from.bytes.size() != stored.count * size) throw ConfigError(where + ": got another size than the manifest's");
  double apart = 0;
  for_each_common(runs, piece.runs, [&](std::uint64_t at, std::uint64_t to, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::byte* const source = from.bytes.data() + (at + i) * size;
      std::byte* const target = piece.bytes.data() + (to + i) * size;
      if (!piece.has[to + i]) {
        std::memcpy(target, source, size);
        piece.has[to + i] = true;
        --piece.lacking;
      } else if (std::memcmp(target, source, size) != 0) {
        apart =
            std::max(apart, std::abs(models::to_number(target, piece.type) - models::to_number(source, piece.type)));
      }
    }
  });
  if (apart == 0) return;
  difference_.max = std::max(difference_.max, apart);
  ++difference_.tensors;
}

}  // namespace droptest::experiments
