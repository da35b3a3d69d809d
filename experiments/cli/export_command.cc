// SPDX-License-Identifier: Apache-2.0
// droptest export
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/copies_text.h"
#include "experiments/cli/python_package.h"
#include "experiments/cli/spec_options.h"
#include "experiments/data/pretrained_folder.h"
#include "experiments/files/atomic_file.h"
#include "experiments/files/weights_file.h"
#include "experiments/records/metrics_tail.h"
#include "experiments/records/run_records.h"
#include "experiments/training/single_rank.h"
#include "experiments/watch/tensorboard.h"
#include "experiments/watch/watched_runs.h"
#include "models/gpt2/gpt2_weights.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

struct ExportOptions {
  SpecOptions source;  ///< a run's folder; a spec with --initial
  bool initial = false;
  bool tensorboard = false;
  bool wandb = false;
  bool huggingface = false;
  std::string out;
};

/// The reason why a folder has no weights.safetensors, and the command that writes it.
std::string why_without_weights(const experiments::RunDirectory& run) {
  const std::optional<nlohmann::json> summary = experiments::read_summary(run);
  if (!summary) return "has no weights.safetensors, since no run has finished there";
  if (comm::load_json(run.spec()).contains("command")) {
    return "has no weights.safetensors: what its program keeps of its model is up to the program";
  }
  const std::string error = summary->at("error").is_string() ? summary->at("error").get<std::string>() : "";
  if (!error.empty()) return "has no weights.safetensors, since the run failed: " + error;
  const std::filesystem::path folder = std::filesystem::absolute(run.path + "/").lexically_normal().parent_path();
  return "the run finished without weights.safetensors (/record/weights says whether they are kept); this writes them: "
         "droptest run " +
         run.spec() + " --set /record/weights=final --again --out " +
         folder.parent_path().parent_path().lexically_proximate(std::filesystem::current_path()).string();
}

models::StoredTensors final_weights(const std::string& folder) {
  const experiments::RunDirectory run{folder};
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError(folder +
                      ": no such folder; want a run's, e.g. results/quickstart/<run_id> (or --initial and a spec)");
  }
  if (!std::filesystem::exists(run.weights())) throw ConfigError(folder + ": " + why_without_weights(run));
  return experiments::read_weights(run.weights());
}

/// The ranks with the copies of the parameters that the weights are, if the ranks' copies were different when they were
/// last compared.
std::string text_of_copies(const std::string& folder) {
  const experiments::RunDirectory run{folder};
  nlohmann::json last;
  experiments::MetricsTail lines(run.metrics());
  lines.update([&last](experiments::NumberedLine line) {
    if (line.value.contains("divergence")) last = std::move(line.value);
  });
  if (last.is_null() || last["divergence"]["max"] == 0) return "";
  const nlohmann::json spec = comm::load_json(run.spec());
  const nlohmann::json& max = last["divergence"]["max"];
  return copies_text(max.is_null() ? std::numeric_limits<double>::quiet_NaN() : max.get<double>(),
                     spec["parallel"].value("pipeline", 1)) +
         " after step " + last["step"].dump();
}

int export_weights(const ExportOptions& options) {
  std::string what = "final weights of " + options.source.file;
  std::string copies;
  models::StoredTensors tensors;
  if (options.initial) {
    const experiments::SweepPlan plan = load_plan(options.source, nullptr, experiments::NumericsUse::kToRead);
    require_training(options.source.file, plan);
    const experiments::PlannedRun& first = plan.runs.front();
    tensors = experiments::initial_weights(first.run.config);
    what = "initial weights of " + options.source.file + ", seed " + std::to_string(first.seeds.weights);
  } else {
    tensors = final_weights(options.source.file);
    copies = text_of_copies(options.source.file);
  }
  experiments::write_weights(options.out, tensors, {{"format", "pt"}});
  std::cout << "wrote " << options.out << ": " << what << ", " << tensors.size() << " tensors" << copies << "\n";
  return kExitSuccess;
}

/// Copies the tokenizer of the folder that a run started from, if it did. Returns the number of its files.
std::size_t copy_tokenizer(const std::string& initial_weights, const std::filesystem::path& folder) {
  if (initial_weights.empty()) return 0;
  const std::vector<std::string> files = experiments::tokenizer_files(initial_weights);
  for (const std::string& name : files) {
    const std::string from = (std::filesystem::path(initial_weights) / name).string();
    experiments::write_file_atomically((folder / name).string(), comm::read_file(from));
  }
  return files.size();
}

/// Writes config.json, model.safetensors and the tokenizer, of a run or of the weights that a spec starts from.
int export_folder(const ExportOptions& options) {
  const std::filesystem::path folder(options.out);
  const std::string spec = experiments::RunDirectory{options.source.file}.spec();
  const models::StoredTensors of_run = options.initial ? models::StoredTensors() : final_weights(options.source.file);
  const experiments::RunConfig config =
      options.initial
          ? load_run(options.source)
          : experiments::resolve(comm::load_json(spec), spec, nullptr, experiments::NumericsUse::kToRead).config;
  const models::StoredTensors tensors =
      models::with_huggingface_names(options.initial ? experiments::initial_weights(config) : of_run);
  const std::vector<std::string> classes =
      config.data.examples ? config.data.examples->labels : std::vector<std::string>();
  experiments::make_directories(folder.string());
  experiments::write_weights((folder / "model.safetensors").string(), tensors, {{"format", "pt"}});
  experiments::write_file_atomically((folder / "config.json").string(),
                                     experiments::pretrained_config_text(config.model, classes));
  const std::size_t copied = copy_tokenizer(config.initial_weights, folder);
  std::cout << "wrote " << options.out << ": config.json and model.safetensors with " << tensors.size() << " tensors"
            << (copied == 0 ? "" : ", and the tokenizer of " + config.initial_weights)
            << ", which /model/pretrained and Hugging Face's from_pretrained() read"
            << (options.initial ? "" : text_of_copies(options.source.file)) << "\n";
  return kExitSuccess;
}

/// Writes event files of all runs that have any line.
int export_tensorboard(const ExportOptions& options) {
  if (options.initial || options.huggingface) {
    throw ConfigError(std::string(options.initial ? "--initial" : "--huggingface") +
                      ": has no meaning with --tensorboard");
  }
  const experiments::WatchedRuns runs(options.source.file);
  experiments::TensorBoardFolder folder(options.out.empty() ? experiments::tensorboard_folder(options.source.file)
                                                            : options.out);
  folder.update(runs);
  if (folder.files() == 0) {
    throw ConfigError(options.source.file +
                      ": no run with a line in metrics.jsonl; want the folder of an experiment, e.g. "
                      "results/quickstart, or of a run");
  }
  std::cout << "wrote the events of " << folder.files() << (folder.files() == 1 ? " run" : " runs")
            << "; next: tensorboard --logdir " << folder.folder() << "\n";
  return kExitSuccess;
}

/// The Python package calls the client of W&B.
int export_wandb(const ExportOptions& options) {
  if (options.initial || options.tensorboard || options.huggingface)
    throw ConfigError("--wandb: goes alone, got another kind of export, too");
  std::vector<std::string> arguments = {"wandb", options.source.file};
  if (!options.out.empty()) arguments.insert(arguments.end(), {"--out", options.out});
  become_python_command(arguments);
}

int export_chosen(const ExportOptions& options) {
  if (options.wandb) return export_wandb(options);
  if (options.tensorboard) return export_tensorboard(options);
  if (options.out.empty()) throw ConfigError("--out: is missing; want the file to write, e.g. weights.safetensors");
  return options.huggingface ? export_folder(options) : export_weights(options);
}

}  // namespace

void add_export_command(CLI::App& app, Action& chosen) {
  CLI::App* command =
      app.add_subcommand("export", "Write a run's weights as safetensors, or runs' metrics for TensorBoard");
  const auto options = std::make_shared<ExportOptions>();  // shared by CLI11's bindings and the action
  command
      ->add_option("RUN", options->source.file,
                   "Folder of a run; with --initial a spec; with --tensorboard or --wandb also of an experiment")
      ->required();
  command->add_flag("--initial", options->initial, "The weights that the spec's first run would start from");
  command->add_flag("--tensorboard", options->tensorboard, "Event files of the runs' metrics in place of weights");
  command->add_flag("--wandb", options->wandb,
                    "Runs for wandb sync, through W&B's own client in offline mode; needs the Python package wandb");
  command->add_flag(
      "--huggingface", options->huggingface,
      "A folder with config.json, model.safetensors and the tokenizer of the run's /model/pretrained, if any, "
      "as Hugging Face's from_pretrained() and /model/pretrained read it");
  command->add_option("--out", options->out,
                      "File to write, a folder with --huggingface; with --tensorboard a folder, by default "
                      "RUN/tensorboard; with --wandb one that "
                      "gets the folder wandb");
  add_set_option(*command, options->source);
  command->footer(
      "Names and layout are Hugging Face's for GPT-2.\n\n"
      "Examples:\n"
      "  droptest export results/quickstart/0123456789abcdef --out final.safetensors\n"
      "  droptest export results/quickstart/0123456789abcdef --huggingface --out pretrained\n"
      "  droptest export results/quickstart --tensorboard\n"
      "  droptest export experiments/specs/quickstart.json --initial --set /seed=2 --out initial.safetensors");
  command->callback([options, &chosen] { chosen = [options] { return export_chosen(*options); }; });
}

}  // namespace droptest::cli
