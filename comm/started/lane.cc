// SPDX-License-Identifier: Apache-2.0
#include "comm/started/lane.h"

#include <utility>

namespace droptest::comm {

class Lane::TaskInFlight final : public WorkInFlight {
 public:
  TaskInFlight(Lane& lane, std::shared_ptr<Task> task) : lane_(lane), task_(std::move(task)) {}

  void finish() override {
    std::unique_lock lock(lane_.mutex_);
    lane_.changed_.wait(lock, [this] { return task_->is_done; });
    if (task_->thrown) std::rethrow_exception(task_->thrown);
  }
  bool finished() override {
    const std::lock_guard lock(lane_.mutex_);
    return task_->is_done;
  }

 private:
  Lane& lane_;
  std::shared_ptr<Task> task_;
};

Lane::~Lane() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::unique_ptr<WorkInFlight> Lane::start(std::function<void()> run) {
  auto task = std::make_shared<Task>();
  task->run = std::move(run);
  if (!thread_.joinable()) thread_ = std::thread([this] { run_tasks(); });
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(task);
  }
  changed_.notify_all();
  return std::make_unique<TaskInFlight>(*this, std::move(task));
}

void Lane::drain() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty(); });
}

void Lane::run_tasks() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::shared_ptr<Task> task = tasks_.front();
    lock.unlock();
    try {
      task->run();
    } catch (...) {
      task->thrown = std::current_exception();
    }
    task->run = nullptr;
    lock.lock();
    task->is_done = true;
    tasks_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace droptest::comm
