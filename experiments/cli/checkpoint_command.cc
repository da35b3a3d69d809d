// SPDX-License-Identifier: Apache-2.0
// droptest checkpoint show, verify and export
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "comm/json/read_file.h"
#include "comm/json/schema.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/checkpoint/restore.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/copies_text.h"
#include "experiments/cli/known_names.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/files/weights_file.h"
#include "experiments/schema/schema_kinds.h"
#include "models/files/safetensors.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

namespace fs = std::filesystem;
using experiments::CheckpointFolder;
using experiments::Manifest;
using experiments::RankFile;

struct CheckpointOptions {
  std::string path;
  std::string out;
  std::string type = "F32";
};

/// The folders of checkpoints that a path stands for: one checkpoint, all of a run's checkpoints, or a run.
std::vector<std::string> folders_of(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (fs::exists(path + "/manifest.json") || fs::path(path).filename().string().starts_with("step-")) return {path};
  const std::string all = fs::exists(path + "/checkpoints") ? path + "/checkpoints" : path;
  const CheckpointFolder checkpoints(all);
  std::vector<std::string> folders;
  for (const std::uint64_t step : checkpoints.steps()) folders.push_back(checkpoints.of_step(step));
  if (folders.empty()) {
    throw ConfigError(path + ": no checkpoint there; want the folder of a run, of its checkpoints, or of one of them");
  }
  return folders;
}

Manifest manifest_in(const std::string& folder) {
  const std::string path = folder + "/manifest.json";
  return experiments::parse_manifest(comm::read_file(path), path, experiments::ManifestUse::kParameters);
}

std::uint64_t bytes_of(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const RankFile& file : manifest.ranks) bytes += file.bytes;
  return bytes;
}

int show(const CheckpointOptions& options) {
  std::vector<std::vector<std::string>> rows = {{"step", "run", "layout", "epoch", "files", "MiB", "folder"}};
  int damaged = 0;
  const std::vector<std::string> folders = folders_of(options.path);
  for (const std::string& folder : folders) {
    Manifest manifest;
    try {
      manifest = manifest_in(folder);
    } catch (const ConfigError& error) {
      if (folders.size() == 1) throw;
      std::cerr << "droptest: error: " << error.what() << "\n";
      ++damaged;
      continue;
    }
    rows.push_back({std::to_string(manifest.step), manifest.run_id, manifest.parallel.text(),
                    std::to_string(manifest.membership), std::to_string(manifest.ranks.size()),
                    std::to_string((bytes_of(manifest) + (1U << 20U) - 1) >> 20U), folder});
  }
  std::cout << table_text(rows);
  return damaged == 0 ? kExitSuccess : kExitFailedRun;
}

int verify(const CheckpointOptions& options) {
  int damaged = 0;
  for (const std::string& folder : folders_of(options.path)) {
    std::vector<std::string> errors;
    try {
      for (const RankFile& file : manifest_in(folder).ranks) {
        try {
          experiments::verify_rank_file(folder, file);
        } catch (const ConfigError& error) {
          errors.emplace_back(error.what());
        }
      }
    } catch (const ConfigError& error) {
      errors.emplace_back(error.what());
    }
    for (const std::string& error : errors) std::cerr << "droptest: error: " << error << "\n";
    std::cout << folder << ": " << (errors.empty() ? "intact" : "damaged") << "\n";
    if (!errors.empty()) ++damaged;
  }
  return damaged == 0 ? kExitSuccess : kExitFailedRun;
}

int export_weights(const CheckpointOptions& options) {
  const std::string folder = folders_of(options.path).back();
  const Manifest manifest = manifest_in(folder);
  auto [weights, difference] = experiments::weights_of_checkpoint(folder, manifest);
  for (auto& [name, tensor] : weights) tensor = models::converted(tensor, options.type, name);
  experiments::write_weights(options.out, weights, {{"format", "pt"}, {"run_id", manifest.run_id}});
  std::cout << "wrote " << options.out << ": weights of " << folder << ", " << weights.size() << " tensors of "
            << options.type << copies_text(difference.max, manifest.parallel.pipeline) << "\n";
  return kExitSuccess;
}

/// The type of safetensors files that a word of specs stands for, in any case of letters; another text stays.
std::string element_type(const std::string& text) {
  const nlohmann::json spec = experiments::schema_of(experiments::SchemaKind::kSpec)
                                  .with_one_word({{"training", {{"precision", CLI::detail::to_lower(text)}}}});
  const std::string word = spec["training"]["precision"];
  if (word == "float32") return "F32";
  if (word == "float16") return "F16";
  return word == "bfloat16" ? "BF16" : text;
}

}  // namespace

void add_checkpoint_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("checkpoint", "Show, verify and export the checkpoints of a run");
  command->require_subcommand(1);
  const auto options = std::make_shared<CheckpointOptions>();  // CLI11's bindings and the actions share it
  const auto add = [&](const char* name, const char* description, int (*action)(const CheckpointOptions&)) {
    CLI::App* sub = command->add_subcommand(name, description);
    sub->add_option("PATH", options->path, "Folder of a run, of its checkpoints, or of one checkpoint")->required();
    sub->callback([options, action, &chosen] { chosen = [options, action] { return action(*options); }; });
    return sub;
  };
  add("show", "List them", show);
  add("verify", "Compare sizes and checksums of all files; exit code 1 where one is damaged", verify);
  CLI::App* exports =
      add("export", "Write the weights of the newest one as one safetensors file, whatever its layout", export_weights);
  exports->add_option("--out", options->out, "File to write")->required();
  exports->add_option("--dtype", options->type, "Elements: F32, F16 or BF16, rounded to the nearest")
      ->transform(element_type)
      ->check(one_of({"F32", "F16", "BF16"}))
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  droptest checkpoint show results/big/0123456789abcdef\n"
      "  droptest checkpoint verify results/big/0123456789abcdef/checkpoints/step-400\n"
      "  droptest checkpoint export results/big/0123456789abcdef --dtype BF16 --out half.safetensors");
}

}  // namespace droptest::cli
