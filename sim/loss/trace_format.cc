// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/trace_format.h"

#include <charconv>
#include <optional>
#include <vector>

#include "sim/error.h"

namespace droptest::sim {
namespace {

constexpr std::string_view kBitsMagic = "DTTRACE1";
constexpr std::string_view kRunsMagic = "droptest-trace-runs";
constexpr std::size_t kBitsHeader = 16;  ///< magic, then the number of packets in 8 bytes, lowest first

[[noreturn]] void fail(const std::string& name, const std::string& message) {
  throw ConfigError(name + ": " + message);
}

void require_size(const std::string& name, std::uint64_t packets) {
  if (packets == 0) fail(name, "got a trace of 0 packets, want at least 1");
  if (packets > kMostTracePackets) {
    fail(name,
         "got a trace of " + std::to_string(packets) + " packets, want at most " + std::to_string(kMostTracePackets));
  }
}

/// Walks through text, past comments and blanks, and knows where it is.
class TextCursor {
 public:
  TextCursor(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  /// The next character that counts, or nothing at the end.
  std::optional<char> next() {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '\n') {
        ++line_;
        line_begin_ = at_;
      } else if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c != ' ' && c != '\t' && c != '\r') {
        return c;
      }
    }
    return std::nullopt;
  }
  /// Goes back by the character that next() gave.
  void put_back() { --at_; }

  /// Consumes the text up to the next blank, comment or end.
  std::string_view word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::string_view(" \t\r\n#").find(text_[at_]) == std::string_view::npos) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  /// `back`: number of characters between the fault and here.
  [[noreturn]] void fail_here(std::size_t back, const std::string& message) const {
    fail(name_,
         "line " + std::to_string(line_) + ", column " + std::to_string(at_ - back - line_begin_ + 1) + ": " + message);
  }

 private:
  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
  std::size_t line_begin_ = 0;
};

std::string shown(char c) {
  if (c >= ' ' && c <= '~') return std::string("'") + c + "'";
  return "byte " + std::to_string(static_cast<unsigned char>(c));
}

PacketMask parse_text(std::string_view contents, const std::string& name) {
  std::uint64_t packets = 0;
  TextCursor counting(contents, name);
  while (const std::optional<char> c = counting.next()) {
    if (*c != '0' && *c != '1') {
      counting.fail_here(1, "got " + shown(*c) + ", want 0 (delivered), 1 (lost), blanks or a comment after #");
    }
    ++packets;
  }
  require_size(name, packets);
  PacketMask lost(packets);
  TextCursor filling(contents, name);
  for (std::uint64_t packet = 0; packet < packets; ++packet) {
    if (filling.next() == '1') lost.set_lost(packet);
  }
  return lost;
}

PacketMask parse_runs(std::string_view contents, const std::string& name) {
  TextCursor cursor(contents, name);
  cursor.word();
  if (cursor.next()) cursor.put_back();
  const std::string_view version = cursor.word();
  if (version != "1") {
    cursor.fail_here(version.size(),
                     "got version \"" + std::string(version) + "\" of " + std::string(kRunsMagic) + ", want 1");
  }
  std::vector<std::uint64_t> runs;  // delivered, lost, delivered, ...
  std::uint64_t packets = 0;
  while (cursor.next()) {
    cursor.put_back();
    const std::string_view word = cursor.word();
    std::uint64_t run = 0;
    const std::from_chars_result read = std::from_chars(word.data(), word.data() + word.size(), run);
    const std::uint64_t least = runs.empty() ? 0 : 1;
    if (read.ec != std::errc() || read.ptr != word.data() + word.size() || run < least ||
        run > kMostTracePackets - packets) {
      cursor.fail_here(word.size(), "got \"" + std::string(word.substr(0, 40)) + "\", want the length of a run of " +
                                        (runs.size() % 2 == 0 ? "delivered" : "lost") + " packets: an integer in [" +
                                        std::to_string(least) + ", " + std::to_string(kMostTracePackets - packets) +
                                        "]");
    }
    runs.push_back(run);
    packets += run;
  }
  require_size(name, packets);
  PacketMask lost(packets);
  std::uint64_t packet = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (std::uint64_t k = 0; i % 2 == 1 && k < runs[i]; ++k) lost.set_lost(packet + k);
    packet += runs[i];
  }
  return lost;
}

PacketMask parse_bits(std::string_view contents, const std::string& name) {
  const auto byte = [&contents](std::uint64_t i) {
    return std::uint64_t{static_cast<unsigned char>(contents[static_cast<std::size_t>(i)])};
  };
  if (contents.size() < kBitsHeader) {
    fail(name, "got " + std::to_string(contents.size()) + " bytes, want a header of 16");
  }
  std::uint64_t packets = 0;
  for (std::uint64_t i = 0; i < 8; ++i) packets |= byte(8 + i) << (8 * i);
  require_size(name, packets);
  const std::uint64_t want = kBitsHeader + (packets + 7) / 8;
  if (contents.size() != want) {
    fail(name, "got " + std::to_string(contents.size()) + " bytes, want " + std::to_string(want) + " for the " +
                   std::to_string(packets) + " packets that the header names");
  }
  if (packets % 8 != 0 && byte(want - 1) >> (packets % 8) != 0) {
    fail(name, "byte " + std::to_string(want - 1) + ": got bits beyond the last packet, want zeros there");
  }
  PacketMask lost(packets);
  for (std::uint64_t i = kBitsHeader; i < want; ++i) {
    const std::uint64_t first = 8 * (i - kBitsHeader);
    lost.words()[first >> 6] |= byte(i) << (first & 63);
  }
  return lost;
}

}  // namespace

PacketMask parse_trace(std::string_view contents, const std::string& name) {
  if (contents.starts_with(kBitsMagic)) return parse_bits(contents, name);
  if (contents.starts_with(kRunsMagic)) return parse_runs(contents, name);
  return parse_text(contents, name);
}

}  // namespace droptest::sim
