// SPDX-License-Identifier: Apache-2.0
// The member `backward` of traffic classes: the classes in which it has a meaning, and its effect on a spec.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "experiments/spec/resolve.h"
#include "experiments/training/memory_estimate.h"
#include "tests/comm/error_text.h"

namespace droptest::experiments::lost_gradient_spec_test {
namespace {

using nlohmann::json;
using sim::TrafficClass;
using testing::AllOf;
using testing::HasSubstr;

ResolvedRun resolved(const json& parallel, const json& classes) {
  return resolve({{"name", "t"},
                  {"data", {{"text", "a.txt"}}},
                  {"model", {{"layers", 4}}},
                  {"training", {{"accumulation", 4}}},
                  {"parallel", parallel},
                  {"network", {{"loss", {{"model", "bernoulli"}, {"loss_rate", 0.05}}}, {"classes", classes}}}},
                 "s.json");
}

std::string error_of(const json& parallel, const json& classes) {
  return config_error_of([&] { (void)resolved(parallel, classes); });
}

json with_backward(const char* traffic_class, const char* backward) {
  return {{traffic_class, {{"backward", backward}}}};
}

const json kSequence = {{"sequence", 2}};
const json kPipeline = {{"pipeline", 2}};
const json kCut = {{"tensor", 2}, {"tensor_sequence", true}};

TEST(LostGradientSpec, IsInTheResolvedSpecWhereItIsNotTheDefault) {
  struct Case {
    json parallel;
    const char* of;
    const char* usual;
    const char* other;
    TrafficClass traffic_class;
    comm::LostGradient gradient;
  };
  const std::vector<Case> cases = {
      {kSequence, "sequence_forward", "gradient", "straight_through", TrafficClass::kSequenceForward,
       comm::LostGradient::kStraightThrough},
      {kPipeline, "pp_activation", "straight_through", "gradient", TrafficClass::kPpActivation,
       comm::LostGradient::kZero},
      {kCut, "tp_forward", "straight_through", "gradient", TrafficClass::kTpForward, comm::LostGradient::kZero},
  };
  for (const Case& one : cases) {
    const ResolvedRun plain = resolved(one.parallel, json::object());
    const ResolvedRun usual = resolved(one.parallel, with_backward(one.of, one.usual));
    EXPECT_EQ(usual.spec, plain.spec) << one.of;
    EXPECT_EQ(usual.run_id, plain.run_id) << one.of;
    EXPECT_FALSE(plain.spec["network"]["classes"][one.of].contains("backward")) << one.of;
    EXPECT_EQ(plain.config.network.of(one.traffic_class)->lost_gradient, std::nullopt) << one.of;
    const ResolvedRun other = resolved(one.parallel, with_backward(one.of, one.other));
    EXPECT_NE(other.run_id, plain.run_id) << one.of;
    EXPECT_EQ(other.spec["network"]["classes"][one.of]["backward"], one.other);
    EXPECT_EQ(other.config.network.of(one.traffic_class)->lost_gradient, one.gradient) << one.of;
    EXPECT_EQ(resolve(other.spec, "spec.json").run_id, other.run_id) << one.of;
  }
}

TEST(LostGradientSpec, IsRefusedWhereItHasNoMeaning) {
  EXPECT_EQ(error_of({{"tensor", 2}}, with_backward("tp_backward", "gradient")),
            "s.json: /network/classes/tp_backward/backward: got \"gradient\", which has a meaning for "
            "sequence_forward, pp_activation and, with /parallel/tensor_sequence, tp_forward; want it absent");
  EXPECT_THAT(error_of({{"tensor", 2}}, with_backward("tp_forward", "straight_through")),
              HasSubstr("/network/classes/tp_forward/backward: got \"straight_through\", which has a meaning for"));
  EXPECT_THAT(
      error_of(kSequence, with_backward("sequence_forward", "exact")),
      AllOf(HasSubstr("/network/classes/sequence_forward/backward: got \"exact\""), HasSubstr("straight_through")));
  EXPECT_THAT(error_of(kPipeline, {{"pp_activation", {{"backward", "gradient"}, {"fill", "skip"}}}}),
              HasSubstr("pp_activation/backward: got \"gradient\" with the fill skip, where values from before"));
  EXPECT_EQ(error_of(kPipeline, {{"pp_activation", {{"backward", "gradient"}, {"fill", "stale"}}}}), "(no error)");
  EXPECT_THAT(error_of(kCut, {{"tp_forward", {{"backward", "gradient"}, {"gather", {{"fill", "stale"}}}}}}),
              HasSubstr("tp_forward/backward: got \"gradient\" with the fill stale of the gather half"));
  EXPECT_THAT(error_of(kCut, {{"tp_forward", {{"backward", "gradient"}, {"path", "ring"}}}}),
              HasSubstr("tp_forward/backward: got \"gradient\" on path ring, where values take several hops"));
}

TEST(LostGradientSpec, AHadamardTransformIsStraightThrough) {
  const json hadamard = {{"hadamard", {{"block", 64}}}};
  EXPECT_THAT(error_of(kPipeline, {{"pp_activation", {{"backward", "gradient"}, {"recovery", hadamard}}}}),
              HasSubstr("pp_activation/backward: got \"gradient\" with a Hadamard transform"));
  EXPECT_THAT(error_of(kSequence, {{"sequence_forward", {{"backward", "gradient"}, {"recovery", hadamard}}}}),
              HasSubstr("sequence_forward/backward: got \"gradient\" with a Hadamard transform"));
  const ResolvedRun plain = resolved(kSequence, {{"sequence_forward", {{"recovery", hadamard}}}});
  EXPECT_EQ(plain.spec["numerics_version"], 1);
  EXPECT_EQ(
      resolved(kSequence, {{"sequence_forward", {{"backward", "straight_through"}, {"recovery", hadamard}}}}).run_id,
      plain.run_id);
}

TEST(LostGradientSpec, WithoutEffectIsNotInTheResolvedSpec) {
  const json none = {{"loss", {{"model", "none"}}}};
  const auto id = [&](const char* of, const json& parallel, const char* backward) {
    json document = {
        {"name", "t"},
        {"data", {{"text", "a.txt"}}},
        {"model", {{"layers", 4}}},
        {"training", {{"accumulation", 4}}},
        {"parallel", parallel},
        {"time",
         {{"link", {{"latency_microseconds", 5}, {"bandwidth_gbit_per_second", 10}}}, {"compute_milliseconds", 1}}},
        {"network", {{"classes", {{of, none}}}}}};
    if (backward != nullptr) document["network"]["classes"][of]["backward"] = backward;
    return resolve(document, "s.json").run_id;
  };
  EXPECT_EQ(id("pp_activation", kPipeline, "gradient"), id("pp_activation", kPipeline, nullptr));
  EXPECT_EQ(id("sequence_forward", kSequence, "straight_through"), id("sequence_forward", kSequence, nullptr));
}

TEST(LostGradientSpec, RepeatedLossesLeaveBlocksToBeComputedAgain) {
  const auto error = [](const json& classes) {
    return config_error_of([&] {
      (void)resolve({{"name", "t"},
                     {"data", {{"text", "a.txt"}}},
                     {"parallel", kCut},
                     {"memory", {{"recompute", "full"}}},
                     {"network", {{"loss", {{"model", "bernoulli"}, {"loss_rate", 0.05}}}, {"classes", classes}}}},
                    "s.json");
    });
  };
  EXPECT_THAT(error(json::object()), HasSubstr("/memory/recompute: got \"full\" with /parallel/tensor_sequence true"));
  EXPECT_EQ(error(with_backward("tp_forward", "gradient")), "(no error)");
}

// Recomputed blocks have the network of the first forward pass, and so its backward pass.
TEST(LostGradientSpec, IsNotOfMessagesThatAreSentAgain) {
  json document = {{"name", "t"},
                   {"data", {{"text", "a.txt"}}},
                   {"parallel", kCut},
                   {"memory", {{"recompute", "full"}, {"recompute_traffic", "sent"}}},
                   {"network",
                    {{"loss", {{"model", "bernoulli"}, {"loss_rate", 0.05}}},
                     {"classes", with_backward("tp_forward", "gradient")}}}};
  const ResolvedRun run = resolve(document, "s.json");
  const json& classes = run.spec["network"]["classes"];
  EXPECT_EQ(classes.at("tp_forward").value("backward", ""), "gradient");
  EXPECT_FALSE(classes.at("tp_recomputation").contains("backward"));
  document["network"]["classes"]["tp_recomputation"] = {{"backward", "gradient"}};
  EXPECT_THAT(config_error_of([&] { (void)resolve(document, "s.json"); }),
              HasSubstr("tp_recomputation/backward: got \"gradient\", which has no meaning for messages that are sent "
                        "again"));
}

TEST(LostGradientSpec, SequencesWithLossHaveOtherNumbersWhereAGradientIsStopped) {
  const auto version = [](const json& kind, const json& of_class) {
    json parallel = kSequence;
    parallel["sequence_kind"] = kind;
    return resolved(parallel, {{"sequence_forward", of_class}}).spec["numerics_version"];
  };
  const json none = {{"loss", {{"model", "none"}}}};
  EXPECT_EQ(version("ulysses", {{"fill", "absent"}}), 2);
  EXPECT_EQ(version("ulysses", {{"fill", "zero"}}), 2);
  EXPECT_EQ(version("ring", {{"fill", "zero"}}), 2);
  EXPECT_EQ(version("ring", {{"fill", "absent"}}), 1) << "absent keys and values have no gradient anyway";
  EXPECT_EQ(version("ulysses", none), 1);
  EXPECT_EQ(
      resolve({{"name", "t"},
               {"data", {{"text", "a.txt"}}},
               {"model", {{"attention", {{"kind", "dilated"}, {"branches", {{{"segment", 8}, {"dilation", 1}}}}}}}},
               {"parallel", {{"sequence", 2}, {"sequence_kind", "ring"}}},
               {"network",
                {{"loss", {{"model", "bernoulli"}, {"loss_rate", 0.05}}},
                 {"classes", {{"sequence_forward", {{"fill", "absent"}}}}}}}},
              "s.json")
          .spec["numerics_version"],
      1)
      << "dilated attention exchanges keys and values alone";
  EXPECT_EQ(version("ulysses", {{"backward", "straight_through"}}), 1);
}

TEST(LostGradientSpec, LostRangesOfWorseLinksStagesAndTokensAreInTheMemoryThatIsPlanned) {
  const auto activations = [](const json& parallel, const json& classes) {
    return estimate_memory(resolved(parallel, classes).config).model.activations;
  };
  const json links = json::array({{{"sources", {0}}, {"loss", {{"model", "bernoulli"}, {"loss_rate", 0.5}}}}});
  EXPECT_GT(activations(kSequence, {{"sequence_forward", {{"links", links}}}}),
            activations(kSequence, {{"sequence_forward", json::object()}}));
  EXPECT_GT(activations(kPipeline, with_backward("pp_activation", "gradient")), activations(kPipeline, json::object()));
  EXPECT_GT(activations(kCut, with_backward("tp_forward", "gradient")), activations(kCut, json::object()));
}

TEST(LostGradientSpec, LostRangesAreInTheMemoryThatIsPlanned) {
  const auto activations = [](const json& of_class) {
    json parallel = kSequence;
    parallel["sequence_kind"] = "ring";
    return estimate_memory(resolved(parallel, {{"sequence_forward", of_class}}).config).model.activations;
  };
  const std::uint64_t lossless = activations({{"loss", {{"model", "none"}}}});
  const std::uint64_t absent = activations({{"fill", "absent"}});
  const std::uint64_t zero = activations({{"fill", "zero"}});
  EXPECT_GT(absent, lossless);
  EXPECT_GT(zero - lossless, 50 * (absent - lossless))
      << "packets have 352 values, which stay in the place of lost ones";
}

}  // namespace
}  // namespace droptest::experiments::lost_gradient_spec_test
