#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "common/spec/members.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/block_room.h"
#include "scheduler/ask/words/absent_text.h"
#include "scheduler/ask/words/after_text.h"
#include "scheduler/ask/words/clock_text.h"
#include "scheduler/ask/words/failure_text.h"
#include "scheduler/ask/words/together_text.h"
#include "scheduler/state/hosted.h"
#include "scheduler/state/strays.h"

namespace muster {
namespace {

constexpr int kHoldersTold = 8;

std::string Jobs(const pb::Verdict& verdict) {
  std::vector<std::string> numbers;
  for (uint64_t number : verdict.held_by()) numbers.push_back(absl::StrCat(number));
  return absl::StrCat(numbers.size() == 1 ? "job " : "jobs ", absl::StrJoin(numbers, ", "));
}

bool OfCores(const pb::Verdict& verdict) { return verdict.flavour() == "cpu"; }

// "h100-80g in phx", "cores in lab": so much of it, where that is known.
std::string Where(const pb::Verdict& verdict, int64_t milli = 0) {
  std::string where = !OfCores(verdict) ? verdict.flavour() : milli == 1000 ? "core" : "cores";
  if (!verdict.cluster().empty())
    absl::StrAppend(&where, where.empty() ? "in " : " in ", verdict.cluster());
  return where;
}

const char* AreFree(const pb::Verdict& verdict) {
  return OfCores(verdict) ? " are free" : " is free";
}

std::string Held(const State& state, const JobRow& job, int32_t task) {
  const std::string& path = job.spec->queue();
  const int32_t leaf = state.queues().Find(path);
  if (leaf < 0)
    return absl::StrCat("queue ", path,
                        " was removed; submit it to another, or apply queues that have it");
  if (!state.queues().leaf(leaf))
    return absl::StrCat("queue ", path, " has queues of its own now and takes no jobs");
  for (int32_t node = leaf; node >= 0; node = state.queues().nodes[node].parent) {
    if (state.queues().nodes[node].spec.held())
      return absl::StrCat("queue ", state.queues().nodes[node].path, " is held by its operator");
  }
  const std::string drains = Drains(state, AllowedClusters(state, job));
  if (drains.empty()) return "its queue is held, or its clusters are drained";
  return drains + Away(state, AllowedClusters(state, job), job.task_spec(task).resources());
}

// It waits for devices that others hold.
bool WaitsForOthers(pb::VerdictCode code) {
  return code == pb::V_CAPACITY || code == pb::V_SHARE || code == pb::V_LIMIT ||
         code == pb::V_RECLAIMING || code == pb::V_PLACEMENT || code == pb::V_ENTITLED_POOL;
}

// Calls f with each host that it could use, heard from or not just now, but for what their agents
// do; until that gives false.
template <typename F>
void EachHostOf(const State& state, const JobRow& job, const pb::TaskSpec& spec, F f) {
  const std::vector<int32_t> clusters = AllowedClusters(state, job);
  const auto& types = spec.resources().gpu_types();
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    const bool here = std::find(clusters.begin(), clusters.end(), host.cluster) != clusters.end();
    const bool fits =
        spec.resources().gpus_milli() == 0 ||
        std::find(types.begin(), types.end(), host.inventory.flavour()) != types.end();
    if (host.state != pb::HOST_NEVER_SEEN && here && fits && !f(host)) return;
  }
}

// Of the clusters that it names, those that are for another user's jobs alone.
std::string ForOthers(const State& state, const JobRow& job) {
  std::string text;
  for (const std::string& name : job.spec->clusters()) {
    const int32_t c = state.FindCluster(name);
    if (c < 0 || TakesJobsOf(state.clusters()[c].spec, job.owner)) continue;
    absl::StrAppend(&text, "; ", name, " is for jobs of ", state.clusters()[c].spec.only_user(),
                    " alone");
  }
  return text;
}

// No agent there does what it needs.
bool NobodyCan(const State& state, const JobRow& job, int32_t task) {
  const Abilities needs = NeedsOf(*job.spec, job.task_spec(task));
  bool any = false, able = needs == 0;
  if (able) return false;
  EachHostOf(state, job, job.task_spec(task), [&](const HostRow& host) {
    any = true;
    able = Can(AbilitiesOf(host.inventory), needs);
    return !able;
  });
  return any && !able;
}

// The hosts whose agents don't do what it needs, and what to do; at most four of a kind are named.
std::string Unable(const State& state, const JobRow& job, int32_t task) {
  const Abilities needs = NeedsOf(*job.spec, job.task_spec(task));
  if (needs == 0) return "";
  std::map<std::string, std::vector<std::string>> by_reason;
  bool able = false;
  EachHostOf(state, job, job.task_spec(task), [&](const HostRow& host) {
    const std::string why = WhyUnable(host.inventory, needs);
    able = able || why.empty();
    if (!why.empty()) by_reason[why].push_back(state.HostName(host.id));
    return true;
  });
  constexpr size_t kHostsTold = 4;
  std::vector<std::string> said;
  for (auto& [why, hosts] : by_reason) {
    const size_t more = hosts.size() > kHostsTold ? hosts.size() - kHostsTold : 0;
    hosts.resize(hosts.size() - more);
    said.push_back(absl::StrCat(absl::StrJoin(hosts, ", "),
                                more > 0 ? absl::StrCat(" and ", more, " more") : "", " ", why));
  }
  if (said.empty()) return "";
  return absl::StrCat(able ? "not every host can take it: " : "no host can take it: ",
                      absl::StrJoin(said, "; "));
}

// Workers whose devices the host has free in islands, as blocks of ranks want them.
int64_t HeldInIslands(const HostRow& host, const Demand& demand, const RankUnits& units) {
  if (units.island_gpus <= 1) return std::numeric_limits<int32_t>::max();
  std::map<int32_t, int64_t> by_island;
  for (size_t d = 0; d < host.device_used_milli.size(); ++d) {
    const pb::Device& device = host.inventory.devices(static_cast<int>(d));
    if (device.healthy() && host.device_used_milli[d] == 0) ++by_island[device.island()];
  }
  return InWholeIslands(units, by_island) / std::max<int64_t>(1, demand.gpus_milli / 1000);
}

// Why a gang doesn't fit though enough devices are free in the pool; without text: it fits.
struct Lack {
  pb::Verdict::Lacks what = pb::Verdict::LACKS_UNSPECIFIED;
  std::string text;
};

// The resource that lacks beside free devices, on the host that comes nearest.
Lack LackOf(const State& state, const JobRow& job, int32_t task, const pb::Verdict& verdict) {
  const pb::TaskSpec& spec = job.task_spec(task);
  const int32_t cluster = state.FindCluster(verdict.cluster());
  const bool gpus = spec.resources().gpus_milli() > 0;
  const Abilities needs = NeedsOf(*job.spec, spec);
  constexpr int kResources = 4;  // devices, cores, memory, disk
  int64_t fit_devices = 0, fit[kResources] = {};
  struct Most {
    int64_t free = -1, wants = 0;
    HostId host = kNoHost;
  } most[kResources];
  BlockRoom blocks(spec);
  int64_t in_blocks = 0;  // workers, whose blocks are together
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.cluster != cluster || !host.usable() || !Can(AbilitiesOf(host.inventory), needs) ||
        (gpus && host.inventory.flavour() != verdict.flavour()))
      continue;
    const Demand demand = WorkerDemand(spec, host.inventory);
    int64_t devices = 0, of_devices = std::numeric_limits<int32_t>::max();
    for (size_t d = 0; d < host.device_used_milli.size(); ++d) {
      if (host.inventory.devices(static_cast<int>(d)).healthy() &&
          1000 - host.device_used_milli[d] >= std::min<int64_t>(1000, demand.gpus_milli))
        ++devices;
    }
    if (gpus) of_devices = devices / std::max<int64_t>(1, demand.gpus_milli / 1000);
    const int64_t free[kResources] = {devices * 1000,
                                      host.inventory.cpus_milli() - host.cpus_used_milli,
                                      host.inventory.memory_bytes() - host.memory_used_bytes,
                                      host.inventory.disk_bytes() - host.disk_used_bytes};
    const int64_t wants[kResources] = {demand.gpus_milli, demand.cpus_milli, demand.memory_bytes,
                                       demand.disk_bytes};
    fit_devices += of_devices;
    int64_t of_all = of_devices;
    for (int r = 0; r < kResources; ++r) {
      const int64_t here = r == 0 || wants[r] == 0
                               ? of_devices
                               : std::min(of_devices, std::max<int64_t>(0, free[r]) / wants[r]);
      of_all = std::min(of_all, here);
      fit[r] += here;
      if ((of_devices > 0 || r == 0) && free[r] > most[r].free) most[r] = {free[r], wants[r], id};
    }
    in_blocks += blocks.Add(host, std::min(of_all, HeldInIslands(host, demand, blocks.units())),
                            pb::CLUSTER);
  }
  std::string unable = Unable(state, job, task);
  if (most[0].host == kNoHost) return {.text = unable};  // none of those that are up
  const std::string others = unable.empty() ? "" : absl::StrCat("; ", unable);
  const int32_t workers = spec.workers().min();
  const auto shown = [&](int r, int64_t amount) {
    return r == 0   ? absl::StrCat(FormatMilli(amount), " ", verdict.flavour())
           : r == 1 ? absl::StrCat(FormatMilli(amount), amount == 1000 ? " core" : " cores")
                    : FormatSize(amount);
  };
  const char* const kNames[kResources] = {"", "cores", "memory", "disk"};
  constexpr pb::Verdict::Lacks kLacks[kResources] = {
      pb::Verdict::LACKS_DEVICES, pb::Verdict::LACKS_CORES, pb::Verdict::LACKS_MEMORY,
      pb::Verdict::LACKS_DISK};
  for (int r = 0; r < kResources; ++r) {
    if (most[r].host == kNoHost ||
        (r == 0 ? !gpus || fit_devices >= workers : fit_devices < workers || fit[r] >= workers))
      continue;
    const std::string each =
        workers == 1 ? "each of its workers" : absl::StrCat("each of its ", workers, " workers");
    const int64_t fits = r == 0 ? fit_devices : fit[r];
    const std::string best = fits > 0
                                 ? absl::StrCat("; ", fits, " of the ", workers, " would fit now")
                                 : absl::StrCat("; the most free on one host is ",
                                                shown(r, std::max<int64_t>(0, most[r].free)), " (",
                                                state.HostName(most[r].host), ")");
    if (r == 0)
      return {kLacks[r],
              absl::StrCat("enough ", Where(verdict), " is free by number, but ", each, " takes ",
                           shown(r, most[r].wants), " of one host", best, others)};
    return {kLacks[r], absl::StrCat("waits for ", kNames[r], " in ", verdict.cluster(),
                                    gpus ? absl::StrCat(" beside free ", verdict.flavour()) : "",
                                    ": ", each, " takes ", shown(r, most[r].wants), best, others)};
  }
  if (blocks.asks() && in_blocks < workers)
    return {pb::Verdict::LACKS_NEARNESS, absl::StrCat("enough ", Where(verdict), AreFree(verdict),
                                                      ", but not ", BlocksText(spec), others)};
  const pb::TopologyLevel level = spec.topology().required();
  if (workers > 1 && level >= pb::ISLAND && level <= pb::BLOCK) {
    return {pb::Verdict::LACKS_NEARNESS,
            absl::StrCat("enough ", Where(verdict), AreFree(verdict), ", but not within one ",
                         absl::AsciiStrToLower(pb::TopologyLevel_Name(level)),
                         ", as topology.required says", others)};
  }
  return {};
}

// How a task that its queue isn't entitled to run, or that finds enough free and doesn't start,
// stands to others.
struct WhyNotYet {
  std::optional<Lack> lack;   // as far as it was looked at
  bool enough = false;        // what it needs is free, in its shape
  std::vector<KeptFor> kept;  // whom that is kept for; may be unknown
  bool share_left = false;    // its queue uses less than it is entitled to: for others of its jobs
  std::vector<uint64_t> ahead;  // which those are; may be unknown
};

// "job 174 (research/nlp)", and how many more.
std::string First(const State& state, const std::vector<KeptFor>& kept) {
  const JobRow* first = state.FindJob(kept[0].job);
  return absl::StrCat(
      "job ", kept[0].job, first == nullptr ? "" : absl::StrCat(" (", first->spec->queue(), ")"),
      kept.size() == 1
          ? ""
          : absl::StrCat(" and ", kept.size() - 1, kept.size() == 2 ? " other" : " others"));
}

// It would fit now, but isn't its turn.
std::string NotItsTurn(const State& state, const pb::Verdict& verdict, const WhyNotYet& standing) {
  if (standing.kept.empty())
    return absl::StrCat("enough ", Where(verdict), AreFree(verdict),
                        ", but kept for others, whose turn comes first");
  const int64_t until_ns = standing.kept[0].start_ns;
  return absl::StrCat("behind ", First(state, standing.kept), ", for which the free ",
                      Where(verdict), OfCores(verdict) ? " are kept" : " is kept",
                      until_ns > state.now_ns()
                          ? absl::StrCat(" until ", ClockTime(until_ns, state.now_ns()))
                          : "");
}

std::string AwaitedExport(const State& state, const JobRow& job, int32_t task) {
  const TaskRow& row = job.tasks[task];
  for (const AttemptRow& attempt : row.attempts) {
    if (attempt.export_staged.empty() || attempt.parts.empty()) continue;
    const HostId host = attempt.parts[0].host;
    std::string text = absl::StrCat("its processes are done; waits for ", state.HostName(host),
                                    " to publish the export to ", attempt.export_target);
    if (state.host(host).state == pb::HOST_UNREACHABLE)
      absl::StrAppend(&text, "; that host can't be reached");
    if (state.host(host).state == pb::HOST_SILENT) absl::StrAppend(&text, "; that host is silent");
    if (row.export_failures > 0)
      absl::StrAppend(&text, "; try ", row.export_failures, " of ", kExportTries,
                      " failed: ", row.export_detail);
    return absl::StrCat(text, "; muster cancel ", job.number, " gives it up, and it stays at ",
                        attempt.export_staged);
  }
  return "waits for its export to be published";
}

// What the cluster does by itself to have a host off that can't be reached; "": nothing.
std::string Fencing(const State& state, const HostRow& host) {
  if (!host.fence_detail.empty()) {
    return absl::StrCat(". fence_command was run to switch it off and failed, it is tried again: ",
                        host.fence_detail);
  }
  return state.clusters()[host.cluster].spec.fence_command_size() > 0
             ? ". fence_command is run to switch it off"
             : "";
}

// Which host may still run it, and what ends the wait for it (contract 9).
std::string Unreachable(const State& state, const JobRow& job, int32_t task) {
  const AttemptRow* attempt = job.tasks[task].current();
  std::string host;
  HostId waits_for = kNoHost;
  for (size_t p = 0; attempt != nullptr && p < attempt->parts.size(); ++p) {
    const PartRow& part = attempt->parts[p];
    if (part.over() || state.host(part.host).state != pb::HOST_UNREACHABLE) continue;
    if (!host.empty() && KnownOff(state.host(part.host), job.task_spec(task))) continue;
    host = state.HostName(part.host);
    waits_for = part.host;
  }
  if (host.empty()) return "its last attempt's host can't be reached, so it may still run there";
  std::string text = absl::StrCat(host, " can't be reached, so it may still run there");
  switch (UnreachableRule(job.task_spec(task), *attempt)) {
    case pb::FENCE:
      absl::StrAppend(
          &text, "; it starts elsewhere once its fence has stopped it there for certain, after ",
          FormatDuration((FenceWaitNs(job.task_spec(task)) + kSecond - 1) / kSecond * kSecond),
          " of silence");
      break;
    case pb::WAIT:
      absl::StrAppend(&text,
                      "; it waits for that host, unless somebody who switched it off says so: "
                      "muster host confirm-off ",
                      host, Fencing(state, state.host(waits_for)));
      break;
    default:
      absl::StrAppend(&text,
                      "; it starts elsewhere once one of its workers has failed and there is room");
  }
  return text;
}

// Of a restored store: all wait for its hosts; then a job for what one of them still runs of it.
std::string Restoring(const State& state, const JobRow& job) {
  if (state.restoring())
    return "a backup was restored: nothing starts until every host has said what it runs, or a "
           "lease has passed";
  const HostRow* row = nullptr;
  for (const HostId id : HostsWithStrays(state)) {
    if (row == nullptr && HasStrayOf(state, state.host(id), job)) row = &state.host(id);
  }
  if (row == nullptr) return "a backup was restored: it starts in a moment";
  const std::string host = state.HostName(row->id);
  const std::string remedy =
      row->state == pb::HOST_UNREACHABLE
          ? absl::StrCat(
                "That host can't be reached; if it is switched off, say so: muster host "
                "confirm-off ",
                host, Fencing(state, *row))
          : "That host is told to end it; if it can't, reboot it";
  return absl::StrCat("a backup was restored, and ", host,
                      " may still run an attempt of this job that the backup doesn't know; the job "
                      "starts once that is gone. ",
                      remedy);
}

// "lab/h1 is drained"; "": it takes what needs this.
std::string WhyHostTakesNothing(const State& state, const HostRow& host, Abilities needs) {
  const std::string unable = WhyUnable(host.inventory, needs);
  const std::string why = host.drained || state.clusters()[host.cluster].drained ? "is drained"
                          : host.quarantined() ? "is in quarantine"
                          : !host.inventory.low_disk().empty()
                              ? absl::StrCat("takes nothing new: ", host.inventory.low_disk())
                          : host.has_strays() ? "still runs what a restored store doesn't know"
                          : host.state != pb::HOST_UP ? "isn't heard from"
                                                      : unable;
  return why.empty() ? "" : absl::StrCat(state.HostName(host.id), " ", why);
}

// Of a job that runs on another one's devices, and doesn't yet.
std::string WaitsForHolder(const State& state, const JobRow& job, int32_t task) {
  const std::string holder = absl::StrCat("job ", job.holder);
  const AttemptRow* runs = HolderRuns(state, job);
  if (runs == nullptr) return absl::StrCat("waits until ", holder, " runs");
  const std::vector<int32_t> clusters = AllowedClusters(state, job);
  if (std::count(clusters.begin(), clusters.end(), runs->cluster) == 0)
    return absl::StrCat(holder, " runs in ", state.clusters()[runs->cluster].name,
                        " now, where this one may not start (its clusters, or where its files "
                        "are); it waits until ",
                        holder, " runs elsewhere");
  const pb::Resources& wants = job.task_spec(task).resources();
  if (wants.gpus_milli() > 0 &&
      std::count(wants.gpu_types().begin(), wants.gpu_types().end(), runs->flavour) == 0)
    return absl::StrCat(holder, " runs on ", runs->flavour,
                        " now, which gpu_types doesn't name; it waits until ", holder,
                        " runs on others");
  const Abilities needs = NeedsOf(*job.spec, job.task_spec(task));
  std::string why_not;
  for (const PartRow& part : runs->parts) {
    if (part.over()) continue;
    why_not = WhyHostTakesNothing(state, state.host(part.host), needs);
    if (why_not.empty()) break;
  }
  return why_not.empty()
             ? absl::StrCat("waits until ", holder, " has room for it")
             : absl::StrCat("waits until ", holder, " runs where it can start: ", why_not);
}

// Of a task that waits for jobs, for its turn in an array, or for others of its job.
std::string WaitsForOthersEnd(const State& state, const JobRow& job, int32_t task) {
  if (!job.awaits.empty()) return AfterText(state, job);
  if (job.later) {
    return absl::StrCat("waits for its turn: at most ", MembersAtATime(*job.spec),
                        " members of array ", job.array, " at a time");
  }
  std::vector<std::string> names;
  for (const std::string& name : job.task_spec(task).after()) {
    const int32_t before = TaskIndex(*job.spec, name);
    if (before >= 0 && job.tasks[before].state != pb::TASK_SUCCEEDED) names.push_back(name);
  }
  return absl::StrCat("waits for ", absl::StrJoin(names, ", "), " to succeed");
}

// Of a schedule whose time came before the job of the time before had ended, or while its owner
// might not submit.
std::string SkippedText(const JobRow& job) {
  if (job.skipped == 0) return "";
  const std::string text = absl::StrCat(
      "; ", job.skipped, job.skipped == 1 ? " time was" : " times were", " left out, ");
  if (!job.no_right) return absl::StrCat(text, "as job ", job.previous, " had not ended");
  return absl::StrCat(text, job.skipped == 1 ? "as " : "the newest as ", job.owner,
                      " may not submit to queue ", job.spec->queue(),
                      "; who administers it grants that: muster access grant ", job.owner,
                      " submitter ", job.spec->queue());
}

// Of a task that pauses after a failure.
std::string PausesText(const State& state, const JobRow& job, int32_t index) {
  const TaskRow& task = job.tasks[index];
  const std::string again =
      absl::StrCat("starts again at ", ClockTime(task.backoff_until_ns, state.now_ns()));
  if (task.attempts.empty()) return absl::StrCat("failed before; ", again);
  const AttemptRow& last = task.attempts.back();
  const pb::TaskSpec& spec = job.task_spec(index);
  const std::string why =
      last.detail.empty() ? CauseText(last.cause) : FailureText(spec, last.cause, last.detail);
  if (task.infra_failures > 0 && Infrastructure(last.cause)) {
    return absl::StrCat(
        "met a fault of the infrastructure",
        task.infra_failures > 1 ? absl::StrCat(" ", task.infra_failures, " times in a row") : "",
        " (", last.detail, ") and is tried again, on other hosts where there are any; ", again);
  }
  // The time comes first, as a narrow screen cuts off the end.
  const std::string counted =
      task.restarts_used > 0 && last.cause != pb::HOST_LOST
          ? absl::StrCat("; failure ", task.restarts_used, " of ",
                         MaxRestartsOf(*job.spec, index, job.member), " allowed")
          : "";
  return absl::StrCat(again, counted, ": attempt ", last.number, " failed",
                      why.empty() ? "" : absl::StrCat(", ", why));
}

std::string Reason(const State& state, const JobRow& job, int32_t task, const pb::Verdict& verdict,
                   const WhyNotYet& standing) {
  if (WaitsForOthers(verdict.code()) && NobodyCan(state, job, task))
    return Unable(state, job, task);
  if (standing.enough) return NotItsTurn(state, verdict, standing);
  const int64_t lacks_milli = verdict.missing_milli();
  const std::string missing =
      lacks_milli > 0 ? absl::StrCat(FormatMilli(lacks_milli), " more ") : "";
  switch (verdict.code()) {
    case pb::V_AFTER:
      return WaitsForOthersEnd(state, job, task);
    case pb::V_TIME:
      return absl::StrCat("waits for its time, ", ClockTime(job.not_before_ns, state.now_ns()),
                          SkippedText(job));
    case pb::V_STARTING_NOW:
      return absl::StrCat("starts now on ", Where(verdict));
    case pb::V_CAPACITY:
      return absl::StrCat("its turn has come, and it waits for ", missing,
                          Where(verdict, lacks_milli), " to become free");
    case pb::V_SHARE: {
      const auto leaves =
          std::count_if(state.queues().nodes.begin(), state.queues().nodes.end(),
                        [](const QueueNode& node) { return node.children.empty(); });
      std::string waits =
          absl::StrCat("waits for ", missing, Where(verdict, lacks_milli), " to become free");
      if (standing.share_left) return absl::StrCat(waits, "; ", ShareLeftText(job, standing.ahead));
      if (leaves <= 1) return waits;
      const int32_t leaf = state.queues().Find(job.spec->queue());
      const bool shortest = leaf >= 0 && state.queues().nodes[leaf].shortest_first;
      return absl::StrCat(
          waits, "; ", job.spec->queue(), " has its share, ",
          shortest ? "and shorter ones of it come first" : "so nobody is stopped for it");
    }
    case pb::V_LIMIT:
      return absl::StrCat(
          "a limit on the way to ", job.spec->queue(), " is reached",
          missing.empty() ? "" : absl::StrCat("; it lacks ", missing, Where(verdict, lacks_milli)));
    case pb::V_RECLAIMING:
      return absl::StrCat("is entitled to ", Where(verdict), "; others are being stopped for it");
    case pb::V_PLACEMENT: {
      if (!StartsWithText(job, task).empty())
        return absl::StrCat("no hosts of ", Where(verdict), " have room for all of them at once");
      const Lack lack = standing.lack ? *standing.lack : LackOf(state, job, task, verdict);
      return lack.text.empty() ? NotItsTurn(state, verdict, standing) : lack.text;
    }
    case pb::V_BACKOFF:
      return PausesText(state, job, task);
    case pb::V_UNREACHABLE:
      return Unreachable(state, job, task);
    case pb::V_CLUSTER: {
      const std::string lacks =
          missing.empty()
              ? "such devices"
              : absl::StrCat("as much as it needs; it lacks ", missing,
                             job.task_spec(task).resources().gpus_milli() > 0 ? "GPUs" : "cores");
      return absl::StrCat(
          "no cluster that it may use is up with ", lacks, ForOthers(state, job),
          Away(state, AllowedClusters(state, job), job.task_spec(task).resources()));
    }
    case pb::V_HELD:
      return Held(state, job, task);
    case pb::V_TOGETHER:
      return WaitsForTogetherText(state, job, task);
    case pb::V_HOLDER:
      return WaitsForHolder(state, job, task);
    case pb::V_EXPORT:
      return AwaitedExport(state, job, task);
    case pb::V_ENTITLED_POOL:
      return absl::StrCat("waits for its place, ", Where(verdict),
                          "; it goes elsewhere when that pays");
    case pb::V_REFUSED:
      return "what was planned for it broke a rule of Muster's own check and was dropped; it is "
             "tried again in a few seconds (please report this)";
    case pb::V_RESTORING:
      return Restoring(state, job);
    default:
      return "waits";
  }
}

// As many devices are free in the pool as the task wants, those that are kept for others among
// them: the plan counts only the rest.
bool EnoughFree(const State& state, const JobRow& job, int32_t task, const pb::Verdict& verdict) {
  const pb::TaskSpec& spec = job.task_spec(task);
  const int32_t cluster = state.FindCluster(verdict.cluster());
  int64_t free_milli = 0;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.cluster != cluster || !host.usable() || host.inventory.flavour() != verdict.flavour())
      continue;
    for (size_t d = 0; d < host.device_used_milli.size(); ++d) {
      if (host.inventory.devices(static_cast<int>(d)).healthy())
        free_milli += 1000 - host.device_used_milli[d];
    }
  }
  return spec.resources().gpus_milli() > 0 &&
         free_milli >= spec.workers().min() * spec.resources().gpus_milli();
}

// The verdict's code, held_by and missing_milli as they are told: a task that isn't entitled to
// more may still find enough free, and then it waits for its shape, or for its turn.
WhyNotYet WhyNotYetOf(const State& state, const Plan& plan, const JobRow& job, int32_t task,
                      PoolHolders* in, pb::Verdict* told) {
  WhyNotYet standing;
  const int32_t cluster = state.FindCluster(told->cluster());
  const bool enough = told->missing_milli() == 0 ||
                      (told->code() == pb::V_SHARE && EnoughFree(state, job, task, *told));
  if (enough && (told->code() == pb::V_SHARE || told->code() == pb::V_PLACEMENT)) {
    told->set_missing_milli(0);
    standing.lack = LackOf(state, job, task, *told);
    standing.enough = standing.lack->text.empty();
    if (!standing.enough) {
      told->set_code(pb::V_PLACEMENT);
      if (OfCores(*told) || standing.lack->what != pb::Verdict::LACKS_CORES) return standing;
      told->clear_held_by();  // who has such devices need not have the cores beside the free ones
      for (const uint64_t number : in->OfCoresBeside(cluster, told->flavour())) {
        if (number != job.number && told->held_by_size() < kHoldersTold) told->add_held_by(number);
      }
      return standing;
    }
    told->clear_held_by();
    for (const KeptFor& kept : in->KeptIn(cluster, told->flavour())) {
      if (kept.job == job.number) continue;
      standing.kept.push_back(kept);
      if (told->held_by_size() < kHoldersTold) told->add_held_by(kept.job);
    }
  } else if (told->code() == pb::V_SHARE) {
    const auto entitled = plan.entitled_milli.find({job.spec->queue(), told->flavour()});
    standing.share_left =
        entitled != plan.entitled_milli.end() &&
        in->UsedMilli(state.queues().Find(job.spec->queue()), told->flavour()) < entitled->second;
    if (standing.share_left)
      standing.ahead = in->Entitled(plan, job.spec->queue(), told->flavour());
  }
  return standing;
}

std::string TextOf(const State& state, const JobRow& job, int32_t task, const pb::Verdict& verdict,
                   const WhyNotYet& standing) {
  std::string text = Reason(state, job, task, verdict, standing);
  if (WaitsForOthers(verdict.code()) || verdict.code() == pb::V_CLUSTER)
    text = BehindStartsWith(job, task, text);
  if (verdict.held_by_size() > 0 && !standing.enough)
    absl::StrAppend(&text, "; held by ", Jobs(verdict));
  const int32_t cluster = state.FindCluster(verdict.cluster());
  if (verdict.code() != pb::V_HELD && verdict.code() != pb::V_STARTING_NOW && cluster >= 0) {
    if (const std::string drains = Drains(state, {cluster}); !drains.empty())
      absl::StrAppend(&text, "; ", drains);
    if (const std::string low = LowDisks(state, cluster); !low.empty())
      absl::StrAppend(&text, "; ", low);
  }
  if (const std::string spilled = SpillText(state, job, task); !spilled.empty())
    absl::StrAppend(&text, "; ", spilled);
  return text;
}

}  // namespace

std::string ShareLeftText(const JobRow& job, const std::vector<uint64_t>& ahead) {
  const std::string rest = absl::StrCat("the rest of ", job.spec->queue(), "'s share is for ");
  if (ahead.empty()) return absl::StrCat(rest, "others of its jobs, whose turn comes first");
  return absl::StrCat(
      rest, ahead.size() == 1 ? "job " : "jobs ",
      absl::StrJoin(ahead.begin(), ahead.begin() + std::min<ptrdiff_t>(3, ahead.size()), ", "),
      ahead.size() > 3 ? absl::StrCat(" and ", ahead.size() - 3, " more") : "",
      ", whose turn comes first");
}

pb::Verdict DescribeVerdict(const State& state, const Plan& plan, const JobRow& job, int32_t task,
                            PoolHolders* holders) {
  pb::Verdict told;
  const Verdict* verdict = plan.verdicts.Find({job.number, task});
  if (verdict == nullptr) return told;
  told.set_code(verdict->code);
  // A plan may be older than the clusters that the State has now.
  const bool known =
      verdict->cluster >= 0 && verdict->cluster < static_cast<int32_t>(state.clusters().size());
  if (known) told.set_cluster(state.clusters()[verdict->cluster].name);
  told.set_flavour(plan.verdicts.FlavourOf(*verdict));
  // Of what is drained nothing is missing: it is there, and takes no work.
  if (verdict->code != pb::V_HELD) told.set_missing_milli(verdict->missing_milli);
  told.set_expected_start_ns(verdict->expected_start_ns);
  WhyNotYet standing;
  if (WaitsForOthers(verdict->code) && NobodyCan(state, job, task)) {
    told.set_code(pb::V_PLACEMENT);  // nobody holds what it waits for
    told.clear_missing_milli();
  } else if (known && WaitsForOthers(verdict->code)) {
    PoolHolders mine(state);
    PoolHolders* in = holders != nullptr ? holders : &mine;
    for (const uint64_t number : in->Of(verdict->cluster, told.flavour())) {
      if (number != job.number && told.held_by_size() < kHoldersTold) told.add_held_by(number);
    }
    if (StartsWithText(job, task).empty())
      standing = WhyNotYetOf(state, plan, job, task, in, &told);
  }
  if (told.code() == pb::V_PLACEMENT && !standing.lack && StartsWithText(job, task).empty())
    standing.lack = LackOf(state, job, task, told);
  if (standing.lack) told.set_lacks(standing.lack->what);
  told.set_text(TextOf(state, job, task, told, standing));
  return told;
}

std::string VerdictText(const State& state, const JobRow& job, int32_t task,
                        const pb::Verdict& verdict) {
  return TextOf(state, job, task, verdict, WhyNotYet());
}

std::string SpillText(const State& state, const JobRow& job, int32_t task) {
  const TaskRow& row = job.tasks[task];
  const AttemptRow* attempt = row.current();
  if (row.spill_reason.empty() ||
      row.opened_attempt != (attempt != nullptr ? attempt->number : row.next_attempt))
    return "";
  if (attempt != nullptr && std::count(row.opened.begin(), row.opened.end(),
                                       state.clusters()[attempt->cluster].name) == 0)
    return "";
  const std::string at = ClockTime(row.opened_ns, state.now_ns());
  if (attempt != nullptr) return absl::StrCat("at ", at, ": ", row.spill_reason);
  return absl::StrCat("may start in ", row.opened.back(), ", too, since ", at,
                      ", when it was said: ", row.spill_reason);
}

}  // namespace muster
