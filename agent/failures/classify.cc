#include "agent/failures/classify.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "agent/failures/rules.h"
#include "common/base/utf8.h"

namespace muster {
namespace {

bool IsWord(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Where `piece` is in `line` from `from` on; npos = nowhere. '<' before and '>' behind it ask for a
// word's border.
size_t Find(std::string_view line, std::string_view piece, size_t from) {
  const bool left = !piece.empty() && piece.front() == '<';
  if (left) piece.remove_prefix(1);
  const bool right = !piece.empty() && piece.back() == '>';
  if (right) piece.remove_suffix(1);
  while (true) {
    const size_t at = line.find(piece, from);
    if (at == std::string_view::npos) return at;
    const size_t end = at + piece.size();
    if ((!left || at == 0 || !IsWord(line[at - 1])) &&
        (!right || end == line.size() || !IsWord(line[end])))
      return end;
    from = at + 1;
  }
}

bool HasAny(std::string_view line, std::span<const std::string_view> pieces) {
  return std::any_of(pieces.begin(), pieces.end(), [&](std::string_view piece) {
    return Find(line, piece, 0) != std::string_view::npos;
  });
}

bool Matches(std::string_view line, std::string_view pattern) {
  size_t at = 0;
  while (true) {
    const size_t star = pattern.find('*');
    const std::string_view piece = pattern.substr(0, star);
    if (!piece.empty() && (at = Find(line, piece, at)) == std::string_view::npos) return false;
    if (star == std::string_view::npos) return true;
    pattern.remove_prefix(star + 1);
  }
}

// "NVRM: Xid (PCI:0000:4e:00): 79, pid=…", "XID 79 on GPU 3": its number.
std::optional<int> XidOf(std::string_view line) {
  size_t at = Find(line, "<xid>", 0);
  if (at == std::string_view::npos) return std::nullopt;
  if (const size_t close = line.find("):", at); close != std::string_view::npos && close < at + 40)
    at = close + 2;
  while (at < line.size() && !absl::ascii_isdigit(static_cast<unsigned char>(line[at]))) {
    if (IsWord(line[at])) return std::nullopt;
    ++at;
  }
  int number = 0;
  if (std::from_chars(line.data() + at, line.data() + line.size(), number).ec != std::errc())
    return std::nullopt;
  return number;
}

// A line of information or a warning, by how logging libraries mark them; one that says that it is
// tried again.
bool IsWarning(std::string_view line) {
  static constexpr std::array<std::string_view, 15> kMarks = {
      "[info]",         ": i external", "[w ",           " info ",      "- info",
      "info:",          "<warning>",    "futurewarning", "userwarning", "deprecationwarning",
      ": w tensorflow", ": w external", "<retrying>",    "<retry>",     "will retry"};
  if (HasAny(line, kMarks)) return true;
  // glog's and c10's: "W0404 20:34", "[W105 01:36", "[rank4]:[W105 01:36"
  for (size_t at = 0; at + 4 < line.size() && at < 24; ++at) {
    const bool begins = at == 0 || line[at - 1] == '[';
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (begins && (line[at] == 'w' || line[at] == 'i') && is_digit(line[at + 1]) &&
        is_digit(line[at + 2]) && is_digit(line[at + 3]))
      return true;
  }
  return false;
}

// A warning of Python's own, or a sentence of what could happen.
bool IsAdvice(std::string_view line) {
  static constexpr std::array<std::string_view, 10> kMarks = {
      "userwarning: ",     "runtimewarning: ", "futurewarning: ", "deprecationwarning: ",
      "resourcewarning: ", "<likely lead",     "<may lead",       "<might lead",
      "<could lead",       "<can lead"};
  return HasAny(line, kMarks);
}

struct Evidence {
  FailureClass cls;
  Weight weight;
};

// `devices`: the process held some, so that what is said of them may be so.
std::optional<Evidence> EvidenceOf(std::string_view line, bool devices) {
  if (const std::optional<int> xid = XidOf(line)) {
    if (XidBlamesDevice(*xid) && devices) return Evidence{FailureClass::kDevice, Weight::kCause};
    return Evidence{FailureClass::kUserError, Weight::kHint};
  }
  const auto evidence = [&](const Rule& rule) {
    return Evidence{rule.of_devices && !devices ? FailureClass::kUserError : rule.cls, rule.weight};
  };
  for (const Rule& rule : WholeSentenceRules()) {
    if (Matches(line, rule.pattern)) return evidence(rule);
  }
  std::optional<Evidence> best;
  for (const Rule& rule : FailureRules()) {
    if ((!best || rule.weight > best->weight) && Matches(line, rule.pattern)) best = evidence(rule);
  }
  // Notices of a stop and watchdogs speak as loggers' warnings do; whatever else does was got over,
  // or says the same again as an error.
  const bool notice =
      best && (best->cls == FailureClass::kPreempted || best->cls == FailureClass::kKilled ||
               best->cls == FailureClass::kHang);
  if (best && best->weight > Weight::kWarned && ((!notice && IsWarning(line)) || IsAdvice(line)))
    best->weight = Weight::kWarned;
  return best;
}

// A line of somebody's log as a sentence of ours: without terminal control sequences, valid UTF-8,
// 200 bytes at most.
std::string Cut(std::string_view line) {
  constexpr size_t kLongest = 200;
  std::string text;
  while (!line.empty()) {
    if (line.starts_with("\x1b[")) {
      const size_t end = line.find_first_not_of("0123456789;?", 2);
      line.remove_prefix(end == std::string_view::npos ? line.size() : end + 1);
      continue;
    }
    const unsigned char byte = static_cast<unsigned char>(line.front());
    if (byte == '\t' || byte == '\r') {
      text += ' ';
    } else if (byte >= 0x20 && byte != 0x7F) {
      text += line.front();
    }
    line.remove_prefix(1);
  }
  absl::StripAsciiWhitespace(&text);
  text = ValidUtf8(text);
  return text.size() <= kLongest ? text : std::string(CutUtf8(text, kLongest)) + "…";
}

// A line of training going on: a step or an iteration with its loss or its speed.
bool IsProgress(std::string_view line) {
  static constexpr std::array<std::string_view, 5> kCounters = {"<step", "<iter", "<epoch", "it/s",
                                                                "s/it"};
  static constexpr std::array<std::string_view, 8> kFigures = {
      "loss", "tokens/s", "tok/s", "it/s]", "s/it]", "samples/s", "throughput", "tflop"};
  return HasAny(line, kCounters) && HasAny(line, kFigures) && !EvidenceOf(line, /*devices=*/true);
}

// Without what a launcher writes before each line: "[rank3]: ", "[rank0]:".
std::string_view WithoutRank(std::string_view line) {
  if (!line.starts_with("[rank")) return line;
  const size_t end = line.find("]:");
  if (end == std::string_view::npos || end > 12) return line;
  line.remove_prefix(end + 2);
  return line.starts_with(' ') ? line.substr(1) : line;
}

// `  File "train.py", line 40, in main`: the next line is its source.
bool IsFrame(std::string_view line) {
  line = WithoutRank(line);
  return line.starts_with("  file \"") && line.find("\", line ") != std::string_view::npos;
}

// A setting that a program prints: "  spot: true", "walltime ....... 86400", "labels: ['ok',
// 'bad']". Of a name that speaks of an end it is none ("exitcode: -9", "KeyError: 'a'").
bool IsSetting(std::string_view line) {
  static constexpr std::array<std::string_view, 7> kOfEnds = {
      "error", "exception", "exit", "signal", "killed", "status", "reason"};
  line = WithoutRank(line);
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  line = line.substr(0, line.find_last_not_of(" \r") + 1);
  size_t at = 0;
  while (at < line.size() && (IsWord(line[at]) || line[at] == '-' || line[at] == '/')) ++at;
  const std::string_view name = line.substr(0, at);
  if (name.empty() || HasAny(name, kOfEnds)) return false;
  const size_t value_at = line.find_first_not_of(" .:=", at);
  if (value_at == std::string_view::npos || value_at == at) return false;
  const std::string_view between = line.substr(at, value_at - at);
  if (between.find_first_of(":=") == std::string_view::npos &&
      between.find("...") == std::string_view::npos)
    return false;
  const std::string_view value = line.substr(value_at);
  for (const std::string_view word : {"true", "false", "none", "null", "yes", "no", "on", "off"}) {
    if (value == word) return true;
  }
  const auto within = [&](char open, char close) {
    return value.size() >= 2 && value.front() == open && value.back() == close;
  };
  return within('[', ']') || within('{', '}') || within('\'', '\'') || within('"', '"') ||
         (absl::ascii_isdigit(static_cast<unsigned char>(value.front())) &&
          value.find_first_not_of("0123456789.e+-_smhdkmgtib") == std::string_view::npos);
}

// Lines in lower case; those that say nothing of an end whatever their words (frames of a
// traceback, settings) are empty.
struct Text {
  explicit Text(const std::vector<std::string_view>& all) : lines(all) {
    lower.reserve(all.size());
    bool source = false;
    for (const std::string_view line : all) {
      std::string& text = lower.emplace_back(line);
      absl::AsciiStrToLower(&text);
      const bool frame = IsFrame(text);
      if (frame || (source && WithoutRank(text).starts_with("    ")) || IsSetting(text))
        text.clear();
      source = frame;
    }
  }

  const std::vector<std::string_view>& lines;
  std::vector<std::string> lower;
};

struct Told {
  FailureClass cls;
  Weight weight;
  std::string_view line;

  Failure AsFailure() const { return {cls, Cut(line)}; }
};

// The strongest evidence of lines [begin, end): of equal weight the first, because what follows a
// cause are its consequences.
std::optional<Told> Strongest(const Text& text, size_t begin, size_t end, bool devices = true) {
  std::optional<Told> best;
  for (size_t i = begin; i < end; ++i) {
    if (text.lower[i].empty()) continue;
    const std::optional<Evidence> evidence = EvidenceOf(text.lower[i], devices);
    if (evidence && (!best || evidence->weight > best->weight))
      best = {evidence->cls, evidence->weight, text.lines[i]};
  }
  return best;
}

// What muster-trainer says when it refuses its configuration: "config.json: 3 problems, nothing was
// started", then a problem a line. The first of them, and how many more there are; "": no such end.
std::string FirstOfRefused(const std::vector<std::string_view>& tail) {
  constexpr std::string_view kOne = ": 1 problem, nothing was started",
                             kSeveral = " problems, nothing was started";
  for (size_t i = tail.size(); i-- > 1;) {
    const std::string_view head = tail[i - 1], first = tail[i];
    if (!first.starts_with("  ")) continue;
    if (head.ends_with(kOne)) return Cut(first);
    if (!head.ends_with(kSeveral)) continue;
    std::string_view count = head.substr(0, head.size() - kSeveral.size());
    count.remove_prefix(count.rfind(' ') + 1);  // npos + 1 is 0
    int problems = 0;
    if (std::from_chars(count.data(), count.data() + count.size(), problems).ec != std::errc())
      continue;
    std::string text = Cut(first);
    text += " (the first of " + std::to_string(problems) + " problems; its log has all)";
    return text;
  }
  return "";
}

// The last word of a program of Muster's own, such as "muster_score: --input x: there is no such
// file"; "": none of them spoke. Of "muster: the terminal has gone away", as `muster run --pty` has
// it, only where it is the very last line: scripts use `muster`, too, and go on.
std::string WordOfOurs(const std::vector<std::string_view>& tail) {
  bool last = true;
  for (size_t i = tail.size(); i-- > 0;) {
    if (tail[i].empty()) continue;
    if (std::exchange(last, false) && tail[i].starts_with("muster: ")) return Cut(tail[i]);
    for (const std::string_view name :
         {"muster_score: ", "muster_tune: ", "muster_ray: ", "muster_dev: "}) {
      if (tail[i].starts_with(name)) return Cut(tail[i]);
    }
  }
  return "";
}

Failure ClassifyByFacts(const EndFacts& facts) {
  using enum FailureClass;
  if (facts.preempted) return {kPreempted, "its place was taken"};
  if (facts.cgroup_oom) return {kOom, "the kernel killed it: its memory limit was reached"};

  const Text events(facts.events), tail(facts.tail);
  const std::optional<Told> event = Strongest(events, 0, events.lines.size());
  if (facts.host_lost) {
    // A provider that takes a host back says so before.
    for (const std::optional<Told>& told : {event, Strongest(tail, 0, tail.lines.size())}) {
      if (told && told->cls == kPreempted) return told->AsFailure();
    }
    return {kHost, "its host was lost"};
  }
  if (event && event->weight == Weight::kCause) return event->AsFailure();

  size_t behind_progress = tail.lines.size();
  while (behind_progress > 0 && !IsProgress(tail.lower[behind_progress - 1])) --behind_progress;
  std::optional<Told> told = Strongest(tail, behind_progress, tail.lines.size(), facts.devices);
  if (!told || told->weight <= Weight::kWarned) {
    // Other ranks may have got one more line out after the one that failed.
    if (const std::optional<Told> before = Strongest(tail, 0, behind_progress, facts.devices);
        before && before->weight == Weight::kCause)
      told = before;
  }
  const bool stuck_there =
      told && (told->weight == Weight::kCause ||
               (told->cls == kStorage && told->weight == Weight::kConsequence));
  if (facts.silent && !stuck_there) return {kHang, "no progress for its hang_timeout"};
  // Who was ended by a signal that somebody sent, and lost its peers or its output with that.
  if (event && event->cls == kKilled && told && told->weight == Weight::kConsequence &&
      (told->cls == kNetwork || told->cls == kUserError)) {
    return event->AsFailure();
  }
  if (told && told->weight >= Weight::kWarned) return told->AsFailure();
  const int signal = facts.signal > 0                                 ? facts.signal
                     : facts.exit_code > 128 && facts.exit_code < 160 ? facts.exit_code - 128
                                                                      : 0;
  constexpr int kSigInt = 2, kSigKill = 9, kSigTerm = 15;
  if (signal == kSigKill || signal == kSigTerm || signal == kSigInt) return {kKilled, ""};
  if (event) return event->AsFailure();
  if (told) return told->AsFailure();
  return {kUserError, ""};
}

}  // namespace

Failure Classify(const EndFacts& facts) {
  constexpr int kRefused = 2;  // muster-trainer's exit code then
  Failure failure = ClassifyByFacts(facts);
  if (failure.cls != FailureClass::kUserError) return failure;
  if (failure.because.empty()) failure.because = WordOfOurs(facts.tail);
  if (facts.exit_code != kRefused) return failure;
  // The rules would take the one whose words they know: the first came first.
  if (std::string first = FirstOfRefused(facts.tail); !first.empty())
    failure.because = std::move(first);
  return failure;
}

std::string_view FailureName(FailureClass cls) {
  static constexpr std::array<std::string_view, kFailureClasses> kNames = {
      "user_error", "oom", "hang", "killed", "device", "host", "network", "storage", "preempted"};
  return kNames[static_cast<size_t>(cls)];
}

}  // namespace muster
