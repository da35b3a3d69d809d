// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/file_hashes.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/spec/sha256.h"
#include "experiments/spec/dry_run.h"
#include "experiments/spec/run_id.h"
#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::file_hashes_test {
namespace {

using comm::sha256_hex;
using nlohmann::json;

using ::testing::HasSubstr;

/// Writes into the file as it is: its inode stays.
void write(const std::string& path, const std::string& content, std::time_t seconds) {
  std::ofstream(path, std::ios::binary) << content;
  const timespec times[2] = {{seconds, 5}, {seconds, 5}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST(FileHashes, AreThoseOfTheContents) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/f";
  FileHashes files;
  write(path, "abc", 100);
  EXPECT_EQ(files.of(path), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string large(3'000'001, 'x');  // several pieces
  write(path, large, 100);
  EXPECT_EQ(files.of(path), sha256_hex(large));
  write(path, "", 100);
  EXPECT_EQ(files.of(path), sha256_hex(""));
}

TEST(FileHashes, ReadAFileAgainOnlyWhereItMayHaveChanged) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/f";
  FileHashes files;
  write(path, "abc", 100);
  const std::string first = files.of(path);
  write(path, "abd", 100);
  EXPECT_EQ(files.of(path), first) << "the same inode, size and time";
  write(path, "abd", 101);
  EXPECT_EQ(files.of(path), sha256_hex("abd"));
  write(folder.path() + "/g", "abe", 101);
  EXPECT_EQ(files.of(folder.path() + "/g"), sha256_hex("abe"));
  EXPECT_EQ(FileHashes().of(path), sha256_hex("abd"));
}

TEST(FileHashes, AnotherProcessReadsOnlyTheFilesThatHaveChangedSince) {
  const TemporaryFolder folder;
  const std::vector<std::string> paths = {folder.path() + "/f", folder.path() + "/g", folder.path() + "/absent"};
  FileHashes files;
  for (int i = 0; i < 2; ++i) {
    write(paths[i], "abc", 100);
    (void)files.of(paths[i]);
  }
  const json known = files.known_of(paths);
  EXPECT_EQ(known.size(), 2);
  int pieces = 0;
  FileHashes other([&pieces] { ++pieces; });
  other.remember(json::parse(known.dump()));
  EXPECT_EQ(other.of(paths[0]), sha256_hex("abc"));
  EXPECT_EQ(pieces, 0);
  write(paths[0], "abd", 101);
  EXPECT_EQ(other.of(paths[0]), sha256_hex("abd"));
  EXPECT_EQ(pieces, 1);
  EXPECT_EQ(files.known_of(paths).size(), 1) << "what has changed since is not known";
  EXPECT_THAT(config_error_of([&] { other.remember({{1, 2}}); }), HasSubstr("want pairs of a file and its hash"));
}

TEST(FileHashes, AFileThatChangesWhileItIsReadHasNone) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/f";
  write(path, "abc", 100);
  std::string later = "abd";  // content of the same size, or shorter
  FileHashes files([&] {
    if (!later.empty()) write(path, later, 101);
    later.clear();
  });
  EXPECT_EQ(config_error_of([&] { (void)files.of(path); }),
            "read " + path + ": changed while it was read; want a file that no other program writes into");
  EXPECT_EQ(files.of(path), sha256_hex("abd"));
}

TEST(FileHashes, WhatCannotBeReadIsSaid) {
  const TemporaryFolder folder;
  EXPECT_EQ(config_error_of([&] { (void)FileHashes().of(folder.path() + "/f"); }),
            "read " + folder.path() + "/f: No such file or directory");
  EXPECT_EQ(config_error_of([&] { (void)FileHashes().of(folder.path()); }),
            "read " + folder.path() + ": is no regular file");
}

/// A spec over files of a folder.
class SpecOfFiles : public testing::Test {
 protected:
  ResolvedRun run(const std::string& data, const std::string& model = "{}") {
    FileHashes files;
    const std::string text = R"({"name": "t", "data": )" + data + R"(, "model": )" + model + "}";
    return resolve(comm::parse_json(text, "s"), "s.json", &files);
  }
  std::string at(const std::string& name) const { return "\"" + folder_.path() + "/" + name + "\""; }
  void put(const std::string& name, const std::string& content) { write(folder_.path() + "/" + name, content, 100); }

  TemporaryFolder folder_;
};

TEST_F(SpecOfFiles, TheIdHasContentsInPlaceOfPaths) {
  put("a", "abc");
  put("b", "abc");
  put("c", "abd");
  const ResolvedRun first = run(R"({"text": )" + at("a") + "}");
  EXPECT_EQ(first.spec["data"]["sha256"], sha256_hex("abc"));
  EXPECT_EQ(run(R"({"text": )" + at("b") + "}").run_id, first.run_id);
  EXPECT_NE(run(R"({"text": )" + at("c") + "}").run_id, first.run_id);
  EXPECT_NE(run(R"({"tokens": )" + at("a") + "}").run_id, first.run_id) << "the same bytes mean other tokens";
  const auto weights = [&](const std::string& name) {
    return run(R"({"text": )" + at("a") + "}", R"({"weights": )" + at(name) + "}").run_id;
  };
  const auto put_header = [&](const std::string& name, const std::string& header) {  // a header of safetensors
    put(name, std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header);
  };
  put_header("d", "{}");
  put_header("e", "{}");
  put_header("f", "{ }");
  EXPECT_EQ(weights("d"), weights("e"));
  EXPECT_NE(weights("d"), weights("f"));
  EXPECT_NE(weights("d"), first.run_id);
  EXPECT_EQ(resolve(first.spec, "spec.json").run_id, first.run_id) << "with the files unread";
  FileHashes files;
  EXPECT_EQ(resolve(first.spec, "spec.json", &files).spec, first.spec);
}

// droptest resolves a spec without its files before it reads them, so that an error is said at once.
TEST_F(SpecOfFiles, ASpecHasOneDryRunWithAndWithoutItsFiles) {
  put("a", "abc");
  put("w", std::string("\x02") + std::string(7, '\0') + "{}");
  for (const std::string& model : {std::string("{}"), R"({"weights": )" + at("w") + "}"}) {
    const ResolvedRun with_files = run(R"({"text": )" + at("a") + "}", model);
    json document = {{"name", "t"}, {"data", {{"text", folder_.path() + "/a"}}}, {"model", json::parse(model)}};
    const ResolvedRun without = resolve(document, "s.json");
    EXPECT_NE(with_files.spec, without.spec) << "the hashes are known";
    EXPECT_EQ(shared_dry_run(with_files.spec, with_files.config), shared_dry_run(without.spec, without.config));
  }
  const ResolvedRun other = run(R"({"text": )" + at("a") + "}", R"({"layers": 3})");
  const ResolvedRun one = run(R"({"text": )" + at("a") + "}");
  EXPECT_NE(shared_dry_run(other.spec, other.config), shared_dry_run(one.spec, one.config));
}

TEST_F(SpecOfFiles, AnotherFileThanTheHashSaysIsAnError) {
  put("a", "abc");
  const std::string hash = sha256_hex("abd");
  EXPECT_EQ(config_error_of([&] { (void)run(R"({"text": )" + at("a") + R"(, "sha256": ")" + hash + "\"}"); }),
            "s.json: /data/sha256: got \"" + hash + "\", but " + folder_.path() + "/a has \"" + sha256_hex("abc") +
                "\"; want the file that was meant, or no hash");
  EXPECT_THAT(config_error_of([&] {
                (void)run(R"({"text": )" + at("a") + "}",
                          R"({"weights": )" + at("a") + R"(, "sha256": ")" + hash + "\"}");
              }),
              HasSubstr("s.json: /model/sha256: got"));
  EXPECT_EQ(config_error_of([&] { (void)run(R"({"text": )" + at("a") + "}", R"({"sha256": ")" + hash + "\"}"); }),
            "s.json: /model/sha256: got a hash without a file, want no hash");
  EXPECT_THAT(config_error_of([&] { (void)run(R"({"tokens": )" + at("none") + "}"); }),
              HasSubstr("s.json: /data/tokens: read " + folder_.path() + "/none: No such file or directory"));
}

TEST_F(SpecOfFiles, ARecordOfOtherNumericsIsRefused) {
  put("a", "abc");
  const ResolvedRun first = run(R"({"text": )" + at("a") + "}");
  EXPECT_EQ(first.spec["numerics_version"], 1);
  json other = first.spec;
  other["numerics_version"] = 2;
  EXPECT_NE(run_id_of(other), first.run_id);
  EXPECT_THAT(config_error_of([&] { (void)resolve(other, "spec.json"); }),
              HasSubstr("spec.json: /numerics_version: got 2, but this droptest has version 1 for this spec"));
}

}  // namespace
}  // namespace droptest::experiments::file_hashes_test
