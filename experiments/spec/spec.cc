// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/spec.h"

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "comm/json/schema_checker.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/sweep_plan.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// The value of a text: JSON if it parses, else the text itself.
json override_value(std::string_view text, const std::string& where) {
  if (json::accept(text)) return comm::parse_json(text, where);
  json value = std::string(text);
  try {
    (void)value.dump();
  } catch (const json::exception&) {
    throw ConfigError(where + ": the value is not UTF-8");
  }
  return value;
}

/// Throws: ConfigError if `token` is no index of an element of `list`. Source: RFC 6901, section 4.
void require_element(const json& list, const std::string& token, const std::string& where) {
  const bool digits = !token.empty() && token.size() <= 9 && token.find_first_not_of("0123456789") == std::string::npos;
  const bool leads = token.size() > 1 && token[0] == '0';
  if (digits && !leads && std::stoul(token) < list.size()) return;
  throw ConfigError(
      where + " is a list of " + std::to_string(list.size()) + (list.size() == 1 ? " value" : " values") +
      ": got the index " + comm::quote_json(token) +
      (list.empty() ? ", want a value to set the list to" : ", want one from 0 to " + std::to_string(list.size() - 1)));
}

/// The pointer of the object or list that has the member of the last token; "" for the document.
std::string parent_of(const std::vector<std::string>& tokens) {
  std::string parent;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) parent = comm::child_pointer(parent, tokens[i]);
  return parent;
}

}  // namespace

std::vector<std::string> pointer_tokens(std::string_view pointer, const std::string& where) {
  const auto fail = [&](const std::string& want) {
    throw ConfigError(where + ": got " + comm::quote_json(std::string(pointer)) + ", want " + want);
  };
  if (!pointer.starts_with('/')) fail("a JSON pointer such as \"/network/loss\"");
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < pointer.size(); ++i) {
    if (pointer[i] == '/') {
      tokens.emplace_back();
    } else if (pointer[i] == '~') {
      const char escaped = i + 1 < pointer.size() ? pointer[i + 1] : '\0';
      if (escaped != '0' && escaped != '1') fail("a JSON pointer, in which ~0 stands for ~ and ~1 for /");
      tokens.back() += escaped == '0' ? '~' : '/';
      ++i;
    } else {
      tokens.back() += pointer[i];
    }
  }
  return tokens;
}

void set_member(json& document, const std::vector<std::string>& tokens, json value, const std::string& where) {
  DROPTEST_CHECK(!tokens.empty(), where);
  json* parent = &document;
  std::string pointer;
  for (std::size_t i = 0;; ++i) {
    if (!parent->is_object() && !parent->is_array()) {
      throw ConfigError(where + ": " + (pointer.empty() ? "/" : pointer) + " is " + comm::quote_json(*parent) +
                        ", want an object or a list to set members of");
    }
    if (parent->is_array()) require_element(*parent, tokens[i], where + ": " + pointer);
    if (i + 1 == tokens.size()) break;
    pointer = comm::child_pointer(pointer, tokens[i]);
    if (parent->is_array()) {
      parent = &(*parent)[std::stoul(tokens[i])];
      continue;
    }
    if (!parent->contains(tokens[i])) (*parent)[tokens[i]] = json::object();
    parent = &(*parent)[tokens[i]];
  }
  if (parent->is_array()) {
    const std::size_t index = std::stoul(tokens.back());
    if (value.is_null()) {
      parent->erase(index);
    } else {
      (*parent)[index] = std::move(value);
    }
  } else if (value.is_null()) {
    parent->erase(tokens.back());
  } else {
    (*parent)[tokens.back()] = std::move(value);
  }
  // The member is the version of the spec before the change.
  if (tokens.front() != "numerics_version") document.erase("numerics_version");
}

std::string hint_of_absent(const json& document, const std::vector<std::string>& tokens, const std::string& error) {
  const std::string parent = parent_of(tokens);
  if (parent.empty() || document.contains(json::json_pointer(parent))) return {};
  // The hint helps if another member of the new object is required and missing: "/network/gather/loss/model: got
  // nothing" after /network/gather/loss/loss_rate was set.
  const std::size_t place = error.find(" " + parent + "/");
  if (place == std::string::npos) return {};
  const std::size_t begin = place + parent.size() + 2;
  const std::string member = error.substr(begin, error.find(": ", begin) - begin);
  if (member == tokens.back() || !std::string_view(error).substr(begin + member.size()).starts_with(": got nothing")) {
    return {};
  }
  return "; the spec has no " + parent + " that " + comm::child_pointer(parent, tokens.back()) +
         " could change: write one into it, or set " + parent + " as a whole";
}

void apply_override(json& document, std::string_view assignment) {
  const std::string where = "--set " + std::string(assignment);
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    throw ConfigError(where + ": want /pointer=value, such as /training/steps=100");
  }
  const std::vector<std::string> tokens = pointer_tokens(assignment.substr(0, equals), where);
  const std::string reason = schema_of_spec(document).unknown_pointer(tokens);
  if (!reason.empty()) throw ConfigError(where + ": " + reason);
  set_member(document, tokens, override_value(assignment.substr(equals + 1), where), where);
}

Spec read_spec_text(std::string_view text, const std::string& where, std::span<const std::string> overrides) {
  MergedSpec merged = merge_extended(text, where);
  Spec spec{std::move(merged.document), where, std::move(merged.origins), std::move(merged.swept)};
  for (const std::string& assignment : overrides) {
    const std::vector<std::string> tokens =
        pointer_tokens(assignment.substr(0, assignment.find('=')), "--set " + assignment);
    const std::string parent = parent_of(tokens);
    if (!parent.empty() && !spec.document.contains(json::json_pointer(parent))) spec.made.emplace(parent, tokens);
    apply_override(spec.document, assignment);
    spec.swept.add_override(assignment);
    if (!spec.origins.empty()) spec.origins.set(assignment.substr(0, assignment.find('=')), where);
  }
  spec.document = schema_of_spec(spec.document).with_one_word(std::move(spec.document));
  return spec;
}

Spec read_spec(const std::string& path, std::span<const std::string> overrides) {
  return read_spec_text(comm::read_file(path), path, overrides);
}

Spec parse_spec(std::string_view text, const std::string& where, std::span<const std::string> overrides,
                NumericsUse use) {
  Spec spec = read_spec_text(text, where, overrides);
  (void)plan_sweep(spec, nullptr, use);
  return spec;
}

}  // namespace droptest::experiments
