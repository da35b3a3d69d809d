// SPDX-License-Identifier: Apache-2.0
// Any bytes are either a safetensors file or refused with a ConfigError.
#include <cstddef>
#include <cstdint>
#include <span>

#include "models/files/safetensors.h"
#include "sim/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto tensors = droptest::models::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz");
    for (const auto& item : tensors) droptest::models::to_floats(item.second, item.first);
  } catch (const droptest::ConfigError&) {
  }
  return 0;
}
