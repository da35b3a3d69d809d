// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/weights_file.h"

#include <cstddef>
#include <span>
#include <string_view>

#include "comm/json/read_file.h"
#include "experiments/records/atomic_file.h"

namespace droptest::experiments {

models::StoredTensors read_weights(const std::string& path) {
  const std::string file = comm::read_file(path);
  return models::parse_safetensors(std::as_bytes(std::span(file)), path);
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
