// SPDX-License-Identifier: Apache-2.0
// Samples of later steps, read by a thread while a step is trained.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "experiments/data/sharded_data.h"

namespace droptest::experiments {

/// The samples of one step; absent ones are not read.
using SampleRequest = std::vector<std::optional<std::uint64_t>>;

/// The result of a request.
struct ReadSamples {
  std::vector<std::vector<std::int32_t>> tokens;  ///< tokens of each sample, [length + 1]; empty: not read
  std::vector<ShardFailure> failures;             ///< failures of shards that could be read until then
};

/// Reads samples in the order of the requests. A shard that fails after all attempts is not read again. Owner: one
/// rank, which calls from one thread.
class ReadAhead {
 public:
  ReadAhead(std::shared_ptr<const ShardedData> data, int rank);
  /// Waits for a read that is under way, but not for a pause.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  void request(SampleRequest samples);
  /// The answer to the oldest request. Blocking: until it is there. Throws: the errors of ShardedData::read().
  ReadSamples take();
  /// Stops reading the shard.
  void set_aside(std::size_t shard);

 private:
  struct Answer {
    ReadSamples samples;
    std::exception_ptr error;
  };
  void run();
  Answer answer(const SampleRequest& request);
  bool is_aside(std::size_t shard) const;
  void pause(double seconds);

  const std::shared_ptr<const ShardedData> data_;  ///< shared by the ranks of the process
  const std::unique_ptr<FileReads> files_;         ///< files of the thread
  mutable std::mutex mutex_;                       ///< guards all below
  std::condition_variable changed_;
  bool stops_ = false;
  std::vector<char> aside_;
  std::deque<SampleRequest> requests_;
  std::deque<Answer> answers_;
  std::thread thread_;
};

}  // namespace droptest::experiments
