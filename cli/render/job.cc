#include "cli/render/job.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/render/array.h"
#include "cli/render/bar.h"
#include "cli/render/usage.h"
#include "common/base/units.h"

namespace muster {
namespace {

bool UnderWay(pb::TaskState state) {
  return state >= pb::TASK_PREPARING && state <= pb::TASK_STOPPING;
}

const pb::TaskSpec& SpecOrEmpty(const pb::Job& job, const pb::Task& task) {
  const pb::TaskSpec* spec = SpecOf(job, task.name());
  return spec != nullptr ? *spec : pb::TaskSpec::default_instance();
}

// Workers and devices: of the attempt if there is one, else what is asked for.
std::string DevicesOf(const pb::Job& job, const pb::Task& task) {
  const pb::TaskSpec& spec = SpecOrEmpty(job, task);
  const pb::Attempt* attempt = NewestAttempt(task);
  if (attempt == nullptr || !UnderWay(task.state()) || spec.resources().gpus_milli() == 0)
    return DemandName(spec);
  return absl::StrCat(attempt->workers(), " x ", FormatMilli(spec.resources().gpus_milli()), " ",
                      FlavourName(attempt->flavour(), attempt->declared()));
}

// "starts 15:40 (forecast)"; "" when it isn't known, or the verdict's own text says it.
std::string StartText(const pb::Verdict& verdict, int64_t now_ns) {
  if (verdict.expected_start_ns() <= 0 || verdict.code() == pb::V_BACKOFF) return "";
  return absl::StrCat("starts ", FormatStart(verdict.expected_start_ns(), now_ns),
                      verdict.forecast() ? " (forecast)" : "");
}

// Since when a job that waits has done so: what ran, or came before in the job, ended then.
int64_t WaitingSince(const pb::Job& job) {
  int64_t since_ns = job.submit_ns();
  for (const pb::Task& task : job.tasks()) {
    for (const pb::Attempt& attempt : task.attempts())
      since_ns = std::max(since_ns, attempt.end_ns());
  }
  return since_ns;
}

// Since when a job that runs has done so: the earliest start of what runs now, or its first one
// while nothing has started anew.
int64_t RunningSince(const pb::Job& job) {
  int64_t since_ns = 0;
  for (const pb::Task& task : job.tasks()) {
    const pb::Attempt* attempt = NewestAttempt(task);
    if (attempt == nullptr || attempt->end_ns() > 0 || attempt->start_ns() == 0) continue;
    since_ns = since_ns == 0 ? attempt->start_ns() : std::min(since_ns, attempt->start_ns());
  }
  return since_ns == 0 ? job.start_ns() : since_ns;
}

std::string WhyOf(const pb::Job& job, const pb::Task& task, int64_t now_ns) {
  switch (task.state()) {
    case pb::TASK_BLOCKED:
      return LocalTimes(task.verdict().text(), now_ns);
    case pb::TASK_WAITING: {
      std::string why = LocalTimes(task.verdict().text(), now_ns);
      const std::string start = StartText(task.verdict(), now_ns);
      return absl::StrCat(why, why.empty() || start.empty() ? "" : "; ", start);
    }
    case pb::TASK_STOPPING: {
      const pb::Attempt* attempt = NewestAttempt(task);
      return attempt == nullptr ? "" : absl::StrCat("stopping: ", CauseName(attempt->cause()));
    }
    default:
      if (task.verdict().code() == pb::V_EXPORT || task.verdict().code() == pb::V_UNREACHABLE)
        return LocalTimes(task.verdict().text(), now_ns);
      if (const int64_t end_ns = ExpectedEndNs(task.progress()); end_ns > now_ns)
        return absl::StrCat("ends ", FormatClock(end_ns, now_ns));
      return "";
  }
}

std::string AttemptOutcome(const pb::Attempt& attempt) {
  std::string text = StateName(attempt.state());
  const bool moved = attempt.state() == pb::TASK_CANCELLED;
  if (moved && attempt.cause() == pb::RESIZE)
    text = "resized";  // nobody cancelled it
  else if (moved && attempt.cause() == pb::PREEMPTION)
    text = "preempted";
  else if (moved && attempt.cause() == pb::DRAIN)
    text = "moved for a drain";
  else if (moved && attempt.cause() == pb::HOLDER)
    text = "stopped with its holder";
  else if (moved && attempt.cause() == pb::NOT_NEEDED)
    text = "stopped, not needed any more";
  else if (attempt.cause() != pb::CAUSE_UNSPECIFIED && attempt.cause() != pb::DONE &&
           !(moved && attempt.cause() == pb::CANCEL))
    absl::StrAppend(&text, ", ", CauseName(attempt.cause()));
  if (!attempt.detail().empty()) absl::StrAppend(&text, ": ", attempt.detail());
  for (const pb::Straggler& row : attempt.stragglers()) {
    absl::StrAppend(&text, " (rank ", row.rank(), " on ", row.host(),
                    row.device() < 0 ? "" : absl::StrCat(" device ", row.device()), " is ",
                    row.permille() / 1000, ".", row.permille() % 1000 / 100,
                    " times as slow as the others)");
  }
  if (attempt.lost_may_run()) text += " (its processes may still run)";
  return text;
}

// "2 of 50 rows could not be scored"; "": none, or nobody scores.
std::string BadRowsOf(const pb::Job& job) {
  int64_t bad = 0, rows = 0;
  for (const pb::Task& task : job.tasks()) {
    bad += task.progress().bad_rows();
    if (task.progress().bad_rows() > 0) rows += task.progress().total_steps();
  }
  if (bad <= 0) return "";
  return absl::StrCat(bad, " of ", rows, " rows could not be scored");
}

std::string Span(int64_t from_ns, int64_t to_ns, int64_t now_ns) {
  return from_ns == 0 ? "" : FormatSpan((to_ns == 0 ? now_ns : to_ns) - from_ns);
}

void AppendLine(std::string* out, std::string_view label, std::string_view value) {
  if (value.empty()) return;
  std::string name(label);
  name.resize(12, ' ');
  absl::StrAppend(out, " ", name, Plain(value), "\n");
}

// What is told of a job and of a whole array, a line each.
// Where muster-exporter is to write; whether one runs, nobody here knows.
std::string TrackedBy(const pb::Track& track) {
  std::vector<std::string> places;
  if (!track.tensorboard().empty())
    places.push_back(track.tensorboard() == "true"
                         ? "TensorBoard"
                         : absl::StrCat("TensorBoard in ", track.tensorboard()));
  if (!track.mlflow().empty()) places.push_back(absl::StrCat("MLflow at ", track.mlflow()));
  if (!track.wandb().empty()) places.push_back(absl::StrCat("W&B in ", track.wandb()));
  return absl::StrJoin(places, ", ");
}

void AppendTrackers(const pb::Job& job, std::string* out) {
  const pb::JobSpec& spec = job.spec();
  if (spec.has_track())
    AppendLine(out, "tracked",
               absl::StrCat(TrackedBy(spec.track()), ", by muster-exporter, as ", spec.name(), "-",
                            JobId(job)));
  if (!spec.has_notify()) return;
  std::vector<std::string> whom;
  for (const std::string& target : {spec.notify().webhook(), spec.notify().mail()})
    if (!target.empty()) whom.push_back(target);
  AppendLine(
      out, "notifies",
      absl::StrCat(absl::StrJoin(whom, ", "), ", by muster-exporter, when it has ",
                   spec.notify().on().empty() ? "ended" : absl::StrJoin(spec.notify().on(), ", ")));
}

// "0 3 * * * (Europe/Berlin)"
std::string ScheduleName(const pb::Schedule& schedule) {
  return absl::StrCat(schedule.cron(), " (", schedule.zone().empty() ? "UTC" : schedule.zone(),
                      schedule.overlap() == pb::ALLOW ? ", beside the one before" : "", ")");
}

void AppendTimes(const pb::Job& job, int64_t now_ns, std::string* out) {
  if (job.not_before_ns() != 0) AppendLine(out, "starts at", FormatDateTime(job.not_before_ns()));
  if (!job.has_occurrence()) return;
  const pb::Occurrence& one = job.occurrence();
  std::string others;
  if (one.previous() != 0) absl::StrAppend(&others, "; before it job ", one.previous());
  if (one.next() != 0)
    absl::StrAppend(
        &others, "; after it job ", one.next(),
        one.next_ns() == 0 ? "" : absl::StrCat(", at ", FormatClock(one.next_ns(), now_ns)));
  if (one.skipped() != 0)
    absl::StrAppend(&others, "; ", one.skipped(), one.skipped() == 1 ? " time" : " times",
                    " left out, ",
                    !one.no_right()      ? "as the job before had not ended"
                    : one.skipped() == 1 ? "as the owner may not submit to the queue"
                                         : "the newest as the owner may not submit to the queue");
  AppendLine(out, "schedule", absl::StrCat(ScheduleName(job.spec().schedule()), others));
}

void AppendFacts(const pb::Job& job, int64_t now_ns, std::string* out) {
  AppendLine(out, "uid", job.uid());
  AppendLine(out, "owner", job.owner());
  AppendTimes(job, now_ns, out);
  AppendLine(out, "submitted", FormatDateTime(job.submit_ns()));
  if (job.start_ns() > 0)
    AppendLine(
        out, "started",
        absl::StrCat(FormatDateTime(job.start_ns()),
                     HadATime(job)
                         ? ""
                         : absl::StrCat(", after ", FormatSpan(job.start_ns() - job.submit_ns()))));
  if (job.end_ns() > 0)
    AppendLine(
        out, "ended",
        absl::StrCat(FormatDateTime(job.end_ns()),
                     job.start_ns() > 0
                         ? absl::StrCat(", after ", FormatSpan(job.end_ns() - job.start_ns()))
                         : ""));
  if (HasEnded(job.state()) && job.state() != pb::SUCCEEDED)
    AppendLine(out, "why", OutcomeReason(job));
  if (job.spec().priority() != 0) AppendLine(out, "priority", absl::StrCat(job.spec().priority()));
  AppendLine(out, "clusters", absl::StrJoin(job.spec().clusters(), ", "));
  AppendLine(out, "cluster", job.cluster());
  for (const pb::Task& task : job.tasks()) {
    if (!task.spill_reason().empty())
      AppendLine(out, "spilled",
                 absl::StrCat(job.tasks_size() > 1 ? absl::StrCat(task.name(), ": ") : "",
                              LocalTimes(task.spill_reason(), now_ns)));
  }
  for (const pb::Task& task : job.tasks()) {
    for (const std::string& sentence : task.advice())
      AppendLine(
          out, "advice",
          absl::StrCat(job.tasks_size() > 1 ? absl::StrCat(task.name(), ": ") : "", sentence));
  }
  AppendTrackers(job, out);
}

Table TasksTable(const pb::Job& job, int64_t now_ns) {
  Table tasks({{"TASK"},
               {"STATE"},
               {"DEVICES", Table::kLeft, false, 2},
               {"WHERE"},
               {"PROGRESS", Table::kLeft, false, 1},
               {"RESTARTS", Table::kRight, false, 3},
               {.title = "WHY", .wrap = true}});
  for (const pb::Task& task : job.tasks()) {
    const pb::Attempt* attempt = NewestAttempt(task);
    bool placed = attempt != nullptr && UnderWay(task.state());
    std::string why = WhyOf(job, task, now_ns);
    if (task.state() == pb::TASK_BLOCKED && SpecOrEmpty(job, task).after_size() > 0)
      why = absl::StrCat("after ", absl::StrJoin(SpecOrEmpty(job, task).after(), ", "));
    tasks.AddRow({task.name(), StateName(task.state()), DevicesOf(job, task),
                  placed ? PlaceName(*attempt) : "", ShortProgress(task),
                  absl::StrCat(task.restarts_used()), why});
  }
  return tasks;
}

Table AttemptsTable(const pb::Job& job, int64_t now_ns) {
  Table attempts({{"TASK", Table::kLeft, false, 2},
                  {"ATTEMPT", Table::kRight},
                  {"STARTED"},
                  {"RAN", Table::kRight},
                  {"WHERE", Table::kLeft, false, 1},
                  {"WORKERS", Table::kRight, false, 3},
                  {"FROM STEP", Table::kRight},
                  {.title = "OUTCOME", .wrap = true}});
  for (const pb::Task& task : job.tasks()) {
    for (const pb::Attempt& attempt : task.attempts()) {
      std::string from = attempt.resumed_step() > 0 ? absl::StrCat(attempt.resumed_step()) : "";
      attempts.AddRow({task.name(), absl::StrCat(attempt.number()),
                       attempt.start_ns() > 0 ? FormatClockSeconds(attempt.start_ns()) : "",
                       Span(attempt.start_ns(), attempt.end_ns(), now_ns), PlaceName(attempt),
                       absl::StrCat(attempt.workers()), from, AttemptOutcome(attempt)});
    }
  }
  return attempts;
}

Table CheckpointsTable(const pb::Job& job) {
  Table checkpoints(
      {{"TASK"}, {"CHECKPOINT", Table::kRight}, {"ATTEMPT", Table::kRight}, {"AT"}, {"PATH"}});
  for (const pb::Task& task : job.tasks()) {
    for (const pb::Checkpoint& c : task.checkpoints()) {
      const bool own = c.attempt() > 0;  // else the job began from it, and its step isn't known
      checkpoints.AddRow({task.name(), own ? absl::StrCat("step ", c.step()) : "began from",
                          own ? absl::StrCat(c.attempt()) : "",
                          c.at_ns() > 0 ? FormatClockSeconds(c.at_ns()) : "", c.path()});
    }
  }
  return checkpoints;
}

}  // namespace

std::string HeadLine(const pb::Job& job, int64_t now_ns) {
  std::string text = absl::StrCat("Job ", JobId(job), " ", Plain(job.spec().name()), ", ",
                                  Plain(job.spec().queue()));
  const pb::Task* lead = LeadTask(job);
  if (lead != nullptr) absl::StrAppend(&text, ", ", DevicesOf(job, *lead));
  if (job.has_array())
    absl::StrAppend(&text, " a member, ", job.array().members(),
                    job.array().members() == 1 ? " member" : " members");
  absl::StrAppend(&text, ": ", StateName(job.state()));
  if (job.state() == pb::WAITING)
    absl::StrAppend(&text, " since ", FormatClock(WaitingSince(job), now_ns));
  if (job.state() == pb::RUNNING && job.start_ns() > 0) {
    const std::string since = FormatClock(RunningSince(job), now_ns),
                      first = FormatClock(job.start_ns(), now_ns);
    absl::StrAppend(&text, " since ", since,
                    since == first ? "" : absl::StrCat(", first started ", first));
  }
  if (HasEnded(job.state()) && job.end_ns() > 0)
    absl::StrAppend(&text, " at ", FormatClock(job.end_ns(), now_ns));
  return text;
}

std::string WhyText(const pb::Job& job, int64_t now_ns) {
  const pb::Task* task = LeadTask(job);
  return task == nullptr ? "" : WhyOf(job, *task, now_ns);
}

std::string OutcomeReason(const pb::Job& job) {
  if (job.has_array() && job.state() == pb::FAILED) {
    return absl::StrCat(job.array().failed(), " of ", job.array().members(), " failed",
                        job.detail().empty() ? "" : absl::StrCat("; ", Plain(job.detail())));
  }
  if (job.state() == pb::CANCELLED)
    return job.detail().empty() ? "cancelled" : Plain(job.detail());  // "cancelled by ann"
  std::string text = CauseName(job.cause());
  if (!job.detail().empty()) absl::StrAppend(&text, text.empty() ? "" : ": ", Plain(job.detail()));
  for (const pb::Task& task : job.tasks()) {
    if (task.state() != pb::TASK_FAILED) continue;
    const pb::Attempt* attempt = NewestAttempt(task);
    std::string detail = attempt == nullptr ? "" : Plain(attempt->detail());
    if (!detail.empty() && text.find(detail) == std::string::npos)
      absl::StrAppend(&text, text.empty() ? "" : ": ", detail);
    if (text.find(task.name()) == std::string::npos)
      text = absl::StrCat(Plain(task.name()), text.empty() ? "" : ", ", text);
    break;
  }
  return text;
}

Table JobsTable(const std::vector<pb::Job>& jobs, int64_t now_ns) {
  Table table({{"JOB", Table::kRight},
               {"NAME"},
               {"QUEUE", Table::kLeft, false, 1},
               {"OWNER", Table::kLeft, true},
               {"STATE"},
               {"TASK", Table::kLeft, false, 5},
               {"DEVICES", Table::kLeft, false, 2},
               {"WHERE", Table::kLeft, false, 3},
               {"PROGRESS", Table::kLeft, false, 4},
               {"ATTEMPT", Table::kRight, true},
               {"RESTARTS", Table::kRight, true},
               {"AGE", Table::kRight},
               {"WHY"}});
  for (const pb::Job& job : jobs) {
    const pb::Task* task = LeadTask(job);
    const pb::Attempt* attempt = task == nullptr ? nullptr : NewestAttempt(*task);
    bool placed = attempt != nullptr && UnderWay(task->state());
    const std::string bad = task == nullptr ? "" : ShortBadRows(task->progress());
    if (job.has_array()) {  // one row; what stands there of a member is of the one that tells most
      table.AddRow({JobId(job), job.spec().name(), job.spec().queue(), job.owner(),
                    StateName(job.state()), task == nullptr ? "" : task->name(),
                    task == nullptr ? "" : DemandName(SpecOrEmpty(job, *task)), "",
                    absl::StrCat(ShortArrayCounts(job.array()), bad.empty() ? "" : ", ", bad), "",
                    "", FormatSpan(now_ns - job.submit_ns()),
                    HasEnded(job.state()) && job.state() != pb::SUCCEEDED ? OutcomeReason(job)
                                                                          : WhyText(job, now_ns)});
      continue;
    }
    table.AddRow({JobId(job), job.spec().name(), job.spec().queue(), job.owner(),
                  StateName(job.state()), task == nullptr ? "" : task->name(),
                  task == nullptr ? "" : DevicesOf(job, *task), placed ? PlaceName(*attempt) : "",
                  task == nullptr ? "" : ShortProgress(*task),
                  attempt == nullptr ? "" : absl::StrCat(attempt->number()),
                  task == nullptr ? "" : absl::StrCat(task->restarts_used()),
                  FormatSpan(now_ns - job.submit_ns()),
                  HasEnded(job.state()) && job.state() != pb::SUCCEEDED ? OutcomeReason(job)
                                                                        : WhyText(job, now_ns)});
  }
  return table;
}

Table HistoryTable(const std::vector<pb::Job>& jobs, int64_t now_ns) {
  Table table({{"JOB", Table::kRight},
               {"NAME"},
               {"QUEUE", Table::kLeft, false, 1},
               {"OWNER", Table::kLeft, true},
               {"STATE"},
               {"SUBMITTED", Table::kLeft, false, 3},
               {"WAITED", Table::kRight},
               {"RAN", Table::kRight},
               {"ENDED", Table::kLeft, false, 2},
               {"WHERE", Table::kLeft, false, 4},
               {"USED", Table::kLeft, false, 5},
               {"WHY"}});
  for (const pb::Job& job : jobs) {
    table.AddRow({JobId(job), job.spec().name(), job.spec().queue(), job.owner(),
                  StateName(job.state()), FormatClock(job.submit_ns(), now_ns),
                  HadATime(job) ? "-"
                                : FormatSpan((job.start_ns() > 0 ? job.start_ns() : job.end_ns()) -
                                             job.submit_ns()),
                  Span(job.start_ns(), job.end_ns(), now_ns),
                  job.end_ns() > 0 ? FormatClock(job.end_ns(), now_ns) : "", job.cluster(),
                  ShortUsage(job), job.state() == pb::SUCCEEDED ? "" : OutcomeReason(job)});
  }
  return table;
}

std::string RenderJob(const pb::Job& job, const Screen& screen, int64_t now_ns) {
  std::string out = absl::StrCat(HeadLine(job, now_ns), "\n");
  AppendFacts(job, now_ns, &out);
  if (job.has_array()) {
    AppendLine(&out, "members", ArrayCounts(job.array()));
    AppendLine(&out, "bad rows", BadRowsOf(job));
    absl::StrAppend(&out, "\nEach of them: muster jobs ", job.number(), " --tasks\n");
    return out;
  }
  AppendLine(&out, "values", MemberValues(job.member()));
  AppendLine(&out, "bad rows", BadRowsOf(job));
  AppendLine(&out, "directory", job.directory());
  for (const Table& table : {TasksTable(job, now_ns), AttemptsTable(job, now_ns),
                             UsageTable(job, screen), CheckpointsTable(job)}) {
    if (!table.empty()) absl::StrAppend(&out, "\n", table.Render(screen));
  }
  return out;
}

bool HadATime(const pb::Job& job) {
  return job.has_occurrence() || !job.spec().not_before().empty();
}

std::string WaitsForText(const pb::Job& job, int64_t now_ns) {
  if (job.not_before_ns() == 0) return "";
  return absl::StrCat(
      " It starts at ", FormatClock(job.not_before_ns(), now_ns),
      job.has_occurrence()
          ? absl::StrCat(", and then again by ", Plain(ScheduleName(job.spec().schedule())))
          : "",
      ".");
}

std::string GoesOnText(const pb::Job& waits, int64_t now_ns) {
  return absl::StrCat("Job ", waits.number(), " of its schedule starts at ",
                      FormatClock(waits.not_before_ns(), now_ns),
                      "; to end that, too: muster cancel ", waits.number(), "\n");
}

std::vector<std::string> EventLines(const pb::Job* before, const pb::Job& after, int64_t now_ns) {
  struct Line {
    int64_t at_ns;
    std::string text;
  };
  std::vector<Line> lines;
  if (after.has_array()) return {};
  auto add = [&](int64_t at_ns, const pb::Task& task, const std::string& text) {
    if (at_ns == 0) at_ns = now_ns;
    lines.push_back({at_ns, absl::StrCat(FormatClockSeconds(at_ns), "  ", Plain(task.name()), "  ",
                                         Plain(text))});
  };
  for (const pb::Task& task : after.tasks()) {
    const pb::Task* old_task = nullptr;
    if (before != nullptr)
      for (const pb::Task& t : before->tasks())
        if (t.name() == task.name()) old_task = &t;
    for (const pb::Attempt& attempt : task.attempts()) {
      const pb::Attempt* old_attempt = nullptr;
      if (old_task != nullptr)
        for (const pb::Attempt& a : old_task->attempts())
          if (a.number() == attempt.number()) old_attempt = &a;
      bool newest = attempt.number() == NewestAttempt(task)->number();
      if (before == nullptr && !newest) continue;  // attached late: the past is `muster show`'s
      std::string id = absl::StrCat("attempt ", attempt.number());
      pb::TaskState was =
          old_attempt == nullptr ? pb::TASK_STATE_UNSPECIFIED : old_attempt->state();
      bool ended = attempt.end_ns() > 0,
           had_ended = old_attempt != nullptr && old_attempt->end_ns() > 0;
      if (attempt.start_ns() > 0 && (old_attempt == nullptr || old_attempt->start_ns() == 0)) {
        std::string text = absl::StrCat(id, ended ? " ran on " : " runs on ", PlaceName(attempt));
        if (attempt.workers() > 1) absl::StrAppend(&text, ", ", attempt.workers(), " workers");
        if (!attempt.flavour().empty() && attempt.declared())
          absl::StrAppend(&text, ", ", FlavourName(attempt.flavour(), true));
        if (attempt.resumed_step() > 0)
          absl::StrAppend(&text, ", from step ", attempt.resumed_step());
        if (attempt.number() == 1 && before != nullptr && !HadATime(after))
          absl::StrAppend(&text, "  (waited ", FormatSpan(attempt.start_ns() - after.submit_ns()),
                          ")");
        add(attempt.start_ns(), task, text);
      } else if (attempt.start_ns() == 0 && was == pb::TASK_STATE_UNSPECIFIED && !ended) {
        add(attempt.place_ns(), task, absl::StrCat(id, " placed on ", PlaceName(attempt)));
      }
      if (attempt.state() == pb::TASK_STOPPING && was != pb::TASK_STOPPING) {
        std::string text = absl::StrCat(id, " is being stopped: ", CauseName(attempt.cause()));
        if (!attempt.detail().empty()) absl::StrAppend(&text, ", ", attempt.detail());
        add(attempt.stop_ns(), task, text);
      }
      if (ended && !had_ended)
        add(attempt.end_ns(), task, absl::StrCat(id, " ended: ", AttemptOutcome(attempt)));
    }
    const bool after_jobs =
        task.state() == pb::TASK_BLOCKED && SpecOrEmpty(after, task).after_size() == 0;
    const bool waits_anew = (task.state() == pb::TASK_WAITING || after_jobs) &&
                            !task.verdict().text().empty() &&
                            (old_task == nullptr || old_task->state() != task.state() ||
                             old_task->verdict().code() != task.verdict().code());
    if (waits_anew) {
      const std::string why = LocalTimes(task.verdict().text(), now_ns);
      const std::string start = StartText(task.verdict(), now_ns);
      add(now_ns, task,
          absl::StrCat(why.rfind("waits", 0) == 0 ? "" : "waits: ", why, start.empty() ? "" : "; ",
                       start));
    }
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.at_ns < b.at_ns; });
  std::vector<std::string> out;
  for (Line& line : lines) out.push_back(std::move(line.text));
  return out;
}

bool HasRun(const pb::Job& job) {
  return std::any_of(job.tasks().begin(), job.tasks().end(),
                     [](const pb::Task& task) { return task.attempts_size() > 0; });
}

std::string OutcomeLine(const pb::Job& job) {
  std::string text = absl::StrCat("Job ", JobId(job), " ", Plain(job.spec().name()), " ");
  if (job.state() == pb::CANCELLED) return absl::StrCat(text, "was ", OutcomeReason(job), ".");
  absl::StrAppend(&text, StateName(job.state()));
  if (job.state() != pb::SUCCEEDED) {
    std::string reason = OutcomeReason(job);
    if (!reason.empty()) absl::StrAppend(&text, ": ", reason);
  } else if (job.start_ns() > 0 && job.end_ns() > 0) {
    absl::StrAppend(&text, " after ", FormatSpan(job.end_ns() - job.start_ns()));
  }
  if (const std::string bad = BadRowsOf(job); job.state() == pb::SUCCEEDED && !bad.empty())
    absl::StrAppend(&text, "; ", bad);
  return text + ".";
}

}  // namespace muster
