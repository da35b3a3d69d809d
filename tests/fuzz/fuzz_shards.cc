// SPDX-License-Identifier: Apache-2.0
// Any bytes as a manifest of shards. Only ConfigError may come out, and paths are in normal form.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "experiments/data/shard_manifest.h"
#include "sim/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace droptest::experiments;  // NOLINT: the whole program is about one namespace
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    for (const auto& item : parse_shard_manifest(text, "folder", "fuzz")) {
      DROPTEST_CHECK(normal_path(item.first) == item.first, "a path in normal form");
    }
  } catch (const droptest::ConfigError&) {
    return 0;
  }
  return 0;
}
