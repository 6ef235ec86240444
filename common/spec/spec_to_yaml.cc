// JobSpec to YAML, for `show -o yaml`.
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/spec.h"
#include "common/spec/trainer_schema.h"
#include "common/spec/yaml_writer.h"

namespace muster {
namespace {

std::string LevelName(pb::TopologyLevel level) {
  return absl::AsciiStrToLower(pb::TopologyLevel_Name(level));
}

template <typename Map>
void WriteMap(YamlWriter& out, std::string_view name, const Map& map) {
  if (map.empty()) return;
  out.Open(name);
  const std::map<std::string, std::string> sorted(map.begin(), map.end());
  for (const auto& [key, value] : sorted) out.Text(key, value);
  out.Close();
}

template <typename List>
void WriteList(YamlWriter& out, std::string_view name, const List& list) {
  if (!list.empty()) out.List(name, std::vector<std::string>(list.begin(), list.end()));
}

void WriteJson(YamlWriter& out, const std::string& name, const nlohmann::json& value);

std::string FlowJson(const nlohmann::json& value) {
  if (value.is_string()) return YamlScalar(value.get<std::string>());
  if (value.is_array()) {
    std::string text = "[";
    for (size_t i = 0; i < value.size(); ++i)
      absl::StrAppend(&text, i == 0 ? "" : ", ", FlowJson(value[i]));
    return text + "]";
  }
  if (value.is_object()) {
    std::string text = "{";
    for (const auto& [key, member] : value.items())
      absl::StrAppend(&text, text.size() == 1 ? "" : ", ", YamlScalar(key), ": ", FlowJson(member));
    return text + "}";
  }
  return value.dump();
}

void WriteJson(YamlWriter& out, const std::string& name, const nlohmann::json& value) {
  if (value.is_string()) return out.Text(name, value.get<std::string>());
  if (!value.is_object() || value.empty()) return out.Plain(name, FlowJson(value));
  out.Open(name);
  for (const auto& [key, member] : value.items()) WriteJson(out, key, member);
  out.Close();
}

void WriteSchedule(YamlWriter& out, const pb::Schedule& schedule) {
  if (schedule.zone().empty() && schedule.overlap() == pb::OVERLAP_UNSPECIFIED)
    return out.Text("schedule", schedule.cron());
  out.Open("schedule");
  out.Text("cron", schedule.cron());
  if (!schedule.zone().empty()) out.Text("zone", schedule.zone());
  if (schedule.overlap() != pb::OVERLAP_UNSPECIFIED)
    out.Plain("overlap", absl::AsciiStrToLower(pb::Overlap_Name(schedule.overlap())));
  out.Close();
}

void WriteWorkers(YamlWriter& out, std::string_view name, const pb::Workers& workers) {
  if (workers.min() == workers.max() && workers.multiple_of() == 0)
    return out.Plain(name, absl::StrCat(workers.min()));
  const std::string multiple =
      workers.multiple_of() == 0 ? "" : absl::StrCat(", multiple_of: ", workers.multiple_of());
  out.Plain(name, absl::StrCat("{min: ", workers.min(), ", max: ", workers.max(), multiple, "}"));
}

void WriteBlocks(YamlWriter& out, const pb::Topology& topology) {
  if (topology.blocks().empty()) return;
  out.Open("blocks");
  for (const pb::RankBlock& block : topology.blocks()) {
    out.Item();
    out.Plain("gpus", absl::StrCat(block.gpus()));
    if (block.preferred() != pb::TOPOLOGY_LEVEL_UNSPECIFIED)
      out.Plain("preferred", LevelName(block.preferred()));
    if (block.required() != pb::TOPOLOGY_LEVEL_UNSPECIFIED)
      out.Plain("required", LevelName(block.required()));
    out.Close();
  }
  out.Close();
}

// `counted`: the job says elsewhere how many workers there are.
void WriteTask(YamlWriter& out, const pb::TaskSpec& task, bool counted) {
  WriteList(out, "after", task.after());
  WriteList(out, "with", task.with());
  WriteList(out, "until", task.until());
  if (task.has_workers() && !counted) WriteWorkers(out, "workers", task.workers());
  const pb::Resources& resources = task.resources();
  if (task.has_resources() && resources.ByteSizeLong() > 0) {
    out.Open("resources");
    if (resources.gpus_milli() != 0) out.Plain("gpus", FormatMilli(resources.gpus_milli()));
    WriteList(out, "gpu_types", resources.gpu_types());
    if (resources.cpus_milli() != 0) out.Plain("cpus", FormatMilli(resources.cpus_milli()));
    if (resources.memory_bytes() != 0) out.Plain("memory", ExactSize(resources.memory_bytes()));
    if (resources.disk_bytes() != 0) out.Plain("disk", ExactSize(resources.disk_bytes()));
    out.Close();
  }
  if (task.processes_per_worker() != 0)
    out.Plain("processes_per_worker", absl::StrCat(task.processes_per_worker()));
  if (task.rank_variables()) out.Plain("rank_variables", "true");
  if (task.topology().ByteSizeLong() > 0) {
    out.Open("topology");
    if (task.topology().preferred() != pb::TOPOLOGY_LEVEL_UNSPECIFIED)
      out.Plain("preferred", LevelName(task.topology().preferred()));
    if (task.topology().required() != pb::TOPOLOGY_LEVEL_UNSPECIFIED)
      out.Plain("required", LevelName(task.topology().required()));
    WriteBlocks(out, task.topology());
    out.Close();
  }
  if (!task.setup().empty()) out.Text("setup", task.setup());
  if (task.run().exec_size() > 0) {
    WriteList(out, "run", task.run().exec());
  } else if (task.has_run()) {
    out.Text("run", task.run().shell());
  }
  if (task.has_ray()) {
    if (task.ray().dashboard()) {
      out.Open("ray");
      out.Plain("dashboard", "true");
      out.Close();
    } else {
      out.Plain("ray", "{}");
    }
  }
  if (!task.trainer_json().empty()) {
    const nlohmann::json trainer = ParseBoundedJson(task.trainer_json(), kMaxYamlBytes);
    if (trainer.is_object()) WriteJson(out, "trainer", trainer);
  }
  if (!task.image().empty()) out.Text("image", task.image());
  if (!task.workdir().empty()) out.Text("workdir", task.workdir());
  if (!task.workdir_digest().empty()) out.Text("workdir_digest", task.workdir_digest());
  const pb::CheckpointPolicy& checkpoint = task.checkpoint();
  if (!checkpoint.storage().empty() || checkpoint.has_interval_ns() || checkpoint.has_keep() ||
      !checkpoint.resume_from().empty()) {
    out.Open("checkpoint");
    if (!checkpoint.storage().empty()) out.Text("storage", checkpoint.storage());
    if (checkpoint.has_interval_ns())
      out.Plain("interval", ExactDuration(checkpoint.interval_ns()));
    if (checkpoint.has_keep()) out.Plain("keep", absl::StrCat(checkpoint.keep()));
    if (!checkpoint.resume_from().empty())
      out.List("resume_from", {checkpoint.resume_from().begin(), checkpoint.resume_from().end()});
    out.Close();
  }
  if (task.has_input()) {
    out.Open("input");
    if (!task.input().storage().empty()) out.Text("storage", task.input().storage());
    if (task.input().size_bytes() != 0)
      out.Plain("size", absl::StrCat(task.input().size_bytes(), "B"));
    out.Close();
  }
  if (task.has_max_restarts()) out.Plain("max_restarts", absl::StrCat(task.max_restarts()));
  if (task.has_retry_faults_for_ns())
    out.Plain("retry_faults_for", ExactDuration(task.retry_faults_for_ns()));
  if (!task.final_exit_codes().empty())
    out.Plain("final_exit_codes",
              absl::StrCat("[", absl::StrJoin(task.final_exit_codes(), ", "), "]"));
  if (task.has_hang_timeout_ns()) out.Plain("hang_timeout", ExactDuration(task.hang_timeout_ns()));
  if (task.when_unreachable() != pb::WHEN_UNREACHABLE_UNSPECIFIED) {
    out.Plain("when_unreachable",
              absl::AsciiStrToLower(pb::WhenUnreachable_Name(task.when_unreachable())));
  }
  if (task.fence_after_ns() != 0) out.Plain("fence_after", ExactDuration(task.fence_after_ns()));
  if (task.has_grace_ns()) out.Plain("grace", ExactDuration(task.grace_ns()));
  if (task.time_limit_ns() != 0) out.Plain("time_limit", ExactDuration(task.time_limit_ns()));
}

}  // namespace

std::string SpecToYaml(const pb::JobSpec& spec) {
  YamlWriter out;
  if (!spec.name().empty()) out.Text("name", spec.name());
  if (!spec.queue().empty()) out.Text("queue", spec.queue());
  if (spec.priority() != 0) out.Plain("priority", absl::StrCat(spec.priority()));
  WriteMap(out, "labels", spec.labels());
  WriteList(out, "clusters", spec.clusters());
  WriteList(out, "after", spec.after());
  WriteList(out, "after_any", spec.after_any());
  if (!spec.on().empty()) out.Text("on", spec.on());
  if (!spec.not_before().empty()) out.Text("not_before", spec.not_before());
  if (spec.has_schedule()) WriteSchedule(out, spec.schedule());
  WriteMap(out, "env", spec.env());
  WriteList(out, "secrets", spec.secrets());
  if (!spec.array().empty()) out.Text("array", spec.array());
  if (!spec.sweep().empty()) {
    out.Open("sweep");
    for (const pb::SweepValues& values : spec.sweep())
      WriteList(out, values.name(), values.values());
    out.Close();
  }
  if (spec.has_track()) {
    out.Open("track");
    if (!spec.track().tensorboard().empty()) out.Text("tensorboard", spec.track().tensorboard());
    if (!spec.track().mlflow().empty()) out.Text("mlflow", spec.track().mlflow());
    if (!spec.track().wandb().empty()) out.Text("wandb", spec.track().wandb());
    out.Close();
  }
  if (spec.has_notify()) {
    out.Open("notify");
    if (!spec.notify().webhook().empty()) out.Text("webhook", spec.notify().webhook());
    if (!spec.notify().mail().empty()) out.Text("mail", spec.notify().mail());
    WriteList(out, "on", spec.notify().on());
    out.Close();
  }
  if (spec.has_independent_workers())
    WriteWorkers(out, "independent_workers", spec.independent_workers());
  if (IsShortForm(spec) && spec.tasks(0).env().empty()) {
    WriteTask(out, spec.tasks(0), spec.has_independent_workers());
  } else {
    out.Open("tasks");
    for (const pb::TaskSpec& task : spec.tasks()) {
      out.Item();
      out.Text("name", task.name());
      WriteMap(out, "env", task.env());
      WriteTask(out, task, spec.has_independent_workers());
      out.Close();
    }
    out.Close();
  }
  return out.Take();
}

}  // namespace muster
