#include "cli/render/bar.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/render/array.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int kBarWidth = 22;
constexpr double kMostLeftS = 10 * 365 * 86400.0;  // no end is told that is farther away
constexpr int64_t kLatestNs = std::numeric_limits<int64_t>::max() / 2;  // of a host's clock

int Percent(const pb::Progress& progress) {
  if (progress.total_steps() <= 0) return 0;
  int64_t step = std::clamp<int64_t>(progress.step(), 0, progress.total_steps());
  return static_cast<int>(static_cast<double>(step) / static_cast<double>(progress.total_steps()) *
                          100);
}

std::string Bar(const pb::Progress& progress, const Screen& screen) {
  int64_t total = progress.total_steps();
  int64_t step = std::clamp<int64_t>(progress.step(), 0, total);
  int half_cells =
      static_cast<int>(static_cast<double>(step) / static_cast<double>(total) * 2 * kBarWidth);
  std::string done, rest;
  if (screen.utf8) {
    for (int i = 0; i < half_cells / 2; ++i) done += "━";
    if (half_cells % 2) done += "╸";
    for (int i = (half_cells + 1) / 2; i < kBarWidth; ++i) rest += "─";
  } else {
    done = std::string(static_cast<size_t>(half_cells / 2), '#');
    rest = std::string(static_cast<size_t>(kBarWidth - half_cells / 2), '-');
  }
  if (screen.color) return absl::StrCat("\x1b[32m", done, "\x1b[2m", rest, "\x1b[0m");
  return screen.utf8 ? absl::StrCat(done, rest) : absl::StrCat("[", done, rest, "]");
}

// "118 rows/s", "0.3 rows/s"
std::string RowsText(double rows_per_s) {
  return absl::StrCat(
      rows_per_s < 10 ? absl::StrFormat("%.1f", rows_per_s) : FormatCount(rows_per_s), " rows/s");
}

// What is known besides the steps, most important first.
std::vector<std::string> Figures(const pb::Task& task, int64_t now_ns) {
  const pb::Progress& progress = task.progress();
  std::vector<std::string> out;
  if (progress.loss() != 0) out.push_back(absl::StrFormat("loss %.3f", progress.loss()));
  if (progress.tokens_per_s() > 0)
    out.push_back(absl::StrCat(FormatCount(progress.tokens_per_s()), " tok/s"));
  if (progress.rows_per_s() > 0) out.push_back(RowsText(progress.rows_per_s()));
  if (progress.mfu_causal() > 0)
    out.push_back(absl::StrFormat("MFU %.0f%% causal", progress.mfu_causal() * 100));
  if (progress.bad_rows() > 0) out.push_back(ShortBadRows(progress));
  int64_t checkpoint = -1;
  for (const pb::Checkpoint& c : task.checkpoints()) {
    // Of what an earlier job saved the step isn't known; the attempt says where it went on from.
    if (c.attempt() > 0 || c.step() > 0) checkpoint = std::max(checkpoint, c.step());
  }
  const pb::Attempt* attempt = NewestAttempt(task);
  const int64_t resumed = attempt == nullptr ? 0 : attempt->resumed_step();
  if (checkpoint >= 0)
    out.push_back(absl::StrCat("ckpt ", checkpoint));
  else if (resumed > 0)
    out.push_back(absl::StrCat("from step ", resumed));
  if (const int64_t end_ns = ExpectedEndNs(progress); end_ns > now_ns)
    out.push_back(absl::StrCat("ends ", FormatClock(end_ns, now_ns)));
  return out;
}

// Its progress as far as anything tells: a checkpoint may be known before the line that reports its
// step.
pb::Progress Newest(const pb::Task& task) {
  pb::Progress progress = task.progress();
  for (const pb::Checkpoint& c : task.checkpoints()) {
    if (c.attempt() == progress.attempt()) progress.set_step(std::max(progress.step(), c.step()));
  }
  return progress;
}

bool Reported(const pb::Task& task) {
  return task.has_progress() && (task.progress().step() > 0 || task.progress().at_ns() > 0);
}

std::string Steps(const pb::Progress& progress) {
  if (progress.total_steps() <= 0) return absl::StrCat("step ", progress.step());
  return absl::StrCat(progress.step(), "/", progress.total_steps());
}

bool UnderWay(const pb::Task& task) {
  return task.state() >= pb::TASK_PREPARING && task.state() <= pb::TASK_STOPPING;
}

}  // namespace

std::string TaskBar(const pb::Task& task, const Screen& screen, int64_t now_ns, int name_width) {
  std::string name = Plain(task.name());
  name.resize(std::max(name.size(), static_cast<size_t>(name_width)), ' ');
  const pb::Attempt* attempt = NewestAttempt(task);
  if (task.state() == pb::TASK_WAITING) {
    std::string why = task.verdict().text().empty()
                          ? "no verdict yet"
                          : LocalTimes(Plain(task.verdict().text()), now_ns);
    return Truncated(absl::StrCat(name, " waits: ", why), screen.width, screen.utf8);
  }
  bool current = attempt != nullptr && task.progress().attempt() == attempt->number();
  std::string what = task.state() == pb::TASK_RUNNING ? "" : StateName(task.state());
  if (!Reported(task) || (!current && what.empty())) {
    if (what.empty()) what = "runs";
    std::string where = attempt != nullptr ? absl::StrCat(" on ", PlaceName(*attempt)) : "";
    return Truncated(absl::StrCat(name, " ", what, where), screen.width, screen.utf8);
  }
  const pb::Progress progress = Newest(task);
  std::string text = name;
  int width = DisplayWidth(name);
  if (progress.total_steps() > 0) {
    std::string percent = absl::StrFormat(" %3d%%", Percent(progress));
    absl::StrAppend(&text, " ", Bar(progress, screen), percent);
    width +=
        1 + kBarWidth + (screen.utf8 || screen.color ? 0 : 2) + static_cast<int>(percent.size());
  }
  std::vector<std::string> fields = {Steps(progress)};
  if (!what.empty()) fields.push_back(what);
  for (std::string& figure : Figures(task, now_ns)) fields.push_back(std::move(figure));
  for (const std::string& field : fields) {
    if (width + 2 + DisplayWidth(field) > screen.width) break;
    absl::StrAppend(&text, "  ", field);
    width += 2 + DisplayWidth(field);
  }
  return text;
}

std::vector<std::string> LiveLines(const pb::Job& job, const Screen& screen, int64_t now_ns) {
  std::vector<std::string> lines;
  if (job.has_array()) {
    lines.push_back(Plain(ArrayCounts(job.array())));
    const pb::Task* lead = LeadTask(job);
    if (lead != nullptr && PausesAfterFailure(*lead))
      lines.push_back(TaskBar(*lead, screen, now_ns));
    // Its members' rows are the same ones, and a member tells the pace of all.
    if (lead != nullptr && UnderWay(*lead) && lead->progress().rows_per_s() > 0)
      lines.push_back(TaskBar(*lead, screen, now_ns));
    return lines;
  }
  size_t name_width = 0;
  auto shown = [](const pb::Task& task) {
    return UnderWay(task) || task.state() == pb::TASK_WAITING;
  };
  for (const pb::Task& task : job.tasks())
    if (shown(task)) name_width = std::max(name_width, task.name().size());
  for (const pb::Task& task : job.tasks()) {
    if (shown(task) && lines.size() < 8)
      lines.push_back(TaskBar(task, screen, now_ns, static_cast<int>(name_width)));
  }
  return lines;
}

std::string PlainProgress(const pb::Task& task, int64_t now_ns) {
  if (!Reported(task)) return "";
  std::string text = absl::StrCat(FormatClockSeconds(now_ns), "  ", Plain(task.name()));
  const pb::Progress progress = Newest(task);
  if (progress.total_steps() > 0) absl::StrAppend(&text, "  ", Percent(progress), "%");
  absl::StrAppend(&text, "  ", Steps(progress));
  for (const std::string& figure : Figures(task, now_ns)) absl::StrAppend(&text, "  ", figure);
  return text;
}

bool PausesAfterFailure(const pb::Task& task) {
  return task.state() == pb::TASK_WAITING && task.verdict().code() == pb::V_BACKOFF &&
         !task.verdict().text().empty();
}

int64_t ExpectedEndNs(const pb::Progress& progress) {
  if (progress.expected_end_ns() > 0) return progress.expected_end_ns();
  const int64_t left = progress.total_steps() - progress.step();
  const bool has_time = progress.at_ns() > 0 && progress.at_ns() < kLatestNs;
  if (progress.rows_per_s() <= 0 || !has_time || left <= 0) return 0;
  const double left_s = static_cast<double>(left) / progress.rows_per_s();
  if (!(left_s <= kMostLeftS)) return 0;
  return progress.at_ns() + static_cast<int64_t>(left_s * static_cast<double>(kSecond));
}

std::string ShortBadRows(const pb::Progress& progress) {
  if (progress.bad_rows() <= 0) return "";
  return absl::StrCat(progress.bad_rows(), progress.bad_rows() == 1 ? " bad row" : " bad rows");
}

std::string ShortProgress(const pb::Task& task) {
  if (!Reported(task)) return "";
  // The last line of a task that ran for a moment may never have been told.
  const pb::Progress progress = Newest(task);
  const std::string bad = ShortBadRows(progress);
  const std::string and_bad = bad.empty() ? "" : absl::StrCat(", ", bad);
  if (task.state() == pb::TASK_SUCCEEDED && progress.step() < progress.total_steps())
    return absl::StrCat("done", and_bad);
  if (progress.total_steps() <= 0) return Steps(progress);
  const bool paced = progress.rows_per_s() > 0 && UnderWay(task);
  return absl::StrCat(Percent(progress), "% ", Steps(progress),
                      paced ? absl::StrCat(" ", RowsText(progress.rows_per_s())) : "", and_bad);
}

}  // namespace muster
