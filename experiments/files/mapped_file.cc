// SPDX-License-Identifier: Apache-2.0
#include "experiments/files/mapped_file.h"

#include <sys/stat.h>

#include <boost/interprocess/file_mapping.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "sim/error.h"

namespace droptest::experiments {

struct MappedFile::Mapping {
  boost::interprocess::file_mapping file;
  boost::interprocess::mapped_region region;  ///< empty for an empty file, which cannot be mapped
  timespec modified{};

  struct stat status() const {
    struct stat now {};
    DROPTEST_CHECK(::fstat(file.get_mapping_handle().handle, &now) == 0, "fstat of an open file");
    return now;
  }
};

MappedFile::MappedFile(const std::string& path) : path_(path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) throw ConfigError(path + ": is a directory, want a file");
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw ConfigError(path + ": is not a regular file, want one that can be mapped into memory");
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw ConfigError(path + ": cannot open: " + error.message());
  auto mapping = std::make_unique<Mapping>();
  try {
    namespace ipc = boost::interprocess;
    mapping->file = ipc::file_mapping(path.c_str(), ipc::read_only);
    mapping->modified = mapping->status().st_mtim;
    if (size > 0) mapping->region = ipc::mapped_region(mapping->file, ipc::read_only, 0, size);
  } catch (const boost::interprocess::interprocess_exception& failure) {
    throw ConfigError(
        path + ": cannot open: " + std::error_code(failure.get_native_error(), std::system_category()).message());
  }
  mapping_ = std::move(mapping);
}

MappedFile::~MappedFile() = default;

std::span<const std::byte> MappedFile::bytes() const {
  return {static_cast<const std::byte*>(mapping_->region.get_address()), mapping_->region.get_size()};
}

void MappedFile::require_unchanged() const {
  const struct stat status = mapping_->status();
  if (static_cast<std::uintmax_t>(status.st_size) < bytes().size()) {
    throw ConfigError(path_ + ": " + std::to_string(status.st_size) + " bytes, but " + std::to_string(bytes().size()) +
                      " when it was opened: another program cut the file while this one read it");
  }
  const timespec& modified = mapping_->modified;
  if (status.st_mtim.tv_sec != modified.tv_sec || status.st_mtim.tv_nsec != modified.tv_nsec) {
    throw ConfigError(path_ +
                      ": changed since it was opened: another program wrote into the file while this one read "
                      "it; put a new file in its place instead, and run again");
  }
}

}  // namespace droptest::experiments
