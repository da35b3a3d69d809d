// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "experiments/data/shard_list.h"
#include "experiments/data/token_format.h"
#include "experiments/data/token_source.h"
#include "sim/error.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::token_format_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kVocabulary = 50257;

/// The integers in files of so many bytes each, least byte first.
std::vector<std::byte> file_of(const std::vector<std::uint64_t>& values, std::size_t bytes_each) {
  std::vector<std::byte> bytes;
  for (const std::uint64_t value : values) {
    for (std::size_t i = 0; i < bytes_each; ++i) bytes.push_back(static_cast<std::byte>(value >> (8 * i) & 255U));
  }
  return bytes;
}

std::vector<std::uint64_t> random_values(std::size_t count, std::uint64_t below, unsigned seed) {
  std::mt19937_64 draw(seed);
  std::vector<std::uint64_t> values(count);
  for (std::uint64_t& value : values) value = draw() % below;
  return values;
}

/// The message of a refusal; empty: the file is read.
std::string refusal(std::span<const std::byte> file, TokenFormat format = TokenFormat::kAuto,
                    int vocabulary = kVocabulary) {
  try {
    (void)parse_tokens(file, format, vocabulary, "tokens.bin");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::byte> beginning(std::string_view start, std::size_t size) {
  std::vector<std::byte> bytes = file_of(random_values(size / 2, kVocabulary, 1), 2);
  std::memcpy(bytes.data(), start.data(), start.size());
  return bytes;
}

TEST(TokenFormat, FilesOfOtherKindsAreRefusedByName) {
  const std::vector<std::pair<std::string, const char*>> kinds = {
      {"\x93NUMPY", "NumPy file (.npy); want its numbers without a header"},
      {std::string("PK\x03\x04", 4), "zip archive"},
      {"\x1f\x8b\x08", "compressed (gzip)"},
      {"\x28\xb5\x2f\xfd", "compressed (zstd)"},
      {std::string("\xfd"
                   "7zXZ\0",
                   6),
       "compressed (xz)"},
      {"PAR1", "Parquet"},
      {"ARROW1", "Arrow"},
      {"MMIDIDX", "want the .bin file next to it"}};
  for (const auto& [start, what] : kinds) {
    for (const TokenFormat format : {TokenFormat::kAuto, TokenFormat::kUint16, TokenFormat::kLlmc}) {
      EXPECT_THAT(refusal(beginning(start, 4096), format, 65536), AllOf(HasSubstr("tokens.bin"), HasSubstr(what)));
    }
  }
}

TEST(TokenFormat, OtherFilesOfLlmcAreRefusedByName) {
  for (const std::uint64_t magic : {20240326U, 20240327U, 20240522U, 20240527U, 20240801U}) {
    std::vector<std::uint64_t> header(256);
    header[0] = magic;
    header[1] = 7;
    header[2] = 4;
    std::vector<std::byte> file = file_of(header, 4);
    const std::vector<std::byte> tokens = file_of({1, 2, 3, 128255}, 4);
    file.insert(file.end(), tokens.begin(), tokens.end());
    for (const TokenFormat format : {TokenFormat::kAuto, TokenFormat::kUint16, TokenFormat::kLlmc}) {
      EXPECT_THAT(refusal(file, format, 65536), AllOf(HasSubstr(std::to_string(magic)), HasSubstr("want 20240520")));
    }
  }
}

TEST(TokenFormat, WiderIntegersAreRefusedWithTheirWidth) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::size_t count = 1000 + random_values(1, 3000, seed).front();
    const std::vector<std::uint64_t> values =
        random_values(count, 1 + random_values(1, 65535, seed + 100).front(), seed);
    EXPECT_EQ(refusal(file_of(values, 2), TokenFormat::kAuto, 65536), "") << seed;
    EXPECT_THAT(refusal(file_of(values, 4), TokenFormat::kAuto, 65536),
                AllOf(HasSubstr("likely of 32-bit integers"), HasSubstr("'<u4'")));
    EXPECT_THAT(refusal(file_of(values, 8), TokenFormat::kAuto, 65536), HasSubstr("likely of 64-bit integers"));
    EXPECT_EQ(refusal(file_of(values, 4), TokenFormat::kUint16, 65536), "") << "its user says that it is none";
  }
}

TEST(TokenFormat, TheRuleOfZerosBeginsAtAThousandOddPlacesAndAboveNinetyNinePercent) {
  std::vector<std::uint64_t> words(2000, 7);
  for (std::size_t i = 1; i < words.size(); i += 2) words[i] = i > 20 ? 0 : 5;  // 990 zeros of 1,000
  EXPECT_EQ(refusal(file_of(words, 2)), "");
  words[1] = 0;
  EXPECT_THAT(refusal(file_of(words, 2)), HasSubstr("32-bit"));
  words.resize(1998);
  EXPECT_EQ(refusal(file_of(words, 2)), "");
  EXPECT_EQ(refusal(file_of(std::vector<std::uint64_t>(4000), 2)), "") << "tokens that are all zero are no wider ones";
}

TEST(TokenFormat, TextIsNoTokens) {
  const std::string text(1024, 'e');
  EXPECT_THAT(refusal(beginning(text, 4096)), HasSubstr("ASCII text"));
  EXPECT_EQ(refusal(beginning(text.substr(1) + '\x01', 4096)), "");
}

TEST(TokenFormat, ShardsAreRecognised) {
  const TemporaryFolder folder;
  const std::string shard = folder.path() + "/shard.bin";
  const std::vector<std::byte> wide = file_of(random_values(3000, kVocabulary, 6), 4);
  std::ofstream(shard, std::ios::binary)
      .write(reinterpret_cast<const char*>(wide.data()), static_cast<std::streamsize>(wide.size()));
  try {
    (void)look_at_shards({shard}, ShardConfig::Content::kTokens, TokenFormat::kAuto, "");
    ADD_FAILURE() << "taken";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(shard), HasSubstr("likely of 32-bit integers")));
  }
}

TEST(TokenFormat, ATokenBeyondTheVocabularyIsNamedWithItsLikelyCause) {
  const std::vector<std::uint64_t> values = random_values(100, 512, 3);
  EXPECT_EQ(refusal(file_of(values, 2), TokenFormat::kAuto, 512), "");
  std::vector<std::uint64_t> swapped;
  for (const std::uint64_t value : values) swapped.push_back(value >> 8U | (value & 255U) << 8U);
  EXPECT_THAT(refusal(file_of(swapped, 2), TokenFormat::kAuto, 512), HasSubstr("likely big-endian"));
  // Llama 3's vocabulary takes 17 bits, so that odd places are not all zero.
  std::vector<std::uint64_t> wide = random_values(100, 128256, 4);
  wide[0] = 60000;
  EXPECT_THAT(refusal(file_of(wide, 4)), HasSubstr("likely of 32-bit integers"));
  EXPECT_THAT(refusal(file_of({1, 2, 300}, 2), TokenFormat::kAuto, 300),
              AllOf(HasSubstr("token 300 at position 2"), HasSubstr("of another vocabulary than the model's")));
}

/// Any damage of a file leaves its tokens as the bytes say, or is refused with the file's name.
TEST(TokenFormat, DamageIsRefusedOrLeavesTheTokensThatTheBytesSay) {
  std::mt19937 draw(11);
  const auto below = [&draw](std::size_t count) { return static_cast<std::size_t>(draw()) % count; };
  std::vector<std::uint64_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  const std::vector<std::uint64_t> values = random_values(64, kVocabulary, 5);
  header[2] = values.size();
  std::vector<std::byte> whole = file_of(header, 4);
  const std::vector<std::byte> tokens = file_of(values, 2);
  whole.insert(whole.end(), tokens.begin(), tokens.end());
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> damaged = whole;
    const std::size_t place = below(2) == 0 ? below(16) : below(damaged.size());
    switch (below(3)) {
      case 0:
        damaged[place] = static_cast<std::byte>(draw() & 255U);
        break;
      case 1:
        damaged.resize(place);
        break;
      default:
        damaged.insert(damaged.begin() + static_cast<std::ptrdiff_t>(place), static_cast<std::byte>(draw() & 255U));
    }
    try {
      const Tokens read = parse_tokens(damaged, TokenFormat::kLlmc, kVocabulary, "tokens.bin");
      ASSERT_EQ(2 * read.size() + 1024, damaged.size());
      std::vector<std::int32_t> got(read.size());
      read.read(0, got);
      for (std::size_t k = 0; k < got.size(); ++k) {
        const auto low = std::to_integer<int>(damaged[1024 + 2 * k]);
        ASSERT_EQ(got[k], low + 256 * std::to_integer<int>(damaged[1024 + 2 * k + 1]));
      }
      ASSERT_EQ(0, std::memcmp(damaged.data(), whole.data(), 12)) << "a damaged header was taken";
    } catch (const ConfigError& error) {
      ++refused;
      EXPECT_THAT(error.what(), HasSubstr("tokens.bin"));
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace droptest::experiments::token_format_test
