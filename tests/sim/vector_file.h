// SPDX-License-Identifier: Apache-2.0
// Reads known answers from tests/vectors.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace droptest::sim {

inline nlohmann::json read_vectors(const std::string& name) {
  const std::string path = std::string(DROPTEST_VECTORS) + "/" + name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  return nlohmann::json::parse(file);
}

}  // namespace droptest::sim
