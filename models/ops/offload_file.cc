// SPDX-License-Identifier: Apache-2.0
#include "models/ops/offload_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "sim/error.h"

namespace droptest::models {
namespace {

using Number = std::uint64_t;

std::string reason() { return std::generic_category().message(errno); }

class NamelessFile final : public ByteFile {
 public:
  explicit NamelessFile(const std::string& directory) {
    path_ =
        (directory.empty() ? std::filesystem::temp_directory_path().string() : directory) + "/droptest-offload-XXXXXX";
    descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
    if (descriptor_ < 0)
      throw ConfigError("offload file " + path_ + ": " + reason() + "; want a directory to write in");
    ::unlink(path_.c_str());
  }
  ~NamelessFile() override { ::close(descriptor_); }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;

  void reserve(std::uint64_t bytes, const std::string& purpose) override {
    if (bytes == 0) return;
    const int error = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes));
    if (error == 0) return;
    throw ConfigError("offload file " + path_ + ": cannot reserve " + std::to_string(bytes) + " bytes for " + purpose +
                      ": " + std::generic_category().message(error) + "; want room in this directory, or another one");
  }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t wrote =
          ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0)
        fail("wrote", done, bytes.size(), offset, reason() + "; want room in this directory, or another one");
      done += static_cast<std::size_t>(wrote);
    }
  }
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) override {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t got =
          ::pread(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("read", done, bytes.size(), offset, reason());
      if (got == 0) fail("read", done, bytes.size(), offset, "the file has been cut");
      done += static_cast<std::size_t>(got);
    }
  }

  const std::string& name() const override { return path_; }

 private:
  [[noreturn]] void fail(const char* verb, std::size_t done, std::size_t of, std::uint64_t offset,
                         const std::string& why) const {
    throw ConfigError("offload file " + path_ + ": " + verb + " " + std::to_string(done) + " of " + std::to_string(of) +
                      " bytes at " + std::to_string(offset) + ": " + why);
  }

  std::string path_;
  int descriptor_;
};

}  // namespace

std::unique_ptr<ByteFile> make_offload_file(const std::string& directory) {
  return std::make_unique<NamelessFile>(directory);
}

OffloadFile::OffloadFile(std::unique_ptr<ByteFile> file) : file_(std::move(file)), thread_([this] { work(); }) {}

OffloadFile::~OffloadFile() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void OffloadFile::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || (!jobs_.empty() && failure_ == nullptr); });
    if (ends_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (job.is_write) {
        file_->write_at(job.place.offset, job.buffer);
      } else {
        file_->read_at(job.place.offset, job.buffer);
        check_number(job);
      }
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure != nullptr) {
      failure_ = failure;
    } else if (job.is_write) {
      --writes_;
      idle_.push_back(std::move(job.buffer));
    } else {
      arrived_[job.key] = std::move(job.buffer);
    }
    changed_.notify_all();
  }
}

// A hole in a file reads as zeros.
void OffloadFile::check_number(const Job& read) const {
  Number number = 0;
  std::memcpy(&number, read.buffer.data() + read.place.bytes, sizeof(number));
  if (number == read.place.number) return;
  throw ConfigError("offload file " + file_->name() + ": read " + std::to_string(read.place.bytes) + " bytes at " +
                    std::to_string(read.place.offset) + " that were not written: the file has been cut");
}

void OffloadFile::throw_failure() {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

OffloadFile::Buffer OffloadFile::buffer(std::size_t bytes) {
  Buffer buffer;
  if (!idle_.empty()) {
    buffer = std::move(idle_.back());
    idle_.pop_back();
  }
  const std::size_t before = buffer.capacity();
  buffer.resize(bytes + sizeof(Number));
  buffer_bytes_ += buffer.capacity() - before;
  return buffer;
}

void OffloadFile::put(std::uint64_t key, std::span<const std::byte> bytes) {
  Place& place = places_[key];
  place.bytes = bytes.size();
  place.number = ++puts_;
  if (place.room < bytes.size() + sizeof(Number)) {
    place.offset = end_;
    place.room = bytes.size() + sizeof(Number);
    end_ += place.room;
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return writes_ < kMostWrites || failure_ != nullptr; });
  throw_failure();
  DROPTEST_CHECK(!expected_.contains(key), "offload: values that are put while older ones are expected");
  ++writes_;
  Job job{key, place, buffer(bytes.size()), true};
  std::copy(bytes.begin(), bytes.end(), job.buffer.begin());
  std::memcpy(job.buffer.data() + bytes.size(), &place.number, sizeof(place.number));
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void OffloadFile::expect(std::uint64_t key) {
  const auto place = places_.find(key);
  DROPTEST_CHECK(place != places_.end(), "offload: values that were never put");
  const std::lock_guard lock(mutex_);
  throw_failure();
  if (!expected_.insert(key).second) return;
  jobs_.push_back({key, place->second, buffer(place->second.bytes), false});
  changed_.notify_all();
}

void OffloadFile::take(std::uint64_t key, std::span<std::byte> to) {
  expect(key);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return arrived_.contains(key) || failure_ != nullptr; });
  throw_failure();
  const auto arrived = arrived_.find(key);
  DROPTEST_CHECK(arrived->second.size() == to.size() + sizeof(Number), "offload: values of another size");
  std::copy_n(arrived->second.begin(), to.size(), to.begin());
  idle_.push_back(std::move(arrived->second));
  arrived_.erase(arrived);
  expected_.erase(key);
}

}  // namespace droptest::models
