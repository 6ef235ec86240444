#include "scheduler/ask/explain.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "common/spec/workers.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/block_room.h"
#include "scheduler/ask/borrowed.h"
#include "scheduler/ask/capacity.h"
#include "scheduler/ask/taken.h"
#include "scheduler/ask/words/order_text.h"
#include "scheduler/ask/words/share_text.h"
#include "scheduler/ask/words/standing_text.h"
#include "scheduler/ask/words/together_text.h"
#include "scheduler/ask/words/workers_text.h"
#include "scheduler/decide/decider.h"
#include "scheduler/state/topology.h"
#include "scheduler/state/what_if.h"

namespace muster {
namespace {

using Response = pb::ExplainResponse;

constexpr size_t kHolders = 8;        // told of a reason, and tried as "if this one ended"
constexpr int64_t kSoonNs = kMinute;  // a start within this counts as "at once"
constexpr int64_t kGainNs =
    kMinute;  // what is told must gain this, or a tenth of the wait where that is less
constexpr int kShareAsIs = 40;    // percent of the time that the future without changes may take
constexpr int kTrialSteps = 150;  // decisions of one trial

// A change, not tried yet.
struct Trial {
  Response::Kind kind = Response::KIND_UNSPECIFIED;
  std::string change;
  State state;
  pb::JobSpec spec;  // of the changed job; empty: the change is not in the job
};

class Explainer {
 public:
  Explainer(const State& state, const JobRow& job, int32_t task, int64_t now_ns,
            const SchedulingOptions& scheduling, const Spent& spent)
      : state_(state),
        job_(job),
        task_(task),
        spec_(job.task_spec(task)),
        now_ns_(now_ns),
        scheduling_(scheduling),
        spent_(spent) {}

  void Fill(Response* response) {
    response->set_now_ns(now_ns_);
    response->set_complete(true);
    FutureOptions options;
    options.expired = [this] { return Expired(kShareAsIs); };
    options.decider = &decider_;
    Future as_is(state_, now_ns_, scheduling_, options);
    if (const Foreseen* placed = as_is.RunUntilPlaced(Ref()); placed != nullptr) {
      start_ns_ = placed->at_ns;
      response->set_start_ns(placed->at_ns);
      response->set_place(PlaceText(state_, placed->hosts));
      response->set_forecast(placed->at_ns > now_ns_);
      if (!response->why().empty() && !response->why(0).cluster().empty() &&
          placed->cluster != response->why(0).cluster()) {
        Response::Why* why = response->mutable_why(0);
        why->set_text(absl::StrCat(why->text(), why->text().empty() ? "" : "; ",
                                   "by the forecast there is room in ", placed->cluster,
                                   " before that, and it starts there"));
      }
    }
    if (start_ns_ != 0) FillBorrowed(as_is, response);
    if (as_is.cut()) response->set_complete(false);
    if (!job_.awaits.empty() || job_.not_before_ns != 0) return;  // only time helps
    FillHolders(as_is, response);
    if (start_ns_ != 0 && start_ns_ <= now_ns_) return;  // nothing has to help
    Relax(response);
    std::vector<Response::Relaxation> found(response->relaxations().begin(),
                                            response->relaxations().end());
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
      return std::make_tuple(a.kind(), a.start_ns()) < std::make_tuple(b.kind(), b.start_ns());
    });
    response->clear_relaxations();
    for (size_t i = 0; i < found.size() && i < kRelaxationsShown; ++i)
      *response->add_relaxations() = std::move(found[i]);
    response->set_tried(tried_);
    if (Expired()) response->set_complete(false);
  }

 private:
  TaskRef Ref() const { return {job_.number, task_}; }
  bool Expired(int percent = 100) const { return spent_ && spent_(percent); }
  FutureOptions TrialOptions() {
    FutureOptions options;
    options.steps_max = kTrialSteps;
    options.decider = &decider_;
    options.expired = [this] { return Expired(); };
    return options;
  }
  bool gpus() const { return spec_.resources().gpus_milli() > 0; }

  // ---- the reason ----

  // Jobs that hold what it waits for, soonest to end first; their ends are the future's.
  void FillHolders(const Future& as_is, Response* response) {
    if (response->why().empty()) return;
    Response::Why* why = response->mutable_why(0);
    const bool cores = !gpus() || why->lacks() == pb::Verdict::LACKS_CORES;
    std::vector<std::pair<int64_t, Response::Holder>> holders;
    for (const uint64_t number : state_.active_jobs()) {
      const JobRow& job = *state_.FindJob(number);
      Response::Holder holder;
      for (size_t t = 0; t < job.tasks.size(); ++t) {
        const AttemptRow* attempt = job.tasks[t].current();
        if (attempt == nullptr || attempt->released() || number == job_.number) continue;
        if (!why->cluster().empty() && state_.clusters()[attempt->cluster].name != why->cluster())
          continue;
        if (!cores && (attempt->flavour.empty() ||
                       (!why->flavour().empty() && attempt->flavour != why->flavour())))
          continue;
        const int32_t task = static_cast<int32_t>(t);
        const int64_t held_milli = cores ? CoresHeldMilli(job, task, *attempt, why->flavour())
                                         : HeldMilli(job, task, *attempt);
        if (held_milli == 0) continue;
        holder.set_held_milli(holder.held_milli() + held_milli);
        holder.set_until_ns(
            std::max(holder.until_ns(), FirstEnd(as_is, {number, static_cast<int32_t>(t)})));
      }
      if (holder.held_milli() == 0) continue;
      holder.set_job(number);
      holder.set_queue(job.spec->queue());
      holders.emplace_back(
          holder.until_ns() == 0 ? std::numeric_limits<int64_t>::max() : holder.until_ns(),
          std::move(holder));
    }
    std::stable_sort(holders.begin(), holders.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < holders.size() && i < kHolders; ++i)
      *why->add_holders() = std::move(holders[i].second);
  }

  // Cores that it holds, work with devices its own, too; of the hosts with devices of the flavour,
  // if it isn't empty.
  int64_t CoresHeldMilli(const JobRow& job, int32_t task, const AttemptRow& attempt,
                         const std::string& flavour) const {
    int64_t held_milli = 0;
    for (const PartRow& part : attempt.parts) {
      if (job.holder != 0 || part.host == kNoHost || part.over()) continue;
      const pb::Inventory& inventory = state_.host(part.host).inventory;
      if (flavour.empty() || inventory.flavour() == flavour)
        held_milli += WorkerDemand(job.task_spec(task), inventory).cpus_milli * part.workers;
    }
    return held_milli;
  }

  int64_t FirstEnd(const Future& as_is, const TaskRef& task) const {
    for (const Foreseen& seen : as_is.foreseen()) {
      if (seen.kind == Foreseen::kEnded && seen.task == task) return seen.at_ns;
    }
    return as_is.EndOf(task);
  }

  // Whether it runs beyond its queue's guarantee once it has started.
  void FillBorrowed(const Future& as_is, Response* response) {
    const std::optional<Standing> standing =
        decider_.StandingOf(as_is.state(), as_is.now_ns(), scheduling_, Ref());
    if (!standing.has_value()) return;
    AddBorrowed(BorrowedText(state_, spec_, *standing, 0, now_ns_), spec_.name(), response);
  }

  // ---- what would help ----

  // The job's spec with a change to its task.
  template <typename Change>
  pb::JobSpec With(const Change& change) const {
    pb::JobSpec spec = *job_.spec;
    change(&spec, spec.mutable_tasks(task_));
    return spec;
  }

  Trial Own(Response::Kind kind, std::string change, pb::JobSpec spec) const {
    Trial trial{kind, std::move(change), state_, std::move(spec)};
    ReplaceSpec(&trial.state, job_.number, trial.spec);
    return trial;
  }

  // Tries it; true if it starts within kSoonNs. `at_once`: only that counts. `flavour`: only a
  // start there, if not empty.
  bool Try(Trial trial, Response* response, bool at_once = false, const std::string& flavour = "") {
    if (Expired()) return false;
    ++tried_;
    FutureOptions options = TrialOptions();
    if (at_once) {
      options.horizon_ns = kSoonNs;
    } else if (start_ns_ != 0) {
      options.horizon_ns =
          std::min(options.horizon_ns, start_ns_ - now_ns_);  // later than as it is: no help
    }
    State changed = trial.state;
    Future future(std::move(trial.state), now_ns_, scheduling_, options);
    const Foreseen* placed = future.RunUntilPlaced(Ref());
    const int64_t gain_ns = std::max(kSecond, std::min(kGainNs, (start_ns_ - now_ns_) / 10));
    if (placed == nullptr || (start_ns_ != 0 && placed->at_ns + gain_ns > start_ns_)) return false;
    if (!flavour.empty() && placed->flavour != flavour) return false;
    const Foreseen start = *placed;
    future.Step();
    if (!HelpsByItself(std::move(changed), options)) return false;
    Response::Relaxation* found = response->add_relaxations();
    found->set_kind(trial.kind);
    found->set_change(trial.change);
    found->set_start_ns(start.at_ns);
    found->set_place(PlaceText(state_, start.hosts));
    found->set_cluster(start.cluster);
    found->set_flavour(start.flavour);
    found->set_workers(start.workers);
    found->set_within(WithinText(state_, start.hosts));
    for (pb::PreviewResponse::Taken& taken : TakenFor(future, job_.number))
      *found->add_takes_from() = std::move(taken);
    if (trial.spec.tasks_size() > 0) {
      found->set_own(true);
      *found->mutable_spec() = std::move(trial.spec);
    }
    return start.at_ns <= now_ns_ + kSoonNs;
  }

  // Things that come about in the changed future make decisions, and any decision may be the one
  // that starts the task: the change helps only if the same decisions without it don't.
  bool HelpsByItself(State changed, const FutureOptions& options) {
    Future with(std::move(changed), now_ns_, scheduling_, options),
        without(state_, now_ns_, scheduling_, options);
    while (with.PlacedAt(Ref()) == nullptr && without.PlacedAt(Ref()) == nullptr &&
           Future::StepBoth(&without, &with)) {
    }
    return without.PlacedAt(Ref()) == nullptr;
  }

  void Relax(Response* response) {
    TryClusters(response);
    TryTypes(response);
    TryTopology(response);
    TryFewerWorkers(response);
    TryPriority(response);
    TryResume(response);
    TryEnds(response);
    TryQuota(response);
  }

  void TryClusters(Response* response) {
    if (job_.spec->clusters().empty() || !job_.cluster.empty()) return;
    for (const ClusterRow& cluster : state_.clusters()) {
      if (!TakesJobsOf(cluster.spec, job_.owner) ||
          std::find(job_.spec->clusters().begin(), job_.spec->clusters().end(), cluster.name) !=
              job_.spec->clusters().end())
        continue;
      pb::JobSpec spec =
          With([&](pb::JobSpec* job, pb::TaskSpec*) { job->add_clusters(cluster.name); });
      std::string change = absl::StrCat("clusters: [", absl::StrJoin(spec.clusters(), ", "), "]");
      if (Try(Own(Response::OTHER_CLUSTERS, std::move(change), std::move(spec)), response)) return;
    }
  }

  // A type that it doesn't allow; where hosts have fewer GPUs than a worker wants, with smaller
  // workers.
  void TryTypes(Response* response) {
    if (!gpus()) return;
    const auto& types = spec_.resources().gpu_types();
    std::map<std::string, int64_t> a_host;  // devices of the largest host of each other flavour
    for (const HostId id : state_.hosts()) {
      const pb::Inventory shape = ShapeOf(state_, state_.host(id));
      if (shape.flavour().empty() ||
          std::find(types.begin(), types.end(), shape.flavour()) != types.end())
        continue;
      a_host[shape.flavour()] = std::max<int64_t>(a_host[shape.flavour()], shape.devices_size());
    }
    for (const auto& [type, devices] : a_host) {
      const int64_t each = spec_.resources().gpus_milli() / 1000;
      const int64_t step = StepOf(spec_.workers());
      if (each > devices &&
          (devices == 0 || each * spec_.workers().min() % devices != 0 ||
           (step > 1 && each * step % devices != 0) || !HasBlocksFor(spec_, devices)))
        continue;
      pb::JobSpec spec = With([&, t = type, d = devices](pb::JobSpec*, pb::TaskSpec* task) {
        if (each <= d) {
          task->mutable_resources()->add_gpu_types(t);
          return;
        }
        task->mutable_resources()->clear_gpu_types();  // another shape: only there
        task->mutable_resources()->add_gpu_types(t);
        const int64_t workers = each * spec_.workers().min() / d;
        task->mutable_resources()->set_gpus_milli(d * 1000);
        task->mutable_resources()->clear_cpus_milli();
        task->mutable_resources()->clear_memory_bytes();
        task->mutable_workers()->set_max(
            static_cast<int32_t>(std::max(workers, each * spec_.workers().max() / d)));
        task->mutable_workers()->set_min(static_cast<int32_t>(workers));
        if (step > 1)
          task->mutable_workers()->set_multiple_of(static_cast<int32_t>(each * step / d));
        task->set_processes_per_worker(static_cast<int32_t>(d));
      });
      std::string change = absl::StrCat(
          "gpu_types: [", absl::StrJoin(spec.tasks(task_).resources().gpu_types(), ", "), "]");
      if (each > devices) absl::StrAppend(&change, ", gpus: ", devices);
      const std::string whole =
          each > devices ? absl::StrCat(change, ", workers: ", WorkersText(spec.tasks(task_)))
                         : change;
      if (!Try(Own(Response::OTHER_TYPES, whole, spec), response, false, type)) {
        Fewer(Response::OTHER_TYPES, absl::StrCat(change, ", "), spec, response, type);
      }
    }
  }

  void TryTopology(Response* response) {
    const bool blocks = BlockRoom(spec_).asks();
    if (!blocks && !Binds(spec_.topology().required())) return;
    Try(Own(Response::LOOSER_TOPOLOGY,
            blocks ? "topology: {required: cluster, blocks: []}" : "topology: {required: cluster}",
            With([](pb::JobSpec*, pb::TaskSpec* task) {
              task->mutable_topology()->set_required(pb::CLUSTER);
              task->mutable_topology()->clear_blocks();
            })),
        response);
  }

  void TryFewerWorkers(Response* response) {
    Fewer(Response::FEWER_WORKERS, "", *job_.spec, response);
  }

  // What trains by itself goes on growing; other programs get a fixed size.
  pb::JobSpec Sized(const pb::JobSpec& base, int32_t workers) const {
    pb::JobSpec spec = base;
    pb::TaskSpec* task = spec.mutable_tasks(task_);
    const bool elastic =
        !task->trainer_json().empty() || task->workers().max() > task->workers().min();
    task->mutable_workers()->set_min(workers);
    if (!elastic) task->mutable_workers()->set_max(workers);
    return spec;
  }

  // The most workers, a quarter of what it wants at least, with which it would start at once, by
  // bisection; if there are none, half of them, later.
  void Fewer(Response::Kind kind, const std::string& prefix, const pb::JobSpec& base,
             Response* response, const std::string& flavour = "") {
    const int32_t step = StepOf(base.tasks(task_).workers());
    const int32_t wanted = base.tasks(task_).workers().min() / step;  // steps, as all here
    const int32_t least = (wanted + 3) / 4;
    int32_t starts = least - 1, fails = wanted;
    while (fails - starts > 1 && !Expired()) {
      const int32_t middle = starts + (fails - starts) / 2;
      ++tried_;
      FutureOptions options = TrialOptions();
      options.horizon_ns = kSoonNs;
      Future future(Own(kind, "", Sized(base, middle * step)).state, now_ns_, scheduling_, options);
      const Foreseen* placed = future.RunUntilPlaced(Ref());
      const bool now = placed != nullptr && (flavour.empty() || placed->flavour == flavour);
      (now ? starts : fails) = middle;
    }
    const int32_t workers = starts >= least ? starts : wanted / 2;
    if (workers < 1 || workers >= wanted) return;
    const pb::JobSpec spec = Sized(base, workers * step);
    Try(Own(kind, absl::StrCat(prefix, "workers: ", WorkersText(spec.tasks(task_))), spec),
        response, false, flavour);
  }

  // Another that waits in its queue goes first.
  void TryPriority(Response* response) {
    int32_t highest = -1;
    for (const uint64_t number : state_.active_jobs()) {
      const JobRow& other = *state_.FindJob(number);
      if (number != job_.number && other.spec->queue() == job_.spec->queue() && HasATurn(other))
        highest = std::max(highest, other.spec->priority());
    }
    const int32_t enough = std::min(100, highest + 1);
    if (highest < 0 || enough <= job_.spec->priority()) return;
    const Trial trial =
        Own(Response::HIGHER_PRIORITY, absl::StrCat("priority: ", enough),
            With([&](pb::JobSpec* job, pb::TaskSpec*) { job->set_priority(enough); }));
    const int before = response->relaxations_size();
    Try(trial, response);
    if (response->relaxations_size() == before) return;
    // Who takes it should know whom it costs what: they can raise theirs, too.
    const std::optional<std::string> cost = CostToQueue(trial.state);
    if (cost.has_value()) {
      Response::Relaxation* found = response->mutable_relaxations(before);
      found->set_change(absl::StrCat(found->change(), *cost));
    } else {
      response->mutable_relaxations()->RemoveLast();
    }
  }

  // " (job 12 then starts 25m later, 2 others later, too)": others of its queue, by a change.
  // Nothing where time ran out.
  std::optional<std::string> CostToQueue(const State& changed) {
    Future with(changed, now_ns_, scheduling_, TrialOptions()),
        without(state_, now_ns_, scheduling_, TrialOptions());
    with.Run();
    without.Run();
    if (Expired()) return std::nullopt;
    constexpr int64_t kUnknownNs = std::numeric_limits<int64_t>::max();  // later than was looked
    std::map<uint64_t, int64_t> later;                                   // by job
    for (const uint64_t number : state_.active_jobs()) {
      const JobRow& other = *state_.FindJob(number);
      if (number == job_.number || other.spec->queue() != job_.spec->queue()) continue;
      for (size_t t = 0; t < other.tasks.size(); ++t) {
        const TaskRef ref{number, static_cast<int32_t>(t)};
        const Foreseen *at = without.PlacedAt(ref), *then = with.PlacedAt(ref);
        if (at == nullptr || (then == nullptr && with.now_ns() <= at->at_ns)) continue;
        const int64_t by_ns = then == nullptr ? kUnknownNs : then->at_ns - at->at_ns;
        if (by_ns >= kSoonNs) later[number] = std::max(later[number], by_ns);
      }
    }
    if (later.empty()) return "";
    const auto most =
        std::max_element(later.begin(), later.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    std::string text = absl::StrCat(
        " (job ", most->first, " then starts ",
        most->second == kUnknownNs
            ? "much later"
            : absl::StrCat(FormatDuration(most->second / kMinute * kMinute), " later"));
    if (later.size() > 1)
      absl::StrAppend(&text, ", ", later.size() - 1,
                      later.size() == 2 ? " other later, too" : " others later, too");
    return text + ")";
  }

  void TryResume(Response* response) {
    std::vector<std::string> drained;
    for (const int32_t c : AllowedClusters(state_, job_)) {
      if (state_.clusters()[c].drained) drained.push_back(state_.clusters()[c].name);
      for (const HostId id : state_.hosts()) {
        if (state_.host(id).cluster == c && state_.host(id).drained)
          drained.push_back(state_.HostName(id));
      }
    }
    if (drained.empty()) return;
    Trial trial{Response::HOSTS_RESUMED,
                drained.size() <= 3 ? absl::StrCat(absl::StrJoin(drained, ", "), " resumed")
                                    : absl::StrCat(drained.size(), " drained hosts resumed"),
                state_,
                {}};
    for (const std::string& target : drained) {
      pb::Event event;
      event.mutable_drain_changed()->set_target(target);
      Apply(&trial.state, event);
    }
    Try(std::move(trial), response);
  }

  // One job's end: the smallest that suffices at once; else the one that helps most, if any does.
  void TryEnds(Response* response) {
    if (response->why().empty()) return;
    std::vector<std::pair<int64_t, uint64_t>> jobs;
    for (const Response::Holder& holder : response->why(0).holders())
      jobs.emplace_back(holder.held_milli(), holder.job());
    std::sort(jobs.begin(), jobs.end());
    const int64_t missing_milli = response->why(0).missing_milli();
    int shown = 0;
    for (const auto& [held_milli, number] : jobs) {
      if (held_milli < missing_milli || shown == 2) continue;
      Trial trial{
          Response::JOB_ENDS,
          absl::StrCat("job ", number, " (", state_.FindJob(number)->spec->queue(), ") ended"),
          state_,
          {}};
      EndNow(&trial.state, number);
      shown += Try(std::move(trial), response, true);
    }
  }

  // Raises what binds it on the way to its queue: limits that are reached, else guarantees, by what
  // it lacks.
  void TryQuota(Response* response) {
    const std::string flavour =
        gpus() ? spec_.resources().gpu_types_size() > 0 ? spec_.resources().gpu_types(0) : ""
               : "cpu";
    const int32_t leaf = state_.queues().Find(job_.spec->queue());
    if (leaf < 0 || flavour.empty()) return;
    const int64_t demand_milli =
        spec_.workers().min() * (gpus() ? spec_.resources().gpus_milli()
                                        : std::max<int64_t>(1000, spec_.resources().cpus_milli()));
    const auto use = UseByQueue(state_);
    for (const bool limits : {true, false}) {
      pb::QueueTree tree = state_.queue_tree();
      std::vector<std::string> said;
      for (int32_t n = leaf; n > 0; n = state_.queues().nodes[n].parent) {
        pb::QueueSpec* queue = FindQueue(&tree, state_.queues().nodes[n].path);
        if (queue == nullptr) continue;
        const auto used = use[n].find(flavour);
        const int64_t wants_milli = (used == use[n].end() ? 0 : used->second) + demand_milli;
        const auto quota = queue->mutable_quota()->find(flavour);
        if (limits) {
          if (quota == queue->mutable_quota()->end() || !quota->second.has_limit_milli() ||
              quota->second.limit_milli() >= wants_milli)
            continue;
          quota->second.set_limit_milli(wants_milli);
          said.push_back(absl::StrCat("limit of ", state_.queues().nodes[n].path, " ", flavour,
                                      " raised to ", FormatMilli(wants_milli)));
        } else {
          pb::Quota& raised = (*queue->mutable_quota())[flavour];
          if (raised.guarantee_milli() >= wants_milli) continue;
          const int64_t was_milli = raised.guarantee_milli();
          raised.clear_guarantee_per_cluster();  // split anew
          raised.set_guarantee_milli(wants_milli);
          if (raised.has_limit_milli())
            raised.set_limit_milli(std::max(raised.limit_milli(), wants_milli));
          said.push_back(absl::StrCat("guarantee of ", state_.queues().nodes[n].path, " ", flavour,
                                      " raised from ", FormatMilli(was_milli), " to ",
                                      FormatMilli(wants_milli)));
        }
      }
      if (said.empty()) continue;
      const QueueResolution resolution = ResolveQueues(state_, tree);
      if (!resolution.ok()) continue;  // the guarantees would not nest
      Trial trial{Response::MORE_QUOTA, absl::StrJoin(said, ", "), state_, {}};
      pb::Event event;
      *event.mutable_queues_applied()->mutable_tree() = resolution.resolved;
      Apply(&trial.state, event);
      if (Try(std::move(trial), response)) return;
    }
  }

  static pb::QueueSpec* FindQueue(pb::QueueTree* tree, const std::string& path) {
    google::protobuf::RepeatedPtrField<pb::QueueSpec>* level = tree->mutable_queues();
    std::string rest = path;
    while (true) {
      const size_t slash = rest.find('/');
      const std::string name = rest.substr(0, slash);
      const auto at = std::find_if(level->begin(), level->end(), [&](const pb::QueueSpec& queue) {
        return queue.name() == name;
      });
      if (at == level->end()) return nullptr;
      if (slash == std::string::npos) return &*at;
      level = at->mutable_queues();
      rest = rest.substr(slash + 1);
    }
  }

  const State& state_;
  const JobRow& job_;
  const int32_t task_;
  const pb::TaskSpec& spec_;
  const int64_t now_ns_;
  const SchedulingOptions scheduling_;
  const Spent& spent_;
  Decider decider_;
  int64_t start_ns_ = 0;  // as it is; 0 = not within the horizon
  int tried_ = 0;
};

// What the job's queue is entitled to, and uses.
std::optional<pb::QueueUse> ShareOf(const State& state, const Plan& plan, const JobRow& job,
                                    const std::string& flavour) {
  const absl::StatusOr<pb::Queue> queue = DescribeQueue(state, plan, job.spec->queue());
  if (!queue.ok()) return std::nullopt;
  for (const pb::QueueUse& use : queue->use()) {
    if (use.flavour() == flavour) return use;
  }
  return std::nullopt;
}

// The verdict's sentence, with its queue's share and its place in the queue.
std::string WhyText(const State& state, const Plan& plan, const JobRow& job,
                    const pb::Verdict& verdict) {
  std::string text = verdict.text();
  const pb::VerdictCode code = verdict.code();
  const std::optional<pb::QueueUse> share = ShareOf(state, plan, job, verdict.flavour());
  if (share.has_value() && (code == pb::V_SHARE || code == pb::V_LIMIT)) {
    const bool enough = code == pb::V_SHARE && verdict.missing_milli() == 0;
    text = enough ? absl::StrCat(text, "; ", ShareText(job, *share)) : ShareText(job, *share);
    if (code == pb::V_SHARE && !enough && share->used_milli() < share->entitled_milli()) {
      absl::StrAppend(&text, "; ",
                      ShareLeftText(job, PoolHolders(state).Entitled(plan, job.spec->queue(),
                                                                     verdict.flavour())));
    }
  }
  if (share.has_value() && code == pb::V_CAPACITY && share->used_milli() >= share->entitled_milli())
    absl::StrAppend(&text, "; ", BeyondText(job, *share));
  const bool by_turn = code == pb::V_SHARE || code == pb::V_LIMIT || code == pb::V_CAPACITY ||
                       code == pb::V_PLACEMENT;
  if (const std::string order = OrderText(state, job); by_turn && !order.empty())
    absl::StrAppend(&text, "; ", order);
  return text;
}

}  // namespace

Response Explain(const State& state, const Plan& plan, uint64_t number, int64_t now_ns,
                 const SchedulingOptions& scheduling, const Spent& spent) {
  Response response;
  response.set_now_ns(now_ns);
  response.set_complete(true);
  const JobRow* job = state.FindJob(number);
  if (job == nullptr) return response;
  int32_t first = -1;
  const pb::Job told = DescribeJob(state, plan, *job);
  for (int t = 0; t < told.tasks_size(); ++t) {
    const bool after = told.tasks(t).state() == pb::TASK_BLOCKED &&
                       (!job->awaits.empty() || job->not_before_ns != 0);
    if (told.tasks(t).state() != pb::TASK_WAITING && (!after || first >= 0)) continue;
    const pb::Verdict& verdict = told.tasks(t).verdict();
    if (first < 0) first = t;
    Response::Why* why = response.add_why();
    why->set_task(told.tasks(t).name());
    why->set_code(verdict.code());
    why->set_cluster(verdict.cluster());
    why->set_flavour(verdict.flavour() == "cpu" ? "" : verdict.flavour());
    why->set_missing_milli(verdict.missing_milli());
    why->set_lacks(verdict.lacks());
    why->set_text(BehindStartsWith(*job, t, WhyText(state, plan, *job, verdict)));
  }
  const int64_t then_ns = std::max(now_ns, state.now_ns());
  FillBorrowed(state, *job, then_ns, scheduling, &response);
  if (first >= 0) Explainer(state, *job, first, then_ns, scheduling, spent).Fill(&response);
  return response;
}

}  // namespace muster
