#include "cli/commands/submission.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/commands/foreign.h"
#include "cli/render/format.h"
#include "common/base/files.h"
#include "common/base/ids.h"
#include "common/spec/member_names.h"

namespace muster {

absl::StatusOr<JobFile> ReadJobFile(const std::string& path, const Interrupt* interrupt) {
  JobFile file;
  file.name = path;
  if (path != "-") {
    absl::StatusOr<std::string> text = ReadFile(path, kMaxYamlBytes + 1);
    if (absl::IsOutOfRange(text.status())) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": larger than ", kMaxYamlBytes / 1024,
                                                     " KiB; a job file may have no more"));
    }
    if (!text.ok()) {
      std::string why(text.status().message());
      return absl::InvalidArgumentError(
          absl::StrContains(why, path) ? why : absl::StrCat(path, ": ", why));
    }
    file.text = *std::move(text);
    return file;
  }
  char buffer[65536];
  auto next = [&] {
    return interrupt != nullptr ? interrupt->Read(STDIN_FILENO, buffer, sizeof buffer)
                                : read(STDIN_FILENO, buffer, sizeof buffer);
  };
  for (ssize_t count; (count = next()) != 0;) {
    if (count < 0 && errno == EINTR)
      return absl::CancelledError("interrupted while reading the job from standard input");
    if (count < 0) return ErrnoStatus(errno, "standard input");
    file.text.append(buffer, static_cast<size_t>(count));
    if (file.text.size() > kMaxYamlBytes) break;  // ParseJobFile says so
  }
  return file;
}

SpecContext ContextOf(Client& client) {
  SpecContext context;
  if (auto queues = client.ListQueues(); queues.ok()) {
    for (const pb::Queue& queue : queues->queues()) {
      bool leaf = std::none_of(queues->queues().begin(), queues->queues().end(),
                               [&](const pb::Queue& other) {
                                 return absl::StartsWith(other.path(), queue.path() + "/");
                               });
      if (leaf) context.queues.push_back(queue.path());
    }
  }
  if (auto clusters = client.ListClusters(); clusters.ok()) {
    for (const pb::Cluster& cluster : clusters->clusters()) {
      context.clusters.push_back(cluster.name());
      for (const pb::Capacity& capacity : cluster.capacity()) {
        if (!capacity.flavour().empty())
          context.flavours[capacity.flavour()].push_back(cluster.name());
      }
    }
  }
  if (auto schema = client.TrainerSchema(); schema.ok())
    context.trainer_schema_json = schema->json();
  return context;
}

pb::QueueSpec* FindQueue(pb::QueueTree* tree, const std::string& path) {
  google::protobuf::RepeatedPtrField<pb::QueueSpec>* level = tree->mutable_queues();
  std::string rest = path;
  while (true) {
    const size_t slash = rest.find('/');
    pb::QueueSpec* found = nullptr;
    for (pb::QueueSpec& queue : *level) {
      if (queue.name() == rest.substr(0, slash)) found = &queue;
    }
    if (found == nullptr || slash == std::string::npos) return found;
    level = found->mutable_queues();
    rest = rest.substr(slash + 1);
  }
}

absl::StatusOr<pb::QueueTree> PresentTree(Client& client) {
  absl::StatusOr<pb::ListQueuesResponse> response = client.ListQueues();
  if (!response.ok()) return response.status();
  pb::QueueTree tree;
  for (const pb::Queue& queue : response->queues()) {  // parents come before their children
    const size_t slash = queue.path().rfind('/');
    pb::QueueSpec* parent =
        slash == std::string::npos ? nullptr : FindQueue(&tree, queue.path().substr(0, slash));
    *(parent == nullptr ? tree.add_queues() : parent->add_queues()) = queue.spec();
  }
  return tree;
}

std::string DefaultQueue(const Settings& settings, const SpecContext& context) {
  if (!settings.queue.empty()) return settings.queue;
  return context.queues.size() == 1 ? context.queues[0] : "";
}

int FailWithProblems(Session& session, const std::vector<Problem>& problems, const JobFile& file,
                     const std::string& outcome) {
  const Foreign foreign = TranslateForeign(file.text);
  if (foreign.replaces) {  // what is wrong with it as YAML helps nobody
    session.Err(absl::StrCat(file.name, ": ", foreign.what, ", ", outcome, "\n"));
    session.ErrAsItIs(foreign.text);
    return kExitBadInput;
  }
  ProblemFormat format;
  format.outcome = outcome;
  format.footer = file.job.empty() ? JobFooter(problems, file.name)
                                   : absl::StrCat(FieldsHint(problems),
                                                  "     Its file, to change it: muster show ",
                                                  file.job, " --spec");
  format.color = session.err_screen().color;
  std::string text = FormatProblems(problems, file.name, format);
  if (!text.empty() && text.back() != '\n') text += '\n';
  session.ErrAsItIs(text);  // pictures of lines
  if (!foreign.text.empty())
    session.ErrAsItIs(absl::StrCat(file.name, ": ", foreign.what, "\n", foreign.text));
  return kExitBadInput;
}

namespace {

// "  --queue: there is no queue nlp", a line each, of those that a flag gave; `found` keeps the
// others.
std::string OfFlags(const JobFile& file, std::vector<FieldProblem>* found) {
  std::string text;
  std::erase_if(*found, [&](const FieldProblem& problem) {
    const auto flag = file.flags.find(problem.path.substr(0, problem.path.find_first_of("[{.")));
    if (flag == file.flags.end()) return false;
    absl::StrAppend(&text, "  ", flag->second, ": ", Plain(problem.message), "\n");
    return true;
  });
  return text;
}

}  // namespace

int FailRefused(Session& session, const absl::Status& status, const JobFile* file,
                const std::string& outcome) {
  std::vector<FieldProblem> found = ProblemsOf(status);
  if (file == nullptr || found.empty()) return session.Fail(status);
  if (absl::IsInvalidArgument(status)) {
    const std::string flags = OfFlags(*file, &found);
    if (!flags.empty()) session.Err(absl::StrCat("muster: ", outcome, "\n", flags));
    if (found.empty()) return kExitBadInput;
    return FailWithProblems(session, PlaceProblems(file->text, file->name, found), *file, outcome);
  }
  if (absl::IsFailedPrecondition(status)) {
    std::string text = absl::StrCat(file->name, ": this job can never start, ", outcome, "\n");
    for (const FieldProblem& problem : found) {
      for (absl::string_view line : absl::StrSplit(problem.message, '\n', absl::SkipEmpty()))
        absl::StrAppend(&text, "  ", Plain(std::string(line)), "\n");
    }
    if (MayWaitForCapacity(status))
      absl::StrAppend(
          &text, "  Hosts are on their way? ",
          file->again.empty() ? absl::StrCat("muster submit ", file->name) : file->again,
          " --wait-for-capacity\n");
    session.Err(text);
    return kExitBadInput;
  }
  return session.Fail(status);
}

std::string NotesOn(const pb::JobSpec& spec) {
  std::string text;
  for (const std::string& note : NotesOnNames(spec))
    absl::StrAppend(&text, "muster: note: ", Plain(note), ".\n");
  for (int t = 0; t < spec.tasks_size(); ++t) {
    const std::string& workdir = spec.tasks(t).workdir();
    struct stat info;
    // With an image it may be of the image.
    if (workdir.empty() || workdir[0] != '/' || !spec.tasks(t).image().empty() ||
        (stat(workdir.c_str(), &info) == 0 && S_ISDIR(info.st_mode)))
      continue;
    const std::string field = spec.tasks_size() == 1 && spec.tasks(t).name() == "main"
                                  ? "workdir"
                                  : absl::StrCat("tasks[", spec.tasks(t).name(), "].workdir");
    absl::StrAppend(&text, "muster: note: ", field, " ", Plain(workdir),
                    ": no such directory on this machine. Where a host has none, the job fails. "
                    "To name another: --set ",
                    field, "=DIR\n");
  }
  return text;
}

std::string SubmissionKey(const std::string& asked) { return asked.empty() ? RandomId() : asked; }

absl::StatusOr<pb::SubmitResponse> SubmitSpec(Client& client, const pb::JobSpec& spec,
                                              const std::string& key, bool wait_for_capacity) {
  pb::SubmitRequest request;
  *request.mutable_spec() = spec;
  request.set_wait_for_capacity(wait_for_capacity);
  request.set_idempotency_key(key);
  mode_t mask = umask(0);
  umask(mask);
  request.set_umask(mask);
  return client.Submit(request);
}

int FailSubmitted(Session& session, const absl::Status& status, const JobFile* file,
                  const std::string& key, const std::string& by) {
  const bool answered = status.GetPayload(kDetailsUrl).has_value() ||
                        (ExitCodeFor(status) != kExitUnreachable && !absl::IsCancelled(status));
  if (answered || absl::IsResourceExhausted(status)) return FailRefused(session, status, file);
  session.Err(absl::StrCat(
      "muster: no certain answer to the submission (", Plain(std::string(status.message())),
      "): the job may have been submitted, or not.\n", "  Safe to repeat: ", by,
      " with --idempotency-key ", key, "\n  Look: muster jobs\n"));
  return kExitUnreachable;
}

}  // namespace muster
