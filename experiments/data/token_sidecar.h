// SPDX-License-Identifier: Apache-2.0
// The file that scripts/tokenize writes next to a file of tokens (docs/formats.md): NAME.json for NAME.bin.
#pragma once

#include <cstdint>
#include <string>

namespace droptest::experiments {

/// The vocabulary's hash in that file. Empty: there is no such file, or it has no hash. Throws: ConfigError for a file
/// that is not JSON, or a hash that is no text.
std::string vocabulary_hash_of(const std::string& token_file);

/// Bytes of text in each token of a token file of so many tokens, as that file says; NaN if it does not. Throws:
/// ConfigError for counts that are no numbers above 0, and if it counts other tokens than the file has.
double bytes_per_token_of(const std::string& token_file, std::uint64_t tokens);

/// Throws: ConfigError if that file has a vocabulary, and counts other tokens than there are: it is of another file.
void check_token_count_of(const std::string& token_file, std::uint64_t tokens);

}  // namespace droptest::experiments
