#include "scheduler/ask/holders.h"

#include <algorithm>
#include <limits>

#include "scheduler/ask/capacity.h"

namespace muster {
namespace {

constexpr size_t kNamed = 9;  // eight are told, and one of them may be the job that asks

}  // namespace

const std::vector<uint64_t>& PoolHolders::Of(int32_t cluster, const std::string& flavour) {
  const bool cores = flavour == "cpu";
  return Most(cluster, cores ? "" : flavour, cores);
}

const std::vector<uint64_t>& PoolHolders::OfCoresBeside(int32_t cluster,
                                                        const std::string& flavour) {
  return Most(cluster, flavour, /*cores=*/true);
}

const std::vector<uint64_t>& PoolHolders::Most(int32_t cluster, const std::string& flavour,
                                               bool cores) {
  const auto [known, first] = most_.try_emplace({{cluster, flavour}, cores});
  if (!first) return known->second;
  std::map<uint64_t, int64_t> held;
  for (const HostId id : state_.hosts()) {
    const HostRow& host = state_.host(id);
    if (host.cluster != cluster || (!flavour.empty() && host.inventory.flavour() != flavour))
      continue;
    for (const AttemptRef& ref : host.attempts) {
      const AttemptRow* attempt = state_.FindAttempt(ref);
      if (attempt == nullptr || attempt->ended() || (!cores && attempt->flavour != flavour))
        continue;
      if (state_.FindJob(ref.job)->holder != 0) continue;  // its end frees nothing
      const pb::TaskSpec& spec = state_.FindJob(ref.job)->task_spec(ref.task);
      const int64_t a_worker =
          cores ? WorkerDemand(spec, host.inventory).cpus_milli : spec.resources().gpus_milli();
      for (const PartRow& part : attempt->parts) {
        if (part.host == id) held[ref.job] += a_worker * part.workers;
      }
    }
  }
  std::vector<std::pair<int64_t, uint64_t>> sorted;
  for (const auto& [number, milli] : held) sorted.emplace_back(-milli, number);
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size() && i < kNamed; ++i)
    known->second.push_back(sorted[i].second);
  return known->second;
}

const std::vector<KeptFor>& PoolHolders::KeptIn(int32_t cluster, const std::string& flavour) {
  if (!kept_known_) {
    kept_known_ = true;
    for (const uint64_t number : state_.active_jobs()) {
      for (const TaskRow& task : state_.FindJob(number)->tasks) {
        if (task.reservation == nullptr) continue;
        kept_[{task.reservation->cluster,
               task.reservation->flavour.empty() ? "cpu" : task.reservation->flavour}]
            .push_back({number, task.reservation->start_ns});
      }
    }
    const auto when = [](const KeptFor& kept) {
      return kept.start_ns == 0 ? std::numeric_limits<int64_t>::max() : kept.start_ns;
    };
    for (auto& [pool, kept] : kept_) {
      std::stable_sort(kept.begin(), kept.end(),
                       [&](const KeptFor& a, const KeptFor& b) { return when(a) < when(b); });
    }
  }
  return kept_[{cluster, flavour}];
}

int64_t PoolHolders::UsedMilli(int32_t queue, const std::string& flavour) {
  if (use_.empty()) use_ = UseByQueue(state_);
  if (queue < 0 || queue >= static_cast<int32_t>(use_.size())) return 0;
  const auto used = use_[queue].find(flavour);
  return used == use_[queue].end() ? 0 : used->second;
}

const std::vector<uint64_t>& PoolHolders::Entitled(const Plan& plan, const std::string& queue,
                                                   const std::string& flavour) {
  if (!entitled_known_) {
    entitled_known_ = true;
    for (const Verdict& verdict : plan.verdicts) {
      const bool entitled = verdict.code == pb::V_CAPACITY || verdict.code == pb::V_PLACEMENT ||
                            verdict.code == pb::V_RECLAIMING ||
                            verdict.code == pb::V_ENTITLED_POOL ||
                            verdict.code == pb::V_STARTING_NOW;
      const JobRow* job = entitled ? state_.FindJob(verdict.task.job) : nullptr;
      if (job == nullptr || job->finished()) continue;
      std::vector<uint64_t>& jobs =
          entitled_[{job->spec->queue(), plan.verdicts.FlavourOf(verdict)}];
      if (jobs.empty() || jobs.back() != job->number) jobs.push_back(job->number);
    }
  }
  return entitled_[{queue, flavour}];
}

}  // namespace muster
