// SPDX-License-Identifier: Apache-2.0
// The threads of one rank.
#pragma once

#include <cstdint>
#include <memory>

namespace droptest::models {

/// The calling thread and workers that run parallel loops; the parts of a loop are handed out one by one. OpenMP's
/// teams are not used, because their threads either spin for milliseconds on a core that other threads need, or sleep
/// between any two loops. A waiting thread of a Team yields its core continuously and sleeps after some milliseconds.
/// The caller does not wait for a late worker, but computes its parts. Copies share the workers; only one thread may
/// call at a time.
class Team {
 public:
  /// The caller and threads - 1 workers. The constructor is implicit, so that 1 can be passed for a team of only the
  /// caller.
  Team(int threads);  // NOLINT(google-explicit-constructor)

  int threads() const { return threads_; }

  /// The number of the thread that runs a part; the caller is 0.
  using Worker = int;

  /// Calls body(worker, part) once for each part in [0, parts), in any order, and returns when all have ended. The body
  /// must not throw or call this team. Libraries that the body calls use one thread on a worker, and on the caller if
  /// it has a SingleThreadedLibraries (models/kernels/chunks.h).
  template <class Body>
  void run(std::int64_t parts, const Body& body) const {
    if (workers_ == nullptr || parts <= 1) {
      for (std::int64_t part = 0; part < parts; ++part) body(Worker{0}, part);
      return;
    }
    run_together(parts, {[](const void* context, Worker worker, std::int64_t part) {
                           (*static_cast<const Body*>(context))(worker, part);
                         },
                         &body});
  }

 private:
  struct Job {
    void (*call)(const void* context, Worker worker, std::int64_t part) = nullptr;
    const void* context = nullptr;
  };
  class Workers;
  void run_together(std::int64_t parts, const Job& job) const;

  int threads_;
  std::shared_ptr<Workers> workers_;  ///< shared by the copies of a team; null if there are no workers
};

}  // namespace droptest::models
