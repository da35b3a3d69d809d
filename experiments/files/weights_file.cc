// SPDX-License-Identifier: Apache-2.0
#include "experiments/files/weights_file.h"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "experiments/files/atomic_file.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// Tensor -> file, as the index of a folder's shards says.
std::map<std::string, std::string> weight_map_of(const std::string& path) {
  const nlohmann::json index = comm::load_json(path);
  const nlohmann::json map = index.is_object() ? index.value("weight_map", nlohmann::json()) : nlohmann::json();
  if (!map.is_object() || map.empty()) throw ConfigError(path + ": /weight_map: want an object of tensors and files");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map.items()) {
    if (!file.is_string() || fs::path(file.get<std::string>()).filename() != file.get<std::string>()) {
      throw ConfigError(path + ": /weight_map/" + tensor + ": got " + comm::quote_json(file) +
                        ", want the name of a file in the same folder");
    }
    files.emplace(tensor, file);
  }
  return files;
}

models::StoredTensors read_weight_file(const std::string& path) {
  const std::string file = comm::read_file(path);
  return models::parse_safetensors(std::as_bytes(std::span(file)), path);
}

/// The tensors of all shards, each from the file that the index names.
models::StoredTensors read_weight_shards(const std::string& folder) {
  const std::string index = (fs::path(folder) / kIndex).string();
  const std::map<std::string, std::string> map = weight_map_of(index);
  models::StoredTensors all;
  for (const std::string& file : weight_files(folder)) {
    for (auto& [name, tensor] : read_weight_file(file)) {
      const auto listed = map.find(name);
      if (listed == map.end() || (fs::path(folder) / listed->second).string() != file) {
        throw ConfigError(
            file + ": tensor \"" + name +
            "\": " + (listed == map.end() ? "is not in " + index : index + " says that it is in " + listed->second));
      }
      all.emplace(name, std::move(tensor));
    }
  }
  for (const auto& [name, file] : map) {
    if (!all.contains(name)) {
      throw ConfigError((fs::path(folder) / file).string() + ": tensor \"" + name + "\" is missing, which " + index +
                        " says is there");
    }
  }
  return all;
}

}  // namespace

std::vector<std::string> weight_files(const std::string& folder) {
  const fs::path root(folder);
  if (fs::exists(root / kWeights)) return {(root / kWeights).string()};
  if (!fs::exists(root / kIndex)) {
    const bool pickled = fs::exists(root / "pytorch_model.bin") || fs::exists(root / "pytorch_model.bin.index.json");
    throw ConfigError(folder + ": has neither " + kWeights + " nor " + kIndex +
                      (pickled ? "; pytorch_model.bin is not read: save_pretrained(..., safe_serialization=True) of "
                                 "Hugging Face's transformers writes safetensors"
                               : ""));
  }
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map_of((root / kIndex).string())) files.insert((root / file).string());
  return {files.begin(), files.end()};
}

models::StoredTensors read_weights(const std::string& path) {
  if (!fs::is_directory(path)) return read_weight_file(path);
  const std::vector<std::string> files = weight_files(path);
  return fs::path(files.front()).filename() == kWeights ? read_weight_file(files.front()) : read_weight_shards(path);
}

std::optional<std::vector<std::uint64_t>> stored_shape(const std::string& path, const std::string& tensor) {
  for (const std::string& file : fs::is_directory(path) ? weight_files(path) : std::vector<std::string>{path}) {
    std::ifstream stream(file, std::ios::binary);
    if (auto shape = models::stored_shape(stream, tensor, file)) return shape;
  }
  return std::nullopt;
}

void write_weights(const std::string& path, const models::StoredTensors& tensors,
                   const std::map<std::string, std::string>& metadata) {
  write_file_atomically(path, [&](const WritePiece& write) {
    models::write_safetensors(tensors, metadata, [&](std::span<const std::byte> piece) {
      write({reinterpret_cast<const char*>(piece.data()), piece.size()});
    });
  });
}

}  // namespace droptest::experiments
