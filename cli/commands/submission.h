// From a job file, or a spec made of flags, to a job on the server: what `submit`, `validate` and
// `run` share.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/interrupt.h"
#include "cli/session.h"
#include "common/spec/spec.h"

namespace muster {

// A job file as read. `name` is for messages; "-" is standard input.
struct JobFile {
  std::string name;
  std::string text;
  // Fields that a flag gave instead: field -> flag. What is wrong with one has no place in the
  // text.
  std::map<std::string, std::string> flags = {};
  // The command that made the text of a job, such as "muster rerun 28"; empty: it is a file.
  std::string again = {};
  std::string job = {};                  // that job
  std::optional<pb::JobSpec> spec = {};  // its, of which the text was made
};
// With an Interrupt alive, name it: it ends the reading of standard input.
absl::StatusOr<JobFile> ReadJobFile(const std::string& path, const Interrupt* interrupt = nullptr);

// What the server can tell a checker: queues, clusters, flavours, the trainer's schema. What it
// doesn't answer stays unknown.
SpecContext ContextOf(Client& client);
// The queue of that path; nullptr if there is none.
pb::QueueSpec* FindQueue(pb::QueueTree* tree, const std::string& path);
// The tree that the server has now, put together from its flat list.
absl::StatusOr<pb::QueueTree> PresentTree(Client& client);
// The queue for a job that names none: the settings' one, else the server's only leaf; empty: the
// user must say.
std::string DefaultQueue(const Settings& settings, const SpecContext& context);

// The problems on stderr, in FormatProblems' form, and a translation where the file is another
// scheduler's; kExitBadInput.
int FailWithProblems(Session& session, const std::vector<Problem>& problems, const JobFile& file,
                     const std::string& outcome);
// A refusal by the server, with the places in the file where `file` is not null.
int FailRefused(Session& session, const absl::Status& status, const JobFile* file,
                const std::string& outcome = "nothing was submitted");
// A line for each absolute workdir that isn't on this machine, and for each name of a sweep, and
// {{name}}, that has no effect.
std::string NotesOn(const pb::JobSpec& spec);

// A submission's idempotency key: the one asked for, else a new one.
std::string SubmissionKey(const std::string& asked);
// Submits with this process's umask. Repeats itself safely, with the same key, while the server is
// away or doesn't answer.
absl::StatusOr<pb::SubmitResponse> SubmitSpec(Client& client, const pb::JobSpec& spec,
                                              const std::string& key,
                                              bool wait_for_capacity = false);
// What SubmitSpec met: as FailRefused, or, where no answer came, that the job may be there and how
// to go on without submitting it twice: by which command, with that key.
int FailSubmitted(Session& session, const absl::Status& status, const JobFile* file,
                  const std::string& key, const std::string& by = "the same command");

// A job that a command has made, as a file: previewed, asked for, submitted and followed as `muster
// submit` does it.
struct SubmitMadeOptions {
  bool yes = false, detach = false, preview_only = false;
};
int SubmitMade(Session& session, const JobFile& file, const SubmitMadeOptions& options);

}  // namespace muster
