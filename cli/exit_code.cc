#include "cli/exit_code.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/client.h"
#include "cli/render/format.h"
#include "cli/up/lock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "network/client.h"

namespace muster {
namespace {

// Empty if there are none.
google::rpc::Status DetailsOf(const absl::Status& status) {
  google::rpc::Status details;
  const absl::optional<absl::Cord> payload = status.GetPayload(kDetailsUrl);
  if (!payload.has_value() || !details.ParseFromString(std::string(*payload))) details.Clear();
  return details;
}

// Nobody listens at `server`.
std::string WhatToDo(const std::string& server) {
  const UpHolder holder = UpLock::Serving(server, ProcessEnvironment);
  if (holder.pid != 0) {
    std::string text = absl::StrCat("  muster up (pid ", holder.pid, ", data in ", holder.data_dir,
                                    ") starts it again by itself.\n");
    for (absl::string_view line : absl::StrSplit(holder.trouble, '\n', absl::SkipEmpty()))
      absl::StrAppend(&text, "  ", Plain(std::string(line)), "\n");
    return absl::StrCat(text, "  Its logs: ", holder.data_dir,
                        "/logs     End it: ", DownCommand(holder.data_dir, ProcessEnvironment),
                        "\n");
  }
  std::string text =
      "  Start one on this machine: muster up     Or name another: --server unix:///path, "
      "MUSTER_SERVER\n";
  if (geteuid() == 0 && !ProcessEnvironment("SUDO_USER").empty()) {
    absl::StrAppend(&text, "  Under sudo this is root, whom the muster up of ",
                    Plain(ProcessEnvironment("SUDO_USER")),
                    " doesn't serve: run it without sudo\n");
  }
  return text;
}

}  // namespace

ExitCode ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
      return kExitBadInput;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitDenied;
    case absl::StatusCode::kAborted:
      return kExitChanged;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitUnreachable;
  }
}

ExitCode ExitCodeFor(pb::JobState final_state) {
  if (final_state == pb::SUCCEEDED) return kExitOk;
  return final_state == pb::CANCELLED ? kExitCancelled : kExitJobFailed;
}

std::vector<FieldProblem> ProblemsOf(const absl::Status& status) {
  std::vector<FieldProblem> out;
  const google::rpc::Status details = DetailsOf(status);
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::BadRequest bad;
    google::rpc::PreconditionFailure failure;
    if (any.UnpackTo(&bad)) {
      for (const auto& v : bad.field_violations()) {
        bool known = std::any_of(out.begin(), out.end(), [&](const FieldProblem& p) {
          return p.message == v.description() && p.path == v.field();
        });
        if (!known) out.push_back({v.field(), v.description()});
      }
    } else if (any.UnpackTo(&failure)) {
      for (const auto& v : failure.violations()) {
        bool known = std::any_of(out.begin(), out.end(), [&](const FieldProblem& p) {
          return p.message == v.description();
        });
        if (!known) out.push_back({v.subject(), v.description()});
      }
    }
  }
  return out;
}

bool MayWaitForCapacity(const absl::Status& status) {
  google::rpc::Status details = DetailsOf(status);
  return std::any_of(details.details().begin(), details.details().end(),
                     [](const google::protobuf::Any& any) {
                       google::rpc::ErrorInfo info;
                       return any.UnpackTo(&info) && info.reason() == "WAIT_FOR_CAPACITY";
                     });
}

std::string RenderError(const absl::Status& status, const std::string& server) {
  std::string message = Plain(std::string(status.message()));
  std::vector<FieldProblem> problems = ProblemsOf(status);
  std::string out;
  const bool servers_word = status.GetPayload(kDetailsUrl).has_value();  // it answers, but not now
  if (absl::IsUnavailable(status) && !servers_word && absl::StartsWith(server, kLoginScheme)) {
    return absl::StrCat(
        "muster: ", message, "\n",
        EndedBeforeAnyCall(status.message())
            ? "  Who answers there doesn't take this login: its authority was "
              "dropped in a rotation, or the\n  address is another scheduler's by "
              "now, or yours has too many connections there. Try again in "
              "half a\n  minute; else ask for an invitation and log in anew: muster login\n"
            : "  Is musterd running on its machine, and reached from here?\n");
  }
  if (absl::IsUnavailable(status) && !servers_word) {
    struct stat socket {};
    if (const std::string path(absl::StripPrefix(server, "unix://"));
        stat(path.c_str(), &socket) == 0 && socket.st_uid != geteuid()) {
      return absl::StrCat("muster: ", server, " is served by uid ", socket.st_uid,
                          ", who serves nobody else (single_user); you are uid ", geteuid(), "\n",
                          "  Start your own on this machine: muster up     Or name another: "
                          "--server unix:///path, MUSTER_SERVER\n");
    }
    if (message.find(server) == std::string::npos)
      message = absl::StrCat("no answer from ", server, message.empty() ? "" : ": ", message);
    return absl::StrCat("muster: ", message, "\n", WhatToDo(server));
  }
  if (absl::IsDeadlineExceeded(status))
    message = absl::StrCat(server, " accepts, but did not answer in time");
  if (message.empty()) message = absl::StatusCodeToString(status.code());
  out = absl::StrCat("muster: ", message, "\n");
  if (absl::IsUnauthenticated(status) && absl::StartsWith(server, kLoginScheme) &&
      !absl::StrContains(message, "muster login"))
    absl::StrAppend(&out, "  Ask for an invitation and log in anew: muster login\n");
  for (const FieldProblem& problem : problems) {
    if (message.find(Plain(problem.message)) != std::string::npos)
      continue;  // the status says it already
    std::string indent = absl::StrCat("  ", Plain(problem.path), problem.path.empty() ? "" : ": ");
    for (absl::string_view line : absl::StrSplit(problem.message, '\n', absl::SkipEmpty())) {
      absl::StrAppend(&out, indent, Plain(std::string(line)), "\n");
      indent = "  ";
    }
  }
  return out;
}

}  // namespace muster
