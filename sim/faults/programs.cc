#include "sim/faults/programs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/fnv.h"

namespace muster::sim::faults {
namespace {

constexpr int64_t kStepNs = kSecond;             // of a gang, whatever its size
constexpr int64_t kRendezvousNs = 90 * kSecond;  // after which a rank that is alone gives up

// Of a rank that fails: as its task says, for good.
int FailureOf(const pb::TaskSpec& task) {
  return task.final_exit_codes().empty() ? 1 : task.final_exit_codes(0);
}

// A copy is called: the end of a rank takes its functions away.
void Exit(const Programs::Rank& rank, int code) {
  const std::function<void(int)> exit = rank.exit;
  exit(code);
}

std::string Name(const pb::AttemptKey& key) {
  return absl::StrCat(key.job_uid(), "/", key.task(), "/", key.attempt());
}

}  // namespace

Random Programs::RandomOf(const pb::AttemptKey& key, int64_t what) const {
  return Random(Fnv1a(Name(key), seed_ ^ kFnv1aBegin) ^
                (static_cast<uint64_t>(what) * 0x9e3779b97f4a7c15ull));
}

std::string Programs::LoadedBy(const pb::AttemptKey& key) const {
  const auto found = loaded_.find(Name(key));
  return found == loaded_.end() ? "" : found->second;
}

void Programs::Start(const pb::Prepare& prepare, int32_t rank, Rank acts) {
  const std::string name = Name(prepare.key());
  const auto [it, added] = gangs_.try_emplace(name);
  Gang& gang = it->second;
  if (added) {
    gang.prepare = prepare;
    gang.size = prepare.gang_workers() * std::max(1, prepare.processes_per_worker());
    // The job's length does not depend on the attempt.
    Random length(Fnv1a(absl::StrCat(prepare.key().job_uid(), "/", prepare.key().task()), seed_));
    gang.steps = length.Between(1, std::max<int64_t>(1, config_.work_ns / kStepNs));
    gang.exports = length.OneIn(4);
    Random random = RandomOf(prepare.key(), 0);
    for (const std::string& path : prepare.resume_from()) {
      if (random.OneIn(10)) continue;  // it can't be read
      const auto found = checkpoints_.find(path);
      if (found == checkpoints_.end()) continue;
      gang.from_step = found->second;
      gang.from_path = loaded_[name] = path;
      break;
    }
  }
  gang.ranks[rank] = std::move(acts);
  if (static_cast<int32_t>(gang.ranks.size()) == gang.size && !gang.met) {
    heap_->After(kMillisecond, [this, name] { Meet(name); });
    return;
  }
  heap_->After(kRendezvousNs, [this, name, rank] {
    const auto found = gangs_.find(name);
    if (found == gangs_.end() || found->second.met) return;
    const auto alone = found->second.ranks.find(rank);
    if (alone != found->second.ranks.end()) Exit(alone->second, 1);
  });
}

void Programs::Meet(const std::string& name) {
  const auto found = gangs_.find(name);
  if (found == gangs_.end() || found->second.met ||
      static_cast<int32_t>(found->second.ranks.size()) != found->second.size)
    return;
  Gang& gang = found->second;
  gang.met = true;
  gang.began_ns = heap_->now_ns();
  // One in twelve ends at once, so soon that its shim writes nothing but how it ended.
  if (Random brief = RandomOf(gang.prepare.key(), -1); brief.OneIn(12)) {
    Export(&gang);
    for (const auto& [rank, acts] : gang.ranks) {
      heap_->After(brief.Between(0, 20 * kMillisecond),
                   [this, name, rank = rank] { Leave(name, rank); });
    }
    return;
  }
  Report(&gang);
  if (Hangs(gang.prepare.key(), gang.prepare.task())) return;
  Random random = RandomOf(gang.prepare.key(), 1);
  const int64_t work_ns = std::max<int64_t>(1, gang.steps - gang.from_step) * kStepNs;
  const auto each = [&](int64_t interval_ns, void (Programs::*what)(Gang*)) {
    for (int64_t at_ns = interval_ns; at_ns < work_ns; at_ns += interval_ns) {
      heap_->After(at_ns, [this, name, what] {
        const auto there = gangs_.find(name);
        if (there != gangs_.end() && !there->second.over) (this->*what)(&there->second);
      });
    }
  };
  each(20 * kSecond, &Programs::Report);
  each(random.Between(10 * kSecond, kMinute), &Programs::Checkpoint);
  heap_->After(std::max<int64_t>(0, work_ns - random.Between(0, 10 * kSecond)), [this, name] {
    const auto there = gangs_.find(name);
    if (there != gangs_.end() && !there->second.over) Export(&there->second);
  });
  // One in eight fails at some time; else each rank ends a little later than another.
  if (random.OneIn(8)) {
    const int32_t rank = static_cast<int32_t>(random.Below(static_cast<uint64_t>(gang.size)));
    heap_->After(random.Between(0, work_ns), [this, name, rank] {
      const auto there = gangs_.find(name);
      if (there == gangs_.end()) return;
      const auto victim = there->second.ranks.find(rank);
      if (victim != there->second.ranks.end())
        Exit(victim->second, FailureOf(there->second.prepare.task()));
    });
  }
  for (const auto& [rank, acts] : gang.ranks) {
    heap_->After(work_ns + random.Between(0, 5 * kSecond),
                 [this, name, rank = rank] { Leave(name, rank); });
  }
}

bool Programs::Later(const Gang& gang, void (Programs::*what)(Gang*), bool is_export) {
  if (!StorageHangs()) return false;
  waits(is_export);
  heap_->At(storage_hangs_until_ns, [this, name = Name(gang.prepare.key()), what] {
    const auto there = gangs_.find(name);
    if (there != gangs_.end()) (this->*what)(&there->second);
  });
  return true;
}

// After what it has still to write.
void Programs::Leave(const std::string& name, int32_t rank) {
  if (StorageHangs()) {
    return heap_->At(storage_hangs_until_ns + kMillisecond,
                     [this, name, rank] { Leave(name, rank); });
  }
  const auto there = gangs_.find(name);
  if (there == gangs_.end()) return;
  const auto leaves = there->second.ranks.find(rank);
  if (leaves != there->second.ranks.end()) Exit(leaves->second, 0);
}

int64_t Programs::StepNow(const Gang& gang) const {
  if (!gang.met) return gang.from_step;
  return std::min(gang.steps, gang.from_step + (heap_->now_ns() - gang.began_ns) / kStepNs);
}

void Programs::Report(Gang* gang) {
  const auto first = gang->ranks.find(0);
  if (first == gang->ranks.end() || gang->prepare.task().hang_timeout_ns() == 0)
    return;  // those say nothing but their checkpoints
  const auto report = first->second.report;
  report(absl::StrCat("{\"step\":", StepNow(*gang), ",\"total_steps\":", gang->steps, "}"));
}

void Programs::Export(Gang* gang) {
  const auto first = gang->ranks.find(0);
  const std::string& directory = gang->prepare.attempt_directory();
  if (!gang->exports || first == gang->ranks.end() || directory.empty()) return;
  if (Later(*gang, &Programs::Export, /*is_export=*/true)) return;
  const std::string staged = directory + "/export-staging";
  stage(staged, gang->prepare.key());
  const auto say = first->second.say;
  say(absl::StrCat("{\"export\":{\"staged\":\"", staged, "\",\"target\":\"model-of-",
                   gang->prepare.key().task(), "\"}}"));
}

void Programs::Checkpoint(Gang* gang) {
  const auto first = gang->ranks.find(0);
  if (first == gang->ranks.end() || !gang->met) return;
  if (Later(*gang, &Programs::Checkpoint, /*is_export=*/false)) return;
  const int64_t step = StepNow(*gang);
  const std::string path = absl::StrCat("/shared/", Name(gang->prepare.key()), "/", step);
  checkpoints_[path] = step;
  const auto say = first->second.say;
  say(absl::StrCat("{\"checkpoint\":{\"step\":", step, ",\"path\":\"", path,
                   "\",\"loaded_step\":", gang->from_path.empty() ? -1 : gang->from_step,
                   ",\"loaded_path\":\"", gang->from_path, "\"}}"));
}

void Programs::Terminate(const pb::AttemptKey& key, int32_t rank) {
  const auto found = gangs_.find(Name(key));
  if (found == gangs_.end() || found->second.ranks.count(rank) == 0) return;
  Random random = RandomOf(key, 2 + rank);
  if (random.OneIn(8)) return;  // it ignores SIGTERM
  if (rank == 0) Checkpoint(&found->second);
  heap_->After(random.Between(kMillisecond, 2 * kSecond),
               [this, name = Name(key), rank] { Leave(name, rank); });
}

void Programs::Dead(const pb::AttemptKey& key, int32_t rank) {
  const auto found = gangs_.find(Name(key));
  if (found == gangs_.end()) return;
  found->second.over = true;
  found->second.ranks.erase(rank);
  if (found->second.ranks.empty()) gangs_.erase(found);
}

}  // namespace muster::sim::faults
