// SPDX-License-Identifier: Apache-2.0
// Good and bad specs, with the whole text of each error.
#include "experiments/spec/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/spec/resolve.h"
#include "experiments/spec/sweep_plan.h"
#include "tests/comm/error_text.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::spec_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kMinimal = R"({"name": "t", "data": {"text": "a.txt"}})";

std::string error_of(const std::string& text) {
  return config_error_of([&text] { (void)parse_spec(text, "s.json"); });
}

/// The error of the minimal spec with these overrides.
std::string error_with(const std::vector<std::string>& overrides) {
  return config_error_of([&overrides] { (void)parse_spec(kMinimal, "s.json", overrides); });
}

TEST(Spec, TheSmallestSpecIsAccepted) {
  const Spec spec = parse_spec(kMinimal, "s.json");
  EXPECT_EQ(spec.document, comm::parse_json(kMinimal, "s"));
  EXPECT_EQ(spec.where, "s.json");
}

TEST(Spec, EveryReadySpecIsAcceptedAndNamedAfterItsFile) {
  std::filesystem::current_path(DROPTEST_SPECS "/../..");  // specs name files from the repository's root
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(DROPTEST_SPECS)) {
    if (entry.path().extension() != ".json") continue;
    const SweepPlan plan = plan_sweep(read_spec(entry.path()));
    EXPECT_EQ(plan.name + ".json", entry.path().filename());
    EXPECT_FALSE(plan.description.empty()) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 9U);
}

TEST(Spec, ErrorsNameFilePointerValueAndWhatIsAllowed) {
  EXPECT_EQ(
      error_of("{}"),
      "s.json: /name: got nothing, want a name of letters, digits, '.', '_' and '-' that does not start with '.'\n"
      "s.json: /data: got nothing, want an object");
  EXPECT_EQ(error_of("[]"), "s.json: /: got [], want an object");
  EXPECT_EQ(error_of(R"({"name": "../up", "data": {"text": "t"}})"),
            "s.json: /name: got \"../up\", want a name of letters, digits, '.', '_' and '-' that does not start with "
            "'.'");
  EXPECT_EQ(error_of(R"({"name": "t", "data": {}})"),
            "s.json: /data: got no members, want exactly one of \"text\", \"tokens\", \"shards\" or \"examples\"");
  EXPECT_EQ(
      error_of(R"({"name": "t", "data": {"text": "a", "tokens": "b"}})"),
      "s.json: /data: got \"text\", \"tokens\", want exactly one of \"text\", \"tokens\", \"shards\" or \"examples\"");
  EXPECT_EQ(error_with({"/training/steps=0"}), "s.json: /training/steps: got 0, want an integer in [1, 1000000000000]");
  EXPECT_EQ(error_with({"/network/payload_bytes=1404"}),
            "s.json: /network/payload_bytes: got 1404, want an integer in [8, 1073741824], a multiple of 8");
  EXPECT_EQ(error_with({"/backend/name=glo"}),
            "s.json: /backend/name: got \"glo\", want one of \"local\", \"gloo\", \"nccl\", \"udp\"; did you mean "
            "\"gloo\"?");
  EXPECT_EQ(error_with({"/parallel/tensor=65535"}),
            "s.json: /parallel/tensor: got 65535, want an integer in [1, 65534]");
  EXPECT_EQ(error_with({"/seed=-1"}), "s.json: /seed: got -1, want an integer in [0, 18446744073709551615]");
  EXPECT_EQ(error_with({R"(/network/loss={"model": "bernoulli", "loss_rate": 1.5})"}),
            "s.json: /network/loss/loss_rate: got 1.5, want a fraction in [0, 1], or percent as text (\"5%\")");
  const std::string known =
      "? known keys: alerts, backend, checkpoint, data, description, device, elastic, extends, failures, kernels, "
      "memory, model, name, network, numerics_version, outer, parallel, record, repeat, restart, search, seed, seeds, "
      "start, sweep, task, time, training, validation";
  EXPECT_EQ(error_of(R"({"name": "t", "data": {"text": "a"}, "netwrok": {}, "sede": 3})"),
            "s.json: /netwrok: got an unknown key; did you mean \"network\"" + known +
                "\ns.json: /sede: got an unknown key; did you mean \"seed\"" + known);
}

TEST(Spec, AWrongValueSuggestsTheNearestOneOrTheOneThatIsMeant) {
  EXPECT_THAT(error_with({"/device=gpu"}),
              HasSubstr("/device: got \"gpu\", want one of \"cpu\", \"cuda\", \"auto\"; did "
                        "you mean \"cuda\"?"));
  EXPECT_THAT(error_with({"/device=cdua"}), HasSubstr("did you mean \"cuda\"?"));
  EXPECT_THAT(error_with({"/training/precision=bfloat61"}), HasSubstr("did you mean \"bfloat16\"?"));
  EXPECT_THAT(error_with({R"(/training/precision={"compute": "flaot32"})"}), HasSubstr("did you mean \"float32\"?"));
  EXPECT_THAT(error_with({R"(/network/loss={"model": "bernouli", "loss_rate": 0.1})"}),
              HasSubstr("did you mean \"bernoulli\"?"));
  EXPECT_THAT(error_with({"/device=abacus"}), testing::Not(HasSubstr("did you mean")));
}

TEST(Spec, WhatNeedsSeveralKeysToSeeIsCheckedToo) {
  EXPECT_EQ(error_with({"/parallel/tensor=8"}), "s.json: /parallel/tensor: got 8, want at most 4, the model's heads");
  EXPECT_EQ(error_with({"/model/heads=3"}), "s.json: /model/heads: got 3, want a divisor of the width 128");
  EXPECT_EQ(error_with({"/training/sequence_tokens=129"}),
            "s.json: /training/sequence_tokens: got 129, want at most 128, the model's context");
  EXPECT_EQ(error_with({"/model/vocabulary=255"}),
            "s.json: /model/vocabulary: got 255, want at least 256, a token for each byte of data.text");
  EXPECT_EQ(error_with({"/parallel/tensor=4", "/network/reduce/fill=own",
                        R"(/network/loss={"model": "bernoulli", "loss_rate": 0.1})"}),
            "s.json: /network/reduce/fill: got \"own\", which has no meaning in this half of sums (a "
            "contribution stands for another one in means alone, those of dp_gradient), want one of \"zero\", "
            "\"count_rescale\", \"inverse_probability\", \"stale\"");
  EXPECT_EQ(error_with({"/parallel/tensor=4", "/network/classes/tp_forward/gather/fill=count_rescale"}),
            "s.json: /network/classes/tp_forward/gather/fill: got \"count_rescale\", which has no meaning in this "
            "half, want one of \"zero\", \"stale\", \"own\", \"own_scaled\"");
  EXPECT_THAT(error_with({R"(/network/classes={"outr": {"path": "direct"}})"}),
              HasSubstr("s.json: /network/classes/outr: got an unknown key; did you mean \"outer\"? known keys: "
                        "dp_gradient, embedding_gradient, outer, parameter_gather, pp_activation, pp_gradient, "
                        "sequence_backward, sequence_forward, tp_backward, tp_forward, tp_recomputation"));
  EXPECT_EQ(error_with({"/training/steps=20", "/training/warmup_steps=20"}),
            "s.json: /training/warmup_steps: got 20, want less than steps, 20: the learning rate would never reach its "
            "peak");
  EXPECT_NO_THROW(
      (void)parse_spec(kMinimal, "s", std::vector<std::string>{"/training/steps=20", "/training/warmup_steps=19"}));
  EXPECT_EQ(error_with({"/parallel/tensor=8", "/training/sequence_tokens=1000"}),
            "s.json: /parallel/tensor: got 8, want at most 4, the model's heads\n"
            "s.json: /training/sequence_tokens: got 1000, want at most 128, the model's context");
}

// What a run sends is not known then, so that a fill for all classes may have no meaning for some that it does not
// send.
TEST(Spec, OneMistakeGivesNoErrorsAboutClassesThatTheRunDoesNotSend) {
  const auto errors_with = [](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {R"(/network/gather={"fill": "own_scaled"})",
                                          "/training/sequence_tokens=900000"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    try {
      resolved(kTwoRanks, overrides);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(errors_with({}), testing::AllOf(testing::HasSubstr("/training/sequence_tokens: got 900000"),
                                              testing::Not(testing::HasSubstr("/network"))));
  EXPECT_THAT(errors_with({R"(/network/classes={"pp_gradient": {"gather": {"fill": "own_scaled"}}})"}),
              testing::AllOf(testing::HasSubstr("/training/sequence_tokens: got 900000"),
                             testing::HasSubstr("/network/classes/pp_gradient/gather/fill")));
}

TEST(Spec, LayoutsThatCannotBeAreRefusedWithWhatWouldFit) {
  EXPECT_EQ(error_with({"/parallel/sequence=3", R"(/parallel/sequence_kind={"ulysses": 2, "ring": 2})"}),
            "s.json: /parallel/sequence_kind: got ulysses 2 x ring 2, want a product of 3, the ranks of "
            "/parallel/sequence");
  EXPECT_EQ(error_with({"/parallel/zero=2"}),
            "s.json: /parallel/zero: got 2, want 0, or 2 replicas or more in /parallel/data, which share state out");
  EXPECT_EQ(error_with({"/parallel/data=2", "/parallel/zero=1", "/parallel/reduce=after_each"}),
            "s.json: /parallel/reduce: got \"after_each\", want \"after_last\", or /parallel/zero 2 or 3");
  EXPECT_EQ(error_with({"/parallel/data=2", R"(/parallel/order=["data", "data", "tensor", "pipeline"])"}),
            "s.json: /parallel/order: got [\"data\",\"data\",\"tensor\",\"pipeline\"], want each of \"pipeline\", "
            "\"sequence\", \"tensor\" and \"data\" once");
  EXPECT_EQ(error_with({"/parallel/data=60000", "/parallel/tensor=4"}),
            "s.json: /parallel: got tensor 4 x data 60000, want at most 65534 ranks");
  EXPECT_EQ(error_with({"/parallel/data=2", "/parallel/zero=1", "/training/gradient_norm=own"}),
            "s.json: /training/gradient_norm: got \"own\", want \"agreed\" with /parallel/zero 1, where no replica has "
            "all gradients");
  EXPECT_EQ(
      error_with({"/parallel/data=3", "/training/global_batch_sequences=50"}),
      "s.json: /training/global_batch_sequences: got 50, want a multiple of 24, the sequences of a micro-batch of "
      "all replicas: for example 48 or 72");
  EXPECT_EQ(error_with({"/training/global_batch_sequences=4"}),
            "s.json: /training/global_batch_sequences: got 4, want a multiple of 8, the sequences of a micro-batch of "
            "all replicas: for example 8");
  EXPECT_EQ(error_with({"/training/global_batch_sequences=16", "/training/accumulation=2"}),
            "s.json: /training/global_batch_sequences: got 16 and /training/accumulation, want one of the two");
}

// The parts of a bucket end at the ends of tensors: one of eight parts of 8192 floats may have a whole tensor of 8192.
TEST(Spec, EndlessRepetitionsAreSeenInUnevenPartsToo) {
  EXPECT_THAT(error_with({"/parallel/data=8", "/parallel/zero=1", "/parallel/bucket_bytes=32768",
                          "/parallel/first_bucket_bytes=32768",
                          R"(/network/classes={"dp_gradient": {"loss": {"model": "bernoulli", "loss_rate": 0.4},)"
                          R"( "recovery": {"retransmit": {"protocol": "go_back_0"}}}})",
                          R"(/time={"link": {"latency_microseconds": 1, "bandwidth_gbit_per_second": 10}})"}),
              HasSubstr("in dp_gradient takes 2.11e+05 tries on average for messages of up to 24 packets"));
}

// Zero in the place of an owner's parameters would be trained on.
TEST(Spec, OwnersNeverLoseTheirParameters) {
  const auto error = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"/parallel/data=2", R"(/network/loss={"model": "bernoulli", "loss_rate": 0.1})"});
    return error_with(more);
  };
  const auto refused = [](const std::string& pointer) {
    return HasSubstr("s.json: " + pointer + ": got a network on which an owner loses its own");
  };
  for (const char* zero : {"/parallel/zero=1", "/parallel/zero=2"}) {
    for (const char* fill : {"zero", "stale"}) {
      const std::string named = std::string("/network/classes/parameter_gather/fill=") + fill;
      EXPECT_THAT(error({zero, named, "/network/path=contribution", "/network/gather/loss/model=bernoulli",
                         "/network/gather/loss/loss_rate=0.1"}),
                  refused("/network/path"));
      EXPECT_THAT(error({zero, named, "/network/consistency=shared"}), refused("/network/consistency"));
      EXPECT_THAT(error({zero, named, "/network/classes/parameter_gather/consistency=shared"}),
                  refused("/network/classes/parameter_gather/consistency"));
      EXPECT_THAT(error({zero, named,
                         "/network/classes/parameter_gather/sized_paths="
                         R"([{"up_to_elements": 9, "path": "contribution"}])"}),
                  refused("/network/classes/parameter_gather/sized_paths"));
    }
    EXPECT_EQ(error({zero, "/network/consistency=shared", "/network/classes/parameter_gather/fill=own"}), "(no error)");
    EXPECT_EQ(error({zero, "/network/consistency=shared", "/network/gather/fill=stale"}), "(no error)");
    EXPECT_EQ(error({zero}), "(no error)");
  }
  EXPECT_EQ(error({"/parallel/zero=3", "/network/consistency=shared"}), "(no error)");
}

TEST(Spec, PipelinesThatCannotBeAreRefusedWithWhatWouldFit) {
  const auto error = [](std::vector<std::string> more) {
    more.insert(more.begin(), "/parallel/pipeline=2");
    return error_with(more);
  };
  EXPECT_EQ(error({"/parallel/zero=2", "/parallel/data=2"}),
            "s.json: /parallel/zero: got 2, want 0 or 1 with /parallel/pipeline 2");
  EXPECT_EQ(error({"/model/layers=5"}),
            "s.json: /parallel/layers_per_stage: absent, but 5 layers are no multiple of 2 stages; want for example "
            "[3, 2]");
  EXPECT_EQ(error({"/parallel/layers_per_stage=[1, 2]"}),
            "s.json: /parallel/layers_per_stage: got [1, 2], want 2 numbers with the sum 4, for example [2, 2]");
  EXPECT_EQ(error({"/parallel/chunks=2", "/parallel/schedule=interleaved", "/model/layers=2"}),
            "s.json: /parallel/pipeline: got 4 stages for 2 layers, want at most one for each layer");
  EXPECT_EQ(error({"/parallel/chunks=2"}),
            "s.json: /parallel/schedule: pipeline schedule \"1f1b\": got 2 chunks, want 1; several have "
            "\"interleaved\"");
  EXPECT_EQ(error({"/parallel/chunks=2", "/parallel/schedule=interleaved", "/training/accumulation=5"}),
            "s.json: /parallel/schedule: pipeline schedule \"interleaved\": got 5 micro-batches on 2 ranks, which 2 "
            "rounds do not divide, want for example 4 or 6");
  EXPECT_EQ(error({R"(/parallel/schedule={"rows": ["0F0,0B0", "1F0,1X0"]})"}),
            "s.json: /parallel/schedule: rows: line 2, cell 2: got \"1X0\", want stage, F, I, W or B, and micro-batch "
            "as in \"2F0\", or two of them as in \"(0F7;7B3)OVERLAP_F_B\", or nothing; messages follow from these");
  EXPECT_EQ(
      error({R"(/parallel/schedule={"rows": ["0F0,0B0", "1F0,1B0"]})", "/training/accumulation=2"}),
      "s.json: /parallel/schedule: got a schedule of 2 ranks and 1 micro-batches, want 2 (/parallel/pipeline) and "
      "2 (/training/accumulation)");
  EXPECT_EQ(error({R"(/parallel/schedule={"rows": ["0F0"], "file": "x.csv"})"}),
            "s.json: /parallel/schedule: got {\"file\":\"x.csv\",\"rows\":[\"0F0\"]}, want either a file or rows");
  EXPECT_EQ(error({R"(/parallel/schedule={"file": "/nowhere/x.csv"})"}),
            "s.json: /parallel/schedule/file: read /nowhere/x.csv: No such file or directory");
  EXPECT_EQ(error({R"(/parallel/schedule={"rows": ["0F0,0B0", "1F0,1B0"]})", "/parallel/chunks=1"}),
            "s.json: /parallel/chunks: got 1, want it absent, since the rows of /parallel/schedule name the stages");
  EXPECT_EQ(error_with({"/parallel/schedule=gpipe"}),
            "s.json: /parallel/schedule: got \"gpipe\", which one rank has no use for, want it absent, or 2 ranks or "
            "more in /parallel/pipeline");
  EXPECT_THAT(error({"/parallel/schedule=1f2b"}), HasSubstr("did you mean \"1f1b\"?"));
}

TEST(Spec, LossProcessesThatCannotBeAreRefusedWithTheirPlace) {
  // A burst of mean 1 cannot lose 90 %: the good state would have to last less than a packet.
  const std::string error =
      error_with({"/parallel/tensor=2",
                  R"(/network/loss={"model": "gilbert_elliott", "loss_rate": 0.9, "mean_burst_packets": 1})"});
  EXPECT_THAT(error, testing::StartsWith("s.json: /network/loss"));
}

TEST(Spec, OverridesAreJsonIfTheyParseAndTextIfNot) {
  const Spec spec =
      parse_spec(kMinimal, "s.json",
                 std::vector<std::string>{"/training/steps=17", "/description=two words", "/data/text=\"q.txt\"",
                                          "/network/loss={\"model\": \"bernoulli\", \"loss_rate\": 0.5}",
                                          "/network/loss/loss_rate=5%", "/seed=18446744073709551615"});
  EXPECT_EQ(comm::canonical_json(spec.document),
            R"({"data":{"text":"q.txt"},"description":"two words","name":"t","network":{"loss":)"
            R"({"loss_rate":"5%","model":"bernoulli"}},"seed":18446744073709551615,"training":{"steps":17}})");
}

TEST(Spec, WordsOfTypesStandForOneType) {
  const auto precision_with = [](const std::string& assignment) {
    const Spec spec = parse_spec(kMinimal, "s.json", std::vector<std::string>{assignment});
    return comm::canonical_json(spec.document["training"]["precision"]);
  };
  for (const char* word : {"bf16", "bfloat16"}) {
    EXPECT_EQ(precision_with(std::string("/training/precision=") + word), "\"bfloat16\"");
  }
  EXPECT_EQ(precision_with(R"(/training/precision={"compute": "fp16", "message": "bf16", "master": "fp32"})"),
            R"({"compute":"float16","master":"float32","message":"bfloat16"})");
  EXPECT_EQ(precision_with("/training/precision/message=half"), R"({"message":"float16"})");
  const json document = comm::parse_json(kMinimal, "s");
  const auto id_with = [&](const char* type) {
    json changed = document;
    changed["parallel"]["tensor"] = 2;
    changed["training"]["precision"] = type;
    changed["network"]["compression"]["kind"] = type;
    return resolve(changed, "s").run_id;
  };
  EXPECT_EQ(id_with("bf16"), id_with("bfloat16"));
  EXPECT_NE(id_with("bf16"), id_with("fp16"));
  EXPECT_THAT(error_with({R"(/training/precision={"master": "bf16"})"}), HasSubstr("want one of \"float32\""));
}

TEST(Spec, PointersReachTheElementsOfLists) {
  const std::string links = R"(/network/links=[{"sources": [1], "loss": {"model": "none"}}, {"ranks": [2], "loss": )"
                            R"({"model": "bernoulli", "loss_rate": 0.1}}])";
  const auto links_with = [&](const std::string& assignment) {
    const Spec spec = parse_spec(kMinimal, "s.json", std::vector<std::string>{"/parallel/tensor=4", links, assignment});
    return comm::canonical_json(spec.document["network"]["links"]);
  };
  EXPECT_THAT(links_with("/network/links/1/loss/loss_rate=5%"), HasSubstr(R"("loss_rate":"5%")"));
  EXPECT_THAT(links_with("/network/links/0/sources/0=3"), HasSubstr(R"("sources":[3])"));
  EXPECT_EQ(links_with("/network/links/1=null"), R"([{"loss":{"model":"none"},"sources":[1]}])");
  const auto refusal = [&](const std::string& pointer) { return error_with({links, pointer + "=1"}); };
  EXPECT_EQ(refusal("/network/links/2/loss"),
            "--set /network/links/2/loss=1: /network/links is a list of 2 values: got the index \"2\", want one from 0 "
            "to 1");
  EXPECT_THAT(refusal("/network/links/01"), HasSubstr("got the index \"01\", want one from 0 to 1"));
  EXPECT_EQ(refusal("/network/links/last/loss"),
            "--set /network/links/last/loss=1: /network/links is a list: got \"last\", want the index of an element, "
            "from 0");
  EXPECT_THAT(refusal("/network/links/0/los"), HasSubstr("no member \"los\" in /network/links/0; did you mean"));
}

TEST(Spec, AMemberOfNothingSaysWhatToAdd) {
  const std::string hint =
      "; the spec has no /network/gather/loss that /network/gather/loss/loss_rate could change: write one into it, or "
      "set /network/gather/loss as a whole";
  EXPECT_THAT(error_with({"/network/gather/loss/loss_rate=5%"}), testing::EndsWith(hint));
  EXPECT_THAT(error_of(R"({"name": "t", "data": {"text": "a.txt"}, "parallel": {"tensor": 2},
                           "sweep": {"cross": {"/network/gather/loss/loss_rate": [0.1, 0.2]}}})"),
              HasSubstr(hint));
  EXPECT_THAT(error_with({R"(/network/gather={"loss": {"model": "bernoulli"}})", "/network/gather/loss/loss_rate=2"}),
              testing::Not(HasSubstr("has no")));
  const std::string twice =
      error_with({"/network/gather/loss/loss_rate=5%", "/network/gather/loss/mean_burst_packets=2"});
  EXPECT_EQ(twice.find("the spec has no"), twice.rfind("the spec has no"));
  EXPECT_THAT(
      error_with({R"(/network/links=[{"loss": {"process": "bernoulli"}}])", "/network/links/0/loss/loss_rate=0.2"}),
      testing::Not(HasSubstr("has no /network/links")));
  EXPECT_THAT(error_with({"/training/steps=0", "/network/reduce/fill=zero"}), testing::Not(HasSubstr("has no")));
}

TEST(Spec, AlternativesNameTheirRangesAndMembers) {
  EXPECT_EQ(error_with({"/training/dropout=1.5"}),
            "s.json: /training/dropout: got 1.5, want a number in [0, 0.99], or an object of \"attention\", "
            "\"embedding\", \"residual\"");
  EXPECT_THAT(error_with({"/training/loss_scale=0"}), HasSubstr("got 0, want a number in (0, 1e+30], or an object of"));
  EXPECT_EQ(error_with({"/parallel/schedule=bad"}),
            "s.json: /parallel/schedule: got \"bad\", want one of \"gpipe\", \"1f1b\", \"interleaved\", "
            "\"zero_bubble\", \"round_robin\", or an object of \"file\", \"rows\"");
}

TEST(Spec, SchedulesThatDoNotFallAreWarnedOf) {
  const auto warnings_of = [](const char* training) {
    json document = comm::parse_json(kMinimal, "s");
    document["training"] = comm::parse_json(training, "t");
    std::vector<std::string> pointers;
    for (const Warning& warning : resolve(document, "s").warnings) pointers.push_back(warning.pointer);
    return pointers;
  };
  using Pointers = std::vector<std::string>;
  const Pointers decay = {"/training/schedule/decay_steps"};
  const Pointers end = {"/training/final_learning_rate"};
  EXPECT_EQ(warnings_of(R"({"steps": 24, "warmup_steps": 5, "schedule": "warmup_stable_decay"})"), decay);
  EXPECT_EQ(warnings_of(R"({"steps": 25, "warmup_steps": 5, "schedule": "warmup_stable_decay"})"), Pointers());
  EXPECT_EQ(warnings_of(R"({"steps": 90, "schedule": {"kind": "warmup_stable_decay", "decay_steps": 1}})"), decay);
  for (const char* schedule : {"cosine", "linear", "warmup_stable_decay"}) {
    const auto with = [&](const char* rate) {
      return R"({"steps": 100, "learning_rate": 0.01, "final_learning_rate": )" + std::string(rate) +
             R"(, "schedule": ")" + schedule + "\"}";
    };
    EXPECT_EQ(warnings_of(with("0.02").c_str()), end) << schedule;
    EXPECT_EQ(warnings_of(with("0.01").c_str()), Pointers()) << schedule;
  }
}

TEST(Spec, NullTakesAMemberAway) {
  const Spec spec =
      parse_spec(kMinimal, "s.json", std::vector<std::string>{"/data/text=null", "/data/tokens=f.bin", "/sweep=null"});
  EXPECT_EQ(comm::canonical_json(spec.document), R"({"data":{"tokens":"f.bin"},"name":"t"})");
}

TEST(Spec, BadOverridesSayWhy) {
  EXPECT_EQ(error_with({"/training/steps"}), "--set /training/steps: want /pointer=value, such as /training/steps=100");
  EXPECT_EQ(error_with({"training.steps=3"}),
            "--set training.steps=3: got \"training.steps\", want a JSON pointer such as \"/network/loss\"");
  EXPECT_EQ(
      error_with({"/training/step=3"}),
      "--set /training/step=3: no member \"step\" in /training; did you mean \"steps\"? known keys: "
      "accumulation, batch_sequences, beta1, beta2, class_weights, drop_last, dropout, epochs, epsilon, "
      "final_learning_rate, global_batch_sequences, gradient_clip, gradient_norm, layer_decay, learning_rate, lora, "
      "loss_scale, momentum, optimizer, precision, schedule, sequence_tokens, steps, tensors, warmup_steps, "
      "weight_decay");
  EXPECT_EQ(error_with({"/seed/x=3"}), "--set /seed/x=3: /seed has no members");
  EXPECT_EQ(error_with({"/network=5", "/network/loss=0"}),
            "--set /network/loss=0: /network is 5, want an object or a list to set members of");
  EXPECT_THAT(error_with({"/a~2=3"}), HasSubstr("in which ~0 stands for ~ and ~1 for /"));
  EXPECT_THAT(error_with({"/description=\xff"}), HasSubstr("the value is not UTF-8"));
  EXPECT_THAT(error_with({"=3"}), HasSubstr("want a JSON pointer"));
}

TEST(Spec, UnreadableFilesAreNamedWithTheReason) {
  EXPECT_EQ(config_error_of([] { (void)read_spec("/nowhere/s.json"); }),
            "read /nowhere/s.json: No such file or directory");
  EXPECT_EQ(config_error_of([] { (void)read_spec("/"); }), "read /: Is a directory");
}

}  // namespace
}  // namespace droptest::experiments::spec_test
