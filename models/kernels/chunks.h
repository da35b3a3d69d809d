// SPDX-License-Identifier: Apache-2.0
// Work cut into chunks whose boundaries depend on the shape alone, so that results do not depend on the thread count.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "models/kernels/vector_width.h"

namespace droptest::models {

/// Chunks of at least `grain` items, and at most `max_chunks` of them.
inline std::int64_t chunk_items(std::int64_t items, std::int64_t grain, std::int64_t max_chunks = 64) {
  return std::max(grain, (items + max_chunks - 1) / max_chunks);
}

/// Calls body(begin, end) for consecutive ranges of `chunk` items that cover [0, items); on up to `threads` threads.
/// The body must not throw. Determinism: the ranges are the same for any number of threads.
template <class Body>
void for_chunks(std::int64_t items, std::int64_t chunk, int threads, const Body& body) {
  const std::int64_t chunks = (items + chunk - 1) / chunk;
  // Without OpenMP where one thread suffices: nested calls stay plain loops, and sanitizers see no foreign runtime.
  if (threads <= 1 || chunks <= 1) {
    for (std::int64_t begin = 0; begin < items; begin += chunk) body(begin, std::min(items, begin + chunk));
    return;
  }
  // Chunks are handed out one by one: a thread that lost its core for a while holds up one chunk, not its share of all.
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (std::int64_t c = 0; c < chunks; ++c) body(c * chunk, std::min(items, (c + 1) * chunk));
}

/// for_chunks whose bodies are plain loops over elements, compiled for the processor's widest vectors.
template <class Body>
void for_vector_chunks(std::int64_t items, std::int64_t chunk, int threads, const Body& body) {
  const VectorWidth width = widest_vectors();
  for_chunks(items, chunk, threads, [width, &body](std::int64_t begin, std::int64_t end) {
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
