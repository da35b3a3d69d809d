// SPDX-License-Identifier: Apache-2.0
// A spec as its user wrote it: read, overridden, checked. docs/specs.md is the format.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/spec/resolve.h"
#include "experiments/spec/spec_files.h"

namespace droptest::experiments {

/// A spec with its overrides.
struct Spec {
  nlohmann::json document;    ///< merged into the file that it extends, with overrides applied
  std::string where;          ///< the file, for messages
  ValueOrigins origins = {};  ///< the other files, for messages
  SweptOrder swept = {};      ///< may have pointers that the document's sweep lacks
  /// Pointers of objects that an override made, and the tokens of its pointer.
  std::map<std::string, std::vector<std::string>> made = {};
};

/// Reads a spec, merges it into the file that it extends, if any, and applies `overrides`, each "/pointer=value", in
/// order. A run's own spec.json is a spec too; with overrides its numerics_version is left out, unless they set it.
/// The values are not checked: plan_sweep() and SearchPlan do that. Throws: ConfigError for a file that is no object of
/// JSON, and for an override that apply_override() refuses.
Spec read_spec(const std::string& path, std::span<const std::string> overrides = {});

/// read_spec() of a text; `where` names it in messages, and is the path relative to which it extends a file.
Spec read_spec_text(std::string_view text, const std::string& where, std::span<const std::string> overrides = {});

/// read_spec_text() with a check: each point of the spec's sweep resolves. `use`: resolve()'s. Throws: ConfigError that
/// lists all errors, with file and JSON pointer.
Spec parse_spec(std::string_view text, const std::string& where, std::span<const std::string> overrides = {},
                NumericsUse use = NumericsUse::kToTrain);

/// The hint that an error gets about an object that only a pointer made: "" if `document` has the object, or if `error`
/// is about something else. `tokens`: the tokens of the pointer that set a member.
std::string hint_of_absent(const nlohmann::json& document, const std::vector<std::string>& tokens,
                           const std::string& error);

/// Sets one member or element: "/network/loss/loss_rate=5%". The value is JSON if it parses, else text. Missing objects
/// on the way are created. Throws: ConfigError for a pointer that is malformed, unknown to the schema, or passes
/// through a value that is neither object nor list, and for an index that the list does not have.
void apply_override(nlohmann::json& document, std::string_view assignment);

/// "/a/b~1c" -> {"a", "b/c"}. Throws: ConfigError, naming `where`, for text that is no JSON pointer.
std::vector<std::string> pointer_tokens(std::string_view pointer, const std::string& where);

/// Sets the member that the tokens lead to; missing objects on the way are created. Removes the document's
/// numerics_version, which is that of the spec before the change, unless it is the member. Throws: ConfigError, naming
/// `where`, if the way passes through a value that is no object.
void set_member(nlohmann::json& document, const std::vector<std::string>& tokens, nlohmann::json value,
                const std::string& where);

}  // namespace droptest::experiments
