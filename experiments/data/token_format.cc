// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/token_format.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace droptest::experiments {
namespace {

using Bytes = std::span<const std::byte>;

struct KnownStart {
  std::string_view start;
  const char* what;
  const char* wanted;
};

constexpr const char* kUnpack = "want the tokens themselves: unpack it first";

constexpr std::array<KnownStart, 8> kStarts = {{
    {"\x93NUMPY", "is a NumPy file (.npy)",
     "want its numbers without a header: numpy.load(FILE).astype('<u2').tofile(NEW)"},
    {std::string_view("PK\x03\x04", 4), "is a zip archive, as NumPy's .npz is", kUnpack},
    {"\x1f\x8b\x08", "is compressed (gzip)", kUnpack},
    {"\x28\xb5\x2f\xfd", "is compressed (zstd)", kUnpack},
    {std::string_view("\xfd"
                      "7zXZ\0",
                      6),
     "is compressed (xz)", kUnpack},
    {"PAR1", "is a Parquet file", "want its tokens as 16-bit integers, or its texts for scripts/tokenize"},
    {"ARROW1", "is an Arrow file", "want its tokens as 16-bit integers, or its texts for scripts/tokenize"},
    {"MMIDIDX", "is the index of Megatron's data (.idx)", "want the .bin file next to it, with 16-bit tokens"},
}};

struct LlmcFile {
  std::int32_t magic;
  const char* what;
};

constexpr std::array<LlmcFile, 5> kLlmcFiles = {{
    {20240326, "llm.c's weights"},
    {20240327, "llm.c's debug state"},
    {20240522, "llm.c's questions of an evaluation"},
    {20240527, "llm.c's state of an optimizer"},
    {20240801, "llm.c's 32-bit tokens (version 7, Llama 3)"},
}};

std::uint32_t word_at(Bytes bytes, std::size_t place) {
  return std::to_integer<std::uint32_t>(bytes[2 * place]) |
         (std::to_integer<std::uint32_t>(bytes[2 * place + 1]) << 8U);
}

/// Advice for integers of a type, little-endian or, with ">", big-endian ones.
std::string converted(const std::string& type) {
  return "numpy.fromfile(FILE, '" + type + "').astype('<u2').tofile(NEW) converts it";
}

/// Bits of the integers that the words are parts of; 16 if no other size is found.
int integer_bits(Bytes bytes) {
  constexpr std::size_t kLeast = 1000;
  const std::size_t words = bytes.size() / 2;
  std::array<std::size_t, 4> zeros{};
  for (std::size_t i = 0; i < words; ++i) {
    if (word_at(bytes, i) == 0) ++zeros[i % 4];
  }
  const auto mostly_zero = [](std::size_t count, std::size_t all) { return 100 * count > 99 * all; };
  const std::size_t odd = words / 2;
  const std::size_t even = words - odd;
  if (odd < kLeast || !mostly_zero(zeros[1] + zeros[3], odd) || mostly_zero(zeros[0] + zeros[2], even)) return 16;
  return mostly_zero(zeros[2], words / 4) ? 64 : 32;
}

bool is_ascii_text(Bytes head) {
  constexpr std::size_t kEnough = 1024;
  return head.size() >= kEnough && std::all_of(head.begin(), head.begin() + kEnough, [](std::byte byte) {
           const auto value = std::to_integer<unsigned>(byte);
           return (value >= 32 && value <= 126) || value == '\t' || value == '\n' || value == '\r';
         });
}

}  // namespace

std::optional<std::string> other_format(Bytes head, Guess guess) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  for (const KnownStart& known : kStarts) {
    if (text.starts_with(known.start)) return std::string(known.what) + "; " + known.wanted;
  }
  const std::int32_t magic =
      head.size() < 4 ? 0 : static_cast<std::int32_t>(word_at(head, 0) | (word_at(head, 1) << 16U));
  for (const LlmcFile& file : kLlmcFiles) {
    if (file.magic != magic) continue;
    return "magic number " + std::to_string(magic) + ": is " + file.what + "; want " + std::to_string(kLlmcMagic) +
           ", version 1 (llm.c's 16-bit tokens)";
  }
  if (guess == Guess::kNo) return std::nullopt;
  if (is_ascii_text(head)) {
    return "begins with 1,024 characters of ASCII text; want it as a text (/data/text, --format text), or the tokens "
           "that scripts/tokenize makes of it";
  }
  const int bits = integer_bits(head);
  if (bits == 16) return std::nullopt;
  return "has zeros in nearly all odd places: the file is likely of " + std::to_string(bits) +
         "-bit integers, want 16-bit ones; " + converted("<u" + std::to_string(bits / 8));
}

std::string likely_cause(Bytes words, int vocabulary) {
  constexpr std::size_t kLeast = 8;
  const std::size_t count = std::min<std::size_t>(words.size(), kTokenHeadBytes) / 2;
  // The high halves of 32-bit tokens are small, or all of them are when they are swapped.
  std::size_t high = 0;
  bool swapped_fit = true;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t word = word_at(words, i);
    if (i % 2 == 1 && word <= 15) ++high;
    swapped_fit = swapped_fit && static_cast<int>((word >> 8U) | ((word & 255U) << 8U)) < vocabulary;
  }
  if (count >= kLeast && high == count / 2) {
    return "; the file is likely of 32-bit integers, want 16-bit ones: " + converted("<u4");
  }
  if (count >= kLeast && swapped_fit) {
    return "; the file is likely big-endian, want little-endian: " + converted(">u2");
  }
  return "; likely its tokens are of another vocabulary than the model's, or the file is of another format";
}

}  // namespace droptest::experiments
