// SPDX-License-Identifier: Apache-2.0
// What of a model a spec trains, and how fast: weights of classes, learning rates of layers, adapters.
#include "experiments/spec/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/gpt2/gpt2_tensors.h"
#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::resolve_tensor_rules_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// A classifier of three layers with 60, 20 and 10 examples of its labels, which are "b", "c" and "a" in this order.
class TensorRules : public testing::Test {
 protected:
  TensorRules() : examples_(folder_.path() + "/examples.tsv"), others_(folder_.path() + "/others.tsv") {
    for (const auto& [path, text] : {std::pair(examples_, "x"), std::pair(others_, "y")}) {
      std::ofstream file(path);
      file << "label\ttext\n";
      for (int i = 0; i < 90; ++i) file << (i % 9 == 0 ? "a" : i % 9 < 7 ? "b" : "c") << "\t" << text << "\n";
    }
  }

  json spec(const json& training) const {
    return {{"name", "t"},
            {"task", "classification"},
            {"model", {{"layers", 3}, {"width", 16}, {"heads", 2}, {"context", 16}, {"vocabulary", 256}}},
            {"data", {{"examples", examples_}, {"validation_examples", others_}, {"labels", {"b", "c", "a"}}}},
            {"training", training}};
  }
  ResolvedRun resolved_with(const json& training, const json& changes = json::object()) const {
    json document = spec(training);
    document.merge_patch(changes);
    return resolve(document, "s.json");
  }
  std::string error_with(const json& training, const json& changes = json::object()) const {
    return config_error_of([&] { (void)resolved_with(training, changes); });
  }

  const TemporaryFolder folder_;
  const std::string examples_, others_;
};

// n / (classes x examples of the class).
TEST_F(TensorRules, BalancedWeightsAreInverseToTheExamplesOfAClass) {
  const ResolvedRun run = resolved_with({{"class_weights", "balanced"}});
  EXPECT_THAT(run.config.model.class_weights, ElementsAre(90.0 / (3 * 60), 90.0 / (3 * 20), 90.0 / (3 * 10)));
  EXPECT_EQ(run.spec["training"]["class_weights"], json({0.5, 1.5, 3.0}));
  EXPECT_EQ(resolve(run.spec, "spec.json").run_id, run.run_id);
}

TEST_F(TensorRules, WeightsByLabelAreInTheOrderOfTheLabels) {
  EXPECT_THAT(resolved_with({{"class_weights", {{"a", 4}, {"b", 0.25}, {"c", 1}}}}).config.model.class_weights,
              ElementsAre(0.25, 1, 4));
  EXPECT_THAT(error_with({{"class_weights", {{"a", 4}, {"b", 1}}}}), HasSubstr("want a weight of the label \"c\""));
  EXPECT_THAT(error_with({{"class_weights", {{"a", 4}, {"b", 1}, {"c", 1}, {"d", 1}}}}), HasSubstr("alone"));
}

TEST_F(TensorRules, AMissingFileOfExamplesIsOneError) {
  json document = spec({{"class_weights", "balanced"}});
  document["data"]["examples"] = folder_.path() + "/none.tsv";
  FileHashes files;
  const std::string error = config_error_of([&] { (void)resolve(document, "s.json", &files); });
  EXPECT_THAT(error, AllOf(HasSubstr("/data/examples: "), HasSubstr("none.tsv"), Not(HasSubstr("class_weights"))));
  const std::string of_text = config_error_of([] {
    (void)resolve({{"name", "t"}, {"data", {{"text", "a.txt"}}}, {"training", {{"class_weights", {1, 2}}}}}, "s.json");
  });
  EXPECT_THAT(of_text, HasSubstr("/training/class_weights: got [1.0,2.0], want it absent, or task \"classification\""));
}

TEST_F(TensorRules, LayerDecayCountsLayersFromTheHead) {
  const ResolvedRun run = resolved_with({{"layer_decay", 0.5}});
  std::map<std::string, double> factors;
  for (const models::Gpt2Tensor& tensor : models::gpt2_tensors(run.config.model, 1, 0)) {
    factors[tensor.name] = tensor.learning_rate_factor;
  }
  for (const auto& [name, power] : std::map<std::string, int>{{"score.weight", 0},
                                                              {"ln_f.bias", 0},
                                                              {"h.2.mlp.c_proj.weight", 1},
                                                              {"h.1.ln_1.weight", 2},
                                                              {"h.0.attn.c_attn.bias", 3},
                                                              {"wte.weight", 4},
                                                              {"wpe.weight", 4}}) {
    EXPECT_EQ(factors.at(name), std::pow(0.5, power)) << name;
  }
}

TEST_F(TensorRules, ResolvedSpecsAreTheSameRun) {
  const json lora = {{"rank", 4}};
  for (const json& training : std::vector<json>{
           {{"lora", lora}},
           {{"lora", {{"rank", 3}, {"alpha", 5}}}},
           {{"lora", lora},
            {"tensors", {{{"match", "h.0.*"}, {"frozen", true}}, {{"match", "*"}, {"learning_rate_factor", 2}}}}},
           {{"layer_decay", 0.7}, {"tensors", {{{"match", "wte.weight"}, {"frozen", true}}}}},
           {{"class_weights", "balanced"}, {"epochs", 2}}}) {
    const ResolvedRun run = resolved_with(training);
    const ResolvedRun again = resolve(run.spec, "spec.json");
    EXPECT_EQ(again.spec, run.spec) << training;
    EXPECT_EQ(again.run_id, run.run_id) << training;
  }
  EXPECT_EQ(resolved_with({{"lora", lora}}).run_id, resolved_with({{"lora", {{"rank", 4}, {"alpha", 8}}}}).run_id);
}

TEST_F(TensorRules, LoraTrainsAdaptersAndTheHeadAlone) {
  const json lora = {{"rank", 2}, {"targets", {"attn.c_attn"}}};
  const auto error_of_rule = [&](const json& rule) { return error_with({{"lora", lora}, {"tensors", {rule}}}); };
  EXPECT_THAT(error_of_rule({{"match", "ln_f.*"}, {"learning_rate_factor", 1}}),
              HasSubstr("/training/tensors/0/match: got \"ln_f.*\" with /training/lora, which trains adapters and the "
                        "head alone; want a pattern that matches one of them, as \"*lora_*\", or no lora"));
  EXPECT_THAT(error_of_rule({{"match", "h.*"}, {"frozen", true}}),
              HasSubstr("/training/tensors: all adapters of /training/lora are frozen"));
  const auto accepts = [&](const json& rule) { (void)resolved_with({{"lora", lora}, {"tensors", {rule}}}); };
  accepts({{"match", "ln_f.*"}, {"frozen", true}});
  accepts({{"match", "*lora_A*"}, {"learning_rate_factor", 0.1}});
  accepts({{"match", "score.weight"}, {"frozen", true}});
  EXPECT_THAT(error_with({{"lora", lora}}, {{"parallel", {{"data", 2}, {"zero", 3}}}}),
              HasSubstr("/training/lora: got frozen tensors with /parallel/zero 3, want /parallel/zero 0 or 1"));
}

TEST_F(TensorRules, DevicesHaveThemAll) {
  const json cuda = {{"device", "cuda"}};
  (void)resolved_with({{"class_weights", "balanced"}, {"layer_decay", 0.9}}, cuda);
  (void)resolved_with({{"lora", {{"rank", 2}}}}, cuda);
}

}  // namespace
}  // namespace droptest::experiments::resolve_tensor_rules_test
