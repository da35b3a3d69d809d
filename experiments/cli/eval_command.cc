// SPDX-License-Identifier: Apache-2.0
// droptest eval
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "experiments/cli/commands.h"
#include "experiments/cli/known_names.h"
#include "experiments/cli/spec_options.h"
#include "experiments/data/token_source.h"
#include "experiments/records/weights_file.h"
#include "experiments/run/single_rank.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

struct EvalOptions {
  std::string model;
  SpecOptions config;
  std::string tokens;
  std::string format = "auto";
  bool json = false;
};

/// Which layout a file has: llm.c's magic number or the name ending in .bin tell token files from texts.
experiments::DataConfig data_of(const EvalOptions& options) {
  experiments::DataConfig data;
  const bool text = options.format == "text" || (options.format == "auto" && !options.tokens.ends_with(".bin") &&
                                                 !experiments::has_llmc_magic(options.tokens));
  (text ? data.text : data.tokens) = options.tokens;
  if (options.format == "llmc") data.format = experiments::TokenFormat::kLlmc;
  if (options.format == "uint16") data.format = experiments::TokenFormat::kUint16;
  return data;
}

int eval(const EvalOptions& options) {
  const experiments::SweepPlan plan = load_plan(options.config, nullptr);
  const experiments::RunConfig& config = plan.runs.front().run.config;
  const experiments::Tokens tokens = experiments::open_tokens(data_of(options), config.model.vocabulary);
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const experiments::Evaluation result =
      experiments::evaluate(config, experiments::read_weights(options.model), options.model, tokens, threads);
  if (options.json) {
    std::cout << nlohmann::json{{"mean_loss", result.mean_loss}, {"tokens", result.tokens}}.dump() << "\n";
  } else {
    std::printf("mean loss %.6f nats per token over %llu tokens\n", result.mean_loss,
                static_cast<unsigned long long>(result.tokens));
  }
  return kExitSuccess;
}

}  // namespace

void add_eval_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("eval", "Mean loss of a model on a text or token file");
  const auto options = std::make_shared<EvalOptions>();  // shared by CLI11's bindings and the action
  command->add_option("--model", options->model, "Weights, a safetensors file")->required();
  command->add_option("--config", options->config.file, "Spec whose model the weights are of")->required();
  command->add_option("--tokens", options->tokens, "Text, or token file")->required();
  command
      ->add_option("--format", options->format,
                   "Layout of that file; auto: tokens where it has llm.c's header or "
                   "its name ends in .bin, else text")
      ->check(one_of({"auto", "text", "llmc", "uint16"}))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON");
  add_set_option(*command, options->config);
  command->footer(
      "Every token but the first is predicted once, from at most /training/sequence_tokens tokens before it.\n\n"
      "Example:\n"
      "  droptest eval --model final.safetensors --config experiments/specs/quickstart.json --tokens corpus/kjv.txt");
  command->callback([options, &chosen] { chosen = [options] { return eval(*options); }; });
}

}  // namespace droptest::cli
