// SPDX-License-Identifier: Apache-2.0
// One run of a spec with a program of the user's own: the command that starts it, and its id.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/file_hashes.h"
#include "experiments/spec/resolve.h"

namespace droptest::experiments {

/// resolve() for a document with a command, with the same errors. The config has the name, the seeds, the command and
/// the network. The network of every class is the one that droptest_network_create() makes of the section.
ResolvedRun resolve_command(const nlohmann::json& document, const std::string& where, FileHashes* files);

/// The words of a command with the value of each {NAME}. Throws: ConfigError, naming `where` and the place of the word,
/// for a name that `values` does not have. Braces with anything but a name in them stay.
std::vector<std::string> with_values(const std::vector<std::string>& command,
                                     const std::map<std::string, std::string>& values, const std::string& where);

/// The value of each name that a command may have in braces: its settings, seeds, and port and folder of the run.
std::map<std::string, std::string> command_values(const CommandConfig& command, const Seeds& seeds, int port,
                                                  const std::string& folder);

/// The text that the program reads as its network: section, seed, rules and the folder of its counts.
nlohmann::json network_of_command(const ResolvedRun& run, const std::string& folder);

/// The digest that the counts of a program with this network have.
std::string network_digest_of(const ResolvedRun& run);

}  // namespace droptest::experiments
