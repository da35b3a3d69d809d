// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/read_ahead.h"

#include <chrono>
#include <utility>

#include "sim/error.h"

namespace droptest::experiments {

ReadAhead::ReadAhead(std::shared_ptr<const ShardedData> data, int rank)
    : data_(std::move(data)),
      files_(data_->access().open(rank)),
      aside_(data_->table().files().size(), 0),
      thread_([this] { run(); }) {}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReadAhead::request(SampleRequest samples) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(samples));
  }
  changed_.notify_all();
}

ReadSamples ReadAhead::take() {
  Answer oldest;
  {
    std::unique_lock lock(mutex_);
    DROPTEST_CHECK(!answers_.empty() || !requests_.empty(), "an answer without a request");
    changed_.wait(lock, [this] { return !answers_.empty(); });
    oldest = std::move(answers_.front());
    answers_.pop_front();
  }
  if (oldest.error) std::rethrow_exception(oldest.error);
  return std::move(oldest.samples);
}

void ReadAhead::set_aside(std::size_t shard) {
  const std::lock_guard lock(mutex_);
  aside_[shard] = 1;
}

bool ReadAhead::is_aside(std::size_t shard) const {
  const std::lock_guard lock(mutex_);
  return stops_ || aside_[shard] != 0;
}

void ReadAhead::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stops_ || !requests_.empty(); });
    if (stops_) return;
    // The request stays in the queue until its answer is there, so that take() sees that one will come.
    const SampleRequest request = requests_.front();
    lock.unlock();
    Answer done = answer(request);
    lock.lock();
    requests_.pop_front();
    answers_.push_back(std::move(done));
    changed_.notify_all();
  }
}

ReadAhead::Answer ReadAhead::answer(const SampleRequest& request) {
  Answer done;
  try {
    for (const std::optional<std::uint64_t>& sample : request) {
      std::vector<std::int32_t>& tokens = done.samples.tokens.emplace_back();
      if (!sample) continue;
      const std::size_t shard = data_->table().place(*sample).shard;
      if (is_aside(shard)) continue;
      tokens.resize(static_cast<std::size_t>(data_->table().length()) + 1);
      const auto error = data_->read(*sample, tokens, *files_, [this](double seconds) { pause(seconds); });
      if (!error) continue;
      tokens.clear();
      set_aside(shard);
      done.samples.failures.push_back({shard, *error});
    }
  } catch (...) {
    done.error = std::current_exception();
  }
  return done;
}

void ReadAhead::pause(double seconds) {
  if (data_->access().pause) {
    data_->access().pause(seconds);
    return;
  }
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stops_; });
}

}  // namespace droptest::experiments
