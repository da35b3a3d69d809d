// SPDX-License-Identifier: Apache-2.0
// A collective or a message that has been started and not yet waited for.
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

/// A call of Communicator::start_all_reduce() and its siblings. It can be moved, not copied. Owner: the rank, on whose
/// thread it is used; the communicator outlives it. Buffers: the tensors belong to the work from its start until wait()
/// returns.
class [[nodiscard]] Work {
 public:
  /// One that is done.
  Work() = default;
  Work(Work&& other) noexcept;
  Work& operator=(Work&& other) noexcept;
  /// A work that was not waited for: waits for it, and leaves an error to the next call of the group. While an error
  /// unwinds it aborts the group instead, since the peers would wait for a rank that is on its way out.
  ~Work();

  /// Returns when the output is complete and the input may be reused; with device memory, when that is on the tensors'
  /// stream. It does the rank's part of all works that the rank has started before. Needs of the peers only that they
  /// start the same, where the backend says so (docs/backends.md). A second call returns at once, or throws the same
  /// error. Throws: as the blocking call.
  void wait();
  /// Whether wait() would return, or throw, at once. It may do some of the work, and never waits for another rank. On
  /// NCCL's receives, and on a loss layer with a clock or where it runs calls at the wait, it stays false until the
  /// rank waits or calls something else.
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
  int unwinding_ = 0;  ///< uncaught exceptions at the start
};

}  // namespace droptest::comm
