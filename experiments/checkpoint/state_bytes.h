// SPDX-License-Identifier: Apache-2.0
// The state of an object as bytes, and back.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "sim/state_visitor.h"

namespace droptest::experiments {

/// Appends each value of the visited objects.
class StateSaver final : public sim::StateVisitor {
 public:
  Turn turn() const override { return Turn::kSave; }
  void bytes(std::span<std::byte> value) override { bytes_.insert(bytes_.end(), value.begin(), value.end()); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Gives the visited objects the values of a StateSaver.
class StateRestorer final : public sim::StateVisitor {
 public:
  /// `bytes` are borrowed; `where` names them in messages.
  StateRestorer(std::span<const std::byte> bytes, std::string where) : rest_(bytes), where_(std::move(where)) {}
  Turn turn() const override { return Turn::kRestore; }
  /// Throws: ConfigError if fewer bytes are left.
  void bytes(std::span<std::byte> value) override;
  /// Throws: ConfigError if bytes are left.
  void finish() const;

 private:
  std::span<const std::byte> rest_;
  std::string where_;
};

}  // namespace droptest::experiments
