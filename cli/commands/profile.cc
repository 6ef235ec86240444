// `muster profile`: what a running job's processes do, by commands beside its workers.
#include <algorithm>
#include <filesystem>
#include <thread>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/run_beside.h"
#include "cli/commands/running_task.h"
#include "cli/exit_code.h"
#include "cli/profile.h"
#include "cli/render/array.h"
#include "cli/tunnel.h"
#include "common/base/files.h"
#include "common/base/units.h"

namespace muster {
namespace {

struct ProfileOptions {
  std::string id, task, time = "10s", out;
  std::vector<int> ranks;
  int steps = 5;
  bool stacks = false, steps_given = false;
};

constexpr int kRanks = 8;       // without --rank
constexpr int kMostRanks = 16;  // as many commands may run beside a job at once
constexpr int64_t kMostTime = 10 * kMinute;
// Exit codes of the scripts below.
constexpr int kNoSpy = 3, kNoPython = 4, kMayNotLook = 5, kTooLate = 6;

// The Python processes of this rank: they have its variables, and this command has, too.
constexpr char kFindPython[] = R"sh(
spy=$(command -v py-spy) || exit 3
files=$(grep -lsz "^MUSTER_SHIM_TOKEN=$MUSTER_SHIM_TOKEN\$" /proc/[0-9]*/environ)
[ -z "${LOCAL_RANK-}" ] || files=$(grep -lsz "^LOCAL_RANK=$LOCAL_RANK\$" $files)
found=
for file in $files; do
  pid=${file#/proc/} pid=${pid%/environ}
  case $(readlink "/proc/$pid/exe") in
    */python*) ;;
    *) grep -qs libpython "/proc/$pid/maps" || continue ;;
  esac
  found="$found $pid"
done
[ -n "$found" ] || exit 4
)sh";
// Without stopping it, which would end a call of its that can be interrupted: a write to a full
// pipe. A stack that changes meanwhile is read again.
constexpr char kDump[] = R"sh(
seen=
for pid in $found; do
  for try in 1 2 3 4 5; do
    stacks=$("$spy" dump --nonblocking --json --pid "$pid" 2>&1) && break
    [ "$try" -lt 5 ] || { printf '%s\n' "$stacks" >&2; continue 2; }
  done
  printf '%s\036' "$stacks"
  seen=yes
done
[ -n "$seen" ] || exit 5
)sh";
// $1: seconds. It doesn't stop what it looks at, so a sample may be torn; those are left out.
constexpr char kRecord[] = R"sh(
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
for pid in $found; do
  "$spy" record --nonblocking --idle --rate 100 --duration "$1" --format chrometrace \
    --output "$folder/$pid" --pid "$pid" > "$folder/$pid.said" 2>&1 &
done
wait
seen=
for pid in $found; do
  if [ -s "$folder/$pid" ]; then
    seen=yes
    cat "$folder/$pid"
    printf '\036'
  else
    cat "$folder/$pid.said" >&2
  fi
done
[ -n "$seen" ] || exit 5
)sh";
// muster-trainer, by a request. $1: steps, $2: seconds to wait at most.
constexpr char kRequest[] = R"sh(
folder=$MUSTER_JOB_DIR/profile asked=$MUSTER_REQUEST_DIR/profile
mkdir -p "$folder" && : > "$asked.since" || exit 1
trap 'rm -f "$asked" "$asked.since"' EXIT
printf %s "$1" > "$asked.new" && mv "$asked.new" "$asked" || exit 1
until=$(($(date +%s) + $2))
while :; do
  files=$(find "$folder" -name 'step-*.rank-*.json' -newer "$asked.since" | sort -V)
  [ "$(printf '%s\n' "$files" | grep -c .)" -lt "${WORLD_SIZE:-1}" ] || break
  [ "$(date +%s)" -lt "$until" ] || exit 6
  sleep 0.2
done
printf '%s\n' "$files" | while IFS= read -r file; do
  cat "$file"
  printf '\036'
done
)sh";

absl::Status WhyNot(int exit_code, int rank, const std::string& job_id) {
  const std::string where = absl::StrCat("rank ", rank, ": ");
  switch (exit_code) {
    case kNoRequests:
      return NoRequests(job_id);
    case kNoSpy:
      return absl::FailedPreconditionError(absl::StrCat(
          where, "py-spy is not on the job's PATH: pip install py-spy, where its Python is"));
    case kNoPython:
      return absl::FailedPreconditionError(absl::StrCat(
          where, "no Python runs there; profiles are of Python and of muster-trainer"));
    case kMayNotLook:
      return absl::FailedPreconditionError(
          absl::StrCat(where,
                       "py-spy may not look into the process; what it said is above. Where "
                       "kernel.yama.ptrace_scope is 1 on the host, an operator has to set 0"));
    case kTooLate:
      return absl::FailedPreconditionError(absl::StrCat(
          where, "not all ranks have recorded their steps in time; see muster logs ", job_id));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat(where, "what looks there ended with exit code ", exit_code,
                       "; what it said is above, and muster exec ", job_id,
                       " -- df . shows whether its storage answers and has room"));
  }
}

pb::ExecStart CommandOf(const ProfileOptions& options, const RunningTask& task, int rank,
                        const std::string& script, const std::vector<std::string>& arguments) {
  pb::ExecStart exec;
  exec.set_id(options.id);
  exec.set_task(task.name);
  exec.set_attempt(task.attempt);
  exec.set_rank(rank);
  for (const char* word : {"/bin/sh", "-c"}) exec.add_command(word);
  exec.add_command(script);
  exec.add_command("sh");
  for (const std::string& word : arguments) exec.add_command(word);
  return exec;
}

struct OfRank {
  int rank = 0;
  absl::StatusOr<std::vector<std::string>> documents = absl::UnknownError("");
};

OfRank TakeRank(int rank, const absl::StatusOr<RanBeside>& ran, const std::string& job_id) {
  OfRank one;
  one.rank = rank;
  if (!ran.ok())
    one.documents = ran.status();
  else if (ran->exit_code != 0)
    one.documents = WhyNot(ran->exit_code, rank, job_id);
  else
    one.documents = SplitDocuments(ran->output);
  return one;
}

// On all of them at once, so that they are of the same time.
std::vector<OfRank> LookAtRanks(const Session& session, Client* client, const Interrupt& interrupt,
                                const ProfileOptions& options, const RunningTask& task,
                                const std::vector<int>& ranks, const std::string& script,
                                const std::vector<std::string>& arguments) {
  std::vector<OfRank> all(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      const absl::StatusOr<RanBeside> ran =
          RunBesideAgain(client, interrupt, CommandOf(options, task, ranks[i], script, arguments),
                         [&](const std::string& why) {
                           session.Err(absl::StrCat("muster: rank ", ranks[i], ": ", why,
                                                    "; it is looked at again, for a minute\n"));
                         });
      all[i] = TakeRank(ranks[i], ran, options.id);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

// Says what ranks gave nothing; how the command ends if none gave anything.
int SayMissing(Session& session, const std::vector<OfRank>& all, bool* some) {
  int code = kExitOk;
  *some = false;
  for (const OfRank& one : all) {
    if (one.documents.ok())
      *some = true;
    else if (const int its = session.Fail(one.documents.status()); code == kExitOk)
      code = its;
  }
  return code;
}

int ShowStacks(Session& session, const std::vector<OfRank>& all) {
  bool some = false;
  int code = SayMissing(session, all, &some);
  for (const OfRank& one : all) {
    if (!one.documents.ok()) continue;
    session.Out(absl::StrCat("rank ", one.rank, "\n"));
    for (const std::string& dump : *one.documents) {
      const absl::StatusOr<std::string> text = RenderStacks(dump);
      if (!text.ok()) return session.Fail(text.status());
      session.Out(*text);
    }
  }
  return some ? kExitOk : code;
}

// profile-17.json; where it is there already, profile-17-2.json and so on: an earlier trace stays.
std::string FreeName(const std::string& job) {
  std::string name = absl::StrCat("profile-", job, ".json");
  for (int number = 2; std::filesystem::exists(name); ++number)
    name = absl::StrCat("profile-", job, "-", number, ".json");
  return name;
}

int WriteTrace(Session& session, const ProfileOptions& options, const std::vector<OfRank>& all) {
  bool some = false;
  const int code = SayMissing(session, all, &some);
  if (!some) return code;
  std::vector<RankTrace> traces;
  for (const OfRank& one : all) {
    if (!one.documents.ok()) continue;
    for (const std::string& document : *one.documents) traces.push_back({one.rank, document});
  }
  const absl::StatusOr<std::string> merged = MergeTraces(traces);
  if (!merged.ok()) return session.Fail(merged.status());
  const std::string path = options.out.empty() ? FreeName(options.id) : options.out;
  if (absl::Status written = WriteFileDurably(path, *merged); !written.ok())
    return session.Fail(written);
  session.Out(absl::StrCat(path, ": open it in Perfetto (ui.perfetto.dev) or chrome://tracing\n"));
  return kExitOk;
}

// muster-trainer's ranks write their traces themselves, to the storage that rank 0 sees, too. Asked
// once: of two requests that overlap, each would take away the other's.
int ProfileTrainer(Session& session, Client* client, const Interrupt& interrupt,
                   const ProfileOptions& options, const RunningTask& task) {
  if (options.stacks || !options.ranks.empty())
    return session.Fail(absl::InvalidArgumentError(
        absl::StrCat(options.stacks ? "--stacks" : "--rank", ": job ", options.id,
                     " runs muster-trainer, all of whose ranks record --steps of theirs")));
  const absl::StatusOr<RanBeside> ran =
      RunBeside(client, interrupt,
                CommandOf(options, task, 0, absl::StrCat(kRequestsOrExit, kRequest),
                          {absl::StrCat(options.steps), absl::StrCat(kMostTime / kSecond)}));
  if (interrupt.pending()) return kExitInterrupted;
  if (const CutOff cut = WhyCutOff(ran.status()); !ran.ok() && cut.may_begin_again) {
    session.Err(absl::StrCat("muster: ", cut.why, ". What ranks have recorded stays in profile/ ",
                             "of the job's directory; ask again in a moment: muster profile ",
                             options.id, "\n"));
    return ExitCodeFor(ran.status());
  }
  const OfRank asked = TakeRank(0, ran, options.id);
  if (!asked.documents.ok()) return session.Fail(asked.documents.status());
  std::vector<OfRank> ranks;
  for (const std::string& document : *asked.documents) {
    ranks.push_back({static_cast<int>(ranks.size()), std::vector<std::string>{document}});
  }
  return WriteTrace(session, options, ranks);
}

int Profile(Session& session, const ProfileOptions& options) {
  const absl::StatusOr<int64_t> time_ns = ParseDuration(options.time);
  if (!time_ns.ok() || *time_ns < kSecond || *time_ns > kMostTime)
    return session.Fail(absl::InvalidArgumentError(
        absl::StrCat("--for ", options.time, ": wants a time from 1s to 10m")));
  Interrupt interrupt;
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::Job> job = (*client)->Get(options.id);
  if (!job.ok()) return session.Fail(job.status());
  const absl::StatusOr<RunningTask> task = FindRunningTask(*job, options.task);
  if (!task.ok()) return session.Fail(task.status());
  if (task->trainer) return ProfileTrainer(session, *client, interrupt, options, *task);
  if (options.steps_given)
    return session.Fail(absl::InvalidArgumentError(
        absl::StrCat("--steps: job ", options.id,
                     " does not run muster-trainer, whose steps alone are known; --for 10s records "
                     "a time")));
  std::vector<int> ranks = options.ranks;
  for (int rank = 0; options.ranks.empty() && rank < std::min(task->ranks, kRanks); ++rank)
    ranks.push_back(rank);
  if (options.ranks.empty() && task->ranks > kRanks)
    session.Err(
        absl::StrCat("of ", task->ranks, " ranks the first ", kRanks, "; name others by --rank\n"));
  const std::string script = absl::StrCat(kFindPython, options.stacks ? kDump : kRecord);
  const std::vector<OfRank> all =
      LookAtRanks(session, *client, interrupt, options, *task, ranks, script,
                  {absl::StrCat((*time_ns + kSecond - 1) / kSecond)});
  if (interrupt.pending()) return kExitInterrupted;
  return options.stacks ? ShowStacks(session, all) : WriteTrace(session, options, all);
}

}  // namespace

void AddProfile(CLI::App& root, Session& session) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* profile =
      root.add_subcommand("profile", "What a running job's processes do: a trace, or their stacks");
  profile->add_option("job", options->id, "Number or uid; of an array a member, as 17_3")
      ->required();
  profile->add_option("--task", options->task, "Where several of its tasks run");
  profile->add_option("--rank", options->ranks, "Of these ranks, at most 16; default: the first 8")
      ->expected(1, kMostRanks);
  profile->add_option("--for", options->time, "Of Python: for so long")->capture_default_str();
  CLI::Option* steps =
      profile->add_option("--steps", options->steps, "Of muster-trainer: so many steps")
          ->check(CLI::Range(1, 100))
          ->capture_default_str();
  profile->add_flag("--stacks", options->stacks,
                    "Of Python: where each thread is now, and no trace");
  profile->add_option("--out", options->out,
                      "The trace's file; default profile-JOB.json, then profile-JOB-2.json");
  profile->callback([&session, options, steps] {
    options->steps_given = steps->count() > 0;
    session.command = [&session, options] { return Profile(session, *options); };
  });
}

}  // namespace muster
