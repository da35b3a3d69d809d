// SPDX-License-Identifier: Apache-2.0
// The kernels of a training step on a device, at the shapes of GPT-2 124M with 64 sequences of 1,024 tokens in
// bfloat16: the time of one call, and the number of calls in a step of one rank. For some GEMMs it also compares an
// epilogue of cuBLASLt with droptest's own kernel. Prints one JSON object; benchmarks/gpu/gpu_bench reads it.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "benchmarks/gpu/kernel_rates.h"
#include "benchmarks/gpu/step_kernels.h"
#include "comm/device/device_info.h"
#include "models/kernels/attention_kernel.h"
#include "models/kernels/narrow_floats.h"
#include "models/ops/kernel_registry.h"
#include "sim/error.h"

namespace droptest {
namespace {

using models::Bf16;

struct Arguments {
  StepShape shape;
  bool choices = false;
};

Arguments parsed(int argc, char** argv) {
  Arguments arguments;
  StepShape& shape = arguments.shape;
  CLI::App app("Times the kernels of a training step on the first CUDA device");
  for (const auto& [name, value] : {std::pair{"--batch", &shape.batch},
                                    {"--length", &shape.length},
                                    {"--layers", &shape.layers},
                                    {"--width", &shape.width},
                                    {"--heads", &shape.heads},
                                    {"--vocabulary", &shape.vocabulary}}) {
    app.add_option(name, *value)->check(CLI::PositiveNumber)->capture_default_str();
  }
  app.add_flag("--choices", arguments.choices,
               "Time the algorithms that cuBLASLt proposes for each product instead, and print rows of the table in "
               "models/kernels/product_choices.cc");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return arguments;
}

nlohmann::json as_json(const StepShape& shape) {
  return {{"batch", shape.batch}, {"length", shape.length}, {"layers", shape.layers},
          {"width", shape.width}, {"heads", shape.heads},   {"vocabulary", shape.vocabulary}};
}

/// All attention kernels that are available on the machine.
void attention_kernels(const StepShape& model, comm::Stream& stream, KernelRates& rates) {
  const models::AttentionShape shape{model.batch, model.length, model.heads, model.width / model.heads};
  const std::int64_t elems = model.rows() * model.width;
  auto qkv = random_numbers<Bf16>(3 * elems, stream);
  auto grad_qkv = random_numbers<Bf16>(3 * elems, stream);
  auto output = random_numbers<Bf16>(elems, stream);
  auto gradient = random_numbers<Bf16>(elems, stream);
  // Forward, attention has two GEMMs over the unmasked half of the scores; backward five.
  const double product = static_cast<double>(elems) * static_cast<double>(model.length);
  const models::KernelTarget target{.stream = &stream};
  for (const std::string& name : models::kernel_names("attention", models::KernelDevice::kCuda)) {
    const auto kernel = models::make_attention({{"attention", {name}}}, models::KernelDevice::kCuda);
    try {
      kernel->prepare(shape, comm::ElementType::kBfloat16, models::AttentionKernel::Passes::kBoth);
    } catch (const ConfigError& error) {
      rates.absent("attention " + name, error.what());
      continue;
    }
    auto statistics = random_numbers<float>(static_cast<std::int64_t>(kernel->statistics_elems(shape)), stream);
    auto forward_scratch = zeros<Bf16>(static_cast<std::int64_t>(kernel->forward_scratch_elems(shape, 0)), stream);
    auto backward_scratch = zeros<float>(static_cast<std::int64_t>(kernel->backward_scratch_elems(shape, 0)), stream);
    InStep in_step = model.in_each_block("attention, forward", "attention");
    in_step.attention = name;
    rates.operations(
        "attention " + name + " forward", 2 * product,
        [&] {
          kernel->forward({tensor(qkv, stream), tensor(statistics, stream), tensor(output, stream),
                           tensor(forward_scratch, stream)},
                          shape, target);
        },
        in_step);
    in_step.group = "attention, backward";
    rates.operations(
        "attention " + name + " backward", 5 * product,
        [&] {
          kernel->backward({tensor(gradient, stream), tensor(qkv, stream), tensor(output, stream),
                            tensor(statistics, stream), tensor(grad_qkv, stream), tensor(backward_scratch, stream)},
                           shape, target);
        },
        in_step);
  }
}

/// Records the error of one kind of kernels in the result; the other kinds are still measured.
nlohmann::json measured(const StepShape& shape) {
  using Kind = void (*)(const StepShape&, comm::Stream&, KernelRates&);
  comm::Stream stream(0);
  KernelRates rates(stream);
  for (const auto& [kind, body] : {std::pair<const char*, Kind>{"layer norm", norm_kernels},
                                   {"embedding", embedding_kernels},
                                   {"optimizer", parameter_kernels},
                                   {"messages", message_kernels},
                                   {"attention", attention_kernels},
                                   {"linear layers", linear_kernels},
                                   {"head", head_kernels}}) {
    try {
      body(shape, stream, rates);
    } catch (const std::exception& error) {
      rates.absent(kind, error.what());
    }
  }
  return {{"device", comm::describe(comm::survey_devices().devices.at(0))},
          {"shape", as_json(shape)},
          {"kernels", rates.kernels()},
          {"epilogues", rates.epilogues()}};
}

nlohmann::json choices(const StepShape& shape) {
  comm::Stream stream(0);
  KernelRates rates(stream, KernelRates::Times::kOfChoices);
  nlohmann::json errors = nlohmann::json::array();
  for (const auto body : {linear_kernels, head_kernels}) {
    try {
      body(shape, stream, rates);
    } catch (const std::exception& error) {
      errors.push_back(error.what());
    }
  }
  return {{"device", comm::describe(comm::survey_devices().devices.at(0))},
          {"shape", as_json(shape)},
          {"choices", rates.choices()},
          {"errors", errors}};
}

}  // namespace
}  // namespace droptest

int main(int argc, char** argv) {
  const droptest::Arguments arguments = droptest::parsed(argc, argv);
  const droptest::StepShape& shape = arguments.shape;
  try {
    if (shape.width % shape.heads != 0) {
      throw droptest::ConfigError("--heads: got " + std::to_string(shape.heads) + " of a width of " +
                                  std::to_string(shape.width) + ", want a divisor of the width");
    }
    droptest::comm::require_device(0);
    std::cout << (arguments.choices ? droptest::choices(shape) : droptest::measured(shape)).dump() << "\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "device_rates: error: " << error.what() << "\n";
    return 1;
  }
}
