// SPDX-License-Identifier: Apache-2.0
// A spec that extends another file: the files merged, and which of them each value is from.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace droptest::experiments {

/// The file that holds each value of a merged document.
class ValueOrigins {
 public:
  /// From now on `file` holds the value at this JSON pointer, and all of it.
  void set(const std::string& pointer, const std::string& file);
  /// There is no such value any more.
  void remove(const std::string& pointer);

  bool empty() const { return files_.empty(); }

  /// The file of the value at `pointer`; for an absent value, that of its closest parent. Empty: no file is known.
  std::string of(const std::string& pointer) const;

  /// A message of lines "<where>: <pointer>: ..." with the file that holds the value in place of `where`.
  std::string with_files(std::string_view message, const std::string& where) const;

 private:
  std::map<std::string, std::string, std::less<>> files_;  ///< by pointer
};

/// Pointers that a sweep varies, in the order of the text. JSON values have sorted keys and do not know it.
class SweptOrder {
 public:
  /// Adds the new pointers of the sweep in the JSON text of a spec, at the end.
  void add(std::string_view spec);
  /// The same for an override "/pointer=value".
  void add_override(std::string_view assignment);

  const std::vector<std::string>& pointers() const { return pointers_; }

 private:
  std::vector<std::string> pointers_;
};

struct MergedSpec {
  nlohmann::json document;  ///< without `extends`
  ValueOrigins origins;     ///< empty where the file extends none
  SweptOrder swept;         ///< of the files: the one that extends no other comes first
};

/// `text` is the content of the file at `path`. Where it `extends` another, it is that file's patch (RFC 7396:
/// objects are merged, lists and other values replaced, null takes a member away), and so on along the chain. Throws:
/// ConfigError for a file that cannot be read, is not JSON or no object, or extends itself in the end.
MergedSpec merge_extended(std::string_view text, const std::string& path);

}  // namespace droptest::experiments
