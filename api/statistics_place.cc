// SPDX-License-Identifier: Apache-2.0
#include "api/statistics_place.h"

#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>

#include "api/rank_statistics.h"
#include "comm/json/read_file.h"
#include "sim/error.h"

namespace droptest::api {
namespace {

struct Taken {
  std::mutex mutex;
  std::set<std::tuple<pid_t, std::string, int>> places;
};

Taken& taken() {
  static auto* const all = new Taken;  // networks may end after static objects
  return *all;
}

}  // namespace

StatisticsPlace::StatisticsPlace(const std::string& folder, int rank, const std::string& where) {
  if (folder.empty()) return;
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(folder, error);
  // A name at the end makes a path that ends with a slash the same folder.
  const std::filesystem::path path = error ? whole : std::filesystem::weakly_canonical(whole / "ranks", error);
  if (error) comm::fail_on_file("find", folder, error.value());
  const std::lock_guard lock(taken().mutex);
  key_ = {::getpid(), path.string(), rank};
  if (!taken().places.insert(key_).second) {
    throw ConfigError(
        where + ": /statistics: got " + folder + ", where another network of rank " + std::to_string(rank) +
        " in this process writes its counts; want a folder of its own, or the other one closed first (close())");
  }
  try {
    std::filesystem::create_directories(path, error);
    if (error) comm::fail_on_file("create", path.string(), error.value());
    forget_statistics(folder, rank);
  } catch (...) {
    taken().places.erase(key_);
    throw;
  }
}

StatisticsPlace::~StatisticsPlace() {
  const std::lock_guard lock(taken().mutex);
  taken().places.erase(key_);
}

}  // namespace droptest::api
