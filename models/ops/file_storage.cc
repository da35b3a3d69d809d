// SPDX-License-Identifier: Apache-2.0
#include "models/ops/file_storage.h"

#include <utility>

#include "sim/error.h"

namespace droptest::models {

FileStorage::FileStorage(std::unique_ptr<ByteFile> file, std::uint64_t bytes, const std::string& purpose)
    : file_(std::move(file)), bytes_(bytes) {
  file_->reserve(bytes, purpose);
  thread_ = std::thread([this] { work(); });
}

FileStorage::~FileStorage() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FileStorage::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || (!jobs_.empty() && failure_ == nullptr); });
    if (ends_) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (job.to.empty()) {
        file_->write_at(job.offset, job.from);
      } else {
        file_->read_at(job.offset, job.to);
      }
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure != nullptr) {
      failure_ = failure;
    } else {
      ++done_;
    }
    changed_.notify_all();
  }
}

Storage::Ticket FileStorage::add(const Job& job) {
  const std::size_t count = job.from.size() + job.to.size();
  DROPTEST_CHECK(job.offset + count <= bytes_, "storage: a place outside of it");
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  if (count > 0) {
    jobs_.push_back(job);
    ++added_;
    changed_.notify_all();
  }
  return added_;
}

Storage::Ticket FileStorage::write(std::uint64_t offset, comm::ConstTensor from) {
  return add({offset, from.bytes, {}});
}

Storage::Ticket FileStorage::read(std::uint64_t offset, comm::Tensor to) { return add({offset, {}, to.bytes}); }

void FileStorage::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket || failure_ != nullptr; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

}  // namespace droptest::models
