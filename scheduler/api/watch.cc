#include "scheduler/api/watch.h"

#include <algorithm>
#include <utility>

#include "scheduler/ask/words/narrate.h"

namespace muster {
namespace {

// Steps that wait for the hub's thread, each with its snapshot: what happened between two of them
// is told from both. Half a second's at least.
constexpr size_t kStepsKept = 256;

// A follower wants to hear of nothing else in the job's verdicts; expected starts move all the
// time.
bool SameVerdicts(const View& a, const View& b, uint64_t job) {
  return std::ranges::equal(a.plan->verdicts.OfJob(job), b.plan->verdicts.OfJob(job),
                            [](const Verdict& x, const Verdict& y) {
                              return x.task == y.task && x.code == y.code &&
                                     x.cluster == y.cluster && x.missing_milli == y.missing_milli;
                            });
}

}  // namespace

WatchHub::WatchHub(const Engine* engine)
    : engine_(engine),
      view_(engine->Snapshot()),
      holders_(view_->state),
      thread_([this] { Run(); }) {}

WatchHub::~WatchHub() { Stop(); }

void WatchHub::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Engine::Observer WatchHub::observer() {
  return [this](const StepRecord& step) {
    std::lock_guard lock(mutex_);
    // Nothing is held for nobody. Should the hub fall behind by more than it keeps, steps become
    // one: of a job's rows that came and went within it (checkpoints) only those are told that are
    // still there.
    if (!steps_.empty() && (watchers_.empty() || steps_.size() >= kStepsKept)) {
      steps_.back().view = step.view;
    } else {
      steps_.push_back({step.view, {}});
    }
    if (!watchers_.empty())
      steps_.back().events.insert(steps_.back().events.end(), step.events.begin(),
                                  step.events.end());
    wake_.notify_one();
  };
}

const JobRow* WatchHub::Entry::RowIn(const View& view) const {
  const JobRow* row = view.state.FindJob(job);
  return row != nullptr ? row : ended.get();
}

uint64_t WatchHub::Add(const std::shared_ptr<const JobRow>& job, Watcher watcher, int32_t members) {
  const uint64_t commit = engine_->Snapshot()->commit;
  std::lock_guard lock(mutex_);
  const uint64_t id = next_id_++;
  Entry& entry = watchers_[id];
  entry.job = job->number;
  entry.members = members;
  if (job->finished()) entry.ended = std::make_shared<const JobRow>(*job);
  entry.watcher = std::make_shared<Watcher>(std::move(watcher));
  entry.not_before = commit;
  wake_.notify_one();
  return id;
}

void WatchHub::Poke(uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto it = watchers_.find(id);
  if (it == watchers_.end()) return;
  it->second.poked = true;
  wake_.notify_one();
}

void WatchHub::Remove(uint64_t id) {
  {
    std::lock_guard lock(mutex_);
    watchers_.erase(id);
  }
  if (std::this_thread::get_id() != thread_.get_id()) std::lock_guard wait(calling_);
}

size_t WatchHub::watchers() const {
  std::lock_guard lock(mutex_);
  return watchers_.size();
}

void WatchHub::Run() {
  while (true) {
    StepRecord step;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] {
        if (stopping_ || !steps_.empty()) return true;
        return std::ranges::any_of(
            watchers_, [this](const auto& watcher) { return watcher.second.Due(*view_); });
      });
      if (stopping_) return;
      if (!steps_.empty()) {
        step = std::move(steps_.front());
        steps_.pop_front();
      }
    }
    std::lock_guard calling(calling_);
    if (step.view != nullptr) Process(step);
    Start();
  }
}

// First messages of new watchers, and those that were asked for, as of the newest processed step.
void WatchHub::Start() {
  std::vector<Entry> due;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, entry] : watchers_) {
      if (!entry.Due(*view_)) continue;
      entry.started = true;
      entry.poked = false;
      due.push_back(entry);
    }
  }
  Tell(due, {});
}

// The engine waits for mutex_: under it, jobs are only looked up.
void WatchHub::Process(const StepRecord& step) {
  struct Change {
    const JobRow* job = nullptr;
    int32_t members = 1;  // the most that a watcher of it follows
    bool member = false;  // one of them changed
    bool changed = false, verdict = false;
    std::shared_ptr<const JobRow> ended;  // State has forgotten it in this step
  };
  const std::shared_ptr<const View> before = std::exchange(view_, step.view);
  holders_.emplace(view_->state);
  // Who follows a job may have lost the right to: each watcher looks.
  const bool access = &before->state.bindings() != &view_->state.bindings() ||
                      &before->state.queues() != &view_->state.queues();
  std::map<uint64_t, Change> jobs;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : watchers_) {
      Change& change = jobs[entry.job];
      change.members = std::max(change.members, entry.members);
    }
  }
  std::optional<std::vector<uint64_t>> touched;
  std::map<uint64_t, std::vector<std::string>> events;
  for (auto& [number, change] : jobs) {
    const JobRow* was = before->state.FindJob(number);
    change.job = view_->state.FindJob(number);
    // Rows are shared between snapshots until they are written: the same row has not changed.
    change.changed = change.job != was;
    if (change.members > 1) {
      if (!touched.has_value()) touched = view_->state.Since(before->state).jobs;
      const auto first = std::lower_bound(touched->begin(), touched->end(), number);
      change.member =
          first != touched->end() && *first < number + static_cast<uint64_t>(change.members);
    }
    change.verdict = access || !SameVerdicts(*before, *view_, number);
    if (change.job == nullptr && was != nullptr && was->finished())
      change.ended = std::make_shared<const JobRow>(*was);
    if (change.job != nullptr && change.changed)
      events[number] = Narrate(before->state, was, view_->state, *change.job, step.events);
  }
  std::vector<Entry> due;
  {
    std::lock_guard lock(mutex_);
    for (auto it = watchers_.begin(); it != watchers_.end();) {
      Entry& entry = it->second;
      const auto found = jobs.find(entry.job);
      if (found == jobs.end()) {  // new: its first message is of this view or of a later one
        ++it;
        continue;
      }
      const Change& change = found->second;
      if (change.ended != nullptr) entry.ended = change.ended;
      const bool forgotten =
          change.job == nullptr &&
          entry.ended != nullptr;  // its end was told, and there is no more to tell
      const bool member = entry.members > 1 && change.member;
      if (entry.started && !forgotten && (change.changed || change.verdict || member)) {
        entry.poked = false;
        due.push_back(entry);
        if (change.job == nullptr) {
          it = watchers_.erase(it);
          continue;
        }
      }
      ++it;
    }
  }
  Tell(due, events);
}

void WatchHub::Tell(const std::vector<Entry>& entries,
                    const std::map<uint64_t, std::vector<std::string>>& events) {
  static const std::vector<std::string> kNothing;
  for (const Entry& entry : entries) {
    const auto said = events.find(entry.job);
    (*entry.watcher)(
        {*view_, entry.RowIn(*view_), said != events.end() ? said->second : kNothing, *holders_});
  }
}

}  // namespace muster
