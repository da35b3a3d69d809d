// SPDX-License-Identifier: Apache-2.0
// Any bytes as a token file or a text. Only ConfigError may be thrown, and the number of tokens fits the number of
// bytes.
#include <cstddef>
#include <cstdint>
#include <span>

#include "experiments/data/token_source.h"
#include "sim/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace droptest::experiments;  // NOLINT: the whole program is about one namespace
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  for (const TokenFormat format : {TokenFormat::kAuto, TokenFormat::kLlmc, TokenFormat::kUint16}) {
    try {
      const Tokens tokens = parse_tokens(file, format, 50257, "fuzz");
      DROPTEST_CHECK(tokens.size() <= size / 2, "more tokens than bytes hold");
    } catch (const droptest::ConfigError&) {
      continue;
    }
  }
  try {
    DROPTEST_CHECK(parse_text(file, 256, "fuzz").size() == size, "a token for each byte");
  } catch (const droptest::ConfigError&) {
    return 0;
  }
  return 0;
}
