// SPDX-License-Identifier: Apache-2.0
// A spec that extends another file: the files merged, and which of them each value is from.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

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

struct MergedSpec {
  nlohmann::json document;  ///< without `extends`
  ValueOrigins origins;     ///< empty where the file extends none
};

/// `document` is the content of the file at `path`. Where it `extends` another, it is that file's patch (RFC 7396:
/// objects are merged, lists and other values replaced, null takes a member away), and so on along the chain. Throws:
/// ConfigError for a file that cannot be read, is no object, or extends itself in the end.
MergedSpec merge_extended(nlohmann::json document, const std::string& path);

}  // namespace droptest::experiments
