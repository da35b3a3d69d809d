// SPDX-License-Identifier: Apache-2.0
// Work cut into chunks with boundaries that depend on the shape alone, so that results do not depend on the thread
// count.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "models/kernels/vector_width.h"
#include "models/team.h"

namespace droptest::models {

/// Chunks of at least `grain` items, and at most `max_chunks` of them.
inline std::int64_t chunk_items(std::int64_t items, std::int64_t grain, std::int64_t max_chunks = 64) {
  return std::max(grain, (items + max_chunks - 1) / max_chunks);
}

/// Calls body(worker, begin, end) for consecutive ranges of `chunk` items that cover [0, items), on the threads of the
/// team. The body must not throw. Determinism: the ranges are the same for any team; which worker gets which is not.
template <class Body>
void for_chunks_by_worker(std::int64_t items, std::int64_t chunk, const Team& team, const Body& body) {
  // Handed out one by one: a thread that lost its core for a while holds up one chunk, not its share of all.
  team.run((items + chunk - 1) / chunk, [&](Team::Worker worker, std::int64_t part) {
    body(worker, part * chunk, std::min(items, (part + 1) * chunk));
  });
}

/// The same for a body(begin, end) that need not know its worker.
template <class Body>
void for_chunks(std::int64_t items, std::int64_t chunk, const Team& team, const Body& body) {
  for_chunks_by_worker(items, chunk, team,
                       [&body](Team::Worker, std::int64_t begin, std::int64_t end) { body(begin, end); });
}

/// Columns of a chunk where each one's sum runs over all rows in order: wide enough to stream along the rows.
inline std::int64_t chunk_columns(std::int64_t width) {
  constexpr std::int64_t kGrain = 64;
  constexpr std::int64_t kChunks = 8;
  const std::int64_t even = (width + kChunks - 1) / kChunks;
  return std::max<std::int64_t>(1, (even + kGrain - 1) / kGrain) * kGrain;
}

/// for_chunks whose bodies are plain loops over elements, compiled for the processor's widest vectors.
template <class Body>
void for_vector_chunks(std::int64_t items, std::int64_t chunk, const Team& team, const Body& body) {
  const VectorWidth width = widest_vectors();
  for_chunks(items, chunk, team, [width, &body](std::int64_t begin, std::int64_t end) {
    run_vectorised(width, [&body, begin, end] { body(begin, end); });
  });
}

/// While alive, libraries called from this thread and its teams start no threads of their own.
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
