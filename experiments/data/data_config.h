// SPDX-License-Identifier: Apache-2.0
// The data that a run trains on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "experiments/data/example_config.h"
#include "experiments/data/shard_config.h"

namespace droptest::experiments {

/// The layout of a token file (docs/formats.md).
enum class TokenFormat : std::uint8_t {
  kAuto,    ///< llm.c's header if it is there, else headerless uint16
  kLlmc,    ///< 256 int32 header, magic 20240520, then uint16
  kUint16,  ///< headerless little-endian uint16
};

struct DataConfig {
  std::string text;    ///< UTF-8 file, tokens are its bytes; or
  std::string tokens;  ///< file of tokens; or
  std::optional<ShardConfig> shards;
  std::optional<ExampleConfig> examples;  ///< labelled texts, which a classification head is trained on
  TokenFormat format = TokenFormat::kAuto;
  std::optional<int> end_of_text;    ///< the last token of a document; absent: a sequence is one document
  double validation_fraction = 0.1;  ///< the last part of the data, by position

  /// The members by their names in a spec, except for those of shards and examples.
  void visit_members(const auto& visit) {
    visit("text", text);
    visit("tokens", tokens);
    visit("format", format,
          {{"auto", TokenFormat::kAuto},
           {"llmc", TokenFormat::kLlmc},
           {"uint16", TokenFormat::kUint16},
           {"text", TokenFormat::kAuto}});
    visit("end_of_text", end_of_text);
    visit("validation_fraction", validation_fraction);
  }
};

}  // namespace droptest::experiments
