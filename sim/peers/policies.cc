#include "sim/peers/policies.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/units.h"
#include "sim/peers/free_gpus.h"

namespace muster::sim {
namespace {

constexpr int64_t kGraceNs = 2 * kMinute;
constexpr int64_t kDlasThresholdMilliNs =
    3'200 * 1000 * kSecond;  // attained service after which a job is of the second queue

// What a policy keeps of a job: it sees arrivals, its own placements and stops, and what became of
// them.
struct Known {
  uint64_t number = 0;
  size_t index = 0;  // in the trace
  int32_t leaf = -1;
  int32_t workers = 1;
  int64_t gpus_milli = 0;  // a worker
  int64_t submit_ns = 0;
  std::vector<int32_t> clusters;
  int32_t shape = 0;  // equal for jobs of equal demand and clusters
  bool running = false, stopping = false;
  int64_t placed_ns = 0;
  std::vector<Taken> place;
  int64_t attained_milli_ns = 0;  // GPUs' thousandths x time, of its earlier attempts
  int64_t received_ns = 0;        // gavel: time run since the shares last changed

  int64_t demand_milli() const { return workers * gpus_milli; }
};

class Policy {
 public:
  Policy(const Trace* trace, const PolicyOptions& options) : trace_(*trace), options_(options) {}
  virtual ~Policy() = default;

  Plan Decide(const State& state, int64_t now_ns, const SchedulingOptions& scheduling) {
    now_ns_ = now_ns;
    plan_ = Plan();
    See(state);
    Choose(state);
    return std::move(plan_);
  }

 protected:
  virtual void Choose(const State& state) = 0;
  virtual void Ended(Known* job) {}
  virtual void Arrived(Known* job) {}

  // Waiting jobs in order of submission.
  std::vector<Known*>& waiting() { return waiting_; }
  const std::vector<Known*>& running() const { return running_; }
  int64_t now_ns() const { return now_ns_; }
  const PolicyOptions& options() const { return options_; }
  const TraceJob& trace_job(const Known& job) const { return trace_.jobs[job.index]; }
  // GPUs' thousandths x time, so far.
  int64_t Attained(const Known& job) const {
    return job.attained_milli_ns +
           (job.running
                ? job.demand_milli() * ((now_ns_ - job.placed_ns) / kMillisecond) * kMillisecond
                : 0);
  }
  void WakeAt(int64_t at_ns) {
    plan_.next_wake_ns = std::min(plan_.next_wake_ns, std::max(at_ns, now_ns_));
  }

  // Starts the waiting job if it fits; it leaves waiting() with the next call of Sweep().
  bool Try(const State& state, FreeGpus* free, Known* job) {
    if (failed_.size() <= static_cast<size_t>(job->shape))
      failed_.resize(static_cast<size_t>(job->shape) + 1);
    if (failed_[job->shape] == round_) return false;
    std::optional<std::vector<Taken>> gang =
        free->Place(job->clusters, job->workers, job->gpus_milli);
    if (!gang.has_value()) {
      failed_[job->shape] = round_;
      return false;
    }
    free->Take(*gang);
    Place(state, job, *std::move(gang));
    return true;
  }
  void Sweep() {
    std::erase_if(waiting_, [](const Known* job) { return job->running; });
  }
  // Stops a running job for one that waits.
  void Stop(const State& state, Known* job, const Known& claimant) {
    const JobRow& row = *state.FindJob(job->number);
    const JobRow& other = *state.FindJob(claimant.number);
    pb::AttemptStopping* stopping = plan_.events.emplace_back().mutable_attempt_stopping();
    *stopping->mutable_key() = KeyOf(row, 0, row.tasks[0].next_attempt - 1);
    stopping->set_cause(pb::PREEMPTION);
    stopping->set_detail("its turn is over");
    stopping->set_grace_ns(kGraceNs);
    *stopping->mutable_claimant() = KeyOf(other, 0, other.tasks[0].next_attempt);
    job->stopping = true;
  }

 private:
  void See(const State& state) {
    ++round_;
    const std::vector<uint64_t>& active = state.active_jobs();
    for (auto it = std::upper_bound(active.begin(), active.end(), newest_); it != active.end();
         ++it) {
      const JobRow& row = *state.FindJob(*it);
      auto job = std::make_unique<Known>();
      job->number = *it;
      job->index = static_cast<size_t>(TraceIndex(row.uid));
      job->leaf = state.queues().Find(row.spec->queue());
      job->workers = std::max(1, row.task_spec(0).workers().min());
      job->gpus_milli = row.task_spec(0).resources().gpus_milli();
      job->submit_ns = row.submit_ns;
      job->clusters = AllowedClusters(state, row);
      job->shape = static_cast<int32_t>(
          shapes_
              .emplace(std::make_tuple(job->workers, job->gpus_milli, job->clusters),
                       static_cast<int32_t>(shapes_.size()))
              .first->second);
      waiting_.push_back(job.get());
      Arrived(job.get());
      jobs_.push_back(std::move(job));
      newest_ = *it;
    }
    bool ended = false, back = false;
    for (Known* const job : running_) {
      const JobRow* row = state.FindJob(job->number);
      const bool over = row == nullptr || row->finished();
      if (!over && !row->tasks[0].waiting()) continue;
      job->attained_milli_ns = Attained(*job);
      job->running = job->stopping = false;
      job->place.clear();
      ended = true;
      if (over) {
        Ended(job);
      } else {
        waiting_.push_back(job);
        back = true;
      }
    }
    if (ended) std::erase_if(running_, [](const Known* job) { return !job->running; });
    if (back)
      std::sort(waiting_.begin(), waiting_.end(),
                [](const Known* a, const Known* b) { return a->number < b->number; });
  }

  void Place(const State& state, Known* job, std::vector<Taken> gang) {
    const JobRow& row = *state.FindJob(job->number);
    pb::AttemptPlaced* placed = plan_.events.emplace_back().mutable_attempt_placed();
    *placed->mutable_key() = KeyOf(row, 0, row.tasks[0].next_attempt);
    const HostRow& first = state.host(gang[0].host);
    const std::string& cluster = state.clusters()[first.cluster].name;
    placed->set_cluster(cluster);
    if (job->gpus_milli > 0) placed->set_flavour(first.inventory.flavour());
    int32_t rank = 0;
    for (const Taken& part : gang) {
      pb::Placement* placement = placed->add_placements();
      placement->set_host(state.host(part.host).name);
      placement->set_first_group_rank(rank);
      placement->set_workers(part.workers);
      for (const int32_t device : part.devices) placement->add_devices(device);
      for (const int64_t milli : part.device_milli) placement->add_device_milli(milli);
      rank += part.workers;
    }
    placed->set_workers(rank);
    placed->set_at_once(gang.size() == 1);
    for (const std::string& path : ResumeFrom(state, row.tasks[0], cluster))
      placed->add_resume_from(path);
    job->running = true;
    job->placed_ns = now_ns_;
    job->place = std::move(gang);
    running_.push_back(job);
  }

  const Trace& trace_;
  const PolicyOptions options_;
  std::vector<std::unique_ptr<Known>> jobs_;
  std::vector<Known*> waiting_, running_;
  std::map<std::tuple<int32_t, int64_t, std::vector<int32_t>>, int32_t> shapes_;
  std::vector<uint64_t> failed_;  // by shape: the round in which it found no place
  uint64_t round_ = 0;
  uint64_t newest_ = 0;
  int64_t now_ns_ = 0;
  Plan plan_;
};

class Fifo : public Policy {
 public:
  Fifo(const Trace* trace, const PolicyOptions& options, bool backfill)
      : Policy(trace, options), backfill_(backfill) {}

 private:
  void Choose(const State& state) override {
    if (waiting().empty()) return;
    FreeGpus free(state, false);
    for (Known* const job : waiting()) {
      if (!Try(state, &free, job) && !backfill_) break;
    }
    Sweep();
  }

  const bool backfill_;
};

// By queue: the one with the smallest share gets the next place.
class Drf : public Policy {
 public:
  using Policy::Policy;

 private:
  void Choose(const State& state) override {
    if (waiting().empty()) return;
    FreeGpus free(state, false);
    struct Queue {
      int64_t used_milli = 0;
      int64_t weight = 1;  // its guarantee; a queue without one counts as one device
      std::vector<Known*> jobs;
      size_t next = 0;
    };
    std::map<int32_t, Queue> queues;
    for (Known* const job : waiting()) queues[job->leaf].jobs.push_back(job);
    for (auto& [leaf, queue] : queues) {
      for (const auto& [flavour, quota] : state.queues().nodes[leaf].spec.quota())
        queue.weight = std::max(queue.weight, quota.guarantee_milli());
      if (queue.weight == 1) queue.weight = 1000;
    }
    for (const Known* const job : running()) {
      if (const auto queue = queues.find(job->leaf); queue != queues.end())
        queue->second.used_milli += job->demand_milli();
    }
    while (true) {
      Queue* best = nullptr;
      for (auto& [leaf, queue] : queues) {
        if (queue.next == queue.jobs.size()) continue;
        if (best == nullptr || static_cast<__int128>(queue.used_milli) * best->weight <
                                   static_cast<__int128>(best->used_milli) * queue.weight) {
          best = &queue;
        }
      }
      if (best == nullptr) break;
      Known* const job = best->jobs[best->next++];
      if (Try(state, &free, job)) best->used_milli += job->demand_milli();
    }
    Sweep();
  }
};

// Chooses who runs by a key that changes with time; keeps the chosen where they are.
class Preemptive : public Policy {
 public:
  using Policy::Policy;

 protected:
  struct Ranked {
    std::tuple<double, int64_t, uint64_t> key;  // smaller first
    Known* job = nullptr;
  };
  // The key of each job, smaller first; ties by submission.
  virtual double Key(const Known& job) const = 0;
  virtual bool Due() const { return true; }
  virtual void Round(const State& state) {}
  // Devices that are left go to others at once.
  virtual bool Fills() const { return true; }

  void Choose(const State& state) override {
    Round(state);
    if (!waiting().empty())
      WakeAt(now_ns() + options().quantum_ns - (now_ns() % options().quantum_ns));
    if (!Due()) return StartChosen(state);
    // As many in the order of their keys as the devices hold by number.
    std::vector<Ranked> order;
    for (Known* const job : running())
      order.push_back({{Key(*job), job->submit_ns, job->number}, job});
    for (Known* const job : waiting())
      order.push_back({{Key(*job), job->submit_ns, job->number}, job});
    std::sort(order.begin(), order.end(),
              [](const Ranked& a, const Ranked& b) { return a.key < b.key; });
    FreeGpus whole(state, true);
    std::vector<int64_t> left(state.clusters().size());
    for (size_t c = 0; c < left.size(); ++c) left[c] = whole.FreeMilli(static_cast<int32_t>(c));
    chosen_.clear();
    std::set<const Known*> stays;
    const auto in_quantum = [&](const Known& job) {
      return job.running && now_ns() - job.placed_ns < options().quantum_ns;
    };
    const auto choose = [&](Known* job, int32_t cluster) {
      left[cluster] -= job->demand_milli();
      if (job->running) {
        stays.insert(job);
      } else {
        chosen_.push_back(job);
      }
    };
    for (const Ranked& ranked : order) {
      if (in_quantum(*ranked.job))
        choose(ranked.job, state.host(ranked.job->place[0].host).cluster);
    }
    for (const Ranked& ranked : order) {
      if (stays.contains(ranked.job)) continue;
      for (const int32_t c : ranked.job->clusters) {
        if (ranked.job->running && state.host(ranked.job->place[0].host).cluster != c) continue;
        if (left[c] < ranked.job->demand_milli()) continue;
        choose(ranked.job, c);
        break;
      }
    }
    // Those who stay keep their place; the chosen take what is then left, the largest first so that
    // they fit.
    for (const Known* const job : stays) whole.Take(job->place);
    std::stable_sort(chosen_.begin(), chosen_.end(), [](const Known* a, const Known* b) {
      return a->demand_milli() > b->demand_milli();
    });
    FreeGpus free(state, false);
    std::vector<Known*> claimants;
    for (Known* const job : chosen_) {
      std::optional<std::vector<Taken>> gang =
          whole.Place(job->clusters, job->workers, job->gpus_milli);
      if (!gang.has_value()) continue;
      whole.Take(*gang);
      if (!free.Has(*gang)) claimants.push_back(job);
    }
    if (!claimants.empty()) {
      size_t next = 0;
      const std::vector<Known*> before = running();
      for (Known* const job : before) {
        if (stays.contains(job) || job->stopping) continue;
        Stop(state, job, *claimants[next++ % claimants.size()]);
      }
    }
    StartChosen(state);
  }

 private:
  // The chosen start as devices come free; then whoever fits, so that none is idle.
  void StartChosen(const State& state) {
    if (waiting().empty()) return;
    FreeGpus free(state, false);
    for (Known* const job : chosen_) {
      if (!job->running && !job->stopping) Try(state, &free, job);
    }
    const bool leaving = std::any_of(running().begin(), running().end(),
                                     [](const Known* job) { return job->stopping; });
    if (!leaving && Fills()) {
      for (Known* const job : std::vector<Known*>(waiting())) {
        if (!job->running) Try(state, &free, job);
      }
    }
    std::erase_if(chosen_, [](const Known* job) { return job->running; });
    Sweep();
  }

  void Ended(Known* job) override { std::erase(chosen_, job); }

  std::vector<Known*> chosen_;  // of the newest choice, that don't run yet
};

class Las : public Preemptive {
 public:
  Las(const Trace* trace, const PolicyOptions& options, bool discretised)
      : Preemptive(trace, options), discretised_(discretised) {}

 private:
  double Key(const Known& job) const override {
    const int64_t attained = Attained(job);
    return discretised_ ? (attained >= kDlasThresholdMilliNs ? 1.0 : 0.0)
                        : static_cast<double>(attained);
  }

  const bool discretised_;
};

class Srtf : public Preemptive {
 public:
  using Preemptive::Preemptive;

 private:
  double Key(const Known& job) const override {
    return static_cast<double>(trace_job(job).duration_ns) -
           static_cast<double>(Attained(job)) / static_cast<double>(job.demand_milli());
  }
};

// Gavel's rounds: first who received least of its share of time; shares are max-min fair in
// GPU-hours and change with the jobs. Nothing changes within a round. (What Shockwave's simulator
// of it does beyond that is in bench/gavel_replay.py.)
class Gavel : public Preemptive {
 public:
  using Preemptive::Preemptive;

 private:
  bool Due() const override {
    return now_ns() - begun_ns_ >= options().quantum_ns || now_ns() == begun_ns_;
  }
  bool Fills() const override { return now_ns() == begun_ns_; }
  double Key(const Known& job) const override {
    const double gpus = static_cast<double>(job.demand_milli()) / 1000;
    const int64_t half_ns = options().quantum_ns / 2;
    return -std::min(1.0, share_ / gpus) / static_cast<double>(job.received_ns + half_ns);
  }
  void Round(const State& state) override {
    if (!Due()) return;
    for (Known* const job : running())
      job->received_ns += now_ns() - std::max(job->placed_ns, begun_ns_);
    begun_ns_ = now_ns();
    std::vector<uint64_t> jobs;
    std::vector<double> gpus;
    for (const std::vector<Known*>* part :
         {&running(), static_cast<const std::vector<Known*>*>(&waiting())}) {
      for (Known* const job : *part) {
        jobs.push_back(job->number);
        gpus.push_back(static_cast<double>(job->demand_milli()) / 1000);
      }
    }
    std::sort(jobs.begin(), jobs.end());
    if (jobs == jobs_) return;
    jobs_ = std::move(jobs);
    for (Known* const job : running()) job->received_ns = 0;
    for (Known* const job : waiting()) job->received_ns = 0;
    const FreeGpus whole(state, true);
    double left = 0;
    for (size_t c = 0; c < state.clusters().size(); ++c)
      left += static_cast<double>(whole.FreeMilli(static_cast<int32_t>(c))) / 1000;
    std::sort(gpus.begin(), gpus.end());
    share_ = 0;  // GPUs' time that every job gets that wants so much
    for (size_t i = 0; i < gpus.size(); ++i) {
      share_ = std::max(share_, std::min(gpus[i], left / static_cast<double>(gpus.size() - i)));
      left -= std::min(gpus[i], share_);
    }
  }

  std::vector<uint64_t> jobs_;
  int64_t begun_ns_ = -1;
  double share_ = 1;
};

using Factory = std::unique_ptr<Policy> (*)(const Trace*, const PolicyOptions&);

const std::vector<std::pair<std::string, Factory>>& Factories() {
  static const std::vector<std::pair<std::string, Factory>> kFactories = {
      {"fifo",
       [](const Trace* t, const PolicyOptions& o) -> std::unique_ptr<Policy> {
         return std::make_unique<Fifo>(t, o, false);
       }},
      {"fifo-backfill",
       [](const Trace* t, const PolicyOptions& o) -> std::unique_ptr<Policy> {
         return std::make_unique<Fifo>(t, o, true);
       }},
      {"drf",
       [](const Trace* t, const PolicyOptions& o) -> std::unique_ptr<Policy> {
         return std::make_unique<Drf>(t, o);
       }},
      {"las",
       [](const Trace* t, const PolicyOptions& o) -> std::unique_ptr<Policy> {
         return std::make_unique<Las>(t, o, false);
       }},
      {"dlas",
       [](const Trace* t, const PolicyOptions& o) -> std::unique_ptr<Policy> {
         return std::make_unique<Las>(t, o, true);
       }},
      {"srtf",
       [](const Trace* t, const PolicyOptions& o) -> std::unique_ptr<Policy> {
         return std::make_unique<Srtf>(t, o);
       }},
      {"gavel",
       [](const Trace* t, const PolicyOptions& o) -> std::unique_ptr<Policy> {
         return std::make_unique<Gavel>(t, o);
       }},
  };
  return kFactories;
}

}  // namespace

const std::vector<std::string>& PolicyNames() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names = {"muster"};
    for (const auto& [name, factory] : Factories()) names.push_back(name);
    return names;
  }();
  return kNames;
}

absl::StatusOr<DecideFunction> MakePolicy(const std::string& name, const Trace* trace,
                                          const PolicyOptions& options) {
  if (name == "muster") return DecideFunction();
  for (const auto& [known, factory] : Factories()) {
    if (known != name) continue;
    const std::shared_ptr<Policy> policy = factory(trace, options);
    return DecideFunction(
        [policy](const State& state, int64_t now_ns, const SchedulingOptions& scheduling) {
          return policy->Decide(state, now_ns, scheduling);
        });
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no policy ", name, "; there are ", absl::StrJoin(PolicyNames(), ", ")));
}

}  // namespace muster::sim
