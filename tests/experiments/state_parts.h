// SPDX-License-Identifier: Apache-2.0
// The parts of a run's state by name, and visitors that leave some parts out.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

#include "experiments/checkpoint/rank_snapshot.h"
#include "sim/error.h"

namespace droptest::experiments {

/// A value or an object among the saved bytes. Its name is its path of types. Members are distinguished by their place;
/// all elements of a container share one name.
struct StatePart {
  std::string name;
  bool is_container = false;
  std::size_t end = 0;
  std::vector<std::unique_ptr<StatePart>> parts;
};

/// The name of a type without namespaces and template arguments.
inline std::string short_name(const std::type_info& type) {
  static std::mutex mutex;
  static std::map<std::type_index, std::string> known;
  const std::lock_guard lock(mutex);
  std::string& name = known[type];
  if (!name.empty()) return name;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr),
                                                    std::free);
  name = text == nullptr ? type.name() : text.get();
  name = std::regex_replace(name.substr(0, name.find('<')), std::regex("\\(anonymous namespace\\)::|[a-z_0-9]+::"), "");
  return name;
}

/// Forwards a saving visit, and records its parts.
class PartRecorder final : public sim::StateVisitor {
 public:
  PartRecorder(sim::StateVisitor& saver, StatePart& root) : saver_(saver), around_{{&root, 0}} {}
  Turn turn() const override { return Turn::kSave; }
  void bytes(std::span<std::byte> value) override {
    saver_.bytes(value);
    at_ += value.size();
  }
  void begin_part(const std::type_info& type, Place place) override {
    auto& [parent, members] = around_.back();
    auto part = std::make_unique<StatePart>();
    const std::string type_name = short_name(type);
    part->name = parent->name + "/" + (place == Place::kMember ? std::to_string(members++) + ":" : "") + type_name;
    part->is_container = type_name == "vector" || type_name == "map" || type_name == "optional" ||
                         type_name == "FlowLedger" || type_name == "basic_string";
    StatePart* const added = part.get();
    parent->parts.push_back(std::move(part));
    around_.emplace_back(added, 0);
  }
  void end_part() override {
    around_.back().first->end = at_;
    around_.pop_back();
  }

 private:
  sim::StateVisitor& saver_;
  std::vector<std::pair<StatePart*, int>> around_;
  std::size_t at_ = 0;
};

/// Forwards a restoring visit, except the parts with some names. These stay as they are, as if no visit_state() showed
/// them.
class PartDropper final : public sim::StateVisitor {
 public:
  PartDropper(sim::StateVisitor& restorer, const StatePart& root, const std::set<std::string>& names)
      : restorer_(restorer), names_(names), around_{{&root, 0}} {}
  Turn turn() const override { return Turn::kRestore; }
  void bytes(std::span<std::byte> value) override {
    if (is_dropping_ != nullptr) return;
    restorer_.bytes(value);
    at_ += value.size();
  }
  void begin_part(const std::type_info& /*type*/, Place /*place*/) override {
    auto& [parent, next] = around_.back();
    const bool known = parent != nullptr && next < parent->parts.size();
    const StatePart* const part = known ? parent->parts[next++].get() : nullptr;
    around_.emplace_back(part, 0);
    if (is_dropping_ == nullptr && part != nullptr && names_.contains(part->name)) is_dropping_ = part;
  }
  /// Skips the bytes of the omitted parts.
  void end_part() override {
    const StatePart* const part = around_.back().first;
    around_.pop_back();
    if (part == nullptr || (is_dropping_ != nullptr && part != is_dropping_)) return;
    is_dropping_ = nullptr;
    std::vector<std::byte> passed(part->end - at_);
    restorer_.bytes(passed);
    at_ = part->end;
  }

 private:
  sim::StateVisitor& restorer_;
  const std::set<std::string>& names_;
  std::vector<std::pair<const StatePart*, std::size_t>> around_;
  const StatePart* is_dropping_ = nullptr;
  std::size_t at_ = 0;
};

/// Visits a model without the parts that have one of those names.
class ModelPartDropper final : public models::StateVisitor {
 public:
  ModelPartDropper(models::StateVisitor& visitor, const std::set<std::string>& names)
      : visitor_(visitor), names_(names) {}
  void number(std::string_view name, std::uint64_t& value) override {
    if (!names_.contains("model/" + std::string(name))) visitor_.number(name, value);
  }
  void tensor(std::string_view name, const comm::Tensor& tensor, std::span<const models::TensorPiece> pieces,
              models::Sharding sharding) override {
    if (!names_.contains("model/" + std::string(name))) visitor_.tensor(name, tensor, pieces, sharding);
  }

 private:
  models::StateVisitor& visitor_;
  const std::set<std::string>& names_;
};

/// Records the names of a model's parts.
class ModelPartRecorder final : public models::StateVisitor {
 public:
  explicit ModelPartRecorder(std::set<std::string>& names) : names_(names) {}
  void number(std::string_view name, std::uint64_t& /*value*/) override { names_.insert("model/" + std::string(name)); }
  void tensor(std::string_view name, const comm::Tensor& /*tensor*/, std::span<const models::TensorPiece> /*pieces*/,
              models::Sharding /*sharding*/) override {
    names_.insert("model/" + std::string(name));
  }

 private:
  std::set<std::string>& names_;
};

/// The parts of the states of a run's ranks at one checkpoint.
class StateParts {
 public:
  /// A view that records the parts of checkpoint number `number`, from 1, on the ranks that use it. Thread safety: any
  /// thread may call it.
  TrainingState recording(int rank, TrainingState state, int checkpoint) {
    TrainingState view = state;
    view.visit_model = [this, state](models::StateVisitor& visitor) {
      {
        const std::lock_guard lock(mutex_);
        ModelPartRecorder recorder(model_);
        state.visit_model(recorder);
      }
      state.visit_model(visitor);
    };
    view.visit_network = [=, this](sim::StateVisitor& visitor) {
      record(rank, "network", checkpoint, visitor, state.visit_network);
    };
    view.visit_progress = [=, this](sim::StateVisitor& visitor) {
      record(rank, "progress", checkpoint, visitor, state.visit_progress);
    };
    return view;
  }

  /// A view that restores all parts except those with these names.
  TrainingState without(const std::set<std::string>& names, int rank, TrainingState state) const {
    TrainingState view = state;
    view.visit_model = [=](models::StateVisitor& visitor) {
      ModelPartDropper dropper(visitor, names);
      state.visit_model(dropper);
    };
    view.visit_network = [=, this](sim::StateVisitor& visitor) {
      drop(names, rank, "network", visitor, state.visit_network);
    };
    view.visit_progress = [=, this](sim::StateVisitor& visitor) {
      drop(names, rank, "progress", visitor, state.visit_progress);
    };
    return view;
  }

  /// The names of values and containers, on any rank. Sizes and keys belong to their container.
  std::set<std::string> names() const {
    std::set<std::string> all = model_;
    for (const auto& [place, root] : roots_) add_names(root, all);
    return all;
  }

 private:
  using Visit = std::function<void(sim::StateVisitor&)>;
  void record(int rank, const std::string& kind, int checkpoint, sim::StateVisitor& visitor, const Visit& visit) {
    if (visitor.turn() == sim::StateVisitor::Turn::kRestore) return visit(visitor);
    {
      const std::lock_guard lock(mutex_);
      if (++saved_[{rank, kind}] != checkpoint) return visit(visitor);
    }
    StatePart root{kind, false, 0, {}};
    PartRecorder recorder(visitor, root);
    visit(recorder);
    const std::lock_guard lock(mutex_);
    roots_[{rank, kind}] = std::move(root);
  }
  void drop(const std::set<std::string>& names, int rank, const std::string& kind, sim::StateVisitor& visitor,
            const Visit& visit) const {
    if (visitor.turn() == sim::StateVisitor::Turn::kSave) return visit(visitor);
    PartDropper dropper(visitor, roots_.at({rank, kind}), names);
    visit(dropper);
  }
  static void add_names(const StatePart& part, std::set<std::string>& all) {
    const bool begins_with_key = part.name.ends_with("/pair") || part.name.ends_with("FlowLedger/Flow");
    for (std::size_t i = part.is_container || begins_with_key ? 1 : 0; i < part.parts.size(); ++i) {
      const StatePart& within = *part.parts[i];
      if (within.parts.empty() || within.is_container) all.insert(within.name);
      add_names(within, all);
    }
  }

  mutable std::mutex mutex_;
  std::map<std::pair<int, std::string>, StatePart> roots_;
  std::map<std::pair<int, std::string>, int> saved_;
  std::set<std::string> model_;
};

}  // namespace droptest::experiments
