#include "scheduler/ask/words/failure_text.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {

std::string CauseText(pb::Cause cause) {
  switch (cause) {
    case pb::PROGRAM_ERROR:
      return "the program failed";
    case pb::KILLED:
      return "a process was killed";
    case pb::OUT_OF_MEMORY:
      return "out of memory";
    case pb::OUT_OF_DISK:
      return "it filled a disk";
    case pb::HANG:
      return "no progress for hang_timeout";
    case pb::TIME_LIMIT:
      return "time_limit is over";
    case pb::CANCEL:
      return "cancelled";
    case pb::PREEMPTION:
      return "its devices are needed by others";
    case pb::RESIZE:
      return "resized";
    case pb::DRAIN:
      return "its host is drained";
    case pb::HOST_LOST:
      return "its host is lost";
    case pb::LAUNCH_FAILED:
      return "it could not be launched";
    case pb::IMAGE_FAILED:
      return "its image could not be entered";
    case pb::RENDEZVOUS:
      return "its rendezvous port was taken";
    case pb::SETUP_FAILED:
      return "setup failed";
    case pb::DEVICE_FAILURE:
      return "a device failed";
    case pb::HOST_FAILURE:
      return "its host failed";
    case pb::NETWORK_FAILURE:
      return "the network failed";
    case pb::STORAGE_FAILURE:
      return "the storage failed";
    case pb::PREDECESSOR:
      return "a job that it was to come after didn't succeed";
    case pb::HOLDER:
      return "the job on whose devices it ran was stopped";
    case pb::NOT_NEEDED:
      return "what it was there for has succeeded";
    case pb::EXPORT_FAILED:
      return "its export could not be published";
    default:
      return "";
  }
}

namespace {

// The first word after `mark`, up to a colon; "" without the mark.
std::string WordAfter(const std::string& text, std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return "";
  const size_t begin = at + mark.size();
  return text.substr(begin, text.find(": ", begin) - begin);
}

// Of "No module named 'muster_dev'", also without quotes. A module of a package that is there
// ('muster_runtime.x') is the program's own slip.
bool LacksMustersPackage(const std::string& detail) {
  constexpr std::string_view kSaid = "No module named ";
  const size_t at = detail.find(kSaid);
  if (at == std::string::npos) return false;
  std::string_view rest = std::string_view(detail).substr(at + kSaid.size());
  if (rest.starts_with('\'')) rest.remove_prefix(1);
  const auto ends = std::find_if(rest.begin(), rest.end(), [](char c) {
    return c != '_' && c != '.' && !absl::ascii_isalnum(static_cast<unsigned char>(c));
  });
  const std::string_view name = rest.substr(0, static_cast<size_t>(ends - rest.begin()));
  constexpr std::string_view kOwn[] = {"muster_tune", "muster_dev", "muster_score", "muster_ray",
                                       "muster_runtime"};
  return std::find(std::begin(kOwn), std::end(kOwn), name) != std::end(kOwn);
}

}  // namespace

std::string FailureText(const pb::TaskSpec& task, pb::Cause cause, const std::string& detail) {
  if (cause == pb::OUT_OF_MEMORY && absl::StrContains(detail, "memory limit was reached")) {
    const int64_t bytes = task.resources().memory_bytes();
    return absl::StrCat(detail, bytes > 0
                                    ? absl::StrCat(" (resources.memory: ", FormatSize(bytes),
                                                   " for all processes of a worker)")
                                    : " (resources.memory isn't stated: the limit is the host's)");
  }
  if (cause == pb::IMAGE_FAILED) {
    const bool overlay = absl::StrContains(detail, ": overlay: ");
    return absl::StrCat(
        detail, overlay ? " (an overlay wants Linux 5.11, and a file system that can be a layer of "
                          "it: put the image on another one, such as a disk of the host's)"
                        : " (the host has to let users make namespaces and mounts in them: docs/"
                          "install.md, Images, names the settings)");
  }
  if (absl::StrContains(detail, "exec ") && absl::StrContains(detail, "Argument list too long"))
    return absl::StrCat(detail,
                        " (its variables, secrets among them, and the words of run are more "
                        "than a quarter of the host's stack limit: keep what is large in a "
                        "file)");
  if (LacksMustersPackage(detail))
    return absl::StrCat(detail,
                        " (the Python on that host lacks Muster's own package: pip install "
                        "Muster's python/ folder there, or run a Python that has it; muster score, "
                        "tune and dev take it as --python; or name a copy of that folder that the "
                        "hosts see, with --set env.PYTHONPATH=…, which muster dev takes as --env "
                        "PYTHONPATH=…)");
  if (!absl::StrContains(detail, "No such file or directory")) return detail;
  if (!WordAfter(detail, "workdir ").empty())
    return absl::StrCat(detail, " (it has to be there on every host)");
  const std::string program = WordAfter(detail, "exec ");
  if (program.empty()) return detail;
  if (program.find('/') != std::string::npos)
    return absl::StrCat(detail, " (it has to be there on every host)");
  const bool own_path = task.env().count("PATH") > 0;
  return absl::StrCat(detail, own_path ? " (not in env.PATH on that host)"
                                       : " (a job has its host's PATH, not the submitter's: give "
                                         "the whole path, or env.PATH)");
}

}  // namespace muster
