// SPDX-License-Identifier: Apache-2.0
// droptest eval
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "comm/allowed_cores.h"
#include "comm/json/json_text.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/known_names.h"
#include "experiments/cli/network_losses.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/cli/spec_options.h"
#include "experiments/data/example_set.h"
#include "experiments/data/token_sidecar.h"
#include "experiments/data/token_source.h"
#include "experiments/data/vocabulary.h"
#include "experiments/files/weights_file.h"
#include "experiments/spec/pretrained_checks.h"
#include "experiments/training/classification.h"
#include "experiments/training/rank_model.h"
#include "experiments/training/single_rank.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

struct EvalOptions {
  std::string model;
  SpecOptions config;
  std::string tokens;
  std::string examples;
  std::string format = "auto";
  std::string network;
  bool json = false;
};

/// The layout of a file: llm.c's magic number or a name in .bin tells token files from texts.
experiments::DataConfig data_of(const EvalOptions& options) {
  experiments::DataConfig data;
  const bool text = options.format == "text" || (options.format == "auto" && !options.tokens.ends_with(".bin") &&
                                                 !experiments::has_llmc_magic(options.tokens));
  (text ? data.text : data.tokens) = options.tokens;
  if (options.format == "llmc") data.format = experiments::TokenFormat::kLlmc;
  if (options.format == "uint16") data.format = experiments::TokenFormat::kUint16;
  return data;
}

/// The numbers of an evaluation by name, and the losses of its network.
struct Outcome {
  nlohmann::json numbers = nlohmann::json::object();
  std::vector<comm::ClassStatistics> statistics;
};

/// Evaluates on one rank, or on all ranks of the spec if a network is given.
experiments::Evaluated evaluated(const EvalOptions& options, const experiments::RunConfig& config,
                                 const experiments::EvaluationData& data, models::EvaluationDetail detail,
                                 Outcome& outcome) {
  const models::StoredTensors weights = experiments::read_weights(options.model);
  const auto finite = [&](experiments::Evaluated result) {
    if (!std::isfinite(result.mean_loss)) {
      throw std::runtime_error(options.model +
                               ": got a mean loss that is not finite, from finite weights; want weights whose "
                               "activations stay in range" +
                               (options.network.empty() ? "" : ", or a network without losses to compare with"));
    }
    return result;
  };
  if (options.network.empty()) {
    const int threads = static_cast<int>(comm::allowed_cores().size());
    return finite(experiments::evaluate_on_one_rank(config, weights, options.model, data, detail, threads));
  }
  experiments::NetworkEvaluation result =
      experiments::evaluate_over_network(config, weights, options.model, data, detail);
  outcome.statistics = std::move(result.statistics);
  outcome.numbers["losses"] = losses_json(outcome.statistics);
  return finite(std::move(result.result));
}

Outcome evaluate_tokens(const EvalOptions& options, const experiments::RunConfig& config) {
  if (config.model.classifies()) {
    throw ConfigError(options.config.file + ": its model classifies; want --examples in place of --tokens");
  }
  const experiments::DataConfig data = data_of(options);
  const std::string folder =
      experiments::tokenizer_folder({options.model, config.initial_weights}, config.model.vocabulary);
  if (!data.text.empty() && !folder.empty()) experiments::require_text_of_bytes(data.text, folder);
  const experiments::Tokens tokens = experiments::open_tokens(data, config.model.vocabulary);
  if (tokens.size() < 2) {
    throw ConfigError("evaluation data: " + std::to_string(tokens.size()) + " tokens, want at least 2");
  }
  const experiments::EvaluationBatches batches(tokens, tokens.size() - 1, config.training.batch_sequences,
                                               config.training.sequence_tokens);
  Outcome outcome;
  const experiments::Evaluated result =
      evaluated(options, config, batches, models::EvaluationDetail::kMargins, outcome);
  const auto count = static_cast<double>(batches.count_targets());
  outcome.numbers.update({{"mean_loss", result.mean_loss},
                          {"tokens", batches.count_targets()},
                          {"perplexity", comm::finite_or_null(std::exp(result.mean_loss))},
                          {"accuracy", static_cast<double>(result.hits) / count}});
  const double bytes = data.text.empty() ? experiments::bytes_per_token_of(data.tokens, tokens.size()) : 1;
  if (std::isfinite(bytes)) outcome.numbers["bits_per_byte"] = result.mean_loss / std::log(2.0) / bytes;
  return outcome;
}

Outcome evaluate_examples(const EvalOptions& options, const experiments::RunConfig& config) {
  if (!config.model.classifies()) {
    throw ConfigError(options.config.file + ": its model has an LM head; want --tokens in place of --examples");
  }
  const experiments::ExampleConfig& layout = *config.data.examples;
  const std::vector<experiments::ExampleRow> rows =
      experiments::read_examples(options.examples, layout.layout, layout.separator);
  const std::string folder =
      experiments::tokenizer_folder({options.model, config.initial_weights}, config.model.vocabulary);
  if (!folder.empty()) {
    experiments::require_examples_of_bytes(rows, options.examples, layout.layout, folder);
  }
  const experiments::ExampleSet set = experiments::make_examples(
      rows, options.examples, layout, config.model.vocabulary, config.training.sequence_tokens);
  const experiments::EvaluationExamples data(set, config.training.batch_sequences, config.training.sequence_tokens);
  Outcome outcome;
  const experiments::Evaluated result = evaluated(options, config, data, models::EvaluationDetail::kLogits, outcome);
  outcome.numbers["mean_loss"] = result.mean_loss;
  const experiments::Predictions predictions = experiments::predictions_of(result.logits, set.labels);
  outcome.numbers["classification"] = experiments::to_json(
      experiments::quality_of(predictions, config.model.classes, config.seeds.data), layout.labels);
  return outcome;
}

int eval(const EvalOptions& options) {
  if (options.tokens.empty() == options.examples.empty()) {
    throw ConfigError("--tokens: want it or --examples, and not both");
  }
  SpecOptions spec = options.config;
  if (!options.network.empty()) spec.overrides.push_back("/network=" + options.network);
  const experiments::RunConfig config = load_run(spec);
  if (!options.network.empty()) require_ranks_of_network(config);
  const std::string folder =
      experiments::tokenizer_folder({options.model, config.initial_weights}, config.model.vocabulary);
  if (!folder.empty()) {
    experiments::check_vocabulary(options.examples.empty() ? options.tokens : options.examples, folder);
  }
  if (std::filesystem::is_directory(options.model) && config.model.classifies()) {
    experiments::check_class_names(options.model, config.data.examples->labels);
  }
  const Outcome outcome =
      options.examples.empty() ? evaluate_tokens(options, config) : evaluate_examples(options, config);
  if (options.json) {
    using nlohmann::json;
    std::cout << outcome.numbers.dump(-1, ' ', false, json::error_handler_t::replace) << "\n";  // names of files
    return kExitSuccess;
  }
  const nlohmann::json& numbers = outcome.numbers;
  if (options.examples.empty()) {
    std::printf("mean loss %.6f nats per token over %llu tokens: perplexity %s, accuracy %.4f",
                numbers["mean_loss"].get<double>(), numbers["tokens"].get<unsigned long long>(),
                loss_text(numbers["perplexity"]).c_str(), numbers["accuracy"].get<double>());
    if (numbers.contains("bits_per_byte")) std::printf(", %.4f bits per byte", numbers["bits_per_byte"].get<double>());
    std::printf("\n");
  } else {
    const nlohmann::json& quality = numbers["classification"];
    const nlohmann::json& accuracy = quality["accuracy"];
    std::printf(
        "accuracy %.4f (%.4f to %.4f) over %llu examples, mean loss %.6f, macro F1 %.4f, calibration error %.4f\n",
        accuracy["value"].get<double>(), accuracy["low"].get<double>(), accuracy["high"].get<double>(),
        quality["examples"].get<unsigned long long>(), numbers["mean_loss"].get<double>(),
        quality["macro_f1"]["value"].get<double>(), quality["calibration_error"]["value"].get<double>());
  }
  std::fflush(stdout);
  say_losses(outcome.statistics);
  return kExitSuccess;
}

}  // namespace

void add_eval_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("eval", "Loss and accuracy of a model on a text, a token file or examples");
  const auto options = std::make_shared<EvalOptions>();  // shared by CLI11's bindings and the action
  command->add_option("--model", options->model, "Weights: a safetensors file, or a folder of Hugging Face's files")
      ->required();
  command->add_option("--config", options->config.file, "Spec whose model the weights are of")->required();
  command->add_option("--tokens", options->tokens, "Text, or token file");
  command->add_option("--examples", options->examples, "Labelled texts, in the layout of the spec's");
  command->add_option("--network", options->network,
                      "The section /network of a spec, as JSON: evaluates on the spec's ranks, whose packets get lost");
  command
      ->add_option("--format", options->format,
                   "Layout of that file; auto: tokens where it has llm.c's header or "
                   "its name ends in .bin, else text")
      ->check(one_of({"auto", "text", "llmc", "uint16"}))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON");
  add_set_option(*command, options->config);
  command->footer(
      "Every token but the first is predicted once, from at most /training/sequence_tokens tokens before it. Of a "
      "sweep the\n"
      "first point counts, or with --network or --set the spec without its sweep.\n\n"
      "Example:\n"
      "  droptest eval --model final.safetensors --config experiments/specs/quickstart.json --tokens corpus/kjv.txt\n"
      "  droptest eval --model final.safetensors --config experiments/specs/quickstart.json --tokens corpus/kjv.txt "
      "\\\n"
      "    --network '{\"loss\": {\"model\": \"bernoulli\", \"loss_rate\": \"5%\"}}'");
  command->callback([options, &chosen] { chosen = [options] { return eval(*options); }; });
}

}  // namespace droptest::cli
