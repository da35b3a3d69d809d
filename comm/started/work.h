// SPDX-License-Identifier: Apache-2.0
// A collective or a message between its start and its wait.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>

namespace droptest::comm {

class Communicator;

/// The backend's part of a started call.
class WorkInFlight {
 public:
  virtual ~WorkInFlight() = default;
  /// Returns when the output is complete and the input may be reused. Called at most once, by the thread of the rank.
  /// Throws: as the blocking call. Afterwards, thrown or not, nothing refers to the buffers of the call.
  virtual void finish() = 0;
  /// Whether finish() would return at once. It may do some of the work, and never waits for another rank.
  virtual bool finished() = 0;
};

/// A call of Communicator::start_all_reduce() and its siblings. It can be moved, not copied. Owner: the rank, which
/// uses it on its thread; the communicator outlives it. Buffers: the tensors belong to the work from its start until
/// wait() returns.
class [[nodiscard]] Work {
 public:
  /// A work that is done.
  Work() = default;
  Work(Work&& other) noexcept;
  Work& operator=(Work&& other) noexcept;
  /// Waits for a work without an earlier wait, and leaves an error to the next call of the group. During the unwinding
  /// of an error it aborts the group instead, since the peers would wait for a rank that has given up.
  ~Work();

  /// Returns when the output is complete and the input may be reused; with device memory, when this is queued on the
  /// tensors' stream. It may do the rank's part of works that the rank has started before. On some backends the peers
  /// only need to have started the same call (docs/backends.md). A second call returns at once, or throws the same
  /// error. Throws: as the blocking call.
  void wait();
  /// Whether wait() would return, or throw, at once. It may do some of the work, and never waits for another rank. It
  /// stays false until the rank waits or makes another call for NCCL's receives, and on a loss layer with a clock or
  /// with calls that run at the wait.
  bool done() noexcept;

 private:
  friend class Communicator;
  Work(Communicator& communicator, std::uint64_t number, std::unique_ptr<WorkInFlight> in_flight);

  void release() noexcept;
  void drop() noexcept;

  Communicator* communicator_ = nullptr;  ///< null: done
  std::uint64_t number_ = 0;
  std::unique_ptr<WorkInFlight> in_flight_;
  std::exception_ptr error_;
  int unwinding_ = 0;  ///< uncaught exceptions when the work started
};

}  // namespace droptest::comm
