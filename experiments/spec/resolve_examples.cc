// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/section_resolvers.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/data/example_set.h"
#include "experiments/spec/section_members.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

constexpr const char* kClassification = "classification";
constexpr std::array kOfExamples = {"examples", "validation_examples", "layout", "labels", "separator",
                                    "too_long", "validation_sha256"};

class ExampleResolver {
 public:
  explicit ExampleResolver(Resolution& resolution)
      : resolution_(resolution),
        spec_(resolution.spec),
        data_(spec_["data"]),
        given_(resolution.given),
        given_data_(given_.at("data")),
        config_(resolution.config) {}

  void resolve() {
    const bool classifies = spec_.value("task", "") == kClassification;
    if (!classifies) spec_.erase("task");
    if (classifies != data_.contains("examples")) {
      report("/task", classifies ? "got \"classification\" without /data/examples, want them"
                                 : "got \"language_modelling\" with /data/examples, want \"classification\"");
      return;
    }
    if (!classifies) {
      refuse_members_of_examples();
      return;
    }
    data_.erase("format");
    refuse_members_of_tokens();
    if (data_.contains("validation_examples")) {
      if (given_data_.contains("validation_fraction")) {
        report("/data/validation_fraction", "got " + quote_json(given_data_["validation_fraction"]) +
                                                " and /data/validation_examples, want one of the two");
      }
      data_.erase("validation_fraction");
      resolution_.take_hash("/data", "validation_examples", "validation_sha256");
    }
    resolution_.take_hash("/data", "examples");
    check_disjoint();
    if (resolution_.has_errors()) return;
    find_labels();
    if (!data_.contains("labels")) return;
    check_labels();
    config_.model.classes = static_cast<int>(data_["labels"].size());
    if (!resolution_.has_errors() && resolution_.files != nullptr) check_files();
  }

 private:
  void report(const std::string& pointer, const std::string& message) { resolution_.report(pointer, message); }

  void refuse_members_of_examples() {
    for (const char* member : kOfExamples) {
      if (given_data_.contains(member)) {
        report(std::string("/data/") + member,
               "got " + quote_json(given_data_[member]) +
                   ", which task \"classification\" alone has a use for, want it absent");
      }
      data_.erase(member);
    }
  }

  void refuse_members_of_tokens() {
    for (const char* member : {"format", "documents"}) {
      if (!given_data_.contains(member)) continue;
      report(std::string("/data/") + member,
             "got " + quote_json(given_data_[member]) + ", which examples have no use for, want it absent");
    }
    const json validation = given_.value("validation", json::object());
    // Resolved specs have the usual value.
    if (validation.contains("tokens") && validation["tokens"] != ValidationConfig().tokens) {
      report("/validation/tokens", "got " + quote_json(validation["tokens"]) +
                                       ", want it absent: all examples of the validation set are evaluated");
    }
    if (validation.contains("selection_tokens")) {
      report("/validation/selection_tokens",
             "got " + quote_json(validation["selection_tokens"]) + ", want it absent: examples have no third part");
    }
  }

  /// Two names of one file, and copies of it, have one content.
  void check_disjoint() {
    if (!data_.contains("validation_examples")) return;
    const bool is_same_name = data_["validation_examples"] == data_["examples"];
    const bool has_same_hash = data_.contains("sha256") && data_.value("validation_sha256", json()) == data_["sha256"];
    if (!is_same_name && !has_same_hash) return;
    report("/data/validation_examples", "got " + quote_json(data_["validation_examples"]) +
                                            (is_same_name ? ", the file of" : ", which has the content of") +
                                            " /data/examples, want examples that training does not read, or "
                                            "/data/validation_fraction");
  }

  /// The labels of the training file, if the spec names none.
  void find_labels() {
    if (data_.contains("labels")) return;
    try {
      data_["labels"] =
          labels_of(read_examples(data_["examples"], data_["layout"].get<std::string>(), data_["separator"]));
    } catch (const ConfigError& error) {
      report("/data/examples", error.what());
    }
  }

  void check_labels() {
    const json& labels = data_["labels"];
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (std::find(labels.begin(), labels.begin() + static_cast<std::ptrdiff_t>(i), labels[i]) !=
          labels.begin() + static_cast<std::ptrdiff_t>(i)) {
        report("/data/labels/" + std::to_string(i), "got " + quote_json(labels[i]) + " a second time");
      }
    }
    if (labels.size() < 2) {
      report("/data/labels",
             "got " + std::to_string(labels.size()) + " label, " + quote_json(labels) + ", want two or more");
    }
  }

  /// Checks each line of the files before the work starts.
  void check_files() {
    try {
      const json sequence = spec_["training"].value("sequence_tokens", json(config_.model.context));
      ExampleConfig examples;
      read_members(data_, examples);
      (void)load_examples(examples, data_.value("validation_fraction", 0.0), config_.model.vocabulary,
                          sequence.get<int>());
    } catch (const ConfigError& error) {
      report("/data/examples", error.what());
    }
  }

  Resolution& resolution_;
  json& spec_;
  json& data_;
  const json& given_;
  const json& given_data_;
  RunConfig& config_;
};

}  // namespace

void resolve_examples(Resolution& resolution) { ExampleResolver(resolution).resolve(); }

}  // namespace droptest::experiments
