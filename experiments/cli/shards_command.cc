// SPDX-License-Identifier: Apache-2.0
// droptest shards
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/cli/commands.h"
#include "experiments/data/shard_list.h"
#include "experiments/data/shard_manifest.h"
#include "experiments/records/run_records.h"

namespace droptest::cli {

void add_shards_command(CLI::App& app, Action& chosen) {
  struct Options {
    std::vector<std::string> patterns;
    std::string out;
  };
  CLI::App* command = app.add_subcommand("shards", "Write the manifest of data.shards: sizes and checksums of files");
  const auto options = std::make_shared<Options>();  // shared by CLI11's bindings and the action
  command->add_option("PATTERN", options->patterns, "Files, or glob patterns of files")->required();
  command->add_option("--out", options->out, "The manifest; its paths are relative to its folder")->required();
  command->footer(
      "A spec names the manifest under data.manifest (docs/data.md).\n\n"
      "Example:\n"
      "  droptest shards 'corpus/*.bin' --out corpus/shards.json");
  command->callback([options, &chosen] {
    chosen = [options] {
      const std::vector<std::string> files = experiments::match_shards(options->patterns);
      const nlohmann::json manifest = experiments::make_shard_manifest(files, options->out);
      experiments::write_record(experiments::SchemaKind::kShards, options->out, manifest);
      std::cout << options->out << ": " << files.size() << (files.size() == 1 ? " file\n" : " files\n");
      return kExitSuccess;
    };
  });
}

}  // namespace droptest::cli
