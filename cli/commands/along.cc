#include "cli/commands/along.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "cli/render/format.h"

namespace muster {
namespace {

constexpr int64_t kPieceBytes = 48 << 10;  // at most so many are taken at once
constexpr int64_t kToldBytes = 4 << 20;    // what takes a moment is told
constexpr int kMostBeginnings = 5;         // where the server forgets what it had

absl::Status SendOne(Client& client, const std::string& directory, const Pack& pack) {
  const auto size = static_cast<int64_t>(pack.bytes.size());
  pb::PutPackRequest request;
  request.set_digest(pack.digest);
  request.set_size_bytes(size);
  int beginnings = 0;
  for (int64_t at = 0; at < size;) {
    const absl::StatusOr<pb::PutPackResponse> response = client.PutPack(request);
    if (absl::IsUnimplemented(response.status())) {
      return absl::FailedPreconditionError(
          "this musterd is older than directories that come along; name one that is on the hosts "
          "(--workdir /PATH)");
    }
    if (!response.ok()) return response.status();
    if (response->next_offset() < at && ++beginnings > kMostBeginnings)
      return absl::ResourceExhaustedError(
          absl::StrCat(directory,
                       ": musterd forgets what it has of this directory while it is sent: it "
                       "restarts again and again, or too many are sent at once. See its log, and "
                       "submit again"));
    at = response->next_offset();
    request.set_offset(at);
    request.set_data(
        pack.bytes.substr(static_cast<size_t>(std::clamp<int64_t>(at, 0, size)), kPieceBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> Packs::Add(const std::string& directory) {
  if (const auto found = by_directory_.find(directory); found != by_directory_.end())
    return found->second.digest;
  absl::StatusOr<Pack> pack = PackDirectory(directory);
  if (!pack.ok()) return pack.status();
  return (by_directory_[directory] = *std::move(pack)).digest;
}

std::vector<FieldProblem> Packs::AddWorkdirs(const std::string& base, pb::JobSpec* spec) {
  std::vector<FieldProblem> problems;
  for (int t = 0; t < spec->tasks_size(); ++t) {
    pb::TaskSpec* task = spec->mutable_tasks(t);
    if (task->workdir().empty() || task->workdir()[0] == '/' || !task->workdir_digest().empty())
      continue;
    const absl::StatusOr<std::string> digest =
        Add(task->workdir() == "." ? base : absl::StrCat(base, "/", task->workdir()));
    if (digest.ok()) {
      task->set_workdir_digest(*digest);
      continue;
    }
    problems.push_back(
        {TaskFieldPath(*spec, t, "workdir"), std::string(digest.status().message())});
  }
  return problems;
}

absl::Status Packs::Send(Session& session, Client& client, const pb::JobSpec& spec) const {
  for (const auto& [directory, pack] : by_directory_) {
    const bool named = std::any_of(spec.tasks().begin(), spec.tasks().end(), [&](const auto& task) {
      return task.workdir_digest() == pack.digest;
    });
    if (!named) continue;
    const auto size = static_cast<int64_t>(pack.bytes.size());
    if (session.for_people() && size >= kToldBytes) {
      session.Err(absl::StrCat("muster: sending ", Plain(directory), ": ", FormatSize(size), " in ",
                               pack.entries, pack.entries == 1 ? " entry" : " entries", "\n"));
    }
    if (absl::Status status = SendOne(client, directory, pack); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string BaseOf(const std::string& job_file) {
  const size_t slash = job_file.rfind('/');
  if (job_file == "-" || slash == std::string::npos) return ".";
  return slash == 0 ? "/" : job_file.substr(0, slash);
}

absl::Status AddVariables(const std::vector<std::string>& pairs, pb::JobSpec* spec) {
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    const std::string name = pair.substr(0, equals);
    const char* here = std::getenv(name.c_str());
    if (name.empty())
      return absl::InvalidArgumentError(
          absl::StrCat("--env ", pair, ": write NAME=VALUE, or NAME of a variable of this shell"));
    if (equals == std::string::npos && here == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--env ", name, ": this shell exports no variable of that name; write --env ", name,
          "=VALUE, or export it"));
    }
    (*spec->mutable_env())[name] = equals == std::string::npos ? here : pair.substr(equals + 1);
    for (pb::TaskSpec& task : *spec->mutable_tasks()) task.mutable_env()->erase(name);
  }
  return absl::OkStatus();
}

}  // namespace muster
