// SPDX-License-Identifier: Apache-2.0
// Misspelt commands, options and values of options: the errors name the nearest known name.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace droptest::cli {

/// A check of an option's value: it must be one of these.
CLI::Validator one_of(const std::vector<std::string>& names);

/// The first unknown command, option or argument, in words; empty if `app` knows all. Called after parsing failed.
std::string unknown_arguments(const CLI::App& app);

}  // namespace droptest::cli
