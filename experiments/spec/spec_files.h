// SPDX-License-Identifier: Apache-2.0
// A spec that extends another file: the merged document, and the file of each value.
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
  /// From now on `file` holds the value at this JSON pointer with all of its members.
  void set(const std::string& pointer, const std::string& file);
  /// Forgets a value that is not there any more.
  void remove(const std::string& pointer);

  bool empty() const { return files_.empty(); }

  /// The file of the value at `pointer`; for an absent value, that of its closest parent. Empty: no file is known.
  std::string of(const std::string& pointer) const;

  /// A message of lines "<where>: <pointer>: ..." with the file that holds the value in place of `where`.
  std::string with_files(std::string_view message, const std::string& where) const;

 private:
  std::map<std::string, std::string, std::less<>> files_;  ///< the files, by pointer
};

/// Pointers that a sweep varies, in the order of the text. JSON values have sorted keys and do not keep that order.
class SweptOrder {
 public:
  /// Adds the new pointers of the sweep in the JSON text of a spec, at the end.
  void add(std::string_view spec);
  /// Adds the new pointers of an override "/pointer=value", at the end.
  void add_override(std::string_view assignment);

  const std::vector<std::string>& pointers() const { return pointers_; }

 private:
  std::vector<std::string> pointers_;
};

struct MergedSpec {
  nlohmann::json document;  ///< the merged spec without `extends`
  ValueOrigins origins;     ///< empty if the file extends none
  SweptOrder swept;         ///< swept pointers of all files, from the one that extends no other on
};

/// Merges a spec into the files that it extends. `text` is the content of the file at `path`. If it `extends` another
/// file, it is that file's patch (RFC 7396: objects are merged, lists and other values replaced, null takes a member
/// away), and so on along the chain. Throws: ConfigError for a file that cannot be read, is not JSON or no object, or
/// extends itself over some files.
MergedSpec merge_extended(std::string_view text, const std::string& path);

}  // namespace droptest::experiments
