#include "cli/commands/past_jobs.h"

#include <algorithm>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using ::nlohmann::json;

constexpr size_t kMostBytes = 24 << 10;  // a variable has 32 KiB
constexpr int kPage = 1000, kMostPages = 10;
constexpr size_t kMostAsked = 400;   // jobs: a list doesn't say which are muster-trainer's
constexpr int64_t kLeastSteps = 20;  // before that a speed is one of warming up

struct PastJob {
  uint64_t number = 0;
  int task = 0, workers = 0;
  double tokens_per_s = 0;
};

// Of a job as a list has it: the task that trained on one host of that flavour, by what it last
// reported. False: there is none.
bool ReadTrained(const pb::Job& job, const std::string& flavour, PastJob* past) {
  if (job.has_array()) return false;  // a whole array, whose members each had a speed of their own
  for (int i = 0; i < job.tasks_size(); ++i) {
    const pb::Task& task = job.tasks(i);
    const pb::Progress& progress = task.progress();
    if (progress.tokens_per_s() <= 0 || progress.step() < kLeastSteps) continue;
    for (const pb::Attempt& attempt : task.attempts()) {
      if (attempt.number() != progress.attempt() || attempt.flavour() != flavour ||
          attempt.placements_size() != 1)
        continue;
      *past = {job.number(), i, attempt.workers(), progress.tokens_per_s()};
      return true;
    }
  }
  return false;
}

std::vector<PastJob> FindTrained(Client& client, const std::string& queue,
                                 const std::string& flavour) {
  std::vector<PastJob> found;
  pb::ListJobsRequest request;
  request.set_queue(queue);
  request.set_page_size(kPage);
  for (const pb::JobState state : {pb::SUCCEEDED, pb::FAILED, pb::CANCELLED})
    request.add_states(state);
  for (int page = 0; page < kMostPages && found.size() < kMostAsked; ++page) {
    const absl::StatusOr<pb::ListJobsResponse> listed = client.List(request, WhileAway::kRepeat);
    if (!listed.ok()) break;
    for (const pb::Job& job : listed->jobs()) {
      PastJob past;
      if (found.size() < kMostAsked && ReadTrained(job, flavour, &past)) found.push_back(past);
    }
    if (listed->next_page_token().empty()) break;
    request.set_page_token(listed->next_page_token());
  }
  return found;
}

// Its configuration, without what says nothing of its speed. Null: it isn't one of muster-trainer.
json TrainerOf(const pb::Job& job, int task) {
  if (task >= job.spec().tasks_size()) return nullptr;
  json trainer = json::parse(job.spec().tasks(task).trainer_json(), nullptr,
                             /*allow_exceptions=*/false);
  if (!trainer.is_object()) return nullptr;
  for (const char* name :
       {"data", "mixture", "eval_data", "eval_interval", "export", "save_steps", "profile_steps"})
    trainer.erase(name);
  return trainer;
}

std::string DumpOf(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string PastJobs(Client& client, const std::string& queue, const std::string& flavour,
                     int most) {
  std::string text;
  std::set<std::string> seen;  // the newest run of what ran several times
  if (most <= 0) return text;
  int told = 0;
  for (const PastJob& past : FindTrained(client, queue, flavour)) {
    if (told == most) break;
    const absl::StatusOr<pb::Job> job = client.Get(absl::StrCat(past.number), WhileAway::kRepeat);
    if (absl::IsUnavailable(job.status())) break;
    if (!job.ok()) continue;  // it is forgotten since, or not this caller's to read
    const json trainer = TrainerOf(*job, past.task);
    if (trainer.is_null()) continue;
    const int processes = std::max(1, job->spec().tasks(past.task).processes_per_worker());
    const int ranks = std::max(1, past.workers) * processes;
    if (!seen.insert(absl::StrCat(ranks, " ", DumpOf(trainer))).second) continue;
    const std::string one = DumpOf(json{{"job", absl::StrCat(past.number)},
                                        {"ranks", ranks},
                                        {"tokens_per_s", past.tokens_per_s},
                                        {"trainer", trainer}});
    if (text.size() + one.size() + 3 > kMostBytes) continue;  // an older one may be shorter
    absl::StrAppend(&text, text.empty() ? "[" : ",", one);
    ++told;
  }
  return text.empty() ? "" : absl::StrCat(text, "]");
}

}  // namespace muster
