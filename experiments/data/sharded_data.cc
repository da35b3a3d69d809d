// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/sharded_data.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm/spec/sha256.h"
#include "experiments/files/crc32c.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20U;
/// Most bytes of a UTF-8 sequence after its first one: text is checked with as many bytes around it.
constexpr std::uint64_t kTextMargin = 3;

void wait_for_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

RetryRule retries_of(const ShardConfig& shards) { return {shards.attempts, shards.backoff_seconds}; }

Pause pause_of(const FileAccess& access) { return access.pause ? access.pause : Pause(wait_for_seconds); }

/// A range of a file's tokens, as bytes in memory.
struct TokenBytes {
  std::vector<std::byte> bytes;
  std::uint64_t first = 0;  ///< the place of their first token in the file
};

/// Returns the error of the last attempt; absent: `result` has the tokens, and for text the bytes around them.
std::optional<std::string> read_tokens(const ShardFile& file, std::uint64_t token_bytes, std::uint64_t first,
                                       std::uint64_t count, FileReads& files, const RetryRule& retries,
                                       const Pause& pause, TokenBytes& result) {
  const std::uint64_t margin = token_bytes == 1 ? kTextMargin : 0;
  const std::uint64_t begin = first - std::min(first, margin);
  const std::uint64_t end = std::min(file.tokens, first + count + margin);
  const std::uint64_t header = file.bytes - file.tokens * token_bytes;
  result.first = begin;
  result.bytes.resize((end - begin) * token_bytes);
  return read_with_retries(files, file.file, header + begin * token_bytes, result.bytes, retries, pause);
}

Tokens::Layout layout_of(ShardConfig::Content content) {
  return content == ShardConfig::Content::kText ? Tokens::Layout::kText : Tokens::Layout::kUint16;
}

/// Absent: the file has the content of its checksum or hash, or has neither. A hash belongs to the file that was there;
/// it is computed again for another one.
std::optional<std::string> damage_of(const ShardFile& file, FileReads& files, const RetryRule& retries,
                                     const Pause& pause) {
  const bool is_other = file.hashed && version_of(file.file) != file.hashed;
  if (!file.crc32c && !is_other) return std::nullopt;
  std::vector<std::byte> piece;
  std::uint32_t crc = crc32c({});
  comm::Sha256 hash;
  for (std::uint64_t at = 0; at < file.bytes; at += piece.size()) {
    piece.resize(std::min(kPieceBytes, file.bytes - at));
    if (auto error = read_with_retries(files, file.file, at, piece, retries, pause)) return error;
    if (file.crc32c) {
      crc = crc32c_continued(crc, piece);
    } else {
      hash.add({reinterpret_cast<const char*>(piece.data()), piece.size()});
    }
  }
  if (file.crc32c && crc != *file.crc32c) return "its content has another CRC-32C than the manifest";
  if (!file.crc32c && hash.hex() != file.sha256) return "its content has changed since the spec was resolved";
  return std::nullopt;
}

}  // namespace

ShardedData::ShardedData(const ShardConfig& shards, double validation_fraction, int sequence_tokens, int vocabulary,
                         FileAccess access)
    : table_(shards.files, shards.token_bytes(), held_out_tokens(shards, validation_fraction), sequence_tokens),
      content_(shards.content),
      vocabulary_(vocabulary),
      retries_(retries_of(shards)),
      lost_limit_(shards.lost_limit),
      access_(std::move(access)) {
  for (const ShardFile& file : shards.files) versions_.push_back(version_of(file.file));
  const std::unique_ptr<FileReads> files = access_.open(0);
  for (std::size_t shard = 0; shard < shards.files.size(); ++shard) {
    if (auto error = damage_of(shards.files[shard], *files, retries_, pause_of(access_))) {
      damaged_.push_back({shard, *error});
    }
  }
}

std::optional<std::string> ShardedData::read(std::uint64_t sample, std::span<std::int32_t> tokens, FileReads& files,
                                             const Pause& pause) const {
  const SampleTable::Place place = table_.place(sample);
  const ShardFile& file = table_.files()[place.shard];
  TokenBytes part;
  if (auto error =
          read_tokens(file, table_.token_bytes(), place.first_token, tokens.size(), files, retries_, pause, part)) {
    return error;
  }
  if (const auto& version = versions_[place.shard]; version && version_of(file.file) != version) {
    return "changed since the run began: another program wrote into the file or replaced it";
  }
  Tokens(part.bytes, layout_of(content_), vocabulary_, file.file, part.first)
      .read(place.first_token - part.first, tokens);
  return std::nullopt;
}

Tokens read_validation_tokens(const ShardConfig& shards, double validation_fraction, int vocabulary,
                              std::uint64_t needed, const FileAccess& access) {
  const bool own = !shards.validation_patterns.empty();
  const std::vector<ShardFile>& list = own ? shards.validation_files : shards.files;
  const std::uint64_t all = tokens_of(list);
  const std::uint64_t held_out = own ? all : held_out_tokens(shards, validation_fraction);
  if (held_out < needed) {
    throw ConfigError("validation data: " + std::to_string(held_out) + " tokens of " + std::to_string(list.size()) +
                      " shards, want at least " + std::to_string(needed) +
                      ": other /data/validation_shards, /data/validation_fraction or /validation/tokens");
  }
  const std::unique_ptr<FileReads> files = access.open(0);
  const Pause pause = pause_of(access);
  std::vector<std::int32_t> tokens;
  std::vector<std::uint64_t> begins;  // first tokens of the files but the first
  std::uint64_t before = 0;           // tokens of the files so far
  for (const ShardFile& file : list) {
    const std::uint64_t first = std::max(before, all - held_out) - before;
    const std::uint64_t count = first >= file.tokens ? 0 : std::min(needed - tokens.size(), file.tokens - first);
    before += file.tokens;
    if (count == 0) continue;
    std::optional<std::string> error = own ? damage_of(file, *files, retries_of(shards), pause) : std::nullopt;
    TokenBytes part;
    if (!error) {
      error = read_tokens(file, shards.token_bytes(), first, count, *files, retries_of(shards), pause, part);
    }
    if (error) throw ConfigError(file.file + ": " + *error + "; validation needs these tokens");
    std::vector<std::int32_t> of_file(count);
    Tokens(part.bytes, layout_of(shards.content), vocabulary, file.file, part.first).read(first - part.first, of_file);
    if (!tokens.empty()) begins.push_back(tokens.size());
    tokens.insert(tokens.end(), of_file.begin(), of_file.end());
  }
  auto words = std::make_shared<std::vector<std::byte>>();
  for (const std::int32_t token : tokens) {
    words->push_back(static_cast<std::byte>(static_cast<std::uint32_t>(token) & 255U));
    words->push_back(static_cast<std::byte>(static_cast<std::uint32_t>(token) >> 8U));
  }
  return Tokens(*words, Tokens::Layout::kUint16, vocabulary, "validation tokens")
      .kept_in(words)
      .with_files_at(std::move(begins));
}

}  // namespace droptest::experiments
