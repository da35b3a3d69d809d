// SPDX-License-Identifier: Apache-2.0
#include "experiments/slurm/array_record.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "comm/json/json_text.h"
#include "comm/json/schema.h"
#include "experiments/files/atomic_file.h"
#include "experiments/records/run_records.h"
#include "experiments/schema/schema_kinds.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

constexpr int kArrayVersion = 1;

json task_json(const SweepPlan& plan, const TaskRuns& task) {
  json runs = json::array();
  for (const std::size_t index : task) {
    const PlannedRun& planned = plan.runs[index];
    runs.push_back({{"run_id", planned.run.run_id},
                    {"spec", planned.run.spec},
                    {"point", planned.point},
                    {"labels", planned.run.labels},
                    {"warnings", warnings_json(planned.run.warnings)}});
  }
  json line = {{"schema_version", kArrayVersion}, {"name", plan.name}, {"runs", std::move(runs)}};
  if (!plan.swept.empty()) line["swept"] = plan.swept;
  return line;
}

PlannedRun run_from_json(const json& entry, const std::string& place) {
  PlannedRun planned;
  planned.run = resolve(entry.at("spec"), place + "/spec");
  planned.run.labels = entry.at("labels");
  planned.run.warnings = warnings_from_json(entry.at("warnings"));
  planned.point = entry.at("point");
  planned.seeds = planned.run.config.seeds;
  const auto submitted = entry.at("run_id").get<std::string>();
  if (planned.run.run_id != submitted) {
    throw ConfigError(place + "/run_id: got \"" + submitted + "\", but this droptest gives the run the id \"" +
                      planned.run.run_id + "\": the program changed after the submission; submit the sweep again");
  }
  return planned;
}

}  // namespace

std::string slurm_folder(const std::string& out, std::string_view name) {
  return out + "/" + std::string(name) + "/slurm";
}

ArrayDirectory array_directory(const std::string& out, std::string_view name, std::uint64_t number) {
  return {slurm_folder(out, name) + "/array_" + std::to_string(number)};
}

std::uint64_t next_array_number(const std::string& out, std::string_view name) {
  // The number is one more than the last: others may have been removed by hand.
  constexpr std::string_view kPrefix = "array_";
  std::uint64_t last = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(slurm_folder(out, name), none)) {
    const std::string folder = entry.path().filename().string();
    std::uint64_t number = 0;
    const char* const end = folder.data() + folder.size();
    if (!folder.starts_with(kPrefix)) continue;
    const auto read = std::from_chars(folder.data() + kPrefix.size(), end, number);
    if (read.ec == std::errc() && read.ptr == end) last = std::max(last, number);
  }
  return last + 1;
}

void write_tasks(const ArrayDirectory& directory, const SweepPlan& plan, const ArrayPlan& array) {
  make_directories(directory.path);
  write_file_atomically(directory.tasks(), [&](const WritePiece& write) {
    for (const TaskRuns& task : array.tasks) {
      const json line = task_json(plan, task);
      const std::vector<comm::Violation> violations = schema_of(SchemaKind::kSlurmTask).check(line);
      DROPTEST_CHECK(violations.empty(), directory.tasks() + ": " + violations.at(0).pointer);
      write(line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
    }
  });
}

void write_array_record(const ArrayDirectory& directory, const SweepPlan& plan, const ArrayPlan& array,
                        const std::string& job_id) {
  json tasks = json::array();
  for (const TaskRuns& task : array.tasks) {
    json ids = json::array();
    for (const std::size_t index : task) ids.push_back(plan.runs[index].run.run_id);
    tasks.push_back(std::move(ids));
  }
  write_record(SchemaKind::kSlurmArray, directory.array(),
               {{"schema_version", kArrayVersion}, {"job_id", job_id}, {"tasks", std::move(tasks)}});
}

void confirm_array_record(const ArrayDirectory& directory, const std::string& job_id) {
  json record = comm::load_json(directory.array());
  record["job_id"] = job_id;
  write_record(SchemaKind::kSlurmArray, directory.array(), record);
}

std::vector<ArrayRecord> read_arrays(const std::string& out, std::string_view name) {
  std::vector<ArrayRecord> arrays;
  const std::uint64_t end = next_array_number(out, name);
  for (std::uint64_t number = 1; number < end; ++number) {
    const ArrayDirectory directory = array_directory(out, name, number);
    const std::string file = directory.array();
    if (!std::filesystem::exists(file)) continue;  // its submission was killed
    const json record = comm::load_json(file);
    comm::require_valid(schema_of(SchemaKind::kSlurmArray), record, file);
    arrays.push_back({directory, record.at("job_id"), record.at("tasks")});
  }
  return arrays;
}

SweepPlan read_task(const ArrayDirectory& directory, std::uint64_t task) {
  const std::string file = directory.tasks();
  std::ifstream lines(file);
  if (!lines)
    throw ConfigError(file + ": cannot be read; is the folder of the results on a disk that all nodes share?");
  std::string line;
  std::uint64_t count = 0;
  while (count < task && std::getline(lines, line)) ++count;
  if (task == 0 || count < task) {
    throw ConfigError(file + ": got task " + std::to_string(task) + ", want 1 to " + std::to_string(count));
  }
  const std::string place = file + ": line " + std::to_string(task);
  const json record = comm::parse_json(line, place);
  comm::require_valid(schema_of(SchemaKind::kSlurmTask), record, place);
  SweepPlan plan;
  plan.name = record.at("name");
  plan.swept = record.value("swept", plan.swept);
  const json& runs = record.at("runs");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    plan.runs.push_back(run_from_json(runs[i], place + ": /runs/" + std::to_string(i)));
    plan.runs.back().same_as = i;
  }
  plan.points = plan.runs.size();
  return plan;
}

}  // namespace droptest::experiments
