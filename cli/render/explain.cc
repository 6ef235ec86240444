#include "cli/render/explain.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/render/array.h"
#include "cli/render/bar.h"
#include "cli/render/job.h"
#include "cli/render/table.h"
#include "common/base/units.h"
#include "common/spec/workers.h"

namespace muster {
namespace {

using Explained = pb::ExplainResponse;
using Simulated = pb::SimulateResponse;

// A task that lacks no devices but isn't entitled to more waits for its turn rather than for its
// share.
bool WaitsForItsTurn(const Explained::Why& why) {
  return why.code() == pb::V_SHARE && why.missing_milli() == 0;
}

std::string CodeText(const Explained::Why& why) {
  if (WaitsForItsTurn(why)) return "order";
  std::string text = pb::VerdictCode_Name(why.code());
  text = text.rfind("V_", 0) == 0 ? absl::AsciiStrToLower(text.substr(2)) : "unknown";
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::string Devices(int64_t milli, const std::string& flavour) {
  return absl::StrCat(FormatMilli(milli), " ",
                      !flavour.empty() ? FlavourName(flavour, false)
                      : milli == 1000  ? "cpu"
                                       : "cpus");
}

// Others' ends are what it waits for, rather than an operator, a host or another job's devices.
bool WaitsForEnds(const Explained& explained) {
  return std::any_of(explained.why().begin(), explained.why().end(), [](const auto& why) {
    switch (why.code()) {
      case pb::V_CAPACITY:
      case pb::V_SHARE:
      case pb::V_LIMIT:
      case pb::V_RECLAIMING:
      case pb::V_ENTITLED_POOL:
        return true;
      case pb::V_PLACEMENT:  // it may also be that no host can take it, whoever ends
        return why.holders_size() > 0;
      default:
        return false;
    }
  });
}

// "prod 290: 32 until 18:20"
std::string HolderText(const Explained::Holder& holder, int64_t now_ns) {
  std::string text = absl::StrCat(Plain(holder.queue()), " ",
                                  holder.id().empty() ? absl::StrCat(holder.job()) : holder.id(),
                                  ": ", FormatMilli(holder.held_milli()));
  if (holder.until_ns() > 0)
    absl::StrAppend(&text, " until ", FormatClock(holder.until_ns(), now_ns));
  return text;
}

// Workers by which what runs may still grow; 0: by none.
int32_t GrowsBy(const pb::Job& job, const pb::Task& task) {
  const pb::TaskSpec* spec = SpecOf(job, task.name());
  const pb::Attempt* attempt = NewestAttempt(task);
  if (task.state() != pb::TASK_RUNNING || spec == nullptr || attempt == nullptr ||
      attempt->workers() >= spec->workers().max())
    return 0;
  return StepOf(spec->workers());
}

// What is known of the tasks that don't wait.
std::string OtherTasks(const pb::Job& job, int64_t now_ns) {
  std::string text;
  for (const pb::Task& task : job.tasks()) {
    if (task.state() >= pb::TASK_PREPARING && task.state() <= pb::TASK_STOPPING) {
      const pb::Attempt* attempt = NewestAttempt(task);
      absl::StrAppend(&text, "  ", Plain(task.name()), " ", StateName(task.state()),
                      attempt != nullptr ? absl::StrCat(" on ", PlaceName(*attempt)) : "");
      if (task.state() == pb::TASK_STOPPING && attempt != nullptr)
        absl::StrAppend(&text, ", stopping: ", CauseName(attempt->cause()));
      if (const int32_t step = GrowsBy(job, task); step > 1)
        absl::StrAppend(&text, ", can grow by ", step, " workers at a time");
      if (const int64_t end_ns = ExpectedEndNs(task.progress()); end_ns > now_ns)
        absl::StrAppend(&text, ", ends ", FormatClock(end_ns, now_ns));
      if (!task.spill_reason().empty())
        absl::StrAppend(&text, ": ", LocalTimes(Plain(task.spill_reason()), now_ns));
      text += '\n';
    } else if (task.state() == pb::TASK_BLOCKED && !task.verdict().text().empty()) {
      absl::StrAppend(&text, "  ", Plain(task.name()), " ",
                      LocalTimes(Plain(task.verdict().text()), now_ns), "\n");
    } else if (task.state() == pb::TASK_BLOCKED) {
      const pb::TaskSpec* spec = SpecOf(job, task.name());
      absl::StrAppend(&text, "  ", Plain(task.name()), " comes after ",
                      spec == nullptr ? "" : absl::StrJoin(spec->after(), ", "), "\n");
    }
  }
  return text;
}

// How to follow a "with": nothing changes a job that waits.
std::string AnewText(const Explained& explained) {
  const auto& found = explained.relaxations();
  if (std::none_of(found.begin(), found.end(),
                   [](const auto& relaxation) { return relaxation.own(); }))
    return "";
  const pb::Job& job = explained.job();
  if (job.has_member() || job.has_array()) {
    return "\"with\" is a change of the job itself; one that waits can't be changed. An array is "
           "submitted anew as a whole.\n";
  }
  std::string text = absl::StrCat(
      "\"with\" is a change of the job itself; one that waits can't be changed. Submit it anew:\n  "
      "muster show ",
      job.number(), " --spec > job.yaml    # change it there\n  muster submit -d ",
      HadATime(job) ? "--at none --schedule none " : "", "job.yaml && muster cancel ", job.number(),
      job.occurrence().next() == 0
          ? ""
          : absl::StrCat("\nIts schedule goes on as it is with job ", job.occurrence().next(), "."),
      "\nThe new job stands behind those of its queue and priority that wait already");
  const bool saved = std::any_of(job.tasks().begin(), job.tasks().end(),
                                 [](const pb::Task& task) { return task.checkpoints_size() > 0; });
  return absl::StrCat(text, saved ? ", and starts without the checkpoints of this one.\n" : ".\n");
}

std::string RelaxationLines(Explained explained) {
  std::vector<std::string> starts, changes;
  size_t start_width = 0, change_width = 0;
  std::stable_sort(explained.mutable_relaxations()->begin(), explained.mutable_relaxations()->end(),
                   [](const auto& a, const auto& b) { return a.start_ns() < b.start_ns(); });
  for (const auto& relaxation : explained.relaxations()) {
    starts.push_back(FormatStart(relaxation.start_ns(), explained.now_ns()));
    changes.push_back(absl::StrCat(relaxation.own() ? "with " : "if ", Plain(relaxation.change())));
    start_width = std::max(start_width, starts.back().size());
    change_width = std::max(change_width, changes.back().size());
  }
  std::string text;
  for (int i = 0; i < explained.relaxations_size(); ++i) {
    const auto& relaxation = explained.relaxations(i);
    std::string line = absl::StrCat(
        " ", starts[i], std::string(start_width - starts[i].size() + 2, ' '), changes[i]);
    if (!relaxation.place().empty())
      absl::StrAppend(&line, std::string(change_width - changes[i].size() + 2, ' '), "on ",
                      Plain(relaxation.place()));
    const std::string taken = TakenText(relaxation.takes_from());
    if (!taken.empty()) absl::StrAppend(&line, ", from ", taken);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

// What is said of tasks, in the order in which it was said first; of what is the same of several
// once, with all their names.
class OfTasks {
 public:
  void Add(const std::string& task, std::vector<std::string> said) {
    const auto same =
        std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.said == said; });
    if (same == rows_.end()) {
      rows_.push_back({Plain(task), std::move(said)});
    } else {
      absl::StrAppend(&same->tasks, ", ", Plain(task));
    }
  }
  void Add(const std::string& task, const std::string& said) {
    if (!said.empty()) Add(task, std::vector<std::string>{said});
  }
  // "  a, b: SENTENCE", a line each.
  std::string Lines(bool with_tasks) const {
    std::string text;
    for (const Row& row : rows_)
      absl::StrAppend(&text, "  ", with_tasks ? absl::StrCat(row.tasks, ": ") : "", row.said[0],
                      "\n");
    return text;
  }
  void AddTo(bool with_tasks, Table* table) const {
    for (Row row : rows_) {
      if (with_tasks) row.said.insert(row.said.begin(), row.tasks);
      table->AddRow(std::move(row.said));
    }
  }

 private:
  struct Row {
    std::string tasks;
    std::vector<std::string> said;
  };
  std::vector<Row> rows_;
};

// The table of what the tasks wait for, and the sentences to it.
std::string WhyLines(const Explained& explained, const Screen& screen) {
  const bool several = explained.job().tasks_size() > 1;
  std::vector<Table::Column> columns = {{"WHY"}, {"MISSING"}, {.title = "HELD BY", .wrap = true}};
  if (several) columns.insert(columns.begin(), {"TASK"});
  OfTasks rows, sentences;
  std::map<std::string, std::string> held_by;  // musterd tells it of the first task alone
  for (const auto& why : explained.why()) {
    std::vector<std::string> held;
    for (const auto& holder : why.holders()) {
      if (!WaitsForItsTurn(why)) held.push_back(HolderText(holder, explained.now_ns()));
    }
    std::string missing =
        why.missing_milli() > 0 ? Devices(why.missing_milli(), why.flavour()) : "";
    if (!missing.empty() && !why.cluster().empty())
      absl::StrAppend(&missing, " in ", Plain(why.cluster()));
    std::string holders = absl::StrJoin(held, screen.utf8 ? " · " : "; ");
    if (!missing.empty())
      holders =
          held_by.try_emplace(absl::StrCat(CodeText(why), " ", missing), holders).first->second;
    rows.Add(why.task(), std::vector<std::string>{CodeText(why), missing, holders});
    sentences.Add(why.task(), LocalTimes(Plain(why.text()), explained.now_ns()));
  }
  Table table(columns);
  rows.AddTo(several, &table);
  return absl::StrCat(table.empty() ? "" : table.Render(screen), sentences.Lines(several));
}

// "16:10 → 17:34"; the same on both sides is said once.
std::string FromTo(const std::string& from, const std::string& to, const Screen& screen) {
  return from == to ? from : absl::StrCat(from, screen.utf8 ? " → " : " -> ", to);
}

std::string When(int64_t at_ns, const Simulated& simulated) {
  return at_ns == 0 ? absl::StrCat("after ", FormatClock(simulated.until_ns(), simulated.now_ns()))
                    : FormatStart(at_ns, simulated.now_ns());
}

}  // namespace

std::string TakenText(const google::protobuf::RepeatedPtrField<pb::PreviewResponse::Taken>& taken) {
  std::string text;
  for (const auto& one : taken) {
    absl::StrAppend(&text, text.empty() ? "" : "; ",
                    one.job() == 0
                        ? "another's job"  // not the reader's to see
                        : absl::StrCat(Plain(one.queue()), " ",
                                       one.id().empty() ? absl::StrCat(one.job()) : one.id()));
    if (one.gpus_milli() > 0)
      absl::StrAppend(&text, ": ", FormatMilli(one.gpus_milli()));  // else it only moves
    if (!one.outcome().empty()) absl::StrAppend(&text, ", ", Plain(one.outcome()));
  }
  return text;
}

std::string RenderExplain(const Explained& explained, const Screen& screen) {
  const pb::Job& job = explained.job();
  const int64_t now_ns = explained.now_ns();
  std::string out = HeadLine(job, now_ns);
  if (HasEnded(job.state())) {
    const std::string reason =
        job.state() == pb::SUCCEEDED ? "every task succeeded" : OutcomeReason(job);
    return absl::StrCat(out, "\n  ", reason, ". It waits for nothing.  Whole story: muster show ",
                        JobId(job), "\n");
  }
  if (explained.why_size() > 0) {
    if (explained.start_ns() > 0) {
      const std::string start =
          FormatStart(explained.start_ns(), now_ns);  // "~35 s" says "about" by itself
      absl::StrAppend(&out, ", starts ", start[0] >= '0' && start[0] <= '9' ? "about " : "", start);
      if (!explained.place().empty())
        absl::StrAppend(&out, explained.forecast() ? " (forecast: " : " (",
                        Plain(explained.place()), ")");
    } else {
      absl::StrAppend(
          &out, explained.complete() && WaitsForEnds(explained)
                    ? "; when it starts is unknown: nobody's end is known that would make room"
                    : "; when it starts is unknown");
    }
  }
  out += '\n';

  absl::StrAppend(&out, WhyLines(explained, screen), OtherTasks(job, now_ns));
  OfTasks borrowed;
  for (const auto& one : explained.borrowed()) borrowed.Add(one.task(), Plain(one.text()));
  out += borrowed.Lines(job.tasks_size() > 1);
  if (explained.relaxations_size() > 0) {
    absl::StrAppend(&out, "It would start\n", RelaxationLines(explained), AnewText(explained));
  } else if (explained.why_size() > 0 && explained.tried() > 0 && explained.complete()) {
    absl::StrAppend(&out, "None of the ", explained.tried(),
                    " changes that were tried would start it sooner.\n");
  }
  if (explained.why_size() > 0) {
    if (!explained.complete())
      out +=
          "Not everything was tried in time; there may be more.  muster explain --budget 20s looks "
          "longer.\n";
    if (explained.start_ns() > now_ns + kSecond || explained.relaxations_size() > 0)
      out += "Ends come from reported progress and time limits; the forecast moves with them.\n";
  }
  return out;
}

std::string RenderSimulation(const Simulated& simulated, const Screen& screen) {
  const int64_t now_ns = simulated.now_ns();
  std::string out;
  const auto block = [&out, &screen](const Table& table) {
    if (!table.empty()) absl::StrAppend(&out, out.empty() ? "" : "\n", table.Render(screen));
  };
  Table submitted({{"JOB"},
                   {"QUEUE"},
                   {"WORKERS"},
                   {"WITHIN"},
                   {"STARTS"},
                   {"ENDS"},
                   {"WHERE"},
                   {.title = "TAKES FROM", .wrap = true}});
  for (const auto& job : simulated.submitted()) {
    const std::string taken = TakenText(job.takes_from());
    submitted.AddRow(
        {job.name(), job.queue(),
         job.gpus_milli_per_worker() > 0
             ? absl::StrCat(job.workers(), " x ", FormatMilli(job.gpus_milli_per_worker()), " ",
                            job.flavour())
             : absl::StrCat(job.workers()),
         job.within(), When(job.start_ns(), simulated),
         job.start_ns() == 0 ? ""
         : job.end_ns() == 0 ? "unknown"
                             : FormatClock(job.end_ns(), now_ns),
         job.place(), taken.empty() ? "nobody" : taken});
  }
  block(submitted);

  Table queues({{"QUEUE"}, {"FLAVOUR"}, {"GUARANTEE"}, {"ENTITLED"}, {"IN USE"}});
  for (const auto& queue : simulated.queues()) {
    const auto milli = [&](int64_t before, int64_t after) {
      return FromTo(FormatMilli(before), FormatMilli(after), screen);
    };
    queues.AddRow({queue.path(), queue.flavour(),
                   milli(queue.guarantee_before_milli(), queue.guarantee_after_milli()),
                   milli(queue.entitled_before_milli(), queue.entitled_after_milli()),
                   milli(queue.used_before_milli(), queue.used_after_milli())});
  }
  block(queues);

  Table effects({{"JOB", Table::kRight},
                 {"NAME"},
                 {"QUEUE"},
                 {"STOPPED"},
                 {"GIVES UP", Table::kRight},
                 {"THEN"},
                 {"STARTS"},
                 {"ENDS"}});
  for (const auto& effect : simulated.effects()) {
    const bool waits = effect.start_before_ns() != 0 || effect.start_after_ns() != 0;
    effects.AddRow(
        {effect.job() == 0 ? "another's" : absl::StrCat(effect.job()), effect.name(),
         effect.queue(),
         effect.stopped_ns() == 0 ? ""
                                  : absl::StrCat(FormatStart(effect.stopped_ns(), now_ns), ", ",
                                                 CauseName(effect.cause())),
         effect.gpus_milli() == 0 ? "" : FormatMilli(effect.gpus_milli()), effect.outcome(),
         waits ? FromTo(When(effect.start_before_ns(), simulated),
                        When(effect.start_after_ns(), simulated), screen)
               : "",
         effect.end_before_ns() == 0 && effect.end_after_ns() == 0
             ? ""
             : FromTo(effect.end_before_ns() == 0 ? "unknown"
                                                  : FormatClock(effect.end_before_ns(), now_ns),
                      effect.end_after_ns() == 0 ? "unknown"
                                                 : FormatClock(effect.end_after_ns(), now_ns),
                      screen)});
  }
  block(effects);
  if (simulated.effects_size() == 0)
    absl::StrAppend(&out, out.empty() ? "" : "\n", "No other job would fare otherwise.\n");
  absl::StrAppend(&out, simulated.complete() ? "Looked ahead until " : "Time ran out at ",
                  FormatClock(simulated.until_ns(), now_ns),
                  simulated.complete() ? "" : "; --budget 20s looks further",
                  ". Nothing was changed.\n");
  return out;
}

}  // namespace muster
