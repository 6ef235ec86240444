#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/capacity.h"
#include "scheduler/ask/evictions.h"
#include "scheduler/decide/decide.h"

namespace muster {
namespace {

constexpr char kPreviewUid[] = "ffffffffffffffffffffffffffffffff";

// The first task that wants devices, else the first.
int FirstTask(const pb::JobSpec& spec) {
  for (int t = 0; t < spec.tasks_size(); ++t) {
    if (spec.tasks(t).resources().gpus_milli() > 0) return t;
  }
  return 0;
}

// The job cut down to one task, which waits for nothing.
pb::JobSpec Alone(const pb::JobSpec& spec, int task) {
  pb::JobSpec alone = spec;
  alone.clear_tasks();
  *alone.add_tasks() = spec.tasks(task);
  alone.mutable_tasks(0)->clear_after();
  return alone;
}

struct Outcome {
  State state;   // with the job submitted
  Plan plan;
  uint64_t number = 0;
};

Outcome Try(const State& state, const pb::JobSpec& spec, const std::string& owner, int64_t now_ns, const SchedulingOptions& options) {
  Outcome outcome{state, {}, state.next_job_number()};
  pb::Event step;
  step.mutable_step()->set_now_ns(std::max(now_ns, state.now_ns()));
  step.mutable_step()->set_epoch(state.epoch());
  Apply(&outcome.state, step);
  pb::Event submit;
  pb::JobSubmitted* submitted = submit.mutable_job_submitted();
  submitted->set_uid(kPreviewUid);
  submitted->set_number(outcome.number);
  submitted->set_owner(owner);
  *submitted->mutable_spec() = spec;
  Apply(&outcome.state, submit);
  outcome.plan = Decide(outcome.state, outcome.state.now_ns(), options);
  return outcome;
}

std::string Within(const State& state, const pb::AttemptPlaced& placed) {
  std::string rack, block;
  bool one_rack = true, one_block = true;
  for (const pb::Placement& part : placed.placements()) {
    const HostId id = state.FindHost(placed.cluster(), part.host());
    if (id == kNoHost) continue;
    const HostRow& host = state.host(id);
    if (&part == &placed.placements(0)) {
      rack = host.rack;
      block = host.block;
    }
    one_rack = one_rack && host.rack == rack && host.block == block && !rack.empty();
    one_block = one_block && host.block == block && !block.empty();
  }
  if (placed.placements_size() == 1) return "1 host";
  return one_rack ? "1 rack" : one_block ? "1 block" : absl::StrCat(placed.placements_size(), " hosts");
}

void FillTaken(const Outcome& outcome, pb::PreviewResponse::Candidate* candidate) {
  for (const pb::Event& event : outcome.plan.events) {
    if (!event.has_attempt_stopping() || event.attempt_stopping().claimant().job_uid() != kPreviewUid) continue;
    if (std::optional<pb::PreviewResponse::Taken> taken = TakenBy(outcome.state, event.attempt_stopping())) *candidate->add_takes_from() = *std::move(taken);
  }
}

pb::PreviewResponse::Candidate CandidateIn(const State& state, const pb::JobSpec& alone, const std::string& owner, int64_t now_ns,
                                           const SchedulingOptions& options, const std::string& cluster, const std::string& flavour) {
  pb::PreviewResponse::Candidate candidate;
  candidate.set_cluster(cluster);
  candidate.set_flavour(flavour);
  candidate.set_workers(alone.tasks(0).workers().min());
  candidate.set_gpus_milli_per_worker(alone.tasks(0).resources().gpus_milli());
  pb::JobSpec spec = alone;
  spec.clear_clusters();
  spec.add_clusters(cluster);
  if (!flavour.empty()) {
    spec.mutable_tasks(0)->mutable_resources()->clear_gpu_types();
    spec.mutable_tasks(0)->mutable_resources()->add_gpu_types(flavour);
  }
  const Resolution resolution = ResolveSpec(state, spec, SpecDefaults{});
  if (!resolution.ok()) {
    candidate.set_start_ns(-1);
    candidate.set_reason(resolution.problems[0].message);
    return candidate;
  }
  const Outcome outcome = Try(state, spec, owner, now_ns, options);
  for (const pb::Event& event : outcome.plan.events) {
    if (!event.has_attempt_placed() || event.attempt_placed().key().job_uid() != kPreviewUid) continue;
    candidate.set_workers(event.attempt_placed().workers());
    candidate.set_within(Within(outcome.state, event.attempt_placed()));
    candidate.set_start_ns(outcome.state.now_ns());
  }
  FillTaken(outcome, &candidate);
  const auto verdict = outcome.plan.verdicts.find({outcome.number, 0});
  if (candidate.start_ns() == 0 && verdict != outcome.plan.verdicts.end()) {
    candidate.set_start_ns(verdict->second.expected_start_ns());
    if (candidate.takes_from().empty()) candidate.set_reason(VerdictText(outcome.state, *outcome.state.FindJob(outcome.number), 0, verdict->second));
  }
  return candidate;
}

std::string QueueLine(const State& state, const pb::JobSpec& alone, const std::string& flavour) {
  const int32_t node = state.queues().Find(alone.queue());
  if (node < 0 || flavour.empty()) return "";
  const auto use = UseByQueue(state);
  const auto held = use[node].find(flavour);
  const int64_t used_milli = held == use[node].end() ? 0 : held->second;
  const auto quota = state.queues().nodes[node].spec.quota().find(flavour);
  const int64_t guarantee_milli = quota == state.queues().nodes[node].spec.quota().end() ? 0 : quota->second.guarantee_milli();
  const int64_t demand_milli = alone.tasks(0).workers().min() * alone.tasks(0).resources().gpus_milli();
  return absl::StrCat("Queue ", alone.queue(), ": ", FormatMilli(used_milli), " ", flavour, " in use of ", FormatMilli(guarantee_milli),
                      " guaranteed, ", FormatMilli(used_milli + demand_milli), " with this job.");
}

// Smaller is better: never last, unknown before it, takes from nobody first among equals.
std::pair<int64_t, int> Rank(const pb::PreviewResponse::Candidate& candidate) {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max() - 1, kNever = std::numeric_limits<int64_t>::max();
  if (candidate.start_ns() < 0) return {kNever, 0};
  if (candidate.start_ns() == 0) return {candidate.takes_from().empty() ? kUnknown : 1, candidate.takes_from_size()};
  return {candidate.start_ns(), candidate.takes_from_size()};
}

}  // namespace

pb::PreviewResponse Preview(const State& state, const pb::JobSpec& resolved, const std::string& owner, int64_t now_ns,
                            const SchedulingOptions& options) {
  pb::PreviewResponse response;
  *response.mutable_resolved() = resolved;
  const int task = FirstTask(resolved);
  const pb::JobSpec alone = Alone(resolved, task);
  response.set_task(alone.tasks(0).name());

  std::vector<std::string> flavours(alone.tasks(0).resources().gpu_types().begin(), alone.tasks(0).resources().gpu_types().end());
  if (alone.tasks(0).resources().gpus_milli() == 0) flavours = {""};
  std::vector<std::string> clusters(alone.clusters().begin(), alone.clusters().end());
  if (clusters.empty()) {
    for (const ClusterRow& cluster : state.clusters()) clusters.push_back(cluster.name);
  }
  for (const std::string& cluster : clusters) {
    for (const std::string& flavour : flavours) {
      *response.add_candidates() = CandidateIn(state, alone, owner, now_ns, options, cluster, flavour);
    }
  }
  for (const ClusterRow& cluster : state.clusters()) {  // those that the job itself rules out, and why
    if (std::find(clusters.begin(), clusters.end(), cluster.name) != clusters.end()) continue;
    pb::PreviewResponse::Candidate* never = response.add_candidates();
    never->set_cluster(cluster.name);
    never->set_start_ns(-1);
    never->set_reason("not among the job's clusters");
  }
  for (pb::PreviewResponse::Candidate& candidate : *response.mutable_candidates()) {
    for (HostId id : state.hosts()) {
      const HostRow& host = state.host(id);
      if (state.clusters()[host.cluster].name == candidate.cluster()) candidate.set_declared(candidate.declared() || ShapeOf(state, host).declared());
    }
  }

  // What the whole job really gets, if it starts now; else the candidate that starts first.
  const Outcome outcome = Try(state, alone, owner, now_ns, options);
  std::string cluster, flavour;
  for (const pb::Event& event : outcome.plan.events) {
    if (!event.has_attempt_placed() || event.attempt_placed().key().job_uid() != kPreviewUid) continue;
    cluster = event.attempt_placed().cluster();
    flavour = event.attempt_placed().flavour();
  }
  pb::PreviewResponse::Candidate* chosen = nullptr;
  for (pb::PreviewResponse::Candidate& candidate : *response.mutable_candidates()) {
    if (!cluster.empty() ? candidate.cluster() == cluster && candidate.flavour() == flavour
                         : candidate.start_ns() >= 0 && (chosen == nullptr || Rank(candidate) < Rank(*chosen))) {
      chosen = &candidate;
    }
  }
  if (chosen != nullptr) chosen->set_chosen(true);
  response.set_queue_line(QueueLine(state, alone, chosen != nullptr ? chosen->flavour() : flavours[0]));
  return response;
}

}  // namespace muster
