// SPDX-License-Identifier: Apache-2.0
// A file that tensors of host memory lie in between two uses, written and read while the rank computes.
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

/// Bytes that can be written and read at any place.
class ByteFile {
 public:
  virtual ~ByteFile() = default;
  /// Takes room for the first `bytes` bytes, which are zeros. `purpose` is for errors. Throws: ConfigError that names
  /// the file and the bytes.
  virtual void reserve(std::uint64_t bytes, const std::string& purpose) = 0;
  /// Throws: ConfigError that names the file, the place, and the bytes written or read.
  virtual void write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void read_at(std::uint64_t offset, std::span<std::byte> bytes) = 0;
  /// For errors.
  virtual const std::string& name() const = 0;
};

/// A new file "droptest-offload-..." in the directory, which has no name once it is open: nothing of it stays, however
/// the program ends. An empty directory: the system's for temporary files. Throws: ConfigError that names the path.
std::unique_ptr<ByteFile> make_offload_file(const std::string& directory);

/// Values by key. A thread writes and reads, in the order of the calls, so that a key is read as it was last put. In
/// the file, the number of their put follows the values: where a file was cut and has grown again, it is missing.
/// Owner: one rank, from one thread. Errors of the thread come from the next call.
class OffloadFile final : public KeyedStorage {
 public:
  /// Values that are on their way to the file at once, each in a buffer of its own.
  static constexpr std::size_t kMostWrites = kMostBuffers / 2;

  explicit OffloadFile(std::unique_ptr<ByteFile> file);
  /// Ends without the rest of the work.
  ~OffloadFile() override;
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;

  /// The bytes may change when it returns. Blocking: while kMostWrites others are being written.
  void put(std::uint64_t key, std::span<const std::byte> bytes);
  void put(std::uint64_t key, comm::ConstTensor values) override { put(key, values.bytes); }
  void expect(std::uint64_t key) override;
  /// Blocking: until they are read. Shapes: as many bytes as were put.
  void take(std::uint64_t key, std::span<std::byte> to);
  void take(std::uint64_t key, comm::Tensor values) override { take(key, values.bytes); }

  /// They are reused and never freed.
  std::uint64_t buffer_bytes() const override { return buffer_bytes_; }

 private:
  using Buffer = std::vector<std::byte>;
  struct Place {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    std::size_t room = 0;      ///< with the number
    std::uint64_t number = 0;  ///< of the last put, from 1
  };
  struct Job {
    std::uint64_t key = 0;
    Place place;
    Buffer buffer;
    bool is_write = false;
  };

  void work();
  /// Throws: ConfigError where the bytes that were read do not end with their number.
  void check_number(const Job& read) const;
  void throw_failure();
  /// An idle buffer for so many bytes and their number.
  Buffer buffer(std::size_t bytes);

  std::unique_ptr<ByteFile> file_;
  std::map<std::uint64_t, Place> places_;  ///< of the owner's thread
  std::uint64_t end_ = 0;
  std::uint64_t puts_ = 0;
  std::uint64_t buffer_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::size_t writes_ = 0;  ///< that are not done
  std::set<std::uint64_t> expected_;
  std::map<std::uint64_t, Buffer> arrived_;
  std::vector<Buffer> idle_;
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace droptest::models
