// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve_command.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/json/json_text.h"
#include "comm/json/nearest_name.h"
#include "comm/spec/program_network.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/run_id.h"
#include "experiments/spec/section_resolvers.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

/// The program decides how many ranks it has.
constexpr int kMostRanks = 65534;

/// Names in braces that are no settings.
constexpr std::array kOwnNames = {"weights_seed", "data_seed", "network_seed", "port", "folder"};

bool is_own_name(const std::string& name) {
  return std::find(kOwnNames.begin(), kOwnNames.end(), name) != kOwnNames.end();
}

std::string text_of(const json& setting) { return setting.is_string() ? setting.get<std::string>() : setting.dump(); }

/// The files that a command names.
struct NamedFiles {
  std::vector<std::string> all{};       ///< files of the arguments, also behind "--name="; else the program
  std::optional<std::string> script{};  ///< the file of `all` that is the program
  bool has_module = false;              ///< "-m", "-c" or "--module" before the first of them
};

/// The script is the first file that can be a program: it has a suffix of scripts, or is executable. If no file can,
/// the script is the first file.
NamedFiles files_of(const std::vector<std::string>& words) {
  namespace fs = std::filesystem;
  const auto is_file = [](const std::string& word) {
    std::error_code ignored;
    return fs::is_regular_file(word, ignored);
  };
  NamedFiles named;
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (named.all.empty() && (words[i] == "-m" || words[i] == "-c" || words[i] == "--module")) named.has_module = true;
    const std::string value = words[i].starts_with('-') ? words[i].substr(words[i].find('=') + 1) : "";
    for (const std::string& word : {words[i], value}) {
      if (is_file(word) && std::find(named.all.begin(), named.all.end(), word) == named.all.end()) {
        named.all.push_back(word);
      }
    }
  }
  if (named.all.empty() && is_file(words.front())) named.all.push_back(words.front());
  const auto is_program = [](const std::string& file) {
    constexpr std::array kSuffixes = {".py", ".sh", ".bash", ".jl", ".r", ".R", ".lua", ".rb", ".pl"};
    const std::string suffix = fs::path(file).extension().string();
    std::error_code error;
    const auto executable = fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec;
    return std::find(kSuffixes.begin(), kSuffixes.end(), suffix) != kSuffixes.end() ||
           (fs::status(file, error).permissions() & executable) != fs::perms::none;
  };
  const auto script = std::find_if(named.all.begin(), named.all.end(), is_program);
  if (!named.all.empty()) named.script = script == named.all.end() ? named.all.front() : *script;
  return named;
}

bool are_one_path(const std::string& a, const std::string& b) {
  return std::filesystem::absolute(a).lexically_normal() == std::filesystem::absolute(b).lexically_normal();
}

class CommandResolver {
 public:
  CommandResolver(const json& document, const std::string& where, FileHashes* files)
      : where_(where),
        given_(document),
        files_(files),
        full_(schema_of(SchemaKind::kCommandSpec).with_defaults(document)) {}

  ResolvedRun resolve() {
    ResolvedRun run;
    Resolution resolution{full_, given_, where_, files_, run.config, errors_, run.warnings};
    refuse_several_runs(resolution);
    run.config.name = full_["name"].get<std::string>();
    run.config.training.steps = 0;  // unknown
    resolve_seeds(resolution);
    CommandConfig command;
    command.words = full_["command"].get<std::vector<std::string>>();
    if (command.words.front().empty()) report("/command/0", "got \"\", want a program");
    for (const auto& [name, value] : full_["settings"].items()) {
      if (is_own_name(name)) {
        report("/settings/" + name, "got a setting with a name that stands for something else, want another name");
      }
      command.settings[name] = text_of(value);
    }
    resolve_files(words_of(command, run.config.seeds), run);
    resolve_network(run.config);
    comm::require_none(errors_);
    run.config.command = std::move(command);
    run.spec = std::move(full_);
    run.run_id = run_id_of(run.spec);
    return run;
  }

 private:
  void report(const std::string& pointer, const std::string& message) {
    errors_.push_back(where_ + ": " + pointer + ": " + message);
  }

  /// The command with the values of this run, without port and folder, which are not known yet.
  std::vector<std::string> words_of(const CommandConfig& command, const Seeds& seeds) {
    try {
      return with_values(command.words, command_values(command, seeds, 0, ""), where_ + ": /command");
    } catch (const ConfigError& error) {
      errors_.emplace_back(error.what());
      return command.words;
    }
  }

  void warn(ResolvedRun& run, const std::string& pointer, const std::string& message) {
    run.warnings.push_back({pointer, message, Warning::About::kRun});
  }

  /// Each becomes {"file": .., "sha256": ..}.
  void resolve_files(const std::vector<std::string>& words, ResolvedRun& run) {
    const NamedFiles named = files_of(words);
    if (!full_.contains("files")) {
      full_["files"] = json::array();
      if (named.script) full_["files"].push_back(*named.script);
      if (!named.script || named.has_module) {
        warn(run, "/files",
             named.has_module
                 ? "the command has a module or a text as its program, which is no file of /files: another "
                   "one under the same name is the same run"
                 : "no word of the command names a file that is there: another program under the same "
                   "command is the same run");
      }
    }
    for (const std::string& file : named.all) {
      const auto is_it = [&file](const json& one) {
        return are_one_path(one.is_string() ? one.get<std::string>() : one["file"].get<std::string>(), file);
      };
      if (file == words.front() || std::any_of(full_["files"].begin(), full_["files"].end(), is_it)) continue;
      warn(run, "/files",
           "the command names " + file +
               ", which is not among them: another content of it is the same run; add it, "
               "unless the program writes it");
    }
    for (std::size_t i = 0; i < full_["files"].size(); ++i) {
      json& file = full_["files"][i];
      if (files_ == nullptr) continue;
      const std::string pointer = "/files/" + std::to_string(i);
      const std::string path = file.is_string() ? file.get<std::string>() : file["file"].get<std::string>();
      try {
        const std::string& hash = files_->of(path);
        if (file.is_object() && file["sha256"] != hash) {
          report(pointer + "/sha256", "got " + file["sha256"].dump() + ", but " + path + " has \"" + hash +
                                          "\"; want the file that was meant, or no hash");
        }
        file = {{"file", path}, {"sha256", hash}};
      } catch (const ConfigError& error) {
        report(pointer,
               std::string(error.what()) + "; paths are relative to " + std::filesystem::current_path().string());
      }
    }
  }

  void resolve_network(RunConfig& config) {
    json document = {{"network", given_["network"]}, {"seed", config.seeds.network}};
    if (given_.contains("rules")) document["rules"] = given_["rules"];
    try {
      comm::ProgramNetwork network = comm::program_network_from_json(document.dump(), where_, kMostRanks);
      config.network = std::move(network.network);
      full_["network"] = {{"classes", *network.classes}};
      full_["rules"] = *network.rules;
    } catch (const ConfigError& error) {
      errors_.emplace_back(error.what());
    }
  }

  const std::string& where_;
  const json& given_;
  FileHashes* files_;
  json full_;  ///< the spec with defaults; becomes the resolved one
  std::vector<std::string> errors_;
};

}  // namespace

ResolvedRun resolve_command(const json& document, const std::string& where, FileHashes* files) {
  return CommandResolver(document, where, files).resolve();
}

std::vector<std::string> with_values(const std::vector<std::string>& command,
                                     const std::map<std::string, std::string>& values, const std::string& where) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const std::string& word = command[i];
    std::string text;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t end = word[at] == '{' ? word.find('}', at) : std::string::npos;
      const std::string name = end == std::string::npos ? "" : word.substr(at + 1, end - at - 1);
      const auto in_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
      const bool is_name = !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0;
      if (!is_name || !std::all_of(name.begin(), name.end(), in_name)) {
        text += word[at++];
        continue;
      }
      const auto value = values.find(name);
      if (value == values.end()) {
        std::vector<std::string> known;
        for (const auto& [one, ignored] : values) known.push_back(one);
        throw ConfigError(where + "/" + std::to_string(i) + ": got {" + name +
                          "}, want a member of /settings, a seed, {port} or {folder}; " +
                          comm::known_names_hint(name, known, "names"));
      }
      text += value->second;
      at = end + 1;
    }
    result.push_back(std::move(text));
  }
  return result;
}

std::map<std::string, std::string> command_values(const CommandConfig& command, const Seeds& seeds, int port,
                                                  const std::string& folder) {
  std::map<std::string, std::string> values = command.settings;
  values["weights_seed"] = std::to_string(seeds.weights);
  values["data_seed"] = std::to_string(seeds.data);
  values["network_seed"] = std::to_string(seeds.network);
  values["port"] = std::to_string(port);
  values["folder"] = folder;
  return values;
}

json network_of_command(const ResolvedRun& run, const std::string& folder) {
  return {{"network", run.spec["network"]},
          {"rules", run.spec["rules"]},
          {"seed", run.config.seeds.network},
          {"statistics", folder}};
}

std::string network_digest_of(const ResolvedRun& run) {
  const std::string text = network_of_command(run, "any").dump();
  return comm::network_digest_text(comm::program_network_from_json(text, run.config.name, kMostRanks).identity);
}

}  // namespace droptest::experiments
