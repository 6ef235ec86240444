// What a submission would get: each pool that the job may use is tried alone, by the real Decide
// and what follows from it.
#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "common/spec/together.h"
#include "common/spec/when.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/capacity.h"
#include "scheduler/ask/future.h"
#include "scheduler/ask/taken.h"
#include "scheduler/ask/words/absent_text.h"
#include "scheduler/ask/words/after_text.h"
#include "scheduler/ask/words/clock_text.h"
#include "scheduler/ask/words/standing_text.h"
#include "scheduler/decide/decider.h"

namespace muster {
namespace {

constexpr char kPreviewUid[] = "ffffffffffffffffffffffffffffffff";
constexpr size_t kTried = 16;  // pools that are tried; the others of a long list are left out

// The first task that wants devices, else the first.
int FirstTask(const pb::JobSpec& spec) {
  for (int t = 0; t < spec.tasks_size(); ++t) {
    if (spec.tasks(t).resources().gpus_milli() > 0) return t;
  }
  return 0;
}

// The job cut down to one task and what starts together with it, which wait for nothing.
pb::JobSpec Alone(const pb::JobSpec& spec, int task) {
  pb::JobSpec alone = spec;
  alone.clear_tasks();
  *alone.add_tasks() = spec.tasks(task);
  for (const int other : TogetherWith(spec, task)) {
    if (other != task) *alone.add_tasks() = spec.tasks(other);
  }
  for (pb::TaskSpec& one : *alone.mutable_tasks()) one.clear_after();
  return alone;
}

class Previewer {
 public:
  Previewer(const State& state, const pb::JobSpec& resolved, const std::string& owner,
            int64_t now_ns, const SchedulingOptions& scheduling, const FutureOptions& options)
      : state_(state),
        alone_(Alone(resolved, FirstTask(resolved))),
        owner_(owner),
        now_ns_(std::max(now_ns, state.now_ns())),
        scheduling_(scheduling),
        options_(options) {
    options_.decider = &decider_;
    for (const HostId id : state.hosts()) {
      const HostRow& host = state.host(id);
      const pb::Inventory shape = ShapeOf(state, host);
      if (!shape.flavour().empty()) flavours_in_[host.cluster].insert(shape.flavour());
      if (shape.declared()) declared_.insert(host.cluster);
    }
  }

  void Fill(pb::PreviewResponse* response) {
    response->set_task(task().name());
    std::vector<int32_t> allowed;
    for (const std::string& name : alone_.clusters()) {
      if (const int32_t c = state_.FindCluster(name); c >= 0) allowed.push_back(c);
    }
    for (int32_t c = 0; c < static_cast<int32_t>(state_.clusters().size()); ++c) {
      if (alone_.clusters().empty()) allowed.push_back(c);
    }
    std::erase_if(allowed,
                  [&](int32_t c) { return !TakesJobsOf(state_.clusters()[c].spec, owner_); });
    size_t tried = 0;
    for (const int32_t c : allowed) {
      std::vector<std::string> flavours;
      for (const std::string& type : task().resources().gpu_types()) {
        if (flavours_in_[c].contains(type)) flavours.push_back(type);
      }
      if (task().resources().gpus_milli() == 0) flavours = {""};
      if (flavours.empty()) {
        Never(response, c, "",
              flavours_in_[c].empty()
                  ? "has no GPUs"
                  : absl::StrCat("gpu_types allows only ",
                                 absl::StrJoin(task().resources().gpu_types(), ", ")));
      }
      for (const std::string& flavour : flavours) {
        if (++tried <= kTried) Candidate(response, c, flavour);
      }
    }
    for (int32_t c = 0; c < static_cast<int32_t>(state_.clusters().size()); ++c) {
      if (std::find(allowed.begin(), allowed.end(), c) != allowed.end()) continue;
      const pb::ClusterSpec& cluster = state_.clusters()[c].spec;
      Never(response, c, "",
            TakesJobsOf(cluster, owner_)
                ? "not among the job's clusters"
                : absl::StrCat("is for jobs of ", cluster.only_user(), " alone"));
    }
    Choose(response);
  }

 private:
  const pb::TaskSpec& task() const { return alone_.tasks(0); }

  // Devices of the flavour that the task takes with so many workers, and what starts together with
  // it.
  int64_t DemandMilli(int32_t workers, const std::string& flavour) const {
    int64_t demand_milli = workers * task().resources().gpus_milli();
    for (int t = 1; t < alone_.tasks_size(); ++t) {
      const pb::Resources& wants = alone_.tasks(t).resources();
      if (std::count(wants.gpu_types().begin(), wants.gpu_types().end(), flavour) > 0)
        demand_milli += alone_.tasks(t).workers().min() * wants.gpus_milli();
    }
    return demand_milli;
  }

  pb::PreviewResponse::Candidate* Add(pb::PreviewResponse* response, int32_t cluster,
                                      const std::string& flavour) {
    pb::PreviewResponse::Candidate* candidate = response->add_candidates();
    candidate->set_cluster(state_.clusters()[cluster].name);
    candidate->set_flavour(flavour);
    candidate->set_declared(declared_.contains(cluster));
    candidate->set_workers(task().workers().min());
    candidate->set_gpus_milli_per_worker(task().resources().gpus_milli());
    return candidate;
  }

  void Never(pb::PreviewResponse* response, int32_t cluster, const std::string& flavour,
             const std::string& reason) {
    pb::PreviewResponse::Candidate* candidate = Add(response, cluster, flavour);
    candidate->set_start_ns(-1);
    candidate->set_reason(reason);
  }

  void Candidate(pb::PreviewResponse* response, int32_t cluster, const std::string& flavour) {
    pb::JobSpec spec = alone_;
    spec.clear_clusters();
    spec.add_clusters(state_.clusters()[cluster].name);
    for (pb::TaskSpec& one : *spec.mutable_tasks()) {
      if (flavour.empty() || one.resources().gpus_milli() == 0) continue;
      one.mutable_resources()->clear_gpu_types();
      one.mutable_resources()->add_gpu_types(flavour);
    }
    if (const Resolution resolution = ResolveSpec(state_, spec, SpecDefaults{}, false, owner_);
        !resolution.ok()) {
      return Never(response, cluster, flavour, TooLarge(cluster, flavour, resolution.problems[0]));
    }
    if (state_.clusters()[cluster].drained) {
      const std::string& why = state_.clusters()[cluster].drain_reason;
      return Never(response, cluster, flavour,
                   absl::StrCat("is drained", why.empty() ? "" : ": ", why));
    }
    pb::PreviewResponse::Candidate* candidate = Add(response, cluster, flavour);
    Future future = Submitted(spec);
    const Foreseen* placed = future.RunUntilPlaced(ref_);
    if (placed == nullptr) {
      if (const JobRow* job = future.state().FindJob(ref_.job); job != nullptr)
        candidate->set_reason(WhyUnknown(future, *job, cluster));
      return;
    }
    const Foreseen start = *placed;  // further steps move what is foreseen
    candidate->set_start_ns(start.at_ns);
    candidate->set_workers(start.workers);
    candidate->set_within(WithinText(state_, start.hosts));
    candidate->set_place(PlaceText(state_, start.hosts));
    future.Step();  // where do those go whom it takes from?
    for (pb::PreviewResponse::Taken& taken : TakenFor(future, ref_.job))
      *candidate->add_takes_from() = std::move(taken);
    if (start.at_ns <= now_ns_ || candidate->takes_from_size() > 0) return;
    for (const Foreseen& seen : future.foreseen()) {
      if (seen.kind == Foreseen::kEnded && seen.at_ns == start.at_ns &&
          (seen.cluster == start.cluster || Awaits(seen.task.job)) &&
          candidate->after_jobs_size() < 3) {
        candidate->add_after_jobs(seen.task.job);
      }
    }
  }

  // Why it isn't known when the job starts there.
  std::string WhyUnknown(const Future& future, const JobRow& job, int32_t cluster) const {
    if (future.cut()) return "the time to look ahead ran out";
    if (job.not_before_ns != 0 && job.awaits.empty())
      return absl::StrCat("it waits for its time, ", ClockTime(job.not_before_ns, now_ns_),
                          ", which is too far away to look so far ahead");
    if (!job.awaits.empty())
      return absl::StrCat("it ", AfterText(future.state(), job), ", and nobody knows when that is");
    const pb::Verdict verdict =
        DescribeVerdict(future.state(), future.plan(), job, ref_.task, nullptr);
    switch (verdict.code()) {
      case pb::V_HELD:  // what is drained or away comes back when somebody sees to it, whoever ends
      case pb::V_HOLDER:
      case pb::V_RESTORING:
        return verdict.text();
      case pb::V_CLUSTER:
        return absl::StrCat("is not up with as much as it needs",
                            Away(state_, {cluster}, task().resources()));
      case pb::V_PLACEMENT:  // no host can take it
        if (verdict.held_by().empty()) return verdict.text();
        break;
      default:
        break;
    }
    return "nobody's end is known that would make room for it";
  }

  // The job waits for that one, wherever it runs.
  bool Awaits(uint64_t number) const {
    const auto names = [&](const std::string& id) {
      const JobRow* job = state_.FindJobByText(id);
      return job != nullptr && (job->number == number || job->array == job->number);
    };
    return std::any_of(alone_.after().begin(), alone_.after().end(), names) ||
           std::any_of(alone_.after_any().begin(), alone_.after_any().end(), names);
  }

  std::string TooLarge(int32_t cluster, const std::string& flavour,
                       const FieldProblem& problem) const {
    const int64_t demand_milli = DemandMilli(task().workers().min(), flavour);
    const std::map<int32_t, int64_t> capacity = PoolCapacity(state_, flavour);
    const auto has = capacity.find(cluster);
    const int64_t has_milli = has == capacity.end() ? 0 : has->second;
    if (demand_milli > has_milli)
      return absl::StrCat("has ", FormatMilli(has_milli), " of the ", FormatMilli(demand_milli),
                          " that it needs");
    if (problem.message.find("can never start") == std::string::npos) return problem.message;
    return absl::StrCat("its hosts can't hold ", task().workers().min(),
                        task().workers().min() == 1 ? " such worker" : " such workers");
  }

  Future Submitted(const pb::JobSpec& spec) {
    State state = state_;
    pb::Event event;
    pb::JobSubmitted* submitted = event.mutable_job_submitted();
    submitted->set_uid(kPreviewUid);
    submitted->set_number(state.next_job_number());
    submitted->set_owner(owner_);
    *submitted->mutable_spec() = spec;
    SetPredecessors(state, submitted);
    submitted->set_not_before_ns(FirstTimeNs(spec, now_ns_).value_or(0));
    ref_ = {submitted->number(), 0};
    Future future(std::move(state), now_ns_, scheduling_, options_);
    future.At(now_ns_, std::move(event));
    return future;
  }

  // What the whole job really gets, if that can be told; else the candidate that starts first.
  void Choose(pb::PreviewResponse* response) {
    Future future = Submitted(alone_);
    const Foreseen* placed = future.RunUntilPlaced(ref_);
    pb::PreviewResponse::Candidate* chosen = nullptr;
    for (pb::PreviewResponse::Candidate& candidate : *response->mutable_candidates()) {
      const bool best =
          placed != nullptr
              ? candidate.cluster() == placed->cluster && candidate.flavour() == placed->flavour
              : candidate.start_ns() >= 0 && (chosen == nullptr || Rank(candidate) < Rank(*chosen));
      if (best) chosen = &candidate;
    }
    if (chosen != nullptr) chosen->set_chosen(true);
    const int32_t workers =
        chosen != nullptr && chosen->workers() > 0 ? chosen->workers() : task().workers().min();
    std::string line =
        QueueLine(chosen != nullptr                         ? chosen->flavour()
                  : task().resources().gpu_types_size() > 0 ? task().resources().gpu_types(0)
                                                            : "",
                  workers);
    if (const std::string text = placed != nullptr ? Borrowed(future) : ""; !text.empty())
      absl::StrAppend(&line, line.empty() ? "" : " ", "B", text.substr(1), ".");
    response->set_queue_line(line);
  }

  // Whether it then runs beyond its queue's guarantee, and what follows from that.
  std::string Borrowed(const Future& future) {
    const std::optional<Standing> standing =
        decider_.StandingOf(future.state(), future.now_ns(), scheduling_, ref_);
    return standing.has_value() ? BorrowedText(state_, task(), *standing, 0, now_ns_) : "";
  }

  // Smaller is better: unknown last, takes from nobody first among equals.
  static std::pair<int64_t, int> Rank(const pb::PreviewResponse::Candidate& candidate) {
    return {candidate.start_ns() == 0 ? std::numeric_limits<int64_t>::max() : candidate.start_ns(),
            candidate.takes_from_size()};
  }

  std::string QueueLine(const std::string& flavour, int32_t workers) const {
    const int32_t node = state_.queues().Find(alone_.queue());
    if (node < 0 || flavour.empty()) return "";
    const auto use = UseByQueue(state_);
    const auto held = use[node].find(flavour);
    const int64_t used_milli = held == use[node].end() ? 0 : held->second;
    const auto quota = state_.queues().nodes[node].spec.quota().find(flavour);
    const int64_t guarantee_milli = quota == state_.queues().nodes[node].spec.quota().end()
                                        ? 0
                                        : quota->second.guarantee_milli();
    const int64_t demand_milli = DemandMilli(workers, flavour);
    const bool within = guarantee_milli > 0 && used_milli <= guarantee_milli;
    if (guarantee_milli == 0) {
      return absl::StrCat("Queue ", alone_.queue(), ": ", FormatMilli(used_milli), " ", flavour,
                          " in use, nothing guaranteed; this job takes ", FormatMilli(demand_milli),
                          " more.");
    }
    return absl::StrCat(
        "Queue ", alone_.queue(), ": ",
        within ? absl::StrCat(FormatMilli(used_milli), " of ", FormatMilli(guarantee_milli),
                              " guaranteed ", flavour, " in use, ")
               : absl::StrCat(FormatMilli(used_milli), " ", flavour, " in use, ",
                              FormatMilli(guarantee_milli), " guaranteed, "),
        FormatMilli(used_milli + demand_milli), " with this job.");
  }

  const State& state_;
  const pb::JobSpec alone_;
  const std::string owner_;
  const int64_t now_ns_;
  const SchedulingOptions scheduling_;
  FutureOptions options_;
  Decider decider_;
  TaskRef ref_;
  std::map<int32_t, std::set<std::string>> flavours_in_;  // by cluster
  std::set<int32_t> declared_;
};

}  // namespace

pb::PreviewResponse Preview(const State& state, const pb::JobSpec& resolved,
                            const std::string& owner, int64_t now_ns,
                            const SchedulingOptions& scheduling, const FutureOptions& options) {
  pb::PreviewResponse response;
  *response.mutable_resolved() = resolved;
  Previewer(state, resolved, owner, now_ns, scheduling, options).Fill(&response);
  return response;
}

}  // namespace muster
