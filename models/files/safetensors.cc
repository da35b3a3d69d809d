// SPDX-License-Identifier: Apache-2.0
#include "models/files/safetensors.h"

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "sim/error.h"

namespace droptest::models {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensors are copied as they lie in the file");

// The limits of the format: its reference implementation refuses larger headers, and a header is an object of objects
// of lists.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr int kMaxHeaderDepth = 3;
constexpr std::string_view kMetadata = "__metadata__";

/// The bytes of an element; 0 for an unknown name.
std::uint64_t dtype_bytes(std::string_view dtype) {
  for (const std::string_view name : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"}) {
    if (dtype == name) return 1;
  }
  for (const std::string_view name : {"U16", "I16", "F16", "BF16"}) {
    if (dtype == name) return 2;
  }
  for (const std::string_view name : {"U32", "I32", "F32"}) {
    if (dtype == name) return 4;
  }
  for (const std::string_view name : {"U64", "I64", "F64"}) {
    if (dtype == name) return 8;
  }
  return 0;
}

/// Parses the header of a file strictly. nlohmann's parser alone would let a duplicate name replace the earlier one,
/// and would take a zero byte for the end.
json parse_header(std::string_view text, const std::string& where) {
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
    throw ConfigError(where + ": header: byte " + std::to_string(at) + " is 0, want JSON, and spaces behind it");
  }
  std::vector<std::set<std::string>> open_objects;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxHeaderDepth) throw ConfigError(where + ": header: nested deeper than objects of objects of lists");
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key && !open_objects.back().insert(value.get<std::string>()).second) {
      throw ConfigError(where + ": header: the name \"" + value.get<std::string>() + "\" appears twice");
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    throw ConfigError(where + ": header is not JSON: " + error.what());
  }
}

std::vector<std::uint64_t> unsigned_list(const json& entry, const char* key, const std::string& tensor) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array()) throw ConfigError(tensor + ": " + key + ": want a list of integers");
  std::vector<std::uint64_t> values;
  for (const json& value : *found) {
    if (!value.is_number_unsigned()) {
      throw ConfigError(tensor + ": " + key + ": got " + value.dump() + ", want an integer that is not negative");
    }
    values.push_back(value.get<std::uint64_t>());
  }
  return values;
}

struct Entry {
  std::string name;
  StoredTensor tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Entry parse_entry(const std::string& name, const json& entry, std::uint64_t data_bytes, const std::string& where) {
  const std::string tensor = where + ": tensor \"" + name + "\"";
  if (!entry.is_object()) throw ConfigError(tensor + ": want an object with dtype, shape and data_offsets");
  for (const auto& member : entry.items()) {
    if (member.key() != "dtype" && member.key() != "shape" && member.key() != "data_offsets") {
      throw ConfigError(tensor + ": unknown key \"" + member.key() + "\", want dtype, shape and data_offsets");
    }
  }
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) throw ConfigError(tensor + ": dtype: want a string");
  Entry parsed{name, {dtype->get<std::string>(), unsigned_list(entry, "shape", tensor), {}}};
  std::uint64_t bytes = dtype_bytes(parsed.tensor.dtype);
  if (bytes == 0) {
    throw ConfigError(tensor + ": dtype: got \"" + parsed.tensor.dtype +
                      "\", want F64, F32, F16, BF16, F8_E4M3, F8_E5M2, BOOL or an integer type");
  }
  // A zero extent would hide a product that overflows before it.
  const bool empty = std::find(parsed.tensor.shape.begin(), parsed.tensor.shape.end(), 0) != parsed.tensor.shape.end();
  for (const std::uint64_t extent : parsed.tensor.shape) {
    if (!empty && extent > data_bytes / bytes) {
      throw ConfigError(tensor + ": shape: more than the " + std::to_string(data_bytes) + " bytes of data in the file");
    }
    bytes = empty ? 0 : bytes * extent;
  }
  const std::vector<std::uint64_t> offsets = unsigned_list(entry, "data_offsets", tensor);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    throw ConfigError(tensor + ": data_offsets: got " + entry["data_offsets"].dump() +
                      ", want [begin, end] with begin <= end <= " + std::to_string(data_bytes));
  }
  if (offsets[1] - offsets[0] != bytes) {
    throw ConfigError(tensor + ": data_offsets: got " + std::to_string(offsets[1] - offsets[0]) + " bytes, want " +
                      std::to_string(bytes) + " for its shape and dtype " + parsed.tensor.dtype);
  }
  parsed.begin = offsets[0];
  parsed.end = offsets[1];
  return parsed;
}

}  // namespace

StoredTensors parse_safetensors(std::span<const std::byte> file, const std::string& where) {
  std::uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    throw ConfigError(where + ": got " + std::to_string(file.size()) + " bytes, want at least the 8 of a header size");
  }
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - sizeof(header_bytes)) {
    throw ConfigError(where + ": header size: got " + std::to_string(header_bytes) + " bytes, want at most " +
                      std::to_string(std::min<std::uint64_t>(kMaxHeaderBytes, file.size() - sizeof(header_bytes))) +
                      "; is it a safetensors file, and whole?");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof(header_bytes), header_bytes);
  if (!text.starts_with('{')) throw ConfigError(where + ": header: want a JSON object that begins with {");
  const json header = parse_header(text, where);
  const std::span<const std::byte> data = file.subspan(sizeof(header_bytes) + header_bytes);

  std::vector<Entry> entries;
  for (const auto& item : header.items()) {
    if (item.key() != kMetadata) {
      entries.push_back(parse_entry(item.key(), item.value(), data.size(), where));
      continue;
    }
    const json& metadata = item.value();
    if (metadata.is_null()) continue;  // the format's library also reads this as no metadata
    if (!metadata.is_object() ||
        !std::all_of(metadata.begin(), metadata.end(), [](const json& value) { return value.is_string(); })) {
      throw ConfigError(where + ": __metadata__: want an object of strings, or null");
    }
  }

  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered) {
      throw ConfigError(
          where + ": tensor \"" + entry.name + "\": data_offsets: begins at byte " + std::to_string(entry.begin) +
          " where byte " + std::to_string(covered) +
          (entry.begin < covered ? " is next: it overlaps the tensor before" : " is next: bytes between are missing"));
    }
    covered = entry.end;
  }
  if (covered != data.size()) {
    throw ConfigError(where + ": the tensors cover " + std::to_string(covered) + " of " + std::to_string(data.size()) +
                      " bytes of data");
  }

  StoredTensors tensors;
  for (Entry& entry : entries) {
    const auto bytes = data.subspan(entry.begin, entry.end - entry.begin);
    entry.tensor.bytes.assign(bytes.begin(), bytes.end());
    tensors.emplace(std::move(entry.name), std::move(entry.tensor));
  }
  return tensors;
}

std::optional<std::vector<std::uint64_t>> stored_shape(std::istream& file, const std::string& name,
                                                       const std::string& where) {
  std::uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  std::string text(file && header_bytes <= kMaxHeaderBytes ? header_bytes : 0, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file || !text.starts_with('{'))
    throw ConfigError(where + ": has no header; is it a safetensors file, and whole?");
  const json header = parse_header(text, where);
  const auto entry = header.find(name);
  if (entry == header.end()) return std::nullopt;
  if (!entry->is_object()) throw ConfigError(where + ": tensor \"" + name + "\": want an object");
  return unsigned_list(*entry, "shape", where + ": tensor \"" + name + "\"");
}

void write_safetensors(const StoredTensors& tensors, const std::map<std::string, std::string>& metadata,
                       const std::function<void(std::span<const std::byte>)>& write) {
  // Tensors with wide elements come first, so that each tensor is aligned to its element size.
  std::vector<const StoredTensors::value_type*> order;
  for (const auto& item : tensors) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return dtype_bytes(a->second.dtype) > dtype_bytes(b->second.dtype);
  });
  json header = json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  std::uint64_t offset = 0;
  for (const auto* item : order) {
    const StoredTensor& tensor = item->second;
    std::uint64_t bytes = dtype_bytes(tensor.dtype);
    for (const std::uint64_t extent : tensor.shape) bytes *= extent;
    DROPTEST_CHECK(dtype_bytes(tensor.dtype) > 0 && bytes == tensor.bytes.size() && item->first != kMetadata,
                   "tensor \"" + item->first + "\" of dtype " + tensor.dtype + " has " +
                       std::to_string(tensor.bytes.size()) + " bytes, its shape " + std::to_string(bytes));
    header[item->first] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t header_bytes = text.size();
  write(std::as_bytes(std::span(&header_bytes, 1)));
  write(std::as_bytes(std::span(text)));
  for (const auto* item : order) write(item->second.bytes);
}

std::vector<float> to_floats(const StoredTensor& tensor, const std::string& name) {
  const auto converted = [&](auto element) {
    using Element = decltype(element);
    std::vector<float> values(tensor.bytes.size() / sizeof(Element));
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&element, tensor.bytes.data() + i * sizeof(Element), sizeof(Element));
      values[i] = static_cast<float>(element);
      if constexpr (std::is_same_v<Element, double>) {
        if (std::isfinite(element) && !std::isfinite(values[i])) {
          throw ConfigError("tensor \"" + name + "\": element " + std::to_string(i) +
                            ": got a number beyond those of float32");
        }
      }
    }
    return values;
  };
  if (tensor.dtype == "F32") return converted(float{});
  if (tensor.dtype == "F64") return converted(double{});
  if (tensor.dtype == "F16") return converted(Eigen::half{});
  if (tensor.dtype == "BF16") return converted(Eigen::bfloat16{});
  throw ConfigError("tensor \"" + name + "\": dtype: got " + tensor.dtype + ", want F32, F64, BF16 or F16");
}

StoredTensor converted(const StoredTensor& tensor, const std::string& dtype, const std::string& name) {
  if (tensor.dtype == dtype) return tensor;
  const std::vector<float> values = to_floats(tensor, name);
  StoredTensor result{dtype, tensor.shape, {}};
  const auto fill = [&]<class Element>(Element /*type*/) {
    result.bytes.resize(values.size() * sizeof(Element));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto element = static_cast<Element>(values[i]);
      if (std::isfinite(values[i]) && !std::isfinite(static_cast<float>(element))) {
        throw ConfigError("tensor \"" + name + "\": got the element " + std::to_string(values[i]) +
                          ", which is infinite in " + dtype + "; want F32" + (dtype == "F16" ? " or BF16" : ""));
      }
      std::memcpy(result.bytes.data() + i * sizeof(Element), &element, sizeof(Element));
    }
  };
  if (dtype == "F32") {
    fill(float{});
  } else if (dtype == "F16") {
    fill(Eigen::half{});
  } else {
    DROPTEST_CHECK(dtype == "BF16", "elements of type " + dtype);
    fill(Eigen::bfloat16{});
  }
  return result;
}

}  // namespace droptest::models
