#include "agent/host/causes.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/failures/classify.h"
#include "agent/host/logs.h"
#include "agent/host/mounts.h"
#include "agent/shim/image.h"
#include "common/base/utf8.h"

namespace muster::agent {
namespace {

constexpr int64_t kLines = 80;
constexpr int64_t kBytes = 64 << 10;

v1::Cause CauseOf(FailureClass cls) {
  switch (cls) {
    case FailureClass::kUserError:
      return v1::PROGRAM_ERROR;
    case FailureClass::kOom:
      return v1::OUT_OF_MEMORY;
    case FailureClass::kHang:
      return v1::HANG;
    case FailureClass::kKilled:
      return v1::KILLED;
    case FailureClass::kDevice:
      return v1::DEVICE_FAILURE;
    case FailureClass::kHost:
      return v1::HOST_FAILURE;
    case FailureClass::kNetwork:
      return v1::NETWORK_FAILURE;
    case FailureClass::kStorage:
      return v1::STORAGE_FAILURE;
    case FailureClass::kPreempted:
      return v1::HOST_FAILURE;  // somebody else took the host: Muster's own preemptions are no
                                // failures
  }
  return v1::CAUSE_UNSPECIFIED;
}

// "setup: exit 1" with the line that failed, and what was said last before it.
std::string SetupDetail(const std::string& detail, const std::string& valid_log) {
  const std::string_view log = valid_log;
  constexpr std::string_view kMark = "muster: setup, ";
  constexpr size_t kQuoted = 200;
  std::string where, said;
  for (size_t at = 0; at < log.size();) {
    const size_t end = std::min(log.find('\n', at), log.size());
    const std::string_view line = log.substr(at, end - at);
    at = end + 1;
    if (line.starts_with(kMark)) {
      where = CutUtf8(line.substr(kMark.size()), kQuoted);
    } else if (!line.empty()) {
      said = CutUtf8(line, kQuoted);
    }
  }
  return absl::StrCat(detail, where.empty() ? "" : ", ", where,
                      said.empty() ? "" : "; it said: ", said);
}

bool SaysReadOnly(const std::string& line) {
  const std::string lower = absl::AsciiStrToLower(line);
  return absl::StrContains(lower, "read-only file system") || absl::StrContains(lower, "errno 30]");
}

bool IsOfAName(char c) { return absl::ascii_isalnum(c) || absl::StrContains("._-/", c); }

// A path at this directory or below it.
bool NamesBelow(std::string_view line, std::string_view directory) {
  directory = directory.substr(0, directory.find_last_not_of('/') + 1);
  if (directory.empty()) return false;
  for (size_t at = line.find(directory); at != line.npos; at = line.find(directory, at + 1)) {
    const size_t end = at + directory.size();
    if ((at == 0 || !IsOfAName(line[at - 1])) &&
        (end == line.size() || line[end] == '/' || !IsOfAName(line[end])))
      return true;
  }
  return false;
}

// A path in quotation marks, and none that begins at the root.
bool NamesRelative(std::string_view line) {
  for (size_t at = line.find('/'); at != line.npos; at = line.find('/', at + 1))
    if (at == 0 || !IsOfAName(line[at - 1])) return false;
  const std::pair<std::string_view, std::string_view> kMarks[] = {
      {"'", "'"}, {"\"", "\""}, {"\u2018", "\u2019"}};
  for (const auto& [open, close] : kMarks) {
    const size_t at = line.find(open);
    const size_t end = at == line.npos ? at : line.find(close, at + open.size());
    if (end != line.npos && end > at + open.size()) return true;
  }
  return false;
}

// Whether the program tried to write into its image, and not to what it sees of the host.
bool IsIntoImage(const DeviceEvents::Image& image, const std::string& line) {
  if (!SaysReadOnly(line)) return false;
  constexpr std::string_view kAlways[] = {"/dev", "/tmp", "/var/tmp"};
  std::vector<std::string> hosts(std::begin(kAlways), std::end(kAlways));
  hosts.insert(hosts.end(), image.shown.begin(), image.shown.end());
  const auto below = [&](std::string_view path) {
    return std::any_of(hosts.begin(), hosts.end(),
                       [&](const std::string& directory) { return NamesBelow(path, directory); });
  };
  if (below(line) || (NamesRelative(line) && below(image.start))) return false;
  // Directories at its top that an image hasn't got are the host's, too. Where one of those can't
  // be written on the host either, that is why.
  for (const std::string& point : ReadOnlyMounts(image.mounts)) {
    const std::string top = point.substr(1, point.find('/', 1) - 1);
    if (shim::IsShownWhereMissing(top) && NamesBelow(line, point)) return false;
  }
  return true;
}

}  // namespace

void TellCauses(const std::string& logs, const DeviceEvents& events, int64_t start_ns,
                std::vector<v1::WorkerExit>* exits) {
  for (v1::WorkerExit& exit : *exits) {
    if ((exit.exit_code() == 0 && exit.signal() == 0) || exit.cause() != v1::CAUSE_UNSPECIFIED)
      continue;
    if (exit.detail() == absl::StrCat("setup: exit ", exit.exit_code())) {
      const std::string log = LastLines(logs, exit.rank(), kLines, kBytes);
      exit.set_detail(SetupDetail(exit.detail(), ValidUtf8(log)));
      continue;
    }
    if (!exit.own() && !exit.detail().empty())
      continue;  // the shim said why; one of the release before says nothing else of a program's
                 // own end
    const std::string text = LastLines(logs, exit.rank(), kLines, kBytes);
    EndFacts facts{.exit_code = exit.exit_code(),
                   .signal = exit.signal(),
                   .cgroup_oom = exit.oom(),
                   .devices = events.held,
                   .events = {},
                   .tail = {}};
    if (const auto told = events.by_rank.find(exit.rank()); told != events.by_rank.end()) {
      for (const auto& [at_ns, words] : told->second) {
        if (at_ns >= start_ns) facts.events.push_back(words);
      }
    }
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      facts.tail.push_back(std::string_view(text).substr(at, end - at));
      at = end + 1;
    }
    const Failure failure = Classify(facts);
    const bool into_image = events.image.has_value() && failure.cls == FailureClass::kStorage &&
                            IsIntoImage(*events.image, failure.because);
    exit.set_cause(into_image ? v1::PROGRAM_ERROR : CauseOf(failure.cls));
    if (failure.because.empty()) continue;
    const std::string how = exit.signal() > 0 && !exit.detail().empty()
                                ? exit.detail()
                                : absl::StrCat("exit ", exit.exit_code());
    exit.set_detail(absl::StrCat(how, ": ", failure.because));
  }
}

}  // namespace muster::agent
