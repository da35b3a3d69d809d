// SPDX-License-Identifier: Apache-2.0
// droptest generate
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/json/json_text.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/network_losses.h"
#include "experiments/cli/number_options.h"
#include "experiments/cli/spec_options.h"
#include "experiments/data/vocabulary.h"
#include "experiments/files/weights_file.h"
#include "experiments/spec/resolve.h"
#include "experiments/spec/spec.h"
#include "experiments/training/rank_model.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

struct GenerateOptions {
  std::string model;
  SpecOptions config;
  std::string prompt;
  std::vector<std::int32_t> prompt_tokens;
  std::string network;
  int tensor = 0;  ///< 0: not given
  experiments::GenerationOptions generation;
  bool no_cache = false;
  bool json = false;
};

/// The config of the spec; for only a folder, that of a spec with no more than the model.
experiments::RunConfig config_of(const GenerateOptions& options) {
  SpecOptions config = options.config;
  if (!options.network.empty()) config.overrides.push_back("/network=" + options.network);
  const int tensor = options.tensor != 0 ? options.tensor : options.network.empty() ? 1 : 2;
  if (!config.file.empty()) {
    if (options.tensor != 0) config.overrides.push_back("/parallel/tensor=" + std::to_string(tensor));
    return load_run(config);
  }
  if (!std::filesystem::is_directory(options.model)) {
    throw ConfigError("--config: is missing; want the spec whose model " + options.model + " has the weights of");
  }
  nlohmann::json document = {{"name", "generate"},
                             {"model", {{"pretrained", options.model}}},
                             {"data", {{"tokens", "none"}}},
                             {"parallel", {{"tensor", tensor}}},
                             {"network", nlohmann::json::object()}};
  for (const std::string& assignment : config.overrides) experiments::apply_override(document, assignment);
  return experiments::resolve(document, "generate").config;
}

int generate(const GenerateOptions& options) {
  const experiments::RunConfig config = config_of(options);
  if (!options.network.empty()) require_ranks_of_network(config);
  const std::string folder =
      experiments::tokenizer_folder({options.model, config.initial_weights}, config.model.vocabulary);
  std::optional<experiments::Vocabulary> vocabulary;
  if (!folder.empty()) vocabulary = experiments::read_vocabulary(folder);
  const bool of_bytes = !vocabulary && config.model.vocabulary == 256;
  if (options.prompt.empty() == options.prompt_tokens.empty()) {
    throw ConfigError("--prompt: want it or --prompt-tokens, and not both");
  }
  if (!vocabulary && !of_bytes && options.prompt_tokens.empty()) {
    throw ConfigError("--prompt: " + options.model + " has no tokenizer, and its vocabulary of " +
                      std::to_string(config.model.vocabulary) + " is not that of bytes; want --prompt-tokens");
  }
  std::vector<std::int32_t> prompt = options.prompt_tokens;
  if (prompt.empty() && vocabulary) prompt = vocabulary->encode(options.prompt);
  if (prompt.empty()) {
    for (const char byte : options.prompt) prompt.push_back(static_cast<unsigned char>(byte));
  }
  experiments::GenerationOptions generation = options.generation;
  if (options.no_cache) generation.cache = experiments::GenerationOptions::Cache::kUnused;
  if (vocabulary) generation.end = vocabulary->number_of("<|endoftext|>").value_or(-1);
  const experiments::Generation result =
      experiments::generate(config, experiments::read_weights(options.model), options.model, prompt, generation);
  const auto text_of = [&](const std::vector<std::int32_t>& tokens) -> std::string {
    if (vocabulary && vocabulary->refusal().empty()) return vocabulary->decode(tokens);
    if (of_bytes) return {tokens.begin(), tokens.end()};
    std::string numbers;
    for (const std::int32_t token : tokens) numbers += " " + std::to_string(token);
    return numbers;
  };
  if (options.json) {
    const nlohmann::json record = {{"prompt", prompt},
                                   {"tokens", result.tokens},
                                   {"text", comm::with_valid_utf8(text_of(result.tokens))},
                                   {"losses", losses_json(result.statistics)}};
    std::cout << record.dump() << "\n";
    return kExitSuccess;
  }
  std::cout << text_of(prompt) << text_of(result.tokens) << "\n";
  say_losses(result.statistics);
  return kExitSuccess;
}

}  // namespace

void add_generate_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("generate", "Text that a model continues, over a network that loses packets");
  const auto options = std::make_shared<GenerateOptions>();  // shared by CLI11's bindings and the action
  command->add_option("--model", options->model, "Folder of Hugging Face's files, or weights in a safetensors file")
      ->required();
  command->add_option("--config", options->config.file, "Spec whose model the weights are of; a folder needs none");
  command->add_option("--prompt", options->prompt, "Text to continue; <|endoftext|> in it is text, as in files");
  add_integers(*command, "--prompt-tokens", options->prompt_tokens,
               "The same in tokens, <|endoftext|> too, with commas between them",
               {0, std::numeric_limits<std::int32_t>::max()});
  add_integer(*command, "--tokens", options->generation.tokens, "Largest number of tokens to generate", {1, 1000000})
      ->capture_default_str();
  add_number(*command, "--temperature", options->generation.temperature, "Of the draws; 0: always the likeliest token",
             0, 100)
      ->capture_default_str();
  add_integer(*command, "--top-k", options->generation.top_k, "Draw among so many likeliest tokens; 0: all",
              {0, 1000000})
      ->capture_default_str();
  add_integer(*command, "--seed", options->generation.seed, "Of the draws", {})->capture_default_str();
  command->add_option("--network", options->network, "The section /network of a spec, as JSON");
  add_integer(*command, "--tensor", options->tensor,
              "Ranks that share each layer (default: the spec's, or 2 with --network)", {1, 65534});
  command->add_flag("--no-cache", options->no_cache, "Compute all tokens again for each one");
  command->add_flag("--json", options->json, "Print JSON");
  add_set_option(*command, options->config);
  command->footer(
      "Loss needs ranks that share layers. The keys and values of earlier tokens stay as each rank received them.\n\n"
      "Example:\n"
      "  droptest generate --model pretrained --prompt 'In the beginning' --network "
      "'{\"loss\": {\"model\": \"bernoulli\", \"loss_rate\": \"5%\"}}'");
  command->callback([options, &chosen] { chosen = [options] { return generate(*options); }; });
}

}  // namespace droptest::cli
