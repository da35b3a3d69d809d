// SPDX-License-Identifier: Apache-2.0
// Offloading of host tensors to a file. Writing and reading overlap with computation.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "models/ops/keyed_storage.h"

namespace droptest::models {

/// A file with random access.
class ByteFile {
 public:
  virtual ~ByteFile() = default;
  /// Reserves the first `bytes` bytes, which read as zeros. `purpose` names the file's use in errors. Throws:
  /// ConfigError that names the file and the bytes.
  virtual void reserve(std::uint64_t bytes, const std::string& purpose) = 0;
  /// Writes, or reads, all bytes at that offset. Throws: ConfigError that names the file, the offset, and the bytes
  /// written or read.
  virtual void write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void read_at(std::uint64_t offset, std::span<std::byte> bytes) = 0;
  /// The name of the file in errors.
  virtual const std::string& name() const = 0;
};

/// A new file "droptest-offload-..." in the directory. It is unlinked once it is open, so that it disappears however
/// the program ends. An empty `directory` means the system's temporary folder. Throws: ConfigError that names the path.
std::unique_ptr<ByteFile> make_offload_file(const std::string& directory);

/// Values by key. A thread writes and reads in the order of the calls, so that take() gives the last values that were
/// put. In the file, the number of the put() follows the values; it is missing if the file was truncated and has grown
/// again. Owner: one rank, from one thread. The next call throws the errors of the thread.
class OffloadFile final : public KeyedStorage {
 public:
  /// The largest number of values that are being written at once, each from its own buffer.
  static constexpr std::size_t kMostWrites = kMostBuffers / 2;

  explicit OffloadFile(std::unique_ptr<ByteFile> file);
  /// Drops the jobs that have not begun.
  ~OffloadFile() override;
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;

  /// The bytes may change when the call returns. Blocking: while kMostWrites other values are being written.
  void put(std::uint64_t key, std::span<const std::byte> bytes);
  void put(std::uint64_t key, comm::ConstTensor values) override { put(key, values.bytes); }
  void expect(std::uint64_t key) override;
  /// Blocking: until the values are read. Shapes: as many bytes as were put.
  void take(std::uint64_t key, std::span<std::byte> to);
  void take(std::uint64_t key, comm::Tensor values) override { take(key, values.bytes); }

  /// The bytes of the buffers, which are reused and never freed.
  std::uint64_t buffer_bytes() const override { return buffer_bytes_; }

 private:
  using Buffer = std::vector<std::byte>;
  struct Place {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    std::size_t room = 0;      ///< bytes reserved in the file, with the number of the put
    std::uint64_t number = 0;  ///< number of the last put, from 1
  };
  struct Job {
    std::uint64_t key = 0;
    Place place;
    Buffer buffer;
    bool is_write = false;
  };

  void work();
  /// Throws: ConfigError if the bytes that were read do not end with the number of their put.
  void check_number(const Job& read) const;
  void throw_failure();
  /// An idle buffer for `bytes` bytes and their number.
  Buffer buffer(std::size_t bytes);

  std::unique_ptr<ByteFile> file_;
  std::map<std::uint64_t, Place> places_;  ///< used only by the owner's thread
  std::uint64_t end_ = 0;
  std::uint64_t puts_ = 0;
  std::uint64_t buffer_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::size_t writes_ = 0;  ///< writes that are not finished
  std::set<std::uint64_t> expected_;
  std::map<std::uint64_t, Buffer> arrived_;
  std::vector<Buffer> idle_;
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace droptest::models
