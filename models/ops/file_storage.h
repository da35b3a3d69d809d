// SPDX-License-Identifier: Apache-2.0
// Storage in a file on the host.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "models/ops/offload_file.h"
#include "models/ops/storage.h"

namespace droptest::models {

/// A separate thread copies between the file and host memory.
class FileStorage final : public Storage {
 public:
  /// Reserves all bytes at once, so that a full disk is an error here. `purpose` names the storage in errors. Throws:
  /// ConfigError that names the file and the bytes.
  FileStorage(std::unique_ptr<ByteFile> file, std::uint64_t bytes, const std::string& purpose);
  ~FileStorage() override;
  FileStorage(const FileStorage&) = delete;
  FileStorage& operator=(const FileStorage&) = delete;

  Ticket write(std::uint64_t offset, comm::ConstTensor from) override;
  Ticket read(std::uint64_t offset, comm::Tensor to) override;
  void wait(Ticket ticket) override;

 private:
  struct Job {
    std::uint64_t offset = 0;
    std::span<const std::byte> from;
    std::span<std::byte> to;  ///< destination of a read; empty: the job is a write
  };
  Ticket add(const Job& job);
  void work();

  std::unique_ptr<ByteFile> file_;
  std::uint64_t bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  Ticket added_ = 0;
  Ticket done_ = 0;
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace droptest::models
