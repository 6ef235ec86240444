// Job files: YAML to JobSpec and back, with every problem and its place; and the same rules for
// specs that arrive as protos. Everything here is pure (no files, no clock) and safe to call from
// any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/job_defaults.h"
#include "common/base/units.h"
#include "common/spec/problem.h"
#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// Limits of every YAML file (security rule 12, docs/contracts.md).
inline constexpr size_t kMaxYamlBytes = 256 << 10;
inline constexpr int kMaxYamlDepth = 32;
inline constexpr int kMaxYamlNodes = 10'000;

// What the checker may know about the system it submits to. Whatever is empty is unknown and isn't
// checked.
struct SpecContext {
  std::string default_queue;        // for a job file without queue:
  std::string trainer_schema_json;  // `muster-trainer --schema`
  std::map<std::string, std::vector<std::string>>
      flavours;  // GPU types, and the clusters that have them
  std::vector<std::string> clusters;
  std::vector<std::string> queues;    // paths of leaves
  std::vector<std::string> storages;  // names
};

// Reads a job file. `filename` is for messages and for the default of name: (its stem; "-" is
// standard input). True: *spec is what the file says, without further defaults (a job without
// tasks: has one task, main). False: *problems has all problems, sorted by place, *spec is partial.
// Defaults are filled by ApplyDefaults, at the daemon. `settings` ("trainer.max_steps=100") are put
// over what the file says before anything is checked (Document::Set).
bool ParseJobFile(std::string_view text, std::string_view filename, const SpecContext& context,
                  pb::JobSpec* spec, std::vector<Problem>* problems,
                  const std::vector<std::string>& settings = {});

// A problem of a spec that has no file. Paths are YAML paths: "resources.gpus";
// "tasks[1].resources.gpus" when the job has several tasks or its one task isn't named main.
struct FieldProblem {
  std::string path;
  std::string message;
};

// One task that no file names: its fields stand at the top.
bool IsShortForm(const pb::JobSpec& spec);
// Of a task's field, as FieldProblem has it.
std::string TaskFieldPath(const pb::JobSpec& spec, int task, std::string_view field);

// The rules for a spec that arrives as a proto: what ParseJobFile checks, but for YAML's own
// mistakes. Call it before or after ApplyDefaults. Bounded work for any input.
std::vector<FieldProblem> CheckSpec(const pb::JobSpec& spec, const SpecContext& context = {});

// Gives problems that the daemon reported for this file their places in it. A path that isn't in
// the file is placed at its nearest parent.
std::vector<Problem> PlaceProblems(std::string_view text, std::string_view filename,
                                   const std::vector<FieldProblem>& found);

// Fallbacks for what a job leaves out; musterd.yaml's defaults: section.
struct SpecDefaults {
  int32_t max_restarts = kDefaultMaxRestarts;
  int64_t retry_faults_for_ns = kDefaultRetryFaultsForNs;
  int64_t grace_ns = kDefaultGraceNs;
  int64_t hang_timeout_ns = 30 * kMinute;
  int64_t time_limit_ns =
      0;  // 0: none. The queue's maximum bounds it, and goes first when the caller filled it in
};

// Fills everything a checked spec may leave out: name "job", task name main, workers 1, one core
// for a worker without GPUs, processes_per_worker, topology, its blocks and workers.multiple_of
// (FillPlacement), checkpoint.interval and keep, max_restarts, retry_faults_for, hang_timeout,
// grace, time_limit; with and after of tasks that start together (JoinTasks). Left open on purpose:
// queue; checkpoint.storage (the cluster's); cpus and memory of a worker with GPUs (its share of
// the host); when_unreachable of a gang of several workers without trainer: (replace if its
// placement spans hosts, else wait). Idempotent.
void ApplyDefaults(pb::JobSpec* spec, const SpecDefaults& defaults = {});

// The job file that says what `spec` says; ParseJobFile(SpecToYaml(s)) == s. One task named main is
// written in the short form.
std::string SpecToYaml(const pb::JobSpec& spec);

// Variables that a job may not set: LD_*, MUSTER_*, the ranks and the device selection (security
// rule 11).
bool IsReservedVariable(std::string_view name);

}  // namespace muster
