// SPDX-License-Identifier: Apache-2.0
#include "experiments/slurm/batch_script.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace droptest::experiments {
namespace {

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view("/._-=:+,%").find(c) != std::string::npos;
}

/// The text as a word of the shell.
std::string shell_word(const std::string& text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

/// The text as a word of a #SBATCH line.
std::string directive_word(const std::string& text) {
  if (std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::string word = "\"";
  for (const char c : text) word += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return word + "\"";
}

/// A folder in the pattern of a log's name; % begins a placeholder there.
std::string without_placeholders(const std::string& path) {
  std::string pattern;
  for (const char c : path) pattern += c == '%' ? "%%" : std::string(1, c);
  return pattern;
}

}  // namespace

std::string batch_script_text(const BatchScript& script) {
  std::string text = "#!/usr/bin/env bash\n# Written by droptest sweep --slurm (docs/cluster.md).\n";
  const auto directive = [&text](const std::string& option) { text += "#SBATCH " + option + "\n"; };
  directive("--job-name=droptest-" + script.name);
  directive("--chdir=" + directive_word(script.folder));
  directive("--array=1-" + std::to_string(script.tasks) +
            (script.array_limit == 0 ? "" : "%" + std::to_string(script.array_limit)));
  directive("--requeue");
  directive("--open-mode=append");
  directive("--output=" + directive_word(ArrayDirectory{without_placeholders(script.directory.path)}.log("%a")));
  directive("--ntasks=" + std::to_string(script.resources.processes));
  directive("--cpus-per-task=" + std::to_string(script.resources.cores_per_process));
  if (script.resources.gpus > 0 && script.gpus == BatchScript::Gpus::kAsk) {
    directive("--gpus=" + std::to_string(script.resources.gpus));
  }
  if (script.resources.ranks == TaskResources::Ranks::kProcesses) {
    text +=
        "# Ranks meet at a port of the first node; tasks that share it have different ones.\n"
        "export MASTER_ADDR=\"${MASTER_ADDR:-$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)}\"\n"
        "export MASTER_PORT=\"${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 10000))}\"\n";
  }
  text += "exec";
  for (const std::string& word : script.task_command) text += " " + shell_word(word);
  text += " " + shell_word(script.directory.path) + " \"$SLURM_ARRAY_TASK_ID\"";
  for (const std::string& word : script.task_options) text += " " + shell_word(word);
  return text + "\n";
}

}  // namespace droptest::experiments
