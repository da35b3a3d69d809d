// SPDX-License-Identifier: Apache-2.0
#include "models/files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "sim/error.h"
#include "tests/comm/error_text.h"

namespace droptest::models::safetensors_test {
namespace {

std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t size = header.size();
  std::vector<std::byte> file(sizeof(size) + header.size() + data_bytes);
  std::memcpy(file.data(), &size, sizeof(size));
  std::memcpy(file.data() + sizeof(size), header.data(), header.size());
  return file;
}

std::string refusal(const std::vector<std::byte>& file) {
  try {
    parse_safetensors(file, "w.safetensors");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal(const std::string& header, std::size_t data_bytes) { return refusal(file_of(header, data_bytes)); }

StoredTensor tensor_of(std::string dtype, std::vector<std::uint64_t> shape, std::size_t bytes) {
  StoredTensor tensor{std::move(dtype), std::move(shape), std::vector<std::byte>(bytes)};
  for (std::size_t i = 0; i < bytes; ++i) tensor.bytes[i] = static_cast<std::byte>(37 * i + 11);
  return tensor;
}

TEST(Safetensors, AShapeIsReadFromTheHeaderAlone) {
  const auto shape_of = [](const std::vector<std::byte>& file, std::size_t bytes) {
    std::istringstream stream(std::string(reinterpret_cast<const char*>(file.data()), bytes));
    return stored_shape(stream, "a", "w.safetensors");
  };
  const std::string header = R"({"a": {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60]}})";
  const std::vector<std::byte> file = file_of(header, 60);
  EXPECT_EQ(shape_of(file, 8 + header.size()), (std::vector<std::uint64_t>{3, 5}));
  EXPECT_EQ(shape_of(file_of("{}", 0), 10), std::nullopt);
  const std::vector<std::byte> huge(8, std::byte{0x7f});
  const auto refuses = [&](const std::vector<std::byte>& broken, std::size_t bytes) {
    EXPECT_THAT(config_error_of([&] { (void)shape_of(broken, bytes); }),
                testing::HasSubstr("w.safetensors: has no header"));
  };
  refuses(file, 40);
  refuses(file, 5);
  refuses(huge, 8);
  refuses(file_of("x", 0), 9);
}

TEST(Safetensors, RoundTripKeepsEveryBit) {
  const StoredTensors tensors = {{"a", tensor_of("F32", {3, 5}, 60)},    {"b", tensor_of("F64", {2}, 16)},
                                 {"c", tensor_of("BF16", {7}, 14)},      {"scalar", tensor_of("F16", {}, 2)},
                                 {"empty", tensor_of("F32", {4, 0}, 0)}, {"odd", tensor_of("U8", {3}, 3)}};
  std::vector<std::byte> file;
  write_safetensors(tensors, {{"format", "pt"}},
                    [&](std::span<const std::byte> piece) { file.insert(file.end(), piece.begin(), piece.end()); });
  const StoredTensors back = parse_safetensors(file, "w.safetensors");
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& item : tensors) {
    EXPECT_EQ(back.at(item.first).dtype, item.second.dtype) << item.first;
    EXPECT_EQ(back.at(item.first).shape, item.second.shape) << item.first;
    EXPECT_EQ(back.at(item.first).bytes, item.second.bytes) << item.first;
  }
}

TEST(Safetensors, NothingHidesBehindAByteOfZero) {
  using testing::HasSubstr;
  const std::string header = R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  EXPECT_EQ(refusal(header, 2), "accepted");
  for (const std::string& behind : {std::string("\0", 1), std::string(" \0", 2), std::string("\0junk", 5)}) {
    EXPECT_THAT(refusal(header + behind, 2), HasSubstr("w.safetensors: header: byte "));
    std::istringstream stream;
    const std::vector<std::byte> file = file_of(header + behind, 2);
    stream.str(std::string(reinterpret_cast<const char*>(file.data()), file.size()));
    EXPECT_THAT(config_error_of([&] { (void)stored_shape(stream, "x", "w"); }), HasSubstr(" is 0, want JSON"));
  }
}

TEST(Safetensors, MetadataMayBeNull) {
  EXPECT_EQ(refusal(R"({"__metadata__":null,"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2), "accepted");
}

std::vector<std::byte> bytes_of_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// scripts/make_safetensors_vectors.py has recorded what the format's library reads. Only droptest refuses duplicate
// names and unknown keys.
TEST(Safetensors, DamagedFilesAreRefusedByNameOrReadAsByTheFormatsLibrary) {
  const nlohmann::json files = nlohmann::json::parse(std::ifstream(DROPTEST_VECTORS "/safetensors_damage.json"));
  int both = 0;
  int refused_here_alone = 0;
  for (const nlohmann::json& one : files) {
    const std::vector<std::byte> file = bytes_of_hex(one["file"]);
    const nlohmann::json& expected = one["tensors"];
    try {
      const StoredTensors tensors = parse_safetensors(file, "w.safetensors");
      ASSERT_FALSE(expected.is_null()) << "the library refuses " << one["file"];
      ASSERT_EQ(tensors.size(), expected.size());
      for (const auto& [name, tensor] : tensors) {
        ASSERT_EQ(tensor.dtype, expected[name][0].get<std::string>());
        ASSERT_EQ(tensor.shape, expected[name][1].get<std::vector<std::uint64_t>>());
        ASSERT_EQ(tensor.bytes, bytes_of_hex(expected[name][2]));
      }
      ++both;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("w.safetensors: "));
      if (!expected.is_null()) {
        ++refused_here_alone;
        EXPECT_THAT(error.what(), testing::AnyOf(testing::HasSubstr("unknown key \"more\""),
                                                 testing::HasSubstr("want a JSON object that begins with {")));
      }
    }
  }
  EXPECT_GE(both, 10);
  EXPECT_LE(refused_here_alone, 15);
}

TEST(Safetensors, AcceptsSpacesAfterTheHeaderAndNoTensors) {
  EXPECT_TRUE(parse_safetensors(file_of("{}", 0), "w").empty());
  EXPECT_TRUE(parse_safetensors(file_of("{\"__metadata__\":{\"a\":\"b\"}}   ", 0), "w").empty());
  EXPECT_EQ(parse_safetensors(file_of(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}  )", 2), "w").size(),
            1U);
}

TEST(Safetensors, RefusesEachKindOfMalformedFile) {
  using testing::HasSubstr;
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  const auto one = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"x\":" + entry(dtype, shape, offsets) + "}";
  };
  const auto two = [&](const std::string& first, const std::string& second) {
    return "{\"x\":" + entry("\"U8\"", "[4]", first) + ",\"y\":" + entry("\"U8\"", "[4]", second) + "}";
  };
  EXPECT_THAT(refusal(std::vector<std::byte>(7)), HasSubstr("got 7 bytes"));
  std::vector<std::byte> huge(20, std::byte{0xff});
  EXPECT_THAT(refusal(huge), HasSubstr("header size: got 18446744073709551615"));
  std::vector<std::byte> cut = file_of("{}", 0);
  cut.pop_back();
  EXPECT_THAT(refusal(cut), HasSubstr("header size: got 2 bytes, want at most 1"));
  EXPECT_THAT(refusal("", 0), HasSubstr("begins with {"));
  EXPECT_THAT(refusal(" {}", 0), HasSubstr("begins with {"));
  EXPECT_THAT(refusal("{\"x\":", 0), HasSubstr("header is not JSON"));
  EXPECT_THAT(refusal("{\"x\xff\":1}", 0), HasSubstr("header is not JSON"));
  EXPECT_THAT(refusal("{} {}", 0), HasSubstr("header is not JSON"));
  EXPECT_THAT(refusal("{\"x\":" + std::string(1000, '['), 0), HasSubstr("nested deeper"));
  EXPECT_THAT(refusal(one("\"U8\"", "[1]", "[0,1]").insert(1, "\"x\":1,"), 1), HasSubstr("\"x\" appears twice"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("\"dtype\" appears twice"));
  EXPECT_THAT(refusal("{\"x\":3}", 0), HasSubstr("want an object with dtype"));
  EXPECT_THAT(refusal(R"({"x":{"shape":[1],"data_offsets":[0,1]}})", 1), HasSubstr("dtype: want a string"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":0}})", 1),
              HasSubstr("unknown key \"more\""));
  EXPECT_THAT(refusal(one("\"F33\"", "[1]", "[0,4]"), 4), HasSubstr("dtype: got \"F33\""));
  EXPECT_THAT(refusal(one("\"F32\"", "[-1]", "[0,4]"), 4), HasSubstr("shape: got -1"));
  EXPECT_THAT(refusal(one("\"F32\"", "[1.5]", "[0,4]"), 4), HasSubstr("shape: got 1.5"));
  EXPECT_THAT(refusal(one("\"F32\"", "4", "[0,4]"), 4), HasSubstr("shape: want a list"));
  EXPECT_THAT(refusal(one("\"F32\"", "[2]", "[0,4]"), 4), HasSubstr("shape: more than the 4 bytes"));
  EXPECT_THAT(refusal(one("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 4), HasSubstr("shape: more than"));
  EXPECT_THAT(refusal(one("\"F32\"", "[1]", "[0,8]"), 8), HasSubstr("got 8 bytes, want 4"));
  EXPECT_THAT(refusal(one("\"F32\"", "[1]", "[4,0]"), 4), HasSubstr("begin <= end <= 4"));
  EXPECT_THAT(refusal(one("\"F32\"", "[1]", "[0,4]"), 3), HasSubstr("shape: more than the 3 bytes"));
  EXPECT_THAT(refusal(one("\"U8\"", "[2]", "[2,4]"), 3), HasSubstr("begin <= end <= 3"));
  EXPECT_THAT(refusal(one("\"F32\"", "[1]", "[0]"), 4), HasSubstr("want [begin, end]"));
  EXPECT_THAT(refusal(two("[0,4]", "[3,7]"), 8), HasSubstr("overlaps"));
  EXPECT_THAT(refusal(two("[0,4]", "[0,4]"), 8), HasSubstr("overlaps"));
  EXPECT_THAT(refusal(two("[0,4]", "[5,9]"), 9), HasSubstr("missing"));
  EXPECT_THAT(refusal(two("[0,4]", "[4,8]"), 9), HasSubstr("cover 8 of 9 bytes"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__"));
  EXPECT_EQ(refusal(two("[4,8]", "[0,4]"), 8), "accepted") << "names need not be in the order of the data";
}

TEST(Safetensors, ConvertsTheFourFloatTypes) {
  const auto stored = [](const std::string& dtype, auto... values) {
    const std::array list{values...};
    const auto bytes = std::as_bytes(std::span(list));
    return StoredTensor{dtype, {list.size()}, {bytes.begin(), bytes.end()}};
  };
  const std::vector<float> want = {1.0F, -2.5F, 0.0F};
  EXPECT_EQ(to_floats(stored("F32", 1.0F, -2.5F, 0.0F), "x"), want);
  EXPECT_EQ(to_floats(stored("F64", 1.0, -2.5, 0.0), "x"), want);
  EXPECT_EQ(to_floats(stored("F16", std::uint16_t{0x3c00}, std::uint16_t{0xc100}, std::uint16_t{0}), "x"), want);
  EXPECT_EQ(to_floats(stored("BF16", std::uint16_t{0x3f80}, std::uint16_t{0xc020}, std::uint16_t{0}), "x"), want);
  EXPECT_THROW(to_floats(stored("I32", 1), "x"), ConfigError);
}

TEST(Safetensors, AFiniteNumberDoesNotBecomeInfinite) {
  const auto of = [](float value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    return StoredTensor{"F32", {1}, {bytes.begin(), bytes.end()}};
  };
  const auto error_in = [&](float value, const std::string& dtype) -> std::string {
    try {
      (void)converted(of(value), dtype, "x");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_in(70000, "F16"),
            "tensor \"x\": got the element 70000.000000, which is infinite in F16; want F32 or BF16");
  EXPECT_NE(error_in(-65520, "F16"), "") << "halfway to the next number, which is infinity";
  EXPECT_EQ(error_in(65504, "F16"), "");
  EXPECT_EQ(error_in(70000, "BF16"), "");
  EXPECT_THAT(error_in(3.4e38F, "BF16"), testing::EndsWith("is infinite in BF16; want F32"));
  EXPECT_EQ(error_in(std::numeric_limits<float>::infinity(), "F16"), "") << "it stays what it was";
  EXPECT_EQ(error_in(1e-30F, "F16"), "") << "a small number becomes zero";
}

}  // namespace
}  // namespace droptest::models::safetensors_test
