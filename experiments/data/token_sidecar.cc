// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/token_sidecar.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "sim/error.h"

namespace droptest::experiments {
using nlohmann::json;

namespace {

/// The file that scripts/tokenize writes next to a file of tokens, and its content; null: there is none.
struct Sidecar {
  std::string path;
  json about;
};

Sidecar sidecar_of(const std::string& token_file) {
  const std::filesystem::path path = std::filesystem::path(token_file).replace_extension(".json");
  if (path == token_file || !std::filesystem::is_regular_file(path)) return {};
  // The file of this name may belong to another program: the source of the tokens, of any size.
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 20;
  if (std::filesystem::file_size(path) > kMostBytes) return {};
  const std::string text = comm::read_file(path.string());
  json about;
  try {
    about = json::parse(text);
  } catch (const json::parse_error& error) {
    // A text that was cut is a damaged sidecar; lines of JSON, or another text, belong to another program.
    if (std::string_view(error.what()).find("unexpected end of input") == std::string_view::npos) return {};
  }
  if (about.is_null() || about.is_object()) about = comm::parse_json(text, path.string());
  if (!about.is_object() || !(about.contains("tokens") || about.contains("vocabulary_sha256"))) return {};
  return {path.string(), std::move(about)};
}

double count_in(const Sidecar& sidecar, const char* member) {
  const json& value = sidecar.about[member];
  if (value.is_number_unsigned() && value != 0) return value.get<double>();
  throw ConfigError(sidecar.path + ": /" + member + ": got " + comm::quote_json(value) +
                    ", want a whole number above 0, as scripts/tokenize writes it");
}

void require_count(const Sidecar& sidecar, const std::string& token_file, std::uint64_t tokens) {
  if (sidecar.about["tokens"] == tokens) return;
  throw ConfigError(sidecar.path + ": /tokens: got " + comm::quote_json(sidecar.about["tokens"]) + ", but " +
                    token_file + " has " + std::to_string(tokens) +
                    " tokens; want the file that scripts/tokenize wrote with it, or none");
}

}  // namespace

std::string vocabulary_hash_of(const std::string& token_file) {
  const Sidecar sidecar = sidecar_of(token_file);
  if (!sidecar.about.is_object() || !sidecar.about.contains("vocabulary_sha256")) return "";
  if (sidecar.about["vocabulary_sha256"].is_string()) return sidecar.about["vocabulary_sha256"];
  throw ConfigError(sidecar.path + ": /vocabulary_sha256: got " + comm::quote_json(sidecar.about["vocabulary_sha256"]) +
                    ", want a text, as scripts/tokenize writes it");
}

double bytes_per_token_of(const std::string& token_file, std::uint64_t tokens) {
  const Sidecar sidecar = sidecar_of(token_file);
  const json& about = sidecar.about;
  if (!about.is_object() || !about.contains("bytes") || !about.contains("tokens")) return std::nan("");
  const double bytes = count_in(sidecar, "bytes");
  (void)count_in(sidecar, "tokens");
  require_count(sidecar, token_file, tokens);
  return bytes / static_cast<double>(tokens);
}

void check_token_count_of(const std::string& token_file, std::uint64_t tokens) {
  const Sidecar sidecar = sidecar_of(token_file);
  const json& about = sidecar.about;
  if (!about.is_object() || !about.contains("vocabulary_sha256") || !about.contains("tokens")) return;
  require_count(sidecar, token_file, tokens);
}

}  // namespace droptest::experiments
