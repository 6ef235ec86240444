#include "agent/failures/classify.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "agent/failures/rules.h"

namespace muster {
namespace {

bool IsWord(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Where `piece` is in `line` from `from` on; npos = nowhere. '<' before and '>' behind it ask for a word's border.
size_t Find(std::string_view line, std::string_view piece, size_t from) {
  const bool left = !piece.empty() && piece.front() == '<';
  if (left) piece.remove_prefix(1);
  const bool right = !piece.empty() && piece.back() == '>';
  if (right) piece.remove_suffix(1);
  while (true) {
    const size_t at = line.find(piece, from);
    if (at == std::string_view::npos) return at;
    const size_t end = at + piece.size();
    if ((!left || at == 0 || !IsWord(line[at - 1])) && (!right || end == line.size() || !IsWord(line[end]))) return end;
    from = at + 1;
  }
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
  if (const size_t close = line.find("):", at); close != std::string_view::npos && close < at + 40) at = close + 2;
  while (at < line.size() && !absl::ascii_isdigit(static_cast<unsigned char>(line[at]))) {
    if (IsWord(line[at])) return std::nullopt;
    ++at;
  }
  int number = 0;
  if (std::from_chars(line.data() + at, line.data() + line.size(), number).ec != std::errc()) return std::nullopt;
  return number;
}

// A line of information or a warning, by how logging libraries mark them; one that says that it is tried again.
bool IsWarning(std::string_view line) {
  static constexpr std::array<std::string_view, 15> kMarks = {
      "[info]", ": i external", "[w ", " info ", "- info", "info:", "<warning>", "futurewarning",
      "userwarning", "deprecationwarning", ": w tensorflow", ": w external", "<retrying>", "<retry>", "will retry"};
  if (std::any_of(kMarks.begin(), kMarks.end(), [&](std::string_view mark) { return Find(line, mark, 0) != std::string_view::npos; })) return true;
  // glog's and c10's: "W0404 20:34", "[W105 01:36", "[rank4]:[W105 01:36"
  for (size_t at = 0; at + 4 < line.size() && at < 24; ++at) {
    const bool begins = at == 0 || line[at - 1] == '[';
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (begins && (line[at] == 'w' || line[at] == 'i') && is_digit(line[at + 1]) && is_digit(line[at + 2]) && is_digit(line[at + 3])) return true;
  }
  return false;
}

// A warning of Python's own, or a sentence of what could happen.
bool IsAdvice(std::string_view line) {
  static constexpr std::array<std::string_view, 10> kMarks = {"userwarning: ", "runtimewarning: ", "futurewarning: ", "deprecationwarning: ", "resourcewarning: ",
                                                              "<likely lead", "<may lead", "<might lead", "<could lead", "<can lead"};
  return std::any_of(kMarks.begin(), kMarks.end(), [&](std::string_view mark) { return Find(line, mark, 0) != std::string_view::npos; });
}

struct Evidence {
  FailureClass cls;
  Weight weight;
};

std::optional<Evidence> EvidenceOf(std::string_view line) {
  if (const std::optional<int> xid = XidOf(line)) {
    if (XidBlamesDevice(*xid)) return Evidence{FailureClass::kDevice, Weight::kCause};
    return Evidence{FailureClass::kUserError, Weight::kHint};
  }
  for (const Rule& rule : WholeSentenceRules()) {
    if (Matches(line, rule.pattern)) return Evidence{rule.cls, rule.weight};
  }
  std::optional<Evidence> best;
  for (const Rule& rule : FailureRules()) {
    if ((!best || rule.weight > best->weight) && Matches(line, rule.pattern)) best = Evidence{rule.cls, rule.weight};
  }
  // Notices of a stop and watchdogs speak as loggers' warnings do; whatever else does was got over, or says the same again as an error.
  const bool notice = best && (best->cls == FailureClass::kPreempted || best->cls == FailureClass::kKilled || best->cls == FailureClass::kHang);
  if (best && best->weight > Weight::kWarned && ((!notice && IsWarning(line)) || IsAdvice(line))) best->weight = Weight::kWarned;
  return best;
}

// Bytes of the UTF-8 character that `text` begins with; 0: it begins with none.
size_t CharacterBytes(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const auto follows = [&](size_t i) { return (at(i) & 0xC0) == 0x80; };
  if (at(0) < 0x80) return 1;
  if (at(0) >= 0xC2 && at(0) < 0xE0 && follows(1)) return 2;
  if (at(0) >= 0xE0 && at(0) < 0xF0 && follows(1) && follows(2) && (at(0) != 0xE0 || at(1) >= 0xA0) && (at(0) != 0xED || at(1) < 0xA0)) return 3;
  if (at(0) >= 0xF0 && at(0) < 0xF5 && follows(1) && follows(2) && follows(3) && (at(0) != 0xF0 || at(1) >= 0x90) && (at(0) != 0xF4 || at(1) < 0x90)) return 4;
  return 0;
}

// A line of somebody's log as a sentence of ours: without terminal control sequences, valid UTF-8, 200 bytes at most.
std::string Cut(std::string_view line) {
  constexpr size_t kLongest = 200;
  std::string cut;
  while (!line.empty()) {
    if (line.starts_with("\x1b[")) {
      const size_t end = line.find_first_not_of("0123456789;?", 2);
      line.remove_prefix(end == std::string_view::npos ? line.size() : end + 1);
      continue;
    }
    const size_t bytes = CharacterBytes(line);
    const unsigned char first = static_cast<unsigned char>(line.front());
    if (bytes == 0) {
      cut += '?';
    } else if (first == '\t' || first == '\r') {
      cut += ' ';
    } else if (bytes > 1 || (first >= 0x20 && first != 0x7F)) {
      if (cut.size() + bytes > kLongest) return absl::StrCat(cut, "…");
      cut += line.substr(0, bytes);
    }
    line.remove_prefix(std::max<size_t>(bytes, 1));
    if (cut.size() == 1 && cut[0] == ' ') cut.clear();
  }
  absl::StripAsciiWhitespace(&cut);
  return cut;
}

// A line of training going on: a step or an iteration with its loss or its speed.
bool IsProgress(std::string_view line) {
  static constexpr std::array<std::string_view, 5> kCounters = {"<step", "<iter", "<epoch", "it/s", "s/it"};
  static constexpr std::array<std::string_view, 8> kFigures = {"loss", "tokens/s", "tok/s", "it/s]", "s/it]", "samples/s", "throughput", "tflop"};
  const auto in = [&](std::string_view piece) { return Find(line, piece, 0) != std::string_view::npos; };
  return std::any_of(kCounters.begin(), kCounters.end(), in) && std::any_of(kFigures.begin(), kFigures.end(), in) && !EvidenceOf(line);
}

// The strongest evidence of lines[begin, end): of equal weight the first, because what follows a cause are its consequences.
std::optional<std::pair<Evidence, size_t>> Strongest(const std::vector<std::string>& lines, size_t begin, size_t end) {
  std::optional<std::pair<Evidence, size_t>> best;
  for (size_t i = begin; i < end; ++i) {
    const std::optional<Evidence> evidence = EvidenceOf(lines[i]);
    if (evidence && (!best || evidence->weight > best->first.weight)) best = {*evidence, i};
  }
  return best;
}

std::vector<std::string> Lower(const std::vector<std::string_view>& lines) {
  std::vector<std::string> lower;
  lower.reserve(lines.size());
  for (const std::string_view line : lines) absl::AsciiStrToLower(&lower.emplace_back(line));
  return lower;
}

}  // namespace

Failure Classify(const EndFacts& facts) {
  using enum FailureClass;
  if (facts.preempted) return {kPreempted, "its place was taken"};
  if (facts.cgroup_oom) return {kOom, "the kernel killed it: its memory limit was reached"};

  const std::vector<std::string> events = Lower(facts.events);
  const std::vector<std::string> lines = Lower(facts.tail);
  if (facts.host_lost) {
    // A provider that takes a host back says so before.
    for (const auto* said : {&events, &lines}) {
      const auto told = Strongest(*said, 0, said->size());
      if (told && told->first.cls == kPreempted) return {kPreempted, Cut((said == &events ? facts.events : facts.tail)[told->second])};
    }
    return {kHost, "its host was lost"};
  }
  const auto event = Strongest(events, 0, events.size());
  if (event && event->first.weight == Weight::kCause) return {event->first.cls, Cut(facts.events[event->second])};

  size_t begin = 0;  // behind the last line of progress
  for (size_t i = 0; i < lines.size(); ++i) {
    if (IsProgress(lines[i])) begin = i + 1;
  }
  auto told = Strongest(lines, begin, lines.size());
  if (!told || told->first.weight <= Weight::kWarned) {
    // Other ranks may have got one more line out after the one that failed.
    if (const auto before = Strongest(lines, 0, begin); before && before->first.weight == Weight::kCause) told = before;
  }
  const bool stuck_there = told && (told->first.weight == Weight::kCause || (told->first.cls == kStorage && told->first.weight == Weight::kConsequence));
  if (facts.silent && !stuck_there) return {kHang, "no progress for its hang_timeout"};
  const int signal = facts.signal > 0 ? facts.signal : facts.exit_code > 128 && facts.exit_code < 160 ? facts.exit_code - 128 : 0;
  constexpr int kSigInt = 2, kSigKill = 9, kSigTerm = 15;
  // Who was ended by a signal that somebody sent, and lost its peers or its output with that.
  if (event && event->first.cls == kKilled && told && told->first.weight == Weight::kConsequence && (told->first.cls == kNetwork || told->first.cls == kUserError)) {
    return {kKilled, Cut(facts.events[event->second])};
  }
  if (told && told->first.weight > Weight::kWarned) return {told->first.cls, Cut(facts.tail[told->second])};
  if (told && told->first.weight == Weight::kWarned) return {told->first.cls, Cut(facts.tail[told->second])};
  if (signal == kSigKill || signal == kSigTerm || signal == kSigInt) return {kKilled, ""};
  if (event) return {event->first.cls, Cut(facts.events[event->second])};
  if (told) return {told->first.cls, Cut(facts.tail[told->second])};
  return {kUserError, ""};
}

std::string_view FailureText(FailureClass cls) {
  static constexpr std::array<std::string_view, kFailureClasses> kTexts = {
      "error of the program", "out of memory",   "stood still",     "killed from outside", "failure of a device",
      "failure of a host",    "network failure", "storage failure", "preempted"};
  return kTexts[static_cast<size_t>(cls)];
}

std::string_view FailureName(FailureClass cls) {
  static constexpr std::array<std::string_view, kFailureClasses> kNames = {"user_error", "oom", "hang", "killed", "device", "host", "network", "storage", "preempted"};
  return kNames[static_cast<size_t>(cls)];
}

bool OfInfrastructure(FailureClass cls) {
  using enum FailureClass;
  return cls == kDevice || cls == kHost || cls == kNetwork || cls == kStorage || cls == kPreempted;
}

}  // namespace muster
