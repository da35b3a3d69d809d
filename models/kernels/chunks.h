// SPDX-License-Identifier: Apache-2.0
// Work cut into chunks. Their boundaries depend only on the shape, so results do not depend on the number of threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "models/kernels/vector_width.h"
#include "models/team.h"

namespace droptest::models {

/// The number of items in a chunk: at least `grain`, and so many that there are at most `max_chunks` chunks.
inline std::int64_t chunk_items(std::int64_t items, std::int64_t grain, std::int64_t max_chunks = 64) {
  return std::max(grain, (items + max_chunks - 1) / max_chunks);
}

/// Calls body(worker, begin, end) for consecutive ranges of `chunk` items that cover [0, items), on the threads of the
/// team. The body must not throw. Determinism: the ranges are the same for any team; the assignment of ranges to
/// workers is not.
template <class Body>
void for_chunks_by_worker(std::int64_t items, std::int64_t chunk, const Team& team, const Body& body) {
  // Chunks are handed out one by one: a thread that loses its core for a while delays one chunk, not a fixed share of
  // all.
  team.run((items + chunk - 1) / chunk, [&](Team::Worker worker, std::int64_t part) {
    body(worker, part * chunk, std::min(items, (part + 1) * chunk));
  });
}

/// for_chunks_by_worker() for a body(begin, end) that does not need the worker.
template <class Body>
void for_chunks(std::int64_t items, std::int64_t chunk, const Team& team, const Body& body) {
  for_chunks_by_worker(items, chunk, team,
                       [&body](Team::Worker, std::int64_t begin, std::int64_t end) { body(begin, end); });
}

/// The number of columns in a chunk of a loop that sums columns over all rows, in the order of the rows: an eighth of
/// the width, rounded up to a multiple of 64, so that the loop reads long stretches of each row.
inline std::int64_t chunk_columns(std::int64_t width) {
  constexpr std::int64_t kGrain = 64;
  constexpr std::int64_t kChunks = 8;
  const std::int64_t even = (width + kChunks - 1) / kChunks;
  return std::max<std::int64_t>(1, (even + kGrain - 1) / kGrain) * kGrain;
}

/// for_chunks() for bodies that are plain loops over elements. They are compiled for the processor's widest vectors.
template <class Body>
void for_vector_chunks(std::int64_t items, std::int64_t chunk, const Team& team, const Body& body) {
  const VectorWidth width = widest_vectors();
  for_chunks(items, chunk, team, [width, &body](std::int64_t begin, std::int64_t end) {
    run_vectorised(width, [&body, begin, end] { body(begin, end); });
  });
}

/// While this object lives, libraries that this thread and its teams call start no threads.
class SingleThreadedLibraries {
 public:
  SingleThreadedLibraries() : previous_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThreadedLibraries() { omp_set_num_threads(previous_); }
  SingleThreadedLibraries(const SingleThreadedLibraries&) = delete;
  SingleThreadedLibraries& operator=(const SingleThreadedLibraries&) = delete;

 private:
  int previous_;
};

}  // namespace droptest::models
