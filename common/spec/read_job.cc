// Job files: YAML to JobSpec.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/ids.h"
#include "common/base/view.h"
#include "common/spec/check_spec.h"
#include "common/spec/members.h"
#include "common/spec/reader.h"
#include "common/spec/trainer_schema.h"

namespace muster {
namespace {

const std::vector<std::string>& TopologyNames() {  // by TopologyLevel - 1; the last is "not yet"
  static const std::vector<std::string> names = {"island", "host",    "rack",
                                                 "block",  "cluster", "any"};
  return names;
}

const std::vector<std::string>& OverlapNames() {  // by Overlap - 1
  static const std::vector<std::string> names = {"skip", "allow"};
  return names;
}

const std::vector<std::string>& UnreachableNames() {  // by WhenUnreachable - 1
  static const std::vector<std::string> names = {"replace", "wait", "fence"};
  return names;
}

template <typename Enum>
Enum ByName(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<Enum>(std::find(names.begin(), names.end(), name) - names.begin() + 1);
}

// A file's stem as a name: "dir/sft 8b.yaml" is sft-8b.
std::string NameFromFile(std::string_view filename) {
  const size_t slash = filename.rfind('/');
  std::string stem(slash == std::string_view::npos ? filename : filename.substr(slash + 1));
  const size_t dot = stem.rfind('.');
  if (dot != std::string::npos && dot > 0) stem.resize(dot);
  for (char& c : stem) {
    if (!IsLabel(std::string_view(&c, 1)) && c != '.' && c != '-') c = '-';
  }
  stem.erase(0, stem.find_first_not_of("-."));
  if (stem.size() > 63) stem.resize(63);
  return IsLabel(stem) ? stem : "job";
}

class JobReader {
 public:
  JobReader(const SpecContext& context, Document* document, pb::JobSpec* spec)
      : context_(context), document_(*document), spec_(*spec) {
    if (!context.trainer_schema_json.empty())
      schema_ = ParseBoundedJson(context.trainer_schema_json, size_t{1} << 20);
  }

  // True if the file has the short form.
  bool Read() {
    Fields top(document_, document_.root(), "");
    std::string text;
    if (top.Text("name", &text)) spec_.set_name(text);
    if (!top.Has("name")) spec_.set_name(NameFromFile(document_.filename()));
    if (top.Text("queue", &text)) spec_.set_queue(text);
    if (!top.Has("queue")) spec_.set_queue(context_.default_queue);
    int32_t priority = 0;
    if (top.Int("priority", 0, 100, &priority)) spec_.set_priority(priority);
    top.TextList("clusters", [&](std::string name) { spec_.add_clusters(std::move(name)); });
    top.TextList("after", [&](std::string job) { spec_.add_after(std::move(job)); });
    if (top.Text("on", &text)) spec_.set_on(text);
    if (top.Text("not_before", &text)) spec_.set_not_before(text);
    ReadSchedule(top);
    top.TextList("after_any", [&](std::string job) { spec_.add_after_any(std::move(job)); });
    top.TextMap("labels", [&](std::string name, std::string value) {
      (*spec_.mutable_labels())[std::move(name)] = std::move(value);
    });
    top.TextMap("env", [&](std::string name, std::string value) {
      (*spec_.mutable_env())[std::move(name)] = std::move(value);
    });
    top.TextList("secrets", [&](std::string name) { spec_.add_secrets(std::move(name)); });
    if (top.Text("array", &text)) spec_.set_array(text);
    if (top.Has("array") && spec_.array().empty())
      document_.AddAtPath("array", "is empty; write indices such as 0-99, or leave it out",
                          Document::Where::kValue);
    ReadSweep(top);
    ReadTrackers(top);
    ReadWorkers(top, "independent_workers", kMaxMembers, spec_.mutable_independent_workers());
    if (spec_.independent_workers().max() == 0) spec_.clear_independent_workers();
    if (top.Has("independent_workers") && top.Has("workers"))
      document_.AddAtPath("workers", "is what a gang has; with independent_workers leave it out",
                          Document::Where::kName);

    if (!top.Has("tasks")) {
      top.Take("tasks");  // known, and suggested
      for (const char* field : {"with", "until"}) {
        if (top.Has(field) && top.Take(field) != nullptr)
          document_.AddAtPath(
              field,
              absl::StrCat("goes with tasks: it names other tasks of the job; write it in a task "
                           "of tasks:, as tasks[0].",
                           field),
              Document::Where::kName);
      }
      spec_.add_tasks()->set_name("main");
      ReadTask(top, spec_.mutable_tasks(0));
      top.Finish();
      return true;
    }
    ReadTasks(top);
    top.Finish();
    return false;
  }

 private:
  // With `tasks`, whose fields don't stand at the top.
  void ReadTasks(Fields& top) {
    top.ForEach("tasks", [&](const YamlNode& node, const std::string& path) {
      pb::TaskSpec* task = spec_.add_tasks();
      if (!node.IsMap()) {
        document_.MarkUnsound(path);
        return document_.Add(node, path,
                             absl::StrCat("must be a map with a task's fields; got ", Shown(node)));
      }
      Fields fields(document_, node, path);
      std::string name;
      if (fields.Text("name", &name)) task->set_name(name);
      fields.TextMap("env", [&](std::string key, std::string value) {
        (*task->mutable_env())[std::move(key)] = std::move(value);
      });
      fields.TextList("after", [&](std::string other) { task->add_after(std::move(other)); });
      fields.TextList("with", [&](std::string other) { task->add_with(std::move(other)); });
      fields.TextList("until", [&](std::string other) { task->add_until(std::move(other)); });
      ReadTask(fields, task);
      fields.Finish();
    });
    for (const std::string_view field : {"workers",
                                         "resources",
                                         "processes_per_worker",
                                         "rank_variables",
                                         "topology",
                                         "setup",
                                         "run",
                                         "ray",
                                         "trainer",
                                         "image",
                                         "workdir",
                                         "workdir_digest",
                                         "checkpoint",
                                         "max_restarts",
                                         "retry_faults_for",
                                         "final_exit_codes",
                                         "hang_timeout",
                                         "when_unreachable",
                                         "fence_after",
                                         "grace",
                                         "time_limit",
                                         "input",
                                         "with",
                                         "until"}) {
      const YamlNode* node = top.Take(field);
      if (node == nullptr) continue;
      document_.AddAtPath(
          field,
          absl::StrCat("belongs to a task: with tasks: every task has its own; ",
                       node->line > 0 ? "move it there" : RemedyOfSet(std::string(field), *node)),
          Document::Where::kName);
    }
  }

  // Of a field that --set put at the top: with the task's name, and which others have one, too.
  std::string RemedyOfSet(const std::string& field, const YamlNode& set) const {
    std::vector<std::string> having, named;
    const YamlNode* tasks = document_.root().Find("tasks");
    for (size_t i = 0; tasks != nullptr && i < tasks->items.size(); ++i) {
      const YamlNode& task = tasks->items[i];
      const YamlNode* name = task.IsMap() ? task.Find("name") : nullptr;
      if (name == nullptr || !name->IsScalar()) continue;
      named.push_back(name->text);
      if (task.Find(field) != nullptr) having.push_back(name->text);
    }
    const std::vector<std::string>& likely = having.empty() ? named : having;
    std::string path = field;
    const YamlNode* at = &set;
    for (; at->IsMap() && at->items.size() == 1; at = &at->items[0])
      path = JoinPath(path, at->keys[0].text);
    return absl::StrCat(
        "write --set tasks[", likely.empty() ? "0" : likely[0], "].", path, "=",
        at->IsScalar() ? at->text : "…",
        likely.size() > 1
            ? absl::StrCat("; others: ", absl::StrJoin(likely.begin() + 1, likely.end(), ", "))
            : "");
  }

  void ReadBlock(const YamlNode& node, const std::string& path, pb::RankBlock* block) {
    if (!node.IsMap()) {
      document_.MarkUnsound(path);
      return document_.Add(
          node, path,
          absl::StrCat("must be a map, as {gpus: 8, required: host}; got ", Shown(node)));
    }
    Fields fields(document_, node, path);
    int32_t gpus = 0;
    if (fields.Int("gpus", 1, kMaxWorkers, &gpus)) block->set_gpus(gpus);
    std::string text;
    if (fields.Choice("preferred", TopologyNames(), 1, &text))
      block->set_preferred(ByName<pb::TopologyLevel>(TopologyNames(), text));
    if (fields.Choice("required", TopologyNames(), 1, &text))
      block->set_required(ByName<pb::TopologyLevel>(TopologyNames(), text));
    fields.Finish();
  }

  void ReadTask(Fields& fields, pb::TaskSpec* task) {
    pb::Workers workers;
    if (ReadWorkers(fields, "workers", kMaxWorkers, &workers)) *task->mutable_workers() = workers;
    if (std::optional<Fields> resources = fields.Map("resources"))
      ReadResources(*resources, task->mutable_resources());
    int32_t number = 0;
    if (fields.Int("processes_per_worker", 1, kMaxProcessesPerWorker, &number))
      task->set_processes_per_worker(number);
    bool rank_variables = false;
    if (fields.Bool("rank_variables", &rank_variables)) task->set_rank_variables(rank_variables);
    std::string text;
    if (std::optional<Fields> topology = fields.Map("topology")) {
      pb::Topology* out = task->mutable_topology();
      if (topology->Choice("preferred", TopologyNames(), 1, &text))
        out->set_preferred(ByName<pb::TopologyLevel>(TopologyNames(), text));
      if (topology->Choice("required", TopologyNames(), 1, &text))
        out->set_required(ByName<pb::TopologyLevel>(TopologyNames(), text));
      topology->ForEach("blocks", [&](const YamlNode& node, const std::string& path) {
        ReadBlock(node, path, out->add_blocks());
      });
      topology->Finish();
    }
    if (fields.Text("setup", &text)) task->set_setup(text);
    ReadRun(fields, task);
    if (std::optional<Fields> ray = fields.Map("ray")) {
      bool dashboard = false;
      ray->Bool("dashboard", &dashboard);
      task->mutable_ray()->set_dashboard(dashboard);
      ray->Finish();
    }
    if (const YamlNode* trainer = fields.Take("trainer")) ReadTrainer(fields, *trainer, task);
    if (fields.Text("image", &text)) task->set_image(text);
    if (fields.Text("workdir", &text)) task->set_workdir(text);
    if (fields.Text("workdir_digest", &text)) task->set_workdir_digest(text);
    if (std::optional<Fields> checkpoint = fields.Map("checkpoint")) {
      pb::CheckpointPolicy* out = task->mutable_checkpoint();
      int64_t interval_ns = 0;
      if (checkpoint->Text("storage", &text)) out->set_storage(text);
      if (checkpoint->Duration("interval", &interval_ns)) out->set_interval_ns(interval_ns);
      if (checkpoint->Int("keep", 1, 1000, &number)) out->set_keep(number);
      checkpoint->TextList("resume_from",
                           [&](std::string path) { out->add_resume_from(std::move(path)); });
      checkpoint->Finish();
    }
    if (std::optional<Fields> input = fields.Map("input")) {
      int64_t size_bytes = 0;
      if (input->Text("storage", &text)) task->mutable_input()->set_storage(text);
      if (input->Size("size", &size_bytes)) task->mutable_input()->set_size_bytes(size_bytes);
      input->Finish();
    }
    if (fields.Int("max_restarts", 0, 1000, &number)) task->set_max_restarts(number);
    int64_t duration_ns = 0;
    if (fields.Duration("retry_faults_for", &duration_ns))
      task->set_retry_faults_for_ns(duration_ns);
    fields.ForEach("final_exit_codes", [&](const YamlNode& node, const std::string& at) {
      const std::optional<int64_t> code = WholeNumber(node);
      if (code.has_value() && *code >= 1 && *code <= kMaxExitCode) {
        task->add_final_exit_codes(static_cast<int32_t>(*code));
      } else {
        document_.MarkUnsound(at);
        document_.Add(node, at,
                      absl::StrCat("must be a whole number from 1 to ", kMaxExitCode, "; got ",
                                   code ? absl::StrCat(*code) : Shown(node)));
      }
    });
    if (fields.Duration("hang_timeout", &duration_ns)) task->set_hang_timeout_ns(duration_ns);
    if (fields.Choice("when_unreachable", UnreachableNames(), 0, &text))
      task->set_when_unreachable(ByName<pb::WhenUnreachable>(UnreachableNames(), text));
    if (fields.Duration("fence_after", &duration_ns)) task->set_fence_after_ns(duration_ns);
    if (fields.Duration("grace", &duration_ns)) task->set_grace_ns(duration_ns);
    if (fields.Duration("time_limit", &duration_ns)) task->set_time_limit_ns(duration_ns);
  }

  // A crontab's line, or a map that has it as `cron`.
  void ReadSchedule(Fields& top) {
    const YamlNode* node = top.Take("schedule");
    if (node == nullptr) return;
    pb::Schedule* schedule = spec_.mutable_schedule();
    std::string text;
    if (!node->IsMap()) {
      if (ReadText(document_, *node, "schedule", &text)) schedule->set_cron(text);
      return;
    }
    Fields fields(document_, *node, "schedule");
    if (fields.Text("cron", &text)) schedule->set_cron(text);
    if (fields.Text("zone", &text)) schedule->set_zone(text);
    if (fields.Choice("overlap", OverlapNames(), 0, &text))
      schedule->set_overlap(ByName<pb::Overlap>(OverlapNames(), text));
    fields.Finish();
  }

  void ReadTrackers(Fields& top) {
    std::string text;
    if (std::optional<Fields> track = top.Map("track")) {
      pb::Track* out = spec_.mutable_track();
      if (track->Text("tensorboard", &text)) out->set_tensorboard(text);
      if (track->Text("mlflow", &text)) out->set_mlflow(text);
      if (track->Text("wandb", &text)) out->set_wandb(text);
      track->Finish();
    }
    if (std::optional<Fields> notify = top.Map("notify")) {
      pb::Notify* out = spec_.mutable_notify();
      if (notify->Text("webhook", &text)) out->set_webhook(text);
      if (notify->Text("mail", &text)) out->set_mail(text);
      notify->TextList("on", [&](std::string end) { out->add_on(std::move(end)); });
      notify->Finish();
    }
  }

  // A map of names, each with the list of its values.
  void ReadSweep(Fields& top) {
    top.ForEachEntry(
        "sweep", [&](const YamlNode& key, const YamlNode& list, const std::string& path) {
          if (!list.IsList()) {
            document_.MarkUnsound("");
            return document_.Add(
                list, path,
                absl::StrCat("must be a list of values, such as [1e-4, 3e-4]; got ", Shown(list)));
          }
          pb::SweepValues* values = spec_.add_sweep();
          values->set_name(key.text);
          for (size_t i = 0; i < list.items.size(); ++i) {
            const std::string at = IndexPath(path, i);
            std::string value;
            document_.Note(at, list.items[i], nullptr);
            if (!ReadText(document_, list.items[i], at, &value)) document_.MarkUnsound("");
            values->add_values(std::move(value));
          }
        });
  }

  // True: it is there and good.
  bool ReadWorkers(Fields& fields, std::string_view name, int32_t limit, pb::Workers* workers) {
    const YamlNode* node = fields.Take(name);
    if (node == nullptr) return false;
    if (node->IsMap()) {
      Fields range(document_, *node, fields.PathOf(name));
      int32_t least = 0, most = 0, multiple = 0;
      const bool has_least = range.Int("min", 1, limit, &least),
                 has_most = range.Int("max", 1, limit, &most);
      if (range.Int("multiple_of", 1, limit, &multiple)) workers->set_multiple_of(multiple);
      range.Finish();
      for (const char* end : {"min", "max"}) {
        if (range.Has(end) || !document_.Sound(range.path())) continue;
        document_.AddAtPath(
            range.PathOf(end),
            absl::StrCat("is missing; write both min and max, or one number: ", View(name), ": 4"));
        document_.MarkUnsound(range.path());
      }
      if (!has_least || !has_most) return false;
      workers->set_min(least);
      workers->set_max(most);
      return true;
    }
    const std::optional<int64_t> value = WholeNumber(*node);
    if (!value.has_value() || *value < 1 || *value > limit) {
      fields.Bad(
          name, *node,
          absl::StrCat("must be a whole number from 1 to ", limit, ", or {min: 2, max: 4}; got ",
                       value ? absl::StrCat(*value) : Shown(*node)));
      return false;
    }
    workers->set_min(static_cast<int32_t>(*value));
    workers->set_max(static_cast<int32_t>(*value));
    return true;
  }

  void ReadResources(Fields& fields, pb::Resources* out) {
    int64_t value = 0;
    if (fields.Milli("gpus", &value)) out->set_gpus_milli(value);
    fields.TextList("gpu_types", [&](std::string name) { out->add_gpu_types(std::move(name)); });
    if (fields.Milli("cpus", &value)) out->set_cpus_milli(value);
    if (fields.Size("memory", &value)) out->set_memory_bytes(value);
    if (fields.Size("disk", &value)) out->set_disk_bytes(value);
    fields.Finish();
  }

  void ReadRun(Fields& fields, pb::TaskSpec* task) {
    const YamlNode* node = fields.Take("run");
    if (node == nullptr) return;
    const std::string path = fields.PathOf("run");
    if (node->IsMap())
      return fields.Bad("run", *node,
                        "must be a text for bash, or a list of words to execute; got a map");
    pb::Run* run = task->mutable_run();
    if (node->IsScalar()) {
      std::string text;
      if (ReadText(document_, *node, path, &text)) run->set_shell(text);
      return;
    }
    for (size_t i = 0; i < node->items.size(); ++i) {
      const std::string at = IndexPath(path, i);
      std::string word;
      document_.Note(at, node->items[i], nullptr);
      if (!ReadText(document_, node->items[i], at, &word)) document_.MarkUnsound(fields.path());
      run->add_exec(std::move(word));
    }
  }

  void ReadTrainer(Fields& fields, const YamlNode& node, pb::TaskSpec* task) {
    if (!node.IsMap())
      return fields.Bad("trainer", node,
                        absl::StrCat("must be a map of fields; got ", Shown(node)));
    const std::string path = fields.PathOf("trainer");
    const nlohmann::json value =
        TrainerJson(node, schema_.is_object() ? &schema_ : nullptr, path, document_);
    task->set_trainer_json(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  const SpecContext& context_;
  Document& document_;
  pb::JobSpec& spec_;
  nlohmann::json schema_;
};

// "For 4 a device, 16 GPUs, 2 accumulations:  global_batch_size: 128": the trainer's hint made
// concrete.
std::string BatchRemedy(const pb::TaskSpec& task) {
  const nlohmann::json trainer = ParseBoundedJson(task.trainer_json(), kMaxYamlBytes);
  const auto number = [&](const char* name) -> int64_t {
    const auto found = trainer.find(name);
    if (found == trainer.end() || !found->is_number_integer()) return 0;
    const int64_t value = found->get<int64_t>();
    return value >= 1 && value <= 65'536 ? value : 0;
  };
  const int64_t each = number("per_device_train_batch_size"),
                accumulations = number("gradient_accumulation_steps");
  const int64_t workers = std::max<int64_t>(1, task.workers().max());
  const int64_t devices =
      workers * std::max<int64_t>(1, task.processes_per_worker() > 0
                                         ? task.processes_per_worker()
                                         : task.resources().gpus_milli() / 1000);
  if (each == 0 || devices > 1'000'000) return "";
  return absl::StrCat(
      "\nFor ", each, " a device, ", devices, devices == 1 ? " GPU" : " GPUs",
      accumulations > 1 ? absl::StrCat(", ", accumulations, " accumulations") : "",
      ":  global_batch_size: ", each * devices * std::max<int64_t>(1, accumulations));
}

}  // namespace

bool ParseJobFile(std::string_view text, std::string_view filename, const SpecContext& context,
                  pb::JobSpec* spec, std::vector<Problem>* problems,
                  const std::vector<std::string>& settings) {
  spec->Clear();
  Document document;
  if (document.Parse(text, filename)) {
    for (const std::string& setting : settings) document.Set(setting);
    const bool short_form = JobReader(context, &document, spec).Read();
    const auto emit = [&](const std::string& path, const std::string& message,
                          Document::Where where) {
      if (document.HasProblemAt(path)) return;
      std::string shown = message;
      const std::string_view parent = ".per_device_train_batch_size";
      if (path.size() > parent.size() &&
          std::string_view(path).substr(path.size() - parent.size()) == parent) {
        for (int i = 0; i < spec->tasks_size(); ++i) {
          const std::string task = short_form ? "" : IndexPath("tasks", static_cast<size_t>(i));
          if (path != JoinPath(task, "trainer") + std::string(parent)) continue;
          const std::string remedy = BatchRemedy(spec->tasks(i));
          if (!remedy.empty()) shown = absl::StrCat(shown.substr(0, shown.find(';')), ".", remedy);
        }
      }
      document.AddAtPath(path, std::move(shown), where);
    };
    CheckJobRules(*spec, {context, short_form, emit,
                          [&](const std::string& map) { return document.Sound(map); }});
  }
  return document.Deliver(problems);
}

std::vector<Problem> PlaceProblems(std::string_view text, std::string_view filename,
                                   const std::vector<FieldProblem>& found) {
  Document document;
  pb::JobSpec spec;
  const SpecContext context;
  if (document.Parse(text, filename)) JobReader(context, &document, &spec).Read();
  document.TakeSorted();  // the daemon's words only
  for (const FieldProblem& problem : found) document.AddAtPath(problem.path, problem.message);
  return document.TakeSorted();
}

}  // namespace muster
