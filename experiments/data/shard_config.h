// SPDX-License-Identifier: Apache-2.0
// Training data in several files, as a resolved spec describes it (docs/data.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/data/file_version.h"

namespace droptest::experiments {

/// One file of tokens. Its tokens are the last ones of its bytes; a header comes before them.
struct ShardFile {
  std::string file;
  std::uint64_t bytes = 0;
  std::uint64_t tokens = 0;
  std::optional<std::uint32_t> crc32c;  ///< checksum of the content, if a manifest gives it
  std::string sha256;                   ///< hash of the content, if there is no manifest; empty: not computed
  std::optional<FileVersion> hashed;    ///< the version of the file that sha256 is of

  /// The members by their names in a spec, except for the version and the checksum.
  void visit_members(const auto& visit) {
    visit("file", file);
    visit("bytes", bytes);
    visit("tokens", tokens);
    visit("sha256", sha256);
  }
};

/// The shards of a run, and the rules for those that cannot be read.
struct ShardConfig {
  std::vector<std::string> patterns;             ///< glob patterns of the training shards
  std::vector<std::string> validation_patterns;  ///< empty: the last part of the training shards validates
  std::string manifest;                          ///< path of the list of sizes and checksums; empty: none
  /// Sorted by name. Empty: the spec was resolved without a look at files.
  std::vector<ShardFile> files;
  std::vector<ShardFile> validation_files;
  enum class Content : std::uint8_t { kText, kTokens } content = Content::kTokens;
  enum class Order : std::uint8_t { kShuffled, kAsStored } order = Order::kShuffled;
  double lost_limit = 0;       ///< share of the samples that may be in shards set aside, in [0, 1]
  int attempts = 3;            ///< attempts to read a range of a file, including the first one
  double backoff_seconds = 1;  ///< pause before the second attempt, and twice as long before each further one

  /// The members by their names in the section /data of a spec, except for the lists of files.
  void visit_members(const auto& visit) {
    visit("shards", patterns);
    visit("validation_shards", validation_patterns);
    visit("manifest", manifest);
    visit("format", content,
          {{"text", Content::kText},
           {"auto", Content::kTokens},
           {"llmc", Content::kTokens},
           {"uint16", Content::kTokens}});
    visit("shuffle", order, {{true, Order::kShuffled}, {false, Order::kAsStored}});
    visit("lost_limit", lost_limit);
    visit("retries", [this](const auto& of_retries) {
      of_retries("attempts", attempts);
      of_retries("backoff_seconds", backoff_seconds);
    });
  }
  std::uint64_t token_bytes() const { return content == Content::kText ? 1 : 2; }
};

}  // namespace droptest::experiments
