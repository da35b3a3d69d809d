// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/gpt2_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "sim/error.h"
#include "tests/models/formula_model.h"

namespace droptest::models::gpt2_weights_test {
namespace {

// Five heads and 97 tokens divide by neither 2, 3 nor 4.
constexpr Gpt2Config kConfig{2, 30, 5, 12, 97};

StoredTensors exported(int ranks) {
  StoredTensors tensors;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<float> model(kConfig, group, 1);
    set_formula_weights(model, group);
    StoredTensors own = gather_gpt2_weights(model.config(), model.parameters(), group);
    if (group.rank() == 0) {
      tensors = std::move(own);
    } else {
      EXPECT_TRUE(own.empty());
    }
  });
  return tensors;
}

StoredTensors reloaded(const StoredTensors& tensors, int ranks) {
  StoredTensors again;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<float> model(kConfig, group, 1);
    model.initialize(9);
    load_gpt2_weights(model.config(), model.parameters(), group, tensors, "w");
    for (const float value :
         model.parameters()[0].value.subspan(gpt2_part(kConfig, ranks, group.rank()).vocabulary.count * 30)) {
      EXPECT_EQ(value, 0) << "padding";
    }
    StoredTensors own = gather_gpt2_weights(model.config(), model.parameters(), group);
    if (group.rank() == 0) again = std::move(own);
  });
  return again;
}

void expect_equal(const StoredTensors& a, const StoredTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& item : a) {
    EXPECT_EQ(b.at(item.first).shape, item.second.shape) << item.first;
    EXPECT_EQ(b.at(item.first).bytes, item.second.bytes) << item.first;
  }
}

TEST(Gpt2Weights, ExportAndLoadKeepEveryBitAcrossTensorParallelSizes) {
  const StoredTensors one = exported(1);
  EXPECT_EQ(one.size(), 28U);
  EXPECT_EQ(one.at("h.1.attn.c_attn.weight").shape, (std::vector<std::uint64_t>{30, 90}));
  EXPECT_EQ(one.at("h.1.mlp.c_fc.weight").shape, (std::vector<std::uint64_t>{30, 120}));
  EXPECT_EQ(one.at("h.1.mlp.c_proj.weight").shape, (std::vector<std::uint64_t>{120, 30}));
  EXPECT_EQ(one.at("wte.weight").shape, (std::vector<std::uint64_t>{97, 30}));
  // The formula's own value somewhere in a tensor that is cut by columns.
  float value = 0;
  std::memcpy(&value, one.at("h.0.attn.c_attn.weight").bytes.data() + 4 * (7 * 90 + 61), sizeof(value));
  EXPECT_EQ(value, static_cast<float>(0.5 * mixed(4, 7 * 90 + 61)));
  for (const int ranks : {2, 3, 4}) {
    expect_equal(exported(ranks), one);
    expect_equal(reloaded(one, ranks), one);
  }
}

std::string refusal(const StoredTensors& tensors) {
  std::string message = "accepted";
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<float> model(kConfig, group, 1);
    try {
      load_gpt2_weights(model.config(), model.parameters(), group, tensors, "w.safetensors");
    } catch (const ConfigError& error) {
      message = error.what();
    }
  });
  return message;
}

TEST(Gpt2Weights, AcceptsPrefixedNamesMaskBuffersAndATiedHead) {
  const StoredTensors plain = exported(1);
  StoredTensors prefixed;
  for (const auto& item : plain) prefixed["transformer." + item.first] = item.second;
  prefixed["lm_head.weight"] = plain.at("wte.weight");
  prefixed["transformer.h.0.attn.bias"] = {"U8", {1, 1, 12, 12}, std::vector<std::byte>(144)};
  prefixed["transformer.h.1.attn.masked_bias"] = {"F32", {}, std::vector<std::byte>(4)};
  expect_equal(reloaded(prefixed, 2), plain);
}

TEST(Gpt2Weights, RefusesWhatIsNotThisModel) {
  using testing::AllOf;
  using testing::HasSubstr;
  const StoredTensors good = exported(1);
  StoredTensors tensors = good;
  tensors.erase("h.1.mlp.c_fc.bias");
  EXPECT_THAT(refusal(tensors), AllOf(HasSubstr("\"h.1.mlp.c_fc.bias\" is missing"), HasSubstr("[120]")));
  tensors = good;
  tensors["h.2.ln_1.weight"] = tensors["h.1.ln_1.weight"];
  EXPECT_THAT(refusal(tensors), AllOf(HasSubstr("\"h.2.ln_1.weight\""), HasSubstr("2 layers")));
  tensors = good;
  tensors["h.0.mlp.c_fc.weight"].shape = {120, 30};
  EXPECT_THAT(refusal(tensors), AllOf(HasSubstr("got shape [120, 30]"), HasSubstr("want [30, 120]")));
  tensors = good;
  tensors["wte.weight"] = {"F32", {100, 30}, std::vector<std::byte>(12000)};
  EXPECT_THAT(refusal(tensors), AllOf(HasSubstr("wte.weight"), HasSubstr("want [97, 30]")));
  tensors = good;
  tensors["lm_head.weight"] = good.at("wte.weight");
  tensors["lm_head.weight"].bytes[4] ^= std::byte{1};
  EXPECT_THAT(refusal(tensors), HasSubstr("differs from \"wte.weight\""));
  tensors = good;
  tensors["transformer.wpe.weight"] = good.at("wpe.weight");
  EXPECT_THAT(refusal(tensors), HasSubstr("with and without"));
  tensors = good;
  tensors["ln_f.bias"] = {"I32", {30}, std::vector<std::byte>(120)};
  EXPECT_THAT(refusal(tensors), AllOf(HasSubstr("ln_f.bias"), HasSubstr("I32")));
}

TEST(Gpt2Weights, RefusesNumbersThatAreNotFinite) {
  using testing::HasSubstr;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto& [value, words] : std::vector<std::pair<float, const char*>>{
           {std::nanf(""), "NaN"}, {kInfinity, "an infinite number"}, {-kInfinity, "an infinite number"}}) {
    for (const char* name : {"h.1.mlp.c_fc.bias", "wte.weight", "ln_f.weight"}) {
      StoredTensors tensors = exported(1);
      std::memcpy(tensors.at(name).bytes.data() + 4 * 7, &value, sizeof(value));
      EXPECT_EQ(refusal(tensors), "w.safetensors: tensor \"" + std::string(name) + "\": element 7: got " + words +
                                      ", want finite numbers");
    }
  }
  StoredTensors wide = exported(1);
  const std::vector<double> values(30, 1e300);  // float32 has no such number
  const auto bytes = std::as_bytes(std::span(values));
  wide.at("ln_f.bias") = {"F64", {30}, {bytes.begin(), bytes.end()}};
  EXPECT_THAT(refusal(wide), HasSubstr("tensor \"ln_f.bias\": element 0: got a number beyond those of float32"));
}

TEST(Gpt2Weights, AHeadMayBeMissingWhereTrainingStartsAlone) {
  Gpt2Config config = kConfig;
  config.classes = 3;
  const StoredTensors without = exported(1);
  check_gpt2_weights(config, without, "w", MissingHead::kStays);
  EXPECT_THAT([&] { check_gpt2_weights(config, without, "w"); },
              testing::ThrowsMessage<ConfigError>("w: tensor \"score.weight\" is missing, want shape [3, 30], of a "
                                                  "model that was trained to classify"));
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<float> model(config, group, 1);
    model.initialize(9);
    const std::span<const float> head = model.parameters().back().value;
    const std::vector<float> before(head.begin(), head.end());
    EXPECT_THROW(load_gpt2_weights(config, model.parameters(), group, without, "w"), ConfigError);
    load_gpt2_weights(config, model.parameters(), group, without, "w", MissingHead::kStays);
    EXPECT_THAT(head, testing::ElementsAreArray(before));
    EXPECT_THAT(before, testing::Contains(testing::Ne(0)));
  });
}

TEST(Gpt2Weights, HuggingFacesNamesHaveAPrefixBesideTheHead) {
  StoredTensors tensors = exported(1);
  tensors[kClassTensor] = {"F32", {3, 30}, std::vector<std::byte>(360)};
  const StoredTensors renamed = with_huggingface_names(tensors);
  EXPECT_EQ(renamed.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const std::string wanted = name == "score.weight" ? name : "transformer." + name;
    EXPECT_EQ(renamed.at(wanted).bytes, tensor.bytes) << name;
  }
}

TEST(Gpt2Weights, TheConfigurationCanBeReadOffTheTensors) {
  const Gpt2Config config = gpt2_config_of(exported(1), "w");
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.width, 30);
  EXPECT_EQ(config.context, 12);
  EXPECT_EQ(config.vocabulary, 97);
  EXPECT_EQ(config.heads, 0);
  EXPECT_THROW(gpt2_config_of({}, "w"), ConfigError);
}

}  // namespace
}  // namespace droptest::models::gpt2_weights_test
