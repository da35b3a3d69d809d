// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "experiments/data/corpus.h"
#include "experiments/data/token_source.h"
#include "experiments/spec/run_traffic.h"
#include "experiments/training/training_data.h"
#include "sim/error.h"

namespace droptest::experiments::data_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void append_int32(std::vector<std::byte>& bytes, std::int32_t value) {
  for (int i = 0; i < 4; ++i)
    bytes.push_back(static_cast<std::byte>((static_cast<std::uint32_t>(value) >> (8 * i)) & 255));
}

std::vector<std::byte> llmc_file(std::int32_t magic, std::int32_t version, std::int32_t count,
                                 const std::vector<std::uint16_t>& tokens) {
  std::vector<std::byte> bytes;
  append_int32(bytes, magic);
  append_int32(bytes, version);
  append_int32(bytes, count);
  bytes.resize(1024);
  for (const std::uint16_t token : tokens) {
    bytes.push_back(static_cast<std::byte>(token & 255));
    bytes.push_back(static_cast<std::byte>(token >> 8));
  }
  return bytes;
}

/// The message of the ConfigError that `call` throws, or a failure.
template <class Call>
std::string config_error(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no ConfigError";
  return "";
}

std::string temporary_file(const std::vector<std::byte>& bytes) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("droptest_data_" + std::to_string(::getpid()) + ".bin")).string();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return path;
}

std::vector<std::uint16_t> counting(std::size_t n) {
  std::vector<std::uint16_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  return tokens;
}

/// Words in memory as tokens; they are borrowed.
Tokens tokens_in(const std::vector<std::uint16_t>& words) {
  return {std::as_bytes(std::span(words)), Tokens::Layout::kUint16, 65536, "words"};
}

std::vector<std::int32_t> all_of(const Tokens& tokens) {
  std::vector<std::int32_t> values(tokens.size());
  tokens.read(0, values);
  return values;
}

TEST(TextTokens, AreTheBytesOfTheText) {
  const auto text = bytes_of("aZ\xc3\xa4\n");
  EXPECT_THAT(all_of(parse_text(text, 256, "t")), ElementsAre(97, 90, 0xc3, 0xa4, 10));
  EXPECT_EQ(parse_text({}, 256, "t").size(), 0U);
}

TEST(TextTokens, EveryWellFormedSequenceIsTaken) {
  // Both ends of each row of the table of well-formed sequences.
  for (const char* text :
       {"\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xe0\xbf\xbf", "\xe1\x80\x80", "\xec\xbf\xbf", "\xed\x80\x80",
        "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf1\x80\x80\x80", "\xf3\xbf\xbf\xbf",
        "\xf4\x80\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(parse_text(bytes_of(text), 256, "t").size(), std::strlen(text));
  }
}

TEST(TextTokens, WhatIsNotUtf8IsRefusedWithItsOffset) {
  for (const char* bad :
       {"\x80", "\xc0\xaf", "\xc1\xbf", "\xc3", "\xc3(", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe1\x80", "\xe1\x80(",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf1\x80\x80", "\xf1\x80\x80(", "\xf5\x80\x80\x80", "\xff"}) {
    const std::string message = config_error([&] { parse_text(bytes_of(std::string("abc") + bad), 256, "book.txt"); });
    EXPECT_THAT(message, AllOf(HasSubstr("book.txt"), HasSubstr("not UTF-8 at byte 3 "))) << message;
  }
}

TEST(TextTokens, NeedAVocabularyOfAllBytes) {
  DataConfig data;
  data.text = temporary_file(bytes_of("text"));
  EXPECT_EQ(open_tokens(data, 256).size(), 4U);
  EXPECT_THAT(config_error([&] { open_tokens(data, 255); }), AllOf(HasSubstr("at least 256"), HasSubstr("got 255")));
  std::filesystem::remove(data.text);
}

TEST(TokenFiles, BothLayoutsGiveTheirTokens) {
  const auto with_header = llmc_file(20240520, 1, 3, {7, 50256, 65535});
  EXPECT_THAT(all_of(parse_tokens(with_header, TokenFormat::kAuto, 65536, "f")), ElementsAre(7, 50256, 65535));
  EXPECT_THAT(all_of(parse_tokens(with_header, TokenFormat::kLlmc, 65536, "f")), ElementsAre(7, 50256, 65535));
  // Asked for as headerless, the header is tokens too.
  EXPECT_EQ(parse_tokens(with_header, TokenFormat::kUint16, 65536, "f").size(), 512U + 3U);
  const auto bare = bytes_of(std::string("\x01\x02\xff\xff", 4));
  EXPECT_THAT(all_of(parse_tokens(bare, TokenFormat::kAuto, 65536, "f")), ElementsAre(0x0201, 0xffff));
  EXPECT_EQ(parse_tokens({}, TokenFormat::kAuto, 65536, "f").size(), 0U);
}

TEST(TokenFiles, AHeaderThatDoesNotHoldIsRefused) {
  auto refused = [](const std::vector<std::byte>& file, TokenFormat format) {
    return config_error([&] { parse_tokens(file, format, 65536, "shard.bin"); });
  };
  EXPECT_THAT(refused(std::vector<std::byte>(1023), TokenFormat::kLlmc),
              HasSubstr("1023 bytes, want a header of 1024"));
  EXPECT_THAT(refused(llmc_file(20240801, 1, 1, {1}), TokenFormat::kLlmc),
              AllOf(HasSubstr("magic number 20240801"), HasSubstr("20240520")));
  EXPECT_THAT(refused(llmc_file(20240520, 2, 1, {1}), TokenFormat::kAuto), HasSubstr("version 2, want 1"));
  EXPECT_THAT(refused(llmc_file(20240520, 1, 2, {1}), TokenFormat::kAuto), HasSubstr("counts 2 tokens, but 2 bytes"));
  EXPECT_THAT(refused(llmc_file(20240520, 1, 1, {1, 2}), TokenFormat::kAuto),
              HasSubstr("counts 1 tokens, but 4 bytes"));
  EXPECT_THAT(refused(llmc_file(20240520, 1, -1, {1}), TokenFormat::kAuto), HasSubstr("counts -1 tokens"));
  auto odd = llmc_file(20240520, 1, 1, {1});
  odd.push_back(std::byte{0});
  EXPECT_THAT(refused(odd, TokenFormat::kAuto), HasSubstr("3 bytes follow"));
  EXPECT_THAT(refused(std::vector<std::byte>(3), TokenFormat::kAuto), HasSubstr("3 bytes, want an even number"));
}

TEST(TokenFiles, ATokenOutsideTheVocabularyIsRefusedWithItsPosition) {
  DataConfig data;
  data.tokens = temporary_file(llmc_file(20240520, 1, 4, {1, 2, 300, 400}));
  EXPECT_EQ(open_tokens(data, 401).size(), 4U);
  EXPECT_THAT(config_error([&] { open_tokens(data, 300); }),
              AllOf(HasSubstr("token 300 at position 2"), HasSubstr("vocabulary of 300")));
  std::filesystem::remove(data.tokens);
}

TEST(TokenFiles, AFileThatCannotBeReadIsNamed) {
  EXPECT_THAT(config_error([] { MappedFile("/nowhere/text"); }), HasSubstr("/nowhere/text: cannot open: No such file"));
  EXPECT_THAT(config_error([] { MappedFile("/tmp"); }), HasSubstr("/tmp: is a directory"));
  EXPECT_THAT(config_error([] { MappedFile("/dev/null"); }), HasSubstr("/dev/null: is not a regular file"));
}

/// While this object lives, the process gets at most `bytes` more bytes of private memory. Pages of files do not count.
class PrivateMemoryLimit {
 public:
  explicit PrivateMemoryLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_DATA, &old_limit_);
    rlim_t pages = 0;
    std::ifstream statm("/proc/self/statm");
    for (int column = 0; column < 6; ++column) statm >> pages;  // the sixth: private writable memory
    const rlimit limit{pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + bytes, old_limit_.rlim_max};
    ::setrlimit(RLIMIT_DATA, &limit);
  }
  ~PrivateMemoryLimit() { ::setrlimit(RLIMIT_DATA, &old_limit_); }
  PrivateMemoryLimit(const PrivateMemoryLimit&) = delete;
  PrivateMemoryLimit& operator=(const PrivateMemoryLimit&) = delete;

 private:
  rlimit old_limit_{};
};

/// A file of 17 GB that takes no space on the disk: zeros, except `bytes` at `offset`.
class SparseFile {
 public:
  static constexpr std::uint64_t kBytes = 17'000'000'000;
  SparseFile(std::uint64_t offset, const std::vector<std::byte>& bytes) : path_(temporary_file({})) {
    std::filesystem::resize_file(path_, kBytes);
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  ~SparseFile() { std::filesystem::remove(path_); }
  SparseFile(const SparseFile&) = delete;
  SparseFile& operator=(const SparseFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Issue 15: a corpus was two or three copies in the memory of each process.
TEST(LargeFiles, TakeNoMemoryOfTheProcess) {
  const SparseFile file(SparseFile::kBytes - 4, {std::byte{7}, std::byte{1}, std::byte{9}, std::byte{0}});
  RunConfig config;
  config.data.tokens = file.path();
  config.model.vocabulary = 264;
  const PrivateMemoryLimit limit(rlim_t{16} << 20U);
  const Corpus corpus = load_corpus(config);
  EXPECT_EQ(corpus.training.size(), 7'650'000'000U);
  EXPECT_EQ(corpus.validation.size(), 850'000'000U);
  EXPECT_EQ(TrainingBatches(corpus.training, 1, 8, 1024).batch(1, 0).tokens.size(), 8192U);
  std::vector<std::int32_t> last(3);
  corpus.validation.read(corpus.validation.size() - 3, last);
  EXPECT_THAT(last, ElementsAre(0, 263, 9));
}

TEST(LargeFiles, AreCheckedWhereABatchReadsThem) {
  // Both beyond the beginning that is checked when the file is opened.
  const SparseFile file(SparseFile::kBytes - 4, {std::byte{7}, std::byte{1}, std::byte{0}, std::byte{0}});
  DataConfig data;
  data.tokens = file.path();
  const Tokens tokens = open_tokens(data, 263);
  const Tokens part = tokens.part(8'000'000'000, 500'000'000);
  std::vector<std::int32_t> values(2);
  EXPECT_THAT(config_error([&] { part.read(499'999'998, values); }),
              AllOf(HasSubstr(file.path()), HasSubstr("token 263 at position 8499999998,")));
  EXPECT_NO_THROW(part.read(499'999'996, values));
  EXPECT_THAT(config_error([&] { EvaluationBatches(part, 499'999'999, 1, 500'000).batch(999); }),
              HasSubstr("token 263 at position 8499999998,"));

  data.text = std::exchange(data.tokens, "");
  const Tokens text = open_tokens(data, 256);  // zeros are characters, and so are bytes 7 and 1
  values.resize(4);
  EXPECT_NO_THROW(text.read(text.size() - 4, values));
  std::ofstream(file.path(), std::ios::in | std::ios::binary).seekp(16'000'000'000).write("\xc3\xa4\xa4", 3);
  const Tokens broken = open_tokens(data, 256);
  EXPECT_THAT(config_error([&] { broken.read(15'999'999'999, values); }),
              AllOf(HasSubstr(file.path()), HasSubstr("not UTF-8 at byte 16000000002 (value 164)")));
}

TEST(LargeFiles, AFileThatIsCutWhileItIsReadIsRefused) {
  DataConfig data;
  data.tokens = temporary_file(std::vector<std::byte>(100'000));
  const Tokens tokens = open_tokens(data, 256);
  std::filesystem::resize_file(data.tokens, 100);
  std::vector<std::int32_t> values(2);
  EXPECT_THAT(config_error([&] { tokens.read(40'000, values); }),
              AllOf(HasSubstr(data.tokens), HasSubstr("100 bytes, but 100000 when it was opened")));
  std::filesystem::remove(data.tokens);
}

TEST(LargeFiles, AFileThatIsWrittenIntoWhileItIsReadIsRefused) {
  DataConfig data;
  data.tokens = temporary_file(std::vector<std::byte>(1000));
  std::filesystem::last_write_time(data.tokens, std::filesystem::file_time_type(std::chrono::hours(1)));
  const Tokens tokens = open_tokens(data, 256);
  std::vector<std::int32_t> values(2);
  tokens.read(40, values);
  std::fstream(data.tokens, std::ios::in | std::ios::out | std::ios::binary).put('\1');  // the file keeps its size
  EXPECT_THAT(config_error([&] { tokens.read(40, values); }),
              AllOf(HasSubstr(data.tokens), HasSubstr("changed since it was opened")));
  std::filesystem::remove(data.tokens);
}

TEST(LargeFiles, AFileInItsPlaceChangesNothing) {
  DataConfig data;
  const std::string path = temporary_file(std::vector<std::byte>(1000));
  data.tokens = path + ".in_use";
  std::filesystem::rename(path, data.tokens);
  const Tokens tokens = open_tokens(data, 256);
  std::filesystem::rename(temporary_file(std::vector<std::byte>(1000, std::byte{1})), data.tokens);
  std::vector<std::int32_t> values = {7, 7};
  tokens.read(40, values);
  EXPECT_EQ(values, (std::vector<std::int32_t>{0, 0}));
  std::filesystem::remove(data.tokens);
}

TEST(LargeFiles, APartOfATextMayBeginInsideACharacter) {
  const auto bytes = bytes_of("a\xf0\x90\x80\x80z");
  const Tokens text = parse_text(bytes, 256, "t");
  for (std::uint64_t first = 0; first < text.size(); ++first) {
    for (std::uint64_t count = 0; first + count <= text.size(); ++count) EXPECT_NO_THROW(text.check(first, count));
  }
  const auto broken = bytes_of("abc\x80\x80\x80\x80z");
  const Tokens bad(broken, Tokens::Layout::kText, 256, "t");
  EXPECT_NO_THROW(bad.check(0, 3));
  EXPECT_NO_THROW(bad.check(7, 1));
  EXPECT_THAT(config_error([&] { bad.check(6, 2); }), HasSubstr("not UTF-8 at byte 3 "));
  EXPECT_THAT(config_error([&] { bad.check(5, 1); }), HasSubstr("not UTF-8 at byte 3 "));
}

TEST(Corpus, IsSplitByPosition) {
  const auto words = counting(100);
  const Corpus corpus = split_corpus(tokens_in(words), 0.25, 10, 10, "f");
  EXPECT_EQ(corpus.training.size(), 75U);
  EXPECT_EQ(all_of(corpus.training).back(), 74);
  EXPECT_EQ(corpus.validation.size(), 25U);
  EXPECT_EQ(all_of(corpus.validation).front(), 75);
}

TEST(Corpus, TooShortIsRefusedWithWhatIsNeeded) {
  const auto words = counting(100);
  const Tokens tokens = tokens_in(words);
  EXPECT_NO_THROW(split_corpus(tokens, 0.1, 90, 10, "f"));
  EXPECT_THAT(config_error([&] { split_corpus(tokens, 0.1, 91, 10, "f"); }),
              AllOf(HasSubstr("leave 90 for training, want at least 91"), HasSubstr("about 102 tokens")));
  EXPECT_THAT(config_error([&] { split_corpus(tokens, 0.1, 90, 11, "f"); }),
              AllOf(HasSubstr("leave 10 for validation, want at least 11"), HasSubstr("/validation/tokens")));
  EXPECT_THAT(config_error([&] { split_corpus({}, 0.1, 1, 1, "empty.txt"); }), HasSubstr("empty.txt: 0 tokens"));
}

TEST(TrainingBatches, TargetsAreTheInputsShiftedByOne) {
  const auto words = counting(1000);
  const Tokens tokens = tokens_in(words);
  const TrainingBatches batches(tokens, 7, 3, 16);
  const Batch batch = batches.batch(5, 0);
  ASSERT_EQ(batch.tokens.size(), 48U);
  ASSERT_EQ(batch.targets.size(), 48U);
  for (std::size_t i = 0; i < 48; ++i) {
    EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
    EXPECT_EQ(batch.tokens[i], batch.tokens[i - i % 16] + static_cast<int>(i % 16));
  }
}

TEST(TrainingBatches, AreAPureFunctionOfSeedAndStep) {
  const auto words = counting(5000);
  const Tokens tokens = tokens_in(words);
  const TrainingBatches first(tokens, 7, 4, 8);
  const TrainingBatches second(tokens, 7, 4, 8);
  const Batch late = first.batch(90, 1);
  first.batch(3, 0);
  EXPECT_EQ(second.batch(90, 1).tokens, late.tokens);
  EXPECT_EQ(first.batch(90, 1).tokens, late.tokens);
  EXPECT_NE(first.batch(91, 1).tokens, late.tokens);
  EXPECT_NE(first.batch(90, 0).tokens, late.tokens);
  EXPECT_NE(TrainingBatches(tokens, 8, 4, 8).batch(90, 1).tokens, late.tokens);
}

TEST(TrainingBatches, MicroBatchesContinueOneStreamOfSequences) {
  const auto words = counting(5000);
  const Tokens tokens = tokens_in(words);
  const Batch whole = TrainingBatches(tokens, 7, 6, 8).batch(4, 0);
  std::vector<std::int32_t> parts;
  for (int m = 0; m < 3; ++m) {
    const Batch part = TrainingBatches(tokens, 7, 2, 8).batch(4, m);
    parts.insert(parts.end(), part.tokens.begin(), part.tokens.end());
  }
  EXPECT_EQ(parts, whole.tokens);
}

TEST(TrainingBatches, EveryStartIsDrawnEquallyOften) {
  const auto words = counting(12);  // starts 0 to 7 for sequences of 4
  const Tokens tokens = tokens_in(words);
  const TrainingBatches batches(tokens, 3, 16, 4);
  std::vector<int> counts(8, 0);
  for (std::uint64_t step = 0; step < 1000; ++step) {
    const Batch batch = batches.batch(step, 0);
    for (std::size_t s = 0; s < 16; ++s) ++counts.at(static_cast<std::size_t>(batch.tokens[4 * s]));
  }
  double chi_squared = 0;
  for (const int count : counts) chi_squared += std::pow(count - 2000.0, 2) / 2000.0;
  EXPECT_LT(chi_squared, 24.3);  // 7 degrees of freedom, p = 0.001
}

TEST(TrainingBatches, ASequenceAndItsLastTargetMustFit) {
  const auto words = counting(9);
  const Tokens tokens = tokens_in(words);
  EXPECT_EQ(TrainingBatches(tokens, 1, 2, 8).batch(1, 0).tokens.front(), 0);
  EXPECT_THAT(config_error([&] { TrainingBatches(tokens, 1, 2, 9); }), HasSubstr("want at least 10"));
}

TEST(EvaluationBatches, PredictEachTokenOnce) {
  const auto words = counting(100);
  const Tokens tokens = tokens_in(words);
  for (const std::uint64_t count : {1, 7, 8, 9, 24, 63, 64, 99}) {
    const EvaluationBatches batches(tokens, count, 3, 8);
    std::vector<std::int32_t> targets;
    for (std::uint64_t i = 0; i < batches.batches(); ++i) {
      const Batch batch = batches.batch(i);
      EXPECT_EQ(batch.tokens.size(), static_cast<std::size_t>(batch.sequences * batch.length));
      targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
    }
    ASSERT_EQ(targets.size(), count);
    for (std::uint64_t i = 0; i < count; ++i) EXPECT_EQ(targets[i], static_cast<std::int32_t>(i + 1));
  }
  EXPECT_THAT(config_error([&] { EvaluationBatches(tokens, 100, 3, 8); }), HasSubstr("want at least 101"));
}

TEST(EvaluationBatches, ARunPredictsWholeSequences) {
  RunConfig config;
  config.training.sequence_tokens = 30;
  config.validation.tokens = 61;
  EXPECT_EQ(validation_targets(config), 90U);
  config.validation.tokens = 60;
  EXPECT_EQ(validation_targets(config), 60U);
}

}  // namespace
}  // namespace droptest::experiments::data_test
