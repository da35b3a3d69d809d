// SPDX-License-Identifier: Apache-2.0
// Any text is either the manifest of a checkpoint, which is written and read again alike, or refused with a
// ConfigError.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "experiments/files/manifest.h"
#include "sim/error.h"

namespace {

/// The error of a text that is none.
std::optional<std::string> error_of(const std::string& text) {
  using namespace droptest::experiments;
  try {
    const std::string written = manifest_text(parse_manifest(text, "fuzz"));
    if (manifest_text(parse_manifest(written, "written")) != written) __builtin_trap();
    return std::nullopt;
  } catch (const droptest::ConfigError& error) {
    return error.what();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::optional<std::string> error = error_of(text);
  if (!error) return 0;
  // The checksum hides the other checks from random texts: the same with the one that fits.
  static const std::string before = "the content has \"";
  const std::size_t at = error->rfind(before);
  if (at == std::string::npos) return 0;
  nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (!document.is_object()) return 0;
  document["crc32c"] = error->substr(at + before.size(), 8);
  (void)error_of(document.dump());
  return 0;
}
