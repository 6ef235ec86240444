// What an attempt needs of its job's storage and of the scheduler before it can start.
#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/host/processes.h"
#include "agent/shim/act.h"
#include "agent/shim/private_mounts.h"
#include "common/base/descriptor.h"
#include "common/base/secret_use.h"

namespace muster::agent {
namespace {

// What an attempt needs of its job's storage, and its workdir. `spread`: the directory of all
// jobs', if it is to be looked at, too.
shim::ActRequest RequestOf(const v1::Prepare& prepare, const std::string& spread) {
  shim::ActRequest request;
  request.umask = UmaskOf(prepare);
  request.job_directory = prepare.job_directory();
  for (const std::string* directory :
       {&prepare.attempt_directory(), &prepare.checkpoint_directory()}) {
    // Checkpoints in an object store have no directories.
    if (!directory->empty() && !absl::StrContains(*directory, "://"))
      request.directories.push_back(*directory);
  }
  request.spread = spread;
  request.unpacked = UnpackedName(prepare);
  request.image = prepare.task().image();
  // One that goes with an image may be of the image.
  if (request.unpacked.empty() && request.image.empty()) request.workdir = prepare.task().workdir();
  if (!prepare.task().trainer_json().empty()) {
    request.trainer_directory = prepare.attempt_directory();
    request.trainer_json = prepare.task().trainer_json();
  }
  return request;
}

using Variables = std::vector<shim::EnvironmentVariable>;

// musterd says what runs as whom, and in Prepare with which variables: exactly those.
absl::Status CheckSecrets(const google::protobuf::RepeatedPtrField<std::string>& named,
                          const Variables& values) {
  std::vector<std::string> wanted, got;
  for (const std::string& text : named) wanted.push_back(ReadSecretUse(text).variable);
  for (const shim::EnvironmentVariable& value : values) got.push_back(value.name);
  std::sort(wanted.begin(), wanted.end());
  std::sort(got.begin(), got.end());
  if (wanted != got) {
    return absl::AbortedError(
        absl::StrCat("the scheduler sent the secrets ", absl::StrJoin(got, ", "),
                     " and not those that the job names: ", absl::StrJoin(wanted, ", ")));
  }
  for (const shim::EnvironmentVariable& value : values) {
    if (absl::StrContains(value.value, absl::string_view("\0", 1)))
      return absl::InvalidArgumentError(absl::StrCat(
          "the secret for ", value.name, " has a NUL, which no variable can hold: set it anew"));
  }
  return absl::OkStatus();
}

// A job of several users' host has these for itself: what lies there on the host it doesn't see.
absl::Status CheckVisible(const v1::Prepare& prepare) {
  for (const std::string* path :
       {&prepare.job_directory(), &prepare.attempt_directory(), &prepare.checkpoint_directory()}) {
    if (shim::IsPrivate(*path))
      return absl::FailedPreconditionError(
          absl::StrCat(*path, ": ", shim::WhyPrivate(*path), "; give the storage another path"));
  }
  if (shim::IsPrivate(prepare.task().image()))
    return absl::InvalidArgumentError(absl::StrCat("image ", prepare.task().image(), ": ",
                                                   shim::WhyPrivate(prepare.task().image()),
                                                   "; put it on a storage"));
  if (shim::IsPrivate(prepare.task().workdir()))
    return absl::InvalidArgumentError(absl::StrCat("workdir ", prepare.task().workdir(), ": ",
                                                   shim::WhyPrivate(prepare.task().workdir()),
                                                   "; name one below your home or on a storage"));
  return absl::OkStatus();
}

}  // namespace

absl::Status HostProcesses::CheckOwner(const v1::Prepare& prepare) const {
  const std::string& owner = prepare.owner();
  if (host_.as_owners) return CheckVisible(prepare);
  if (owner.empty() || host_.user.empty() || owner == host_.user ||
      owner == absl::StrCat(::geteuid()))
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the agent of this host serves ", host_.user, " alone (--single-user), and the job is ",
      owner, "'s: an agent that runs as root without --single-user serves all"));
}

absl::Status HostProcesses::PrepareStorage(const v1::Prepare& prepare) {
  if (absl::Status status = CheckOwner(prepare); !status.ok()) return status;
  bool archive = false;
  // What is fetched already comes after all else is done.
  if (threads_ == nullptr || !threads_->Has({IdOf(prepare.key()), StorageUse::kFetch})) {
    absl::Status made = MakeOnStorage(prepare);
    archive = WantsArchive(made);
    if (!made.ok() && !archive) return made;
    if (!archive && prepare.secrets_size() == 0) return absl::OkStatus();
  }
  return Fetch(prepare, archive);
}

absl::Status HostProcesses::MakeOnStorage(const v1::Prepare& prepare) {
  const std::string jobs = prepare.job_directory().substr(0, prepare.job_directory().rfind('/'));
  const bool spread = !jobs.empty() && spread_.insert(jobs).second;
  StorageWork work = owners_ != nullptr ? WorkAsOwner(prepare, spread ? jobs : "")
                                        : Work(prepare, spread ? jobs : "");
  if (work.where.empty() || threads_ == nullptr) return work.run();
  absl::Status status = threads_->Do({IdOf(prepare.key()), StorageUse::kPrepare}, std::move(work));
  if (spread && !status.ok() && !absl::IsUnavailable(status)) spread_.erase(jobs);
  return status;
}

// Empty where nobody else serves what it needs.
std::string HostProcesses::ServedByOthers(const v1::Prepare& prepare) {
  std::set<std::string> served;
  for (const std::string* path :
       {&prepare.attempt_directory(), &prepare.job_directory(), &prepare.checkpoint_directory(),
        &prepare.task().workdir(), &prepare.task().image()}) {
    if (path->empty() || absl::StrContains(*path, "://")) continue;
    if (std::string mount = mounts_.ServedByOthers(*path); !mount.empty())
      served.insert(std::move(mount));
  }
  return absl::StrJoin(served, ", ");
}

StorageWork HostProcesses::Work(const v1::Prepare& prepare, const std::string& spread) {
  return {
      .where = ServedByOthers(prepare),
      .may_be_given_up = true,
      .run = [request = RequestOf(prepare, spread)] { return ToStatus(shim::Act(request)); },
  };
}

// The name services may hang, and so may what the owner planted on its way: by a thread, always, of
// which others' jobs don't wait.
StorageWork HostProcesses::WorkAsOwner(const v1::Prepare& prepare,
                                       const std::string& spread) const {
  return {.where = absl::StrCat("the name service or storage of ", prepare.owner()),
          .may_be_given_up = true,
          .run = [owners = owners_, name = prepare.owner(),
                  request = RequestOf(prepare, spread)]() -> absl::Status {
            const absl::StatusOr<Owner> owner = owners->Ask(name);
            return owner.ok() ? owners->Act(*owner, request) : owner.status();
          }};
}

// Fetches the packed directory and unpacks it; asked for only where no host has done so yet.
std::function<absl::Status()> HostProcesses::UnpackWork(const v1::Prepare& prepare) const {
  return [request = RequestOf(prepare, ""), key = prepare.key(), name = prepare.owner(),
          digest = prepare.task().workdir_digest(), fetch = fetch_,
          owners = owners_]() mutable -> absl::Status {
    if (!fetch) return absl::FailedPreconditionError("this agent can't fetch directories");
    const absl::StatusOr<int> archive = fetch(key, digest);
    if (!archive.ok()) return archive.status();
    const Descriptor open(*archive);
    request.archive = *archive;
    if (owners == nullptr) return ToStatus(shim::Act(request));
    const absl::StatusOr<Owner> owner = owners->Known(name);
    return owner.ok() ? owners->Act(*owner, request) : owner.status();
  };
}

// What only the scheduler has: by a thread, and patiently, as it may be restarted meanwhile. The
// values of secrets are taken while somebody asks for them, not once their attempt is gone.
absl::Status HostProcesses::Fetch(const v1::Prepare& prepare, bool archive) {
  const AttemptId id = IdOf(prepare.key());
  const auto brought = std::make_shared<Variables>();
  StorageWork work;
  work.where = "the scheduler";
  if (archive)
    absl::StrAppend(&work.where, ", or no end of unpacking on ",
                    owners_ != nullptr ? absl::StrCat("the storage of ", prepare.owner())
                                       : "the job's storage");
  work.may_be_given_up = true;
  work.patience_ns = kFetchPatienceNs;
  work.of_this_host = false;
  work.run = [unpack = archive ? UnpackWork(prepare) : nullptr, key = prepare.key(),
              named = prepare.secrets(), fetch = fetch_secrets_, brought]() -> absl::Status {
    if (unpack) {
      if (absl::Status status = unpack(); !status.ok()) return status;
    }
    if (named.empty()) return absl::OkStatus();
    if (!fetch) return absl::FailedPreconditionError("this agent can't fetch secrets");
    absl::StatusOr<Variables> values = fetch(key);
    if (!values.ok()) return values.status();
    *brought = *std::move(values);
    return CheckSecrets(named, *brought);
  };
  work.take = [this, id, brought] {
    if (!brought->empty()) secrets_[id] = std::move(*brought);
  };
  if (threads_ != nullptr) return threads_->Do({id, StorageUse::kFetch}, std::move(work));
  absl::Status status = work.run();
  if (status.ok()) work.take();
  return status;
}

// They are asked for while the attempt prepares. An agent that was restarted since asks again.
absl::Status HostProcesses::HoldSecrets(const v1::Prepare& prepare) {
  const bool held = prepare.secrets().empty() || secrets_.contains(IdOf(prepare.key()));
  return held ? absl::OkStatus() : Fetch(prepare, /*archive=*/false);
}

void HostProcesses::AddSecrets(const AttemptId& id, shim::Spec* spec) const {
  const auto held = secrets_.find(id);
  if (held == secrets_.end()) return;
  for (const shim::EnvironmentVariable& value : held->second) {
    std::erase_if(spec->env,
                  [&](const shim::EnvironmentVariable& other) { return other.name == value.name; });
    spec->env.push_back(value);
  }
}

}  // namespace muster::agent
