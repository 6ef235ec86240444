#include "cli/render/format.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/units.h"

namespace muster {
namespace {

std::tm LocalTime(int64_t unix_ns) {
  std::time_t seconds = static_cast<std::time_t>(unix_ns / kSecond);
  std::tm broken = {};
  localtime_r(&seconds, &broken);
  return broken;
}

std::string Strftime(const char* format, const std::tm& time) {
  char text[64];
  size_t length = std::strftime(text, sizeof text, format, &time);
  return std::string(text, length);
}

std::string HostPart(const std::string& host) {
  size_t slash = host.find_last_of('/');
  return Plain(slash == std::string::npos ? host : host.substr(slash + 1));
}

// "TASK_PREPARING" -> "preparing"
std::string LowerEnum(std::string name, std::string_view prefix) {
  if (name.rfind(prefix, 0) == 0) name = name.substr(prefix.size());
  for (char& c : name) c = c == '_' ? ' ' : absl::ascii_tolower(static_cast<unsigned char>(c));
  return name;
}

// The piece at the end of `text`, read by strptime as a time by UTC; nothing: it is none, or only
// the end of one ("T14:05:00", "114:05:00").
std::optional<std::tm> TimeAtEnd(const std::string& text, size_t size, const char* format) {
  if (text.size() < size) return std::nullopt;
  const size_t at = text.size() - size;
  const char before = at == 0 ? ' ' : text[at - 1];
  const bool goes_on =
      absl::ascii_isalnum(static_cast<unsigned char>(before)) || absl::StrContains("-:./+", before);
  if (goes_on || !absl::ascii_isdigit(static_cast<unsigned char>(text[at]))) return std::nullopt;
  std::tm parts = {};
  const char* end = strptime(text.c_str() + at, format, &parts);
  return end == nullptr || *end != '\0' ? std::nullopt : std::optional(parts);
}

// Whether a date may stand before the clock of `size` at the end of `text`: with another clock it
// could be another day's.
bool HasDateBefore(const std::string& text, size_t size) {
  if (text.size() == size) return false;
  const size_t last = text.find_last_not_of(' ', text.size() - size - 1);
  return last != std::string::npos && absl::ascii_isdigit(static_cast<unsigned char>(text[last]));
}

// What ends `text` as a time by UTC becomes one by this machine's zone; false: nothing does.
bool EndsLocally(std::string* text, int64_t now_ns) {
  constexpr size_t kDateSeconds = 19, kDate = 16, kClock = 8;
  const auto put = [text](size_t size, const std::string& local) {
    text->resize(text->size() - size);
    *text += local;
    return true;
  };
  if (std::optional<std::tm> at = TimeAtEnd(*text, kDateSeconds, "%Y-%m-%d %H:%M:%S"))
    return put(kDateSeconds, FormatDateTime(timegm(&*at) * kSecond));
  if (std::optional<std::tm> at = TimeAtEnd(*text, kDate, "%Y-%m-%d %H:%M"))
    return put(kDate, FormatClock(timegm(&*at) * kSecond, now_ns));
  const std::optional<std::tm> at = TimeAtEnd(*text, kClock, "%H:%M:%S");
  if (!at.has_value() || HasDateBefore(*text, kClock)) return false;
  const int64_t of_day_ns = ((at->tm_hour * int64_t{60} + at->tm_min) * 60 + at->tm_sec) * kSecond;
  return put(kClock, FormatClockSeconds(now_ns - now_ns % kDay + of_day_ns));
}

// Of what stands behind "UTC": that it is another zone ("+2", " -03:00") or another word.
bool NamesAnotherZone(std::string_view behind) {
  if (behind.empty()) return false;
  const auto first = static_cast<unsigned char>(behind[0]);
  if (absl::ascii_isalnum(first) || first == '_') return true;
  if (first == ' ') behind.remove_prefix(1);
  return behind.size() > 1 && (behind[0] == '+' || behind[0] == '-') &&
         absl::ascii_isdigit(static_cast<unsigned char>(behind[1]));
}

}  // namespace

std::string FormatClock(int64_t unix_ns, int64_t now_ns) {
  std::tm then = LocalTime(unix_ns), now = LocalTime(now_ns);
  if (then.tm_year == now.tm_year && then.tm_yday == now.tm_yday) return Strftime("%H:%M", then);
  if (std::llabs(unix_ns - now_ns) < 6 * kDay) return Strftime("%a %H:%M", then);
  return Strftime("%Y-%m-%d %H:%M", then);
}

std::string FormatClockSeconds(int64_t unix_ns) { return Strftime("%H:%M:%S", LocalTime(unix_ns)); }

std::string FormatDateTime(int64_t unix_ns) {
  return unix_ns == 0 ? "-" : Strftime("%Y-%m-%d %H:%M:%S", LocalTime(unix_ns));
}

std::string FormatSpan(int64_t duration_ns) {
  if (duration_ns < 0) duration_ns = 0;
  if (duration_ns < 10 * kSecond)
    return absl::StrFormat("%.1f s", static_cast<double>(duration_ns) / kSecond);
  if (duration_ns < 2 * kMinute) return absl::StrCat(duration_ns / kSecond, " s");
  if (duration_ns < 2 * kHour) return absl::StrCat(duration_ns / kMinute, " m");
  if (duration_ns < 2 * kDay)
    return absl::StrFormat("%d h %02d m", duration_ns / kHour, duration_ns % kHour / kMinute);
  return absl::StrFormat("%d d %d h", duration_ns / kDay, duration_ns % kDay / kHour);
}

std::string FormatStart(int64_t start_ns, int64_t now_ns) {
  if (start_ns < 0) return "never";
  if (start_ns == 0) return "unknown";
  if (start_ns <= now_ns + kSecond) return "now";
  if (start_ns < now_ns + 2 * kMinute)
    return absl::StrCat("~", (start_ns - now_ns) / kSecond, " s");
  return FormatClock(start_ns, now_ns);
}

std::string LocalTimes(std::string_view sentence, int64_t now_ns) {
  constexpr std::string_view kZone = " UTC";
  std::string out;
  for (size_t at; (at = sentence.find(kZone)) != std::string_view::npos;) {
    out += sentence.substr(0, at);
    sentence.remove_prefix(at + kZone.size());
    if (NamesAnotherZone(sentence) || !EndsLocally(&out, now_ns)) out += kZone;
  }
  out += sentence;
  return out;
}

std::string FormatCount(double count) {
  if (!(count > 0)) return "0";
  if (count < 1000) return absl::StrFormat("%.0f", count);
  const char* unit = "k";
  double scaled = count / 1e3;
  if (scaled >= 999.5) scaled /= 1e3, unit = "M";
  if (scaled >= 999.5) scaled /= 1e3, unit = "G";
  return scaled < 99.95 ? absl::StrFormat("%.1f%s", scaled, unit)
                        : absl::StrFormat("%.0f%s", scaled, unit);
}

std::string FlavourName(std::string_view flavour, bool declared) {
  if (flavour.empty()) return "no devices";
  return declared || flavour == "cpu-slot" ? absl::StrCat(Plain(flavour), " (declared)")
                                           : Plain(flavour);
}

std::string DemandName(const pb::TaskSpec& task) {
  int min = std::max(1, task.workers().min()), max = std::max(min, task.workers().max());
  const std::string step =
      task.workers().multiple_of() > 1 ? absl::StrCat(" by ", task.workers().multiple_of()) : "";
  std::string text = min == max ? absl::StrCat(min) : absl::StrCat("{", min, "..", max, step, "}");
  const pb::Resources& each = task.resources();
  if (each.gpus_milli() > 0) {
    absl::StrAppend(&text, " x ", FormatMilli(each.gpus_milli()), " ");
    for (int i = 0; i < each.gpu_types_size(); ++i)
      absl::StrAppend(&text, i ? "|" : "", FlavourName(each.gpu_types(i), false));
    return text;
  }
  return absl::StrCat(text, " x ", FormatMilli(each.cpus_milli() > 0 ? each.cpus_milli() : 1000),
                      " cpu");
}

std::string PlaceName(const pb::Attempt& attempt) {
  if (attempt.placements_size() > 4)
    return absl::StrCat(Plain(attempt.cluster()), ", ", attempt.placements_size(), " hosts");
  std::string text =
      absl::StrCat(Plain(attempt.cluster()), attempt.placements_size() > 0 ? "/" : "");
  for (int i = 0; i < attempt.placements_size(); ++i) {
    absl::StrAppend(&text, i ? "," : "", HostPart(attempt.placements(i).host()));
  }
  return text;
}

std::string StateName(pb::JobState state) {
  return state == pb::JOB_STATE_UNSPECIFIED ? "unknown" : LowerEnum(pb::JobState_Name(state), "");
}

std::string StateName(pb::TaskState state) {
  return state == pb::TASK_STATE_UNSPECIFIED ? "unknown"
                                             : LowerEnum(pb::TaskState_Name(state), "TASK_");
}

std::string CauseName(pb::Cause cause) {
  return cause == pb::CAUSE_UNSPECIFIED ? "" : LowerEnum(pb::Cause_Name(cause), "");
}

bool HasEnded(pb::JobState state) {
  return state == pb::SUCCEEDED || state == pb::FAILED || state == pb::CANCELLED;
}

std::string Plain(std::string_view text) {
  std::string out(text);
  for (size_t i = 0; i < out.size(); ++i) {
    unsigned char c = static_cast<unsigned char>(out[i]);
    if (c == '\n' || c == '\t' || c == '\r') {
      out[i] = ' ';
    } else if (c < 0x20 || c == 0x7f) {
      out[i] = '?';
    } else if (c == 0xc2 && i + 1 < out.size() && static_cast<unsigned char>(out[i + 1]) < 0xa0) {
      out[i] = '?';  // C1 controls, U+0080 .. U+009F
      out[i + 1] = '?';
    }
  }
  return out;
}

int DisplayWidth(std::string_view utf8_text) {
  int width = 0;
  for (unsigned char c : utf8_text) width += (c & 0xc0) != 0x80;
  return width;
}

std::string Truncated(std::string_view utf8_text, int width, bool utf8) {
  if (DisplayWidth(utf8_text) <= width) return std::string(utf8_text);
  std::string_view mark = utf8 ? "…" : "~";
  if (width <= 0) return "";
  int seen = 0;
  size_t end = 0;
  while (end < utf8_text.size()) {
    bool starts = (static_cast<unsigned char>(utf8_text[end]) & 0xc0) != 0x80;
    if (starts && seen == width - 1) break;
    seen += starts;
    ++end;
  }
  return absl::StrCat(std::string(utf8_text.substr(0, end)), std::string(mark));
}

std::string Wrapped(std::string_view text, int width) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    const size_t blanks = std::min(line.find_first_not_of(' '), line.size());
    const std::string indent(blanks + 2, ' ');
    std::string before;  // what stands before this piece of the line
    while (DisplayWidth(line) + static_cast<int>(before.size()) > width &&
           line.find('\x1b') == std::string_view::npos) {
      size_t cut = std::string_view::npos, at = line.find_first_not_of(' ');
      int seen = static_cast<int>(before.size() + at);
      for (; at < line.size() && (cut == std::string_view::npos || seen <= width); ++at) {
        if (line[at] == ' ' && line[at - 1] != ' ') cut = at;
        seen += (static_cast<unsigned char>(line[at]) & 0xc0) != 0x80;
      }
      const size_t next = cut == std::string_view::npos ? cut : line.find_first_not_of(' ', cut);
      if (next == std::string_view::npos) break;  // its last word
      absl::StrAppend(&out, before, std::string(line.substr(0, cut)), "\n");
      line.remove_prefix(next);
      before = indent;
    }
    absl::StrAppend(&out, before, std::string(line));
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return out;
}

const pb::Task* LeadTask(const pb::Job& job) {
  auto active = [](const pb::Task& task) {
    return task.state() >= pb::TASK_PREPARING && task.state() <= pb::TASK_STOPPING;
  };
  auto unfinished = [](const pb::Task& task) {
    return task.state() == pb::TASK_WAITING || task.state() == pb::TASK_BLOCKED;
  };
  for (const pb::Task& task : job.tasks())
    if (active(task)) return &task;
  for (const pb::Task& task : job.tasks())
    if (task.state() == pb::TASK_WAITING) return &task;
  for (const pb::Task& task : job.tasks())
    if (unfinished(task)) return &task;
  for (const pb::Task& task : job.tasks())
    if (task.state() == pb::TASK_FAILED) return &task;
  return job.tasks_size() > 0 ? &job.tasks(job.tasks_size() - 1) : nullptr;
}

const pb::Attempt* NewestAttempt(const pb::Task& task) {
  return task.attempts_size() > 0 ? &task.attempts(task.attempts_size() - 1) : nullptr;
}

const pb::TaskSpec* SpecOf(const pb::Job& job, std::string_view task) {
  for (const pb::TaskSpec& spec : job.spec().tasks())
    if (spec.name() == task) return &spec;
  return nullptr;
}

}  // namespace muster
