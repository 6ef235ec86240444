#include "sim/tally.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/base/units.h"
#include "sim/shape_room.h"

namespace muster::sim {
namespace {

constexpr int64_t kRoomEveryNs = kMinute;  // who is late for want of hosts is looked at so often

}  // namespace

Tally::Tally(const Trace& trace, int64_t epoch_ns, int64_t patience_ns, WorldResult* result)
    : trace_(trace),
      epoch_ns_(epoch_ns),
      patience_ns_(patience_ns),
      result_(result),
      leaf_of_(trace.jobs.size()),
      promises_of_(trace.jobs.size()),
      runs_in_(trace.jobs.size(), -1),
      held_milli_(trace.jobs.size()),
      bands_(trace.jobs.size()),
      kept_(trace.jobs.size()) {
  for (const TraceJob& job : trace.jobs) {
    JobResult row;
    row.name = job.name;
    row.queue = job.queue;
    row.gpus_milli = job.gpus_milli * job.workers;
    row.submit_ns = job.submit_ns;
    row.duration_ns = job.duration_ns;
    result_->jobs.push_back(std::move(row));
    result_->last_submit_ns = std::max(result_->last_submit_ns, job.submit_ns);
  }
}

void Tally::Begin(const State& state) {
  const QueueIndex& queues = state.queues();
  for (size_t n = 1; n < queues.nodes.size(); ++n) {
    if (!queues.leaf(static_cast<int32_t>(n))) continue;
    Leaf& leaf = leaves_[queues.nodes[n].path];
    leaf.shortest_first = queues.nodes[n].shortest_first;
    for (const auto& [flavour, quota] : queues.nodes[n].spec.quota()) {
      if (flavour == "cpu") continue;
      for (const auto& [cluster, milli] : quota.guarantee_per_cluster()) {
        if (milli > 0) leaf.promises.push_back({state.FindCluster(cluster), flavour, milli, {}});
      }
    }
    std::sort(leaf.promises.begin(), leaf.promises.end(), [](const Promise& a, const Promise& b) {
      return std::tie(a.cluster, a.flavour) < std::tie(b.cluster, b.flavour);
    });
  }
  for (size_t i = 0; i < trace_.jobs.size(); ++i) {
    const TraceJob& job = trace_.jobs[i];
    const auto found = leaves_.find(job.queue);
    if (found == leaves_.end() || found->second.promises.empty() || job.gpus_milli == 0) continue;
    const Leaf& leaf = found->second;
    leaf_of_[i] = &found->second;
    const std::vector<std::string> types = absl::StrSplit(job.gpu_type, ';', absl::SkipEmpty());
    const auto add = [&](const auto& is_there) {
      for (const std::string& type : types) {
        for (size_t p = 0; p < leaf.promises.size(); ++p) {
          if (leaf.promises[p].flavour == type && is_there(leaf.promises[p]))
            promises_of_[i].push_back(static_cast<int32_t>(p));
        }
      }
    };
    for (const std::string& name : job.clusters) {
      add([&, cluster = state.FindCluster(name)](const Promise& promise) {
        return promise.cluster == cluster;
      });
    }
    if (job.clusters.empty()) add([](const Promise&) { return true; });
  }
}

void Tally::OnAccepted(size_t index, uint64_t number) {
  result_->jobs[index].number = number;
  index_of_[number] = index;
}

void Tally::OnRefused(size_t index, std::string why) {
  result_->jobs[index].refused = std::move(why);
  ++over_;
}

Tally::Leaf* Tally::Changed(size_t index) {
  Leaf* const leaf = leaf_of_[index];
  if (leaf != nullptr && !std::exchange(leaf->changed, true)) changed_.push_back(leaf);
  return leaf;
}

void Tally::Submit(size_t index) {
  if (Leaf* const leaf = Changed(index); leaf != nullptr) {
    leaf->unfinished.insert({RankOf(index), trace_.jobs[index].submit_ns, index});
  }
}

void Tally::Start(size_t index, int32_t cluster, const std::string& flavour, int64_t gpus_milli) {
  JobResult& job = result_->jobs[index];
  if (job.start_ns < 0) job.start_ns = now_ns_;
  job.segments.push_back({now_ns_, -1, cluster, gpus_milli});
  held_milli_[index] = gpus_milli;
  used_milli_ += gpus_milli;
  Leaf* const leaf = Changed(index);
  for (size_t p = 0; leaf != nullptr && p < leaf->promises.size(); ++p) {
    if (leaf->promises[p].cluster == cluster && leaf->promises[p].flavour == flavour)
      runs_in_[index] = static_cast<int32_t>(p);
  }
  Keep(index, 1);
}

void Tally::Keep(size_t index, int64_t sign) {
  if (runs_in_[index] < 0) return;
  int64_t& kept_milli = leaf_of_[index]->promises[runs_in_[index]].kept_milli[RankOf(index)];
  kept_milli += sign * std::min(held_milli_[index], result_->jobs[index].gpus_milli);
}

void Tally::Release(size_t index) {
  if (held_milli_[index] == 0) return;
  result_->jobs[index].segments.back().until_ns = now_ns_;
  used_milli_ -= held_milli_[index];
  Changed(index);
  Keep(index, -1);
  runs_in_[index] = -1;
  held_milli_[index] = 0;
}

void Tally::End(size_t index) {
  result_->jobs[index].end_ns = now_ns_;
  result_->end_ns = std::max(result_->end_ns, now_ns_);
  ++over_;
  if (Leaf* const leaf = Changed(index); leaf != nullptr) {
    leaf->unfinished.erase({RankOf(index), trace_.jobs[index].submit_ns, index});
  }
}

// A guarantee covers what, in leaf order, fits what the leaf's share in one of its allowed pools
// still leaves, whether it runs or waits: that is a place in the entitled set (docs/scheduling.md
// §1). Who waits although it is covered is late where, in one of the pools in which it is covered,
// its queue's jobs hold less than what is promised: counted are those that are not stopped for it
// (§2), which are of its priority or a higher one, and of its band or an earlier one, at their
// least size. Elsewhere its own queue's younger jobs have what it is promised.
void Tally::SeeGuarantees() {
  for (Leaf* const leaf : changed_) {
    leaf->changed = false;
    const size_t promises = leaf->promises.size();
    std::vector<int64_t> left_milli(promises),
        unused_milli(promises);  // by promise: of the order's, and of what is held
    std::vector<std::map<Rank, int64_t>::const_iterator> kept(
        promises);  // by promise: the next lower rank
    int64_t any_milli = 0;
    for (size_t p = 0; p < promises; ++p) {
      left_milli[p] = unused_milli[p] = leaf->promises[p].milli;
      kept[p] = leaf->promises[p].kept_milli.begin();
      any_milli += left_milli[p];
    }
    std::map<size_t, Covered> covered;
    for (const size_t index : std::exchange(leaf->kept, {})) kept_[index] = false;
    for (const auto& [rank, submit_ns, index] : leaf->unfinished) {
      if (any_milli == 0) break;
      const int64_t demand_milli = result_->jobs[index].gpus_milli;
      int32_t at = -1, unused = -1;
      for (const int32_t p : promises_of_[index]) {
        for (; kept[p] != leaf->promises[p].kept_milli.end() && kept[p]->first <= rank; ++kept[p])
          unused_milli[p] -= kept[p]->second;
        if (left_milli[p] < demand_milli) continue;
        if (at < 0 || p == runs_in_[index]) at = p;  // where it runs comes first
        if (unused < 0 && unused_milli[p] >= demand_milli) unused = p;
      }
      if (at < 0) continue;
      left_milli[at] -= demand_milli;
      any_milli -= demand_milli;
      if (held_milli_[index] > 0) {
        if (at != runs_in_[index]) continue;
        leaf->kept.push_back(index);
        kept_[index] = true;
        continue;
      }
      if (unused >= 0) unused_milli[unused] -= demand_milli;
      const auto before = leaf->covered.find(index);
      SeeCovered(index, unused,
                 &(covered[index] = before == leaf->covered.end() ? Covered{} : before->second));
    }
    for (const auto& [index, was] : leaf->covered) {
      if (!covered.contains(index)) EndWait(index, was);
    }
    leaf->covered = std::move(covered);
  }
  changed_.clear();
}

void Tally::SeeCovered(size_t index, int32_t unused_in, Covered* covered) {
  JobResult& job = result_->jobs[index];
  covered->unused_in = unused_in;
  if (unused_in >= 0) {
    if (covered->unused_since_ns < 0) covered->unused_since_ns = now_ns_;
    if (covered->overtaken_since_ns >= 0)
      covered->overtaken_ns += now_ns_ - std::exchange(covered->overtaken_since_ns, -1);
  } else {
    if (covered->overtaken_since_ns < 0) covered->overtaken_since_ns = now_ns_;
    if (covered->unused_since_ns >= 0)
      job.late_ns = std::max(job.late_ns, now_ns_ - std::exchange(covered->unused_since_ns, -1));
    SeeRoomOf(index, Room::kNone, covered);
  }
}

void Tally::SeeRoomOf(size_t index, Room room, Covered* covered) {
  JobResult& job = result_->jobs[index];
  const auto see = [&](bool has, int64_t* since_ns, int64_t* longest_ns) {
    if (has && *since_ns < 0) *since_ns = now_ns_;
    if (!has && *since_ns >= 0)
      *longest_ns = std::max(*longest_ns, now_ns_ - std::exchange(*since_ns, -1));
  };
  see(room == Room::kFree, &covered->room_since_ns, &job.late_room_ns);
  see(room != Room::kNone, &covered->behind_since_ns, &job.late_behind_ns);
}

// What is promised is there by number. Two things on the hosts are not stopped for it: what a
// guarantee covers where it runs, and its own queue's jobs of its priority and band, or above. Of
// several that wait the first gets the place that there is (`served`).
Tally::Room Tally::RoomFor(const State& state, size_t index, const Leaf& leaf,
                           const Promise& promise, std::vector<size_t>* served) const {
  const auto place = [&](size_t i) { return std::tuple(RankOf(i), trace_.jobs[i].submit_ns, i); };
  const auto stays = [&](uint64_t number) {
    const auto known = index_of_.find(number);
    if (known == index_of_.end()) return false;
    const size_t other = known->second;
    return kept_[other] || (leaf_of_[other] == &leaf && RankOf(other) <= RankOf(index));
  };
  ShapeRoom room(state, promise.cluster, promise.flavour, stays);
  for (const size_t other : *served)
    room.Take(trace_.jobs[other].workers, trace_.jobs[other].gpus_milli);
  ShapeRoom beside = room;
  for (const TaskRef& ref : state.reserved_tasks()) {
    const auto known = index_of_.find(ref.job);
    if (known == index_of_.end() || leaf_of_[known->second] != &leaf ||
        place(known->second) >= place(index))
      continue;
    beside.Keep(*state.FindJob(ref.job)->tasks[static_cast<size_t>(ref.task)].reservation);
  }
  const TraceJob& job = trace_.jobs[index];
  if (!room.Take(job.workers, job.gpus_milli)) return Room::kNone;
  served->push_back(index);
  return beside.Take(job.workers, job.gpus_milli) ? Room::kFree : Room::kKeptForOlder;
}

void Tally::SeeRoom(const State& state) {
  if (looked_for_room_ns_ >= 0 && now_ns_ < looked_for_room_ns_ + kRoomEveryNs) return;
  looked_for_room_ns_ = now_ns_;
  std::vector<std::tuple<int64_t, size_t, Leaf*>> waiting;
  for (auto& [path, leaf] : leaves_) {
    for (const auto& [index, covered] : leaf.covered) {
      if (covered.unused_in >= 0) waiting.emplace_back(covered.unused_since_ns, index, &leaf);
    }
  }
  std::sort(waiting.begin(), waiting.end());
  std::map<std::pair<int32_t, std::string>, std::vector<size_t>> served;  // by pool
  for (const auto& [since_ns, index, leaf] : waiting) {
    Covered& covered = leaf->covered.at(index);
    const Promise& promise = leaf->promises[static_cast<size_t>(covered.unused_in)];
    std::vector<size_t>* there = &served[{promise.cluster, promise.flavour}];
    SeeRoomOf(index, RoomFor(state, index, *leaf, promise, there), &covered);
  }
}

void Tally::EndWait(size_t index, Covered covered) {
  JobResult& job = result_->jobs[index];
  SeeRoomOf(index, Room::kNone, &covered);
  if (covered.unused_since_ns >= 0)
    job.late_ns = std::max(job.late_ns, now_ns_ - covered.unused_since_ns);
  if (covered.overtaken_since_ns >= 0) covered.overtaken_ns += now_ns_ - covered.overtaken_since_ns;
  job.overtaken_ns = std::max(job.overtaken_ns, covered.overtaken_ns);
  if (covered.out_since_ns >= 0)
    job.left_out_ns = std::max(job.left_out_ns, now_ns_ - covered.out_since_ns);
}

// The promise is a place in the entitled set (docs/scheduling.md §1): who has it and waits lacks
// devices in its shape, or waits for those that stop for it. A policy that gives no verdicts
// promises nothing.
void Tally::SeeBands(const State& state) {
  for (auto& [path, leaf] : leaves_) {
    if (!leaf.shortest_first) continue;
    std::vector<size_t> moved;
    for (const auto& [rank, submit_ns, index] : leaf.unfinished) {
      const JobRow* row = state.FindJob(result_->jobs[index].number);
      if (row != nullptr && row->band != rank.second) moved.push_back(index);
    }
    for (const size_t index : moved) {
      leaf.unfinished.erase({RankOf(index), trace_.jobs[index].submit_ns, index});
      Keep(index, -1);
      bands_[index] = state.FindJob(result_->jobs[index].number)->band;
      Keep(index, 1);
      leaf.unfinished.insert({RankOf(index), trace_.jobs[index].submit_ns, index});
      Changed(index);
    }
  }
}

void Tally::SeeEntitled(const Plan& plan) {
  for (auto& [path, leaf] : leaves_) {
    for (auto& [index, covered] : leaf.covered) {
      JobResult& job = result_->jobs[index];
      const Verdict* const verdict = plan.verdicts.Find({job.number, 0});
      if (verdict != nullptr && covered.room_since_ns >= 0)
        job.late_verdict = pb::VerdictCode_Name(verdict->code);
      if (verdict == nullptr || verdict->code == pb::V_SHARE || verdict->code == pb::V_LIMIT) {
        if (covered.out_since_ns < 0) covered.out_since_ns = now_ns_;
      } else if (covered.out_since_ns >= 0) {
        job.left_out_ns = std::max(job.left_out_ns, now_ns_ - covered.out_since_ns);
        covered.out_since_ns = -1;
      }
    }
  }
}

void Tally::OnStep(const StepRecord& step) {
  const int64_t now_ns = step.view->now_ns - epoch_ns_;
  const int64_t until_ns = std::min(now_ns, result_->last_submit_ns);
  if (until_ns > summed_ns_) {
    result_->used_device_us += used_milli_ * ((until_ns - summed_ns_) / 1000) / 1000;
    summed_ns_ = until_ns;
  }
  now_ns_ = now_ns;
  const State& state = step.view->state;
  for (const pb::Event& event : step.events) {
    switch (event.body_case()) {
      case pb::Event::kJobSubmitted:
        Submit(static_cast<size_t>(TraceIndex(event.job_submitted().uid())));
        break;
      case pb::Event::kAttemptPlaced: {
        const auto index = static_cast<size_t>(TraceIndex(event.attempt_placed().key().job_uid()));
        Start(index, state.FindCluster(event.attempt_placed().cluster()),
              event.attempt_placed().flavour(),
              event.attempt_placed().workers() * trace_.jobs[index].gpus_milli);
        break;
      }
      case pb::Event::kAttemptStopping: {
        JobResult& job = result_->jobs[TraceIndex(event.attempt_stopping().key().job_uid())];
        if (event.attempt_stopping().cause() == pb::PREEMPTION) {
          ++job.evictions;
          ++result_->evictions;
        } else if (event.attempt_stopping().cause() == pb::RESIZE) {
          ++job.resizes;
        }
        break;
      }
      case pb::Event::kAttemptReported: {
        if (event.attempt_reported().report().phase() != pb::GONE) break;
        const auto index =
            static_cast<size_t>(TraceIndex(event.attempt_reported().report().key().job_uid()));
        JobResult& job = result_->jobs[index];
        if (job.end_ns >= 0) break;
        const JobRow* row = state.FindJob(job.number);
        // Of a step's events, this one's attempt: it may have been placed again in the same step.
        const AttemptRow* attempt = state.FindAttempt(event.attempt_reported().report().key());
        if (attempt != nullptr && !attempt->released()) break;
        Release(index);
        if (row == nullptr || row->finished()) End(index);
        break;
      }
      default:
        break;
    }
  }
  SeeBands(state);
  SeeGuarantees();
  SeeRoom(state);
  SeeEntitled(*step.view->plan);
}

void Tally::Finish(int64_t now_ns) {
  now_ns_ = now_ns - epoch_ns_;
  for (auto& [path, leaf] : leaves_) {
    for (const auto& [index, covered] : leaf.covered) EndWait(index, covered);
  }
  for (const JobResult& job : result_->jobs) {
    result_->late += job.late_ns > patience_ns_;
    result_->late_with_room += job.late_ns > patience_ns_ && job.late_room_ns > patience_ns_;
    result_->late_behind += IsLateBehind(job, patience_ns_);
    result_->left_out += job.left_out_ns > patience_ns_;
    result_->overtaken += job.overtaken_ns > patience_ns_;
  }
}

}  // namespace muster::sim
