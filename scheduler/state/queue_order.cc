#include "scheduler/state/queue_order.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "scheduler/state/applier.h"

namespace muster {
namespace {

constexpr int64_t kCpusADevice = 16;
constexpr int32_t kBands = 60;

int32_t RawBand(__int128 milli_ns) {
  int32_t band = kFirstBand;
  for (__int128 most = kFirstBandMilliNs; milli_ns > most && band < kBands; most *= 2) ++band;
  return band;
}

int64_t WorkerMilli(const pb::TaskSpec& spec) {
  const int64_t gpus_milli = spec.resources().gpus_milli();
  return std::max<int64_t>(1, gpus_milli > 0
                                  ? gpus_milli
                                  : WorkerDemand(spec, pb::Inventory()).cpus_milli / kCpusADevice);
}

// How long the task ran, all attempts.
int64_t RanNs(const TaskRow& task, int64_t now_ns) {
  const AttemptRow* current = task.current();
  return task.ran_ns + (current == nullptr || current->start_ns == 0
                            ? 0
                            : std::max<int64_t>(0, now_ns - current->start_ns));
}

struct TaskLeft {
  int64_t ns = -1;  // -1: nothing tells
  int64_t workers = 1;
};

// By its program's word; by its steps, at the pace of all its attempts so far; by history. Never by
// the workers that it has now: a band that follows from what the order gives would change it again
// (two elastic gangs took each other's growth workers at each tick).
TaskLeft TaskLeftOf(const TaskRow& task, int64_t least_workers, int64_t ran_ns, int64_t now_ns) {
  const pb::Progress& progress = task.progress;
  const auto told = std::find_if(task.attempts.begin(), task.attempts.end(),
                                 [&](const auto& a) { return a.number == progress.attempt(); });
  if (progress.expected_end_ns() > progress.at_ns() && told != task.attempts.end()) {
    const int64_t since_ns = (told->ended() ? told->end_ns : now_ns) - progress.heard_ns();
    const int64_t then_ns = progress.expected_end_ns() - progress.at_ns();
    return {std::max<int64_t>(0, then_ns - std::max<int64_t>(0, since_ns)), told->workers};
  }
  if (progress.step() > 0 && progress.total_steps() >= progress.step()) {
    const __int128 left = static_cast<__int128>(ran_ns) *
                          (progress.total_steps() - progress.step()) / progress.step();
    return {static_cast<int64_t>(std::min<__int128>(left, std::numeric_limits<int64_t>::max())),
            least_workers};
  }
  if (task.expected_run_ns <= ran_ns) return {-1, least_workers};
  return {task.expected_run_ns - ran_ns,
          task.attempts.empty() ? least_workers : task.attempts.back().workers};
}

// Thousandths of devices that its attempts hold.
int64_t HeldMilli(const JobRow& job) {
  int64_t milli = 0;
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    const AttemptRow* current = job.tasks[t].current();
    if (current == nullptr || current->released()) continue;
    milli += WorkerMilli(job.task_spec(static_cast<int32_t>(t))) * current->workers;
  }
  return milli;
}

}  // namespace

WorkLeft WorkLeftOf(const JobRow& job, int64_t now_ns) {
  WorkLeft left;
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    const TaskRow& task = job.tasks[t];
    if (task.finished()) continue;
    if (task.current() != nullptr && task.current()->released()) continue;  // done but its export
    const pb::TaskSpec& spec = job.task_spec(static_cast<int32_t>(t));
    const int64_t least_workers = std::max(1, spec.workers().min());
    const int64_t ran_ns = RanNs(task, now_ns);
    const int64_t most_ns = spec.time_limit_ns() > 0
                                ? std::max<int64_t>(0, spec.time_limit_ns() - ran_ns)
                                : std::numeric_limits<int64_t>::max();
    const TaskLeft known = TaskLeftOf(task, least_workers, ran_ns, now_ns);
    const __int128 milli = WorkerMilli(spec) * known.workers;
    left.milli_ns += milli * std::min(most_ns, known.ns < 0 ? ran_ns : known.ns);
    if (known.ns < 0) continue;
    left.expected_milli_ns += milli * std::min(most_ns, known.ns);
    // At its least size: that it is the longest gives it more workers, with which it wouldn't be.
    const __int128 alone_ns = static_cast<__int128>(known.ns) * known.workers / least_workers;
    left.longest_ns =
        std::max(left.longest_ns, static_cast<int64_t>(std::min<__int128>(most_ns, alone_ns)));
  }
  return left;
}

int64_t WaitedNs(const JobRow& job, int64_t now_ns) {
  int64_t longest_ns = 0;
  for (const TaskRow& task : job.tasks) {
    if (task.finished()) continue;
    const int64_t waits_ns =
        task.waiting() ? std::max<int64_t>(0, now_ns - task.waiting_since_ns) : 0;
    longest_ns = std::max(longest_ns, task.waited_ns + waits_ns);
  }
  return longest_ns;
}

int32_t BandOf(__int128 milli_ns, int32_t before) {
  const int32_t band = RawBand(milli_ns);
  const bool near = before != kFrontBand && RawBand(milli_ns * 4 / 5) <= before &&
                    before <= RawBand(milli_ns * 5 / 4);
  return near ? before : band;
}

bool Applier::SetBand(uint64_t number, int32_t band) {
  if (s_.FindJob(number)->band == band) return false;
  Job(number)->band = band;
  return true;
}

// Of each queue whose order is shortest all jobs at once: which one is its longest follows from
// the others.
void Applier::TickOrder() {
  struct Queue {
    int64_t max_wait_ns = 0;
    std::vector<std::pair<uint64_t, WorkLeft>> jobs;
    __int128 expected_milli_ns = 0;  // of all of them
    int64_t held_milli = 0;          // by what runs
  };
  std::map<int32_t, Queue> queues;
  bool changed = false;
  for (const uint64_t number : *s_.active_) {
    const JobRow& job = *s_.FindJob(number);
    const int32_t node = s_.queues_->Find(job.spec->queue());
    // What runs on another job's devices takes no turn.
    if (node < 0 || job.holder != 0 || !s_.queues_->nodes[node].shortest_first) {
      changed = SetBand(number, 0) || changed;
      continue;
    }
    Queue& queue = queues[node];
    queue.max_wait_ns = s_.queues_->nodes[node].max_wait_ns;
    const WorkLeft left = WorkLeftOf(job, s_.now_ns_);
    queue.expected_milli_ns += left.expected_milli_ns;
    queue.held_milli += HeldMilli(job);
    queue.jobs.emplace_back(number, left);
  }
  for (const auto& [node, queue] : queues) {
    for (const auto& [number, left] : queue.jobs) {
      const JobRow& job = *s_.FindJob(number);
      // The longest: it would still run when all else that is known of the queue has ended. It
      // stays that until it would not even be the last.
      const __int128 alone = static_cast<__int128>(left.longest_ns) * queue.held_milli;
      const bool longest = left.longest_ns > 0 && 10 * alone >= (job.band == kFrontBand ? 10 : 11) *
                                                                    queue.expected_milli_ns;
      const bool waited = WaitedNs(job, s_.now_ns_) >= queue.max_wait_ns;
      const int32_t band = longest || waited ? kFrontBand : BandOf(left.milli_ns, job.band);
      changed = SetBand(number, band) || changed;
    }
  }
  if (changed) NewRound();
}

}  // namespace muster
