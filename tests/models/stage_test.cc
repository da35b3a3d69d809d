// SPDX-License-Identifier: Apache-2.0
// Compares stages that are chained by hand, and micro-batches in several slots, with one stage and one slot.
#include "models/gpt2/stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/gpt2/stage_plan.h"
#include "models/optimizer.h"
#include "sim/error.h"
#include "tests/models/every_implementation.h"
#include "tests/models/planned_bytes.h"

namespace droptest::models::stage_test {
namespace {

const Gpt2Config kConfig{3, 24, 3, 8, 61};
constexpr BatchShape kShape{2, 5};

struct Batch {
  std::vector<std::int32_t> tokens, targets;
};
Batch batch(std::uint64_t i) {
  return {formula_tokens(2 * i, 10, kConfig.vocabulary), formula_tokens(2 * i + 1, 10, kConfig.vocabulary)};
}

std::vector<StageRange> cut_at(std::vector<int> cuts) {
  std::vector<StageRange> ranges;
  cuts.push_back(kConfig.layers);
  int first = 0;
  for (const int last : cuts) ranges.push_back({first, last, kConfig.layers}), first = last;
  return ranges;
}

/// One stage with its memory.
struct Link {
  Link(const StageRange& range, ParameterStore& store, Ops& ops, std::uint64_t count)
      : stage(kConfig, range, store, ops) {
    const StagePlan plan(kConfig, range, ops.world_size(), ops.rank(), ops.form(), kShape, Keep::kForBackward);
    memory = ops.allocate(plan.bytes(count), "stage", Ops::Content::kUnspecified);
    for (std::uint64_t slot = 0; slot < count; ++slot) {
      slots.push_back(plan.placed(memory->data(), slot, count, ops.form(), ops.stream()));
    }
  }
  Stage stage;
  std::unique_ptr<Ops::Memory> memory;
  std::vector<StageBuffers> slots;
};

class Chain {
 public:
  Chain(Ops& ops, std::uint64_t slots) : ops_(ops), slots_(slots) {}

  void add(const StageRange& range, ParameterStore& store) { links_.emplace_back(range, store, ops_, slots_); }
  void forward(std::size_t slot, const Batch& micro_batch) {
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (i > 0) copy(Stage::output(links_[i - 1].slots[slot]), Stage::input(links_[i].slots[slot]));
      links_[i].stage.forward(links_[i].slots[slot], Keep::kForBackward, micro_batch.tokens, micro_batch.targets);
    }
  }
  void backward(std::size_t slot, double scale, GradientMode mode) {
    for (std::size_t i = links_.size(); i-- > 0;) {
      if (i + 1 < links_.size()) {
        copy(Stage::grad_input(links_[i + 1].slots[slot]), Stage::grad_output(links_[i].slots[slot]));
      }
      links_[i].stage.backward(links_[i].slots[slot], scale, static_cast<double>(kShape.rows()), mode);
    }
  }

 private:
  void copy(const comm::Tensor& from, const comm::Tensor& to) {
    std::vector<std::byte> bytes(from.bytes.size());
    ASSERT_EQ(bytes.size(), to.bytes.size());
    ops_.copy_to_host(from, bytes);
    ops_.synchronize();
    ops_.copy_from_host(bytes, to);
    ops_.synchronize();
  }

  Ops& ops_;
  std::uint64_t slots_;
  std::vector<Link> links_;
};

template <class Use>
void with_parameters_of(ParameterStore& store, const Use& use) {
  if (store.type() == comm::ElementType::kFloat64) {
    use(store.host<double>());
  } else {
    use(store.host<float>());
  }
}

using NumbersByName = std::map<std::string, std::vector<double>>;
NumbersByName numbers_by_name(ParameterStore& store, Field field) {
  store.download(ParameterStore::Fields::kValuesAndGradients);
  NumbersByName all;
  with_parameters_of(store, [&](auto parameters) {
    for (const auto& parameter : parameters) {
      const auto numbers = field == Field::kValue ? parameter.value : parameter.gradient;
      all[parameter.name].assign(numbers.begin(), numbers.end());
    }
  });
  return all;
}

std::vector<double> joined(const NumbersByName& numbers, std::span<const Gpt2Tensor> order) {
  std::vector<double> all;
  for (const Gpt2Tensor& tensor : order) {
    all.insert(all.end(), numbers.at(tensor.name).begin(), numbers.at(tensor.name).end());
  }
  return all;
}

/// The values of a formula model in the tensors of a store.
void set_formula_values(ParameterStore& store, const comm::Communicator& group) {
  const auto whole = gpt2_tensors(kConfig, group.world_size(), group.rank());
  with_parameters_of(store, [&](auto parameters) {
    using T = std::remove_const_t<std::remove_reference_t<decltype(parameters[0].value[0])>>;
    std::vector<std::vector<T>> memory;
    std::vector<Parameter<T>> all;
    for (const Gpt2Tensor& tensor : whole) memory.emplace_back(tensor.slice.local_elems());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      all.push_back({whole[i].name, whole[i].group, {}, whole[i].placement, whole[i].decay, memory[i], {}});
    }
    set_formula_weights<T>(kConfig, all, group);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& from = memory[store.tensors()[i].number];
      std::copy(from.begin(), from.end(), parameters[i].value.begin());
    }
  });
  store.upload_values();
}

// Steps over two micro-batches in separate slots, with backward passes in reverse order.
TEST(Stage, AChainHasTheBitsOfTheWholeModel) {
  for (const int ranks : {1, 2}) {
    on_every_implementation(ranks, [](const Implementation& implementation, comm::Communicator& group) {
      for (const auto& ranges : {cut_at({1, 2}), cut_at({}), cut_at({1}), cut_at({2})}) {
        if (implementation.turn > 1 && ranges.size() < 3) break;
        const OptimizerConfig adamw{.epsilon = 1e-3};
        const auto model = formula_model(kConfig, implementation.make(group), group, adamw);
        const auto ops = implementation.make(group);
        const auto tensors = gpt2_tensors(kConfig, group.world_size(), group.rank());
        ParameterStore store(tensors, *ops);
        Optimizer optimizer(store, adamw, *ops);
        set_formula_values(store, group);
        Chain chain(*ops, 2);
        for (const StageRange& range : ranges) chain.add(range, store);
        for (std::uint64_t step = 0; step < 2; ++step) {
          const Batch first = batch(2 * step);
          const Batch second = batch(2 * step + 1);
          model->zero_gradients();
          numbers_of(*model, Field::kGradient);  // zeros that passes add to, as below: to set them may round otherwise
          model->forward_backward(second.tokens, second.targets, kShape, 0.5);
          model->forward_backward(first.tokens, first.targets, kShape, 0.5);
          const double losses = model->step_sums().losses;
          ops->zero(store.gradients());
          const OpsTypes types = ops->form().types();
          ops->sum_losses({types.losses, {}, ops->stream()}, 1, 1, GradientMode::kSet, Number::kLosses);  // 0 of none
          chain.forward(0, first);
          chain.forward(1, second);
          chain.backward(1, 0.5, GradientMode::kAdd);
          chain.backward(0, 0.5, GradientMode::kAdd);
          EXPECT_EQ(ops->numbers()[Number::kLosses], losses);
          expect_equal(joined(numbers_by_name(store, Field::kGradient), tensors), numbers_of(*model, Field::kGradient),
                       "gradient");
          model->step(0.01, 0.5);
          optimizer.step(0.01, 0.5);
          expect_equal(joined(numbers_by_name(store, Field::kValue), tensors), numbers_of(*model, Field::kValue),
                       "value");
        }
      }
    });
  }
}

// Each stage has its own tensors, as in a pipeline, and wte is there twice. Its gradient is the sum of both parts.
TEST(Stage, StagesWithTensorsOfTheirOwnAddUpTheTiedEmbedding) {
  on_every_implementation(2, [](const Implementation& implementation, comm::Communicator& group) {
    const auto model = formula_model(kConfig, implementation.make(group), group);
    // No token twice: a row of wte then has one gradient from the embedding.
    Batch micro_batch = batch(0);
    for (std::size_t i = 0; i < 10; ++i) micro_batch.tokens[i] = static_cast<std::int32_t>(3 + 5 * i);
    model->zero_gradients();
    model->forward_backward(micro_batch.tokens, micro_batch.targets, kShape, 1.0);
    const auto ops = implementation.make(group);
    std::vector<std::unique_ptr<ParameterStore>> stores;
    Chain chain(*ops, 1);
    for (const StageRange& range : cut_at({1, 2})) {
      stores.push_back(
          std::make_unique<ParameterStore>(stage_tensors(kConfig, range, group.world_size(), group.rank()), *ops));
      set_formula_values(*stores.back(), group);
      chain.add(range, *stores.back());
    }
    chain.forward(0, micro_batch);
    chain.backward(0, 1.0, GradientMode::kAdd);
    chain.forward(0, micro_batch);
    chain.backward(0, 1.0, GradientMode::kSet);  // takes the place of all that was added, in both parts of wte
    NumbersByName all;
    for (auto& store : stores) {
      for (auto& [name, numbers] : numbers_by_name(*store, Field::kGradient)) {
        std::vector<double>& sum = all[name];
        sum.resize(numbers.size());
        for (std::size_t i = 0; i < numbers.size(); ++i) sum[i] += numbers[i];
      }
    }
    EXPECT_EQ(stores[0]->tensors().size(), 2 + 12U);
    EXPECT_EQ(stores[1]->tensors().size(), 12U);
    EXPECT_EQ(stores[2]->tensors().size(), 1 + 12 + 2U);
    std::vector<double> got = joined(all, gpt2_tensors(kConfig, 2, group.rank()));
    // Here doubles add the two parts; on a rank, their sum is rounded to the rank's type.
    if (model->parameter_type() == comm::ElementType::kFloat32) {
      for (double& number : got) number = static_cast<double>(static_cast<float>(number));
    }
    EXPECT_EQ(got, numbers_of(*model, Field::kGradient));
  });
}

// At the call of a layer all its gradients are those that the micro-batch leaves; the calls come in backward order.
TEST(Stage, TellsOnceWhenTheGradientsOfALayerAreReady) {
  on_every_implementation(2, [](const Implementation& implementation, comm::Communicator& group) {
    const auto ops = implementation.make(group);
    for (const auto& ranges : {cut_at({}), cut_at({1})}) {
      ParameterStore store(gpt2_tensors(kConfig, group.world_size(), group.rank()), *ops);
      set_formula_values(store, group);
      Chain chain(*ops, 2);
      for (const StageRange& range : ranges) chain.add(range, store);
      std::vector<int> layers;
      std::vector<NumbersByName> at_call;
      store.set_gradient_ready([&](int layer) {
        layers.push_back(layer);
        at_call.push_back(numbers_by_name(store, Field::kGradient));
      });
      for (std::size_t slot = 0; slot < 2; ++slot) chain.forward(slot, batch(slot));
      for (const std::size_t slot : {1U, 0U}) {
        layers.clear();
        at_call.clear();
        chain.backward(slot, 1.0, GradientMode::kAdd);
        // Outside of blocks two stages of a chain have parts of the gradients.
        const std::vector<int> want = ranges.size() == 1 ? std::vector<int>{2, 1, 0, -1} : std::vector<int>{2, 1, 0};
        ASSERT_EQ(layers, want);
        const NumbersByName after = numbers_by_name(store, Field::kGradient);
        for (std::size_t i = 0; i < layers.size(); ++i) {
          const std::string prefix = "h." + std::to_string(layers[i]) + ".";
          for (const auto& [name, numbers] : after) {
            if (name.starts_with(prefix)) expect_equal(at_call[i].at(name), numbers, name.c_str());
          }
        }
      }
    }
  });
}

TEST(Slots, BackwardPassesInAnyOrderGiveWhatOneSlotGivesInThatOrder) {
  for (const int ranks : {1, 2}) {
    on_every_implementation(ranks, [](const Implementation& implementation, comm::Communicator& group) {
      const auto one = formula_model(kConfig, implementation.make(group), group);
      Gpt2 many(kConfig, implementation.make(group), {}, {.slots = 3});
      with_parameters(many, [&](auto parameters) { set_formula_weights(kConfig, parameters, group); });
      many.upload_values();
      for (const std::vector<int>& order : {std::vector<int>{2, 0, 1}, {0, 1, 2}, {1, 2, 0}}) {
        one->zero_gradients();
        many.zero_gradients();
        for (int slot = 0; slot < 3; ++slot) {
          const Batch own = batch(static_cast<std::uint64_t>(slot));
          many.forward(slot, own.tokens, own.targets, kShape);
        }
        for (const int slot : order) {
          const Batch own = batch(static_cast<std::uint64_t>(slot));
          one->forward_backward(own.tokens, own.targets, kShape, 1.0 / 3);
          many.backward(slot, 1.0 / 3);
        }
        EXPECT_EQ(many.step_sums().losses, one->step_sums().losses);
        expect_equal(numbers_of(many, Field::kGradient), numbers_of(*one, Field::kGradient), "gradient");
      }
      EXPECT_EQ(many.memory_bytes(), planned_bytes(kConfig, group.world_size(), group.rank(),
                                                   *implementation.form(group.world_size()), kShape, {.slots = 3}));
    });
  }
}

// Parts of longer sequences: each slot has the positions of its own part.
TEST(Slots, HaveFirstPositionsOfTheirOwn) {
  on_every_implementation(2, [](const Implementation& implementation, comm::Communicator& group) {
    const auto one = formula_model(kConfig, implementation.make(group), group);
    Gpt2 many(kConfig, implementation.make(group), {}, {.slots = 2});
    with_parameters(many, [&](auto parameters) { set_formula_weights(kConfig, parameters, group); });
    many.upload_values();
    const BatchShape parts[] = {kShape, {kShape.batch, kShape.length, 3}};
    const Batch own[] = {batch(0), batch(1)};
    one->zero_gradients();
    many.zero_gradients();
    for (const int slot : {0, 1}) many.forward(slot, own[slot].tokens, own[slot].targets, parts[slot]);
    for (const int slot : {0, 1}) {
      one->forward_backward(own[slot].tokens, own[slot].targets, parts[slot], 0.5);
      many.backward(slot, 0.5);
    }
    EXPECT_EQ(many.step_sums().losses, one->step_sums().losses);
    expect_equal(numbers_of(many, Field::kGradient), numbers_of(*one, Field::kGradient), "gradient");
  });
}

TEST(Slots, RefuseWhatHasNoPlaceInThem) {
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    Gpt2 model(kConfig, make_host_ops({}, group), {}, {.slots = 2});
    const Batch own = batch(0);
    EXPECT_THROW(model.backward(0, 1), CheckError);
    for (const int slot : {-1, 2}) {
      const auto refused =
          testing::ThrowsMessage<CheckError>(testing::HasSubstr("slot " + std::to_string(slot) + " of a stage with 2"));
      EXPECT_THAT([&] { model.forward(slot, own.tokens, own.targets, kShape); }, refused);
      EXPECT_THAT([&] { model.backward(slot, 1); }, refused);
    }
    model.forward(0, own.tokens, own.targets, kShape);
    EXPECT_THROW(model.forward(0, own.tokens, own.targets, kShape), CheckError);
    EXPECT_THROW(model.forward(1, own.tokens, own.targets, {5, 2}), CheckError) << "another shape";
    EXPECT_THROW(model.evaluate(own.tokens, own.targets, kShape), CheckError) << "it takes the slots' memory";
    model.backward(0, 1);
    EXPECT_THROW(model.backward(0, 1), CheckError);
    model.forward(1, own.tokens, own.targets, {5, 2});
  });
}

std::string refusal(const StageRange& range, const SlotOptions& options) {
  try {
    validate(range, options, kConfig);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(StageRange, PoliciesAreOfAllBlocks) {
  const StageRange whole = StageRange::whole(kConfig);
  EXPECT_EQ(refusal(whole, {}), "");
  EXPECT_EQ(refusal(whole, {.slots = 7, .recompute = {3, Recompute::kSaveAll}}), "");
  EXPECT_THAT(refusal({1, 1, 3}, {}), testing::HasSubstr("got blocks 1 to 1 of 3"));
  EXPECT_THAT(refusal({-1, 1, 3}, {}), testing::HasSubstr("got blocks -1 to 1"));
  EXPECT_THAT(refusal({0, 4, 3}, {}), testing::HasSubstr("got blocks 0 to 4"));
  EXPECT_THAT(refusal({0, 2, 2}, {}), testing::HasSubstr("the model's 3 blocks"));
  EXPECT_THAT(refusal(whole, {.slots = 0}), testing::HasSubstr("slots: got 0, want at least 1"));
  EXPECT_THAT(refusal(whole, {.slots = 1, .recompute = {Recompute::kSaveAll}}), testing::HasSubstr("of 1 blocks"));
  EXPECT_EQ(refusal(whole, {.recompute = {Recompute::kSaveAll, Recompute::kBlock, Recompute::kSelective}}), "");
}

}  // namespace
}  // namespace droptest::models::stage_test
