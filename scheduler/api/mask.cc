#include "scheduler/api/mask.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/hidden.h"
#include "common/spec/members.h"

namespace muster {
namespace {

// A list of jobs in a sentence: "job 3", "jobs 3, 4 and 318 (research/nlp)".
struct JobList {
  size_t begin = 0, end = 0;
  std::vector<std::string> seen;  // as they stood there, but for members' names
  size_t hidden = 0;
  bool named = false;  // a member is among them
};

// As it stands: nothing is hidden, and no number is a member's.
bool AsItIs(const Sight& sight) { return sight.all() && sight.state().arrays().empty(); }

// "17_3"; of what is no member "".
std::string NameOfMember(const State& state, uint64_t number) {
  const JobRow* job = state.FindJob(number);
  return job == nullptr || job->array == 0 ? "" : MemberId(*job->spec, job->array, job->member);
}

bool WordBegins(const std::string& text, size_t at) {
  return at == 0 || !absl::ascii_isalnum(static_cast<unsigned char>(text[at - 1]));
}

// The list that begins at `at`; its end is `at` if none does.
JobList ListAt(const Sight& sight, const std::string& text, size_t at) {
  JobList list{at, at};
  size_t next = at + (std::string_view(text).substr(at).starts_with("jobs ") ? 5 : 4);
  while (true) {
    size_t digits = next;
    while (digits < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[digits])))
      ++digits;
    uint64_t number = 0;
    if (digits == next || !absl::SimpleAtoi(text.substr(next, digits - next), &number)) break;
    if (std::string_view(text).substr(digits).starts_with(" other")) break;  // how many more
    size_t end = digits;
    if (std::string_view(text).substr(end).starts_with(" (")) {
      const size_t closed = text.find(')', end);
      if (closed != std::string::npos && text.find(' ', end + 1) > closed) end = closed + 1;
    }
    if (sight.SeesJob(number)) {
      const std::string name = NameOfMember(sight.state(), number);
      list.named = list.named || !name.empty();
      list.seen.push_back(name.empty() ? text.substr(next, end - next)
                                       : name + text.substr(digits, end - digits));
    } else {
      ++list.hidden;
    }
    list.end = end;
    const std::string_view rest = std::string_view(text).substr(end);
    if (rest.starts_with(", ")) {
      next = end + 2;
    } else if (rest.starts_with(" and ")) {
      next = end + 5;
    } else {
      break;
    }
  }
  return list;
}

std::string Told(const JobList& list) {
  if (list.seen.empty()) return list.hidden == 1 ? "another's job" : "others' jobs";
  return absl::StrCat(list.seen.size() == 1 ? "job " : "jobs ", absl::StrJoin(list.seen, ", "),
                      list.hidden == 0 ? "" : " and others' work");
}

// "arrays 17, 20", of which one isn't seen: "others' arrays".
std::string HideArrays(const Sight& sight, const std::string& sentence) {
  std::string told;
  size_t copied = 0;
  for (size_t at = sentence.find("array"); at != std::string::npos;
       at = sentence.find("array", at + 1)) {
    size_t next = at + 5 + (sentence.compare(at, 7, "arrays ") == 0 ? 2 : 1);
    if (at < copied || !WordBegins(sentence, at) || next > sentence.size()) continue;
    bool hidden = false;
    size_t end = at;
    while (next < sentence.size() &&
           absl::ascii_isdigit(static_cast<unsigned char>(sentence[next]))) {
      size_t digits = next;
      uint64_t number = 0;
      while (digits < sentence.size() &&
             absl::ascii_isdigit(static_cast<unsigned char>(sentence[digits])))
        ++digits;
      hidden = hidden || !absl::SimpleAtoi(sentence.substr(next, digits - next), &number) ||
               !sight.SeesJob(number);
      end = digits;
      next = sentence.compare(digits, 2, ", ") == 0 ? digits + 2 : sentence.size();
    }
    if (!hidden) continue;
    absl::StrAppend(&told, sentence.substr(copied, at - copied), "others' arrays");
    copied = end;
  }
  return told + sentence.substr(copied);
}

template <typename Map>
void MaskValues(Map* map) {
  for (auto& [name, value] : *map) value = kHiddenValue;
}

void MaskEnvironment(pb::JobSpec* spec) {
  MaskValues(spec->mutable_env());
  for (pb::TaskSpec& task : *spec->mutable_tasks()) MaskValues(task.mutable_env());
}

// What a verdict quotes of a process, or of its host about it.
const char* PlainText(pb::VerdictCode code) {
  switch (code) {
    case pb::V_BACKOFF:
      return "is tried again after a failure";
    case pb::V_EXPORT:
      return "waits for its export to be published";
    default:
      return nullptr;
  }
}

template <typename Numbers>
void KeepSeen(const Sight& sight, Numbers* numbers) {
  numbers->erase(std::remove_if(numbers->begin(), numbers->end(),
                                [&](uint64_t number) { return !sight.SeesJob(number); }),
                 numbers->end());
}

void MaskTaken(const Sight& sight,
               google::protobuf::RepeatedPtrField<pb::PreviewResponse::Taken>* rows) {
  for (pb::PreviewResponse::Taken& taken : *rows) {
    if (sight.SeesJob(taken.job())) {
      taken.set_id(NameOfMember(sight.state(), taken.job()));
      continue;
    }
    taken.clear_job();
    taken.clear_queue();
  }
}

void MaskBlame(const Sight& sight, pb::Blame* blame) {
  if (blame->job() == 0) return;  // the host's own word, of no job
  if (!sight.ReadsOutputOf(blame->job())) blame->clear_detail();
  if (sight.SeesJob(blame->job())) return;
  blame->clear_job();
  blame->clear_task();  // its attempt stays: it tells this from a host's own word
}

template <typename Row>
void KeepSeenQueues(const Sight& sight, google::protobuf::RepeatedPtrField<Row>* rows) {
  rows->erase(std::remove_if(rows->begin(), rows->end(),
                             [&](const Row& row) { return !sight.Sees(row.name()); }),
              rows->end());
}

}  // namespace

std::string HideJobs(const Sight& sight, const std::string& sentence) {
  if (AsItIs(sight)) return sentence;
  std::string told;
  size_t copied = 0;
  for (size_t at = sentence.find("job"); at != std::string::npos;
       at = sentence.find("job", at + 1)) {
    const std::string_view rest = std::string_view(sentence).substr(at);
    if (at < copied || !WordBegins(sentence, at) ||
        !(rest.starts_with("job ") || rest.starts_with("jobs ")))
      continue;
    const JobList list = ListAt(sight, sentence, at);
    if (list.hidden == 0 && !list.named) continue;
    absl::StrAppend(&told, sentence.substr(copied, at - copied), Told(list));
    copied = list.end;
  }
  return HideArrays(sight, told + sentence.substr(copied));
}

void MaskJob(const Sight& sight, const JobRow& job, pb::Job* told) {
  if (!sight.Output(job)) {
    MaskEnvironment(told->mutable_spec());
    told->clear_detail();
    for (pb::Task& task : *told->mutable_tasks()) {
      for (pb::Attempt& attempt : *task.mutable_attempts()) attempt.clear_detail();
      if (const char* plain = PlainText(task.verdict().code()); plain != nullptr)
        task.mutable_verdict()->set_text(plain);
    }
  }
  if (AsItIs(sight)) return;
  if (told->cause() == pb::PREDECESSOR) told->set_detail(HideJobs(sight, told->detail()));
  for (pb::Task& task : *told->mutable_tasks()) {
    if (task.has_verdict()) {
      KeepSeen(sight, task.mutable_verdict()->mutable_held_by());
      task.mutable_verdict()->set_text(HideJobs(sight, task.verdict().text()));
    }
    task.set_spill_reason(HideJobs(sight, task.spill_reason()));
  }
}

void Mask(const Sight& sight, pb::Host* host) {
  for (pb::Blame& blame : *host->mutable_blames()) MaskBlame(sight, &blame);
  for (pb::Quarantine& quarantine : *host->mutable_quarantines()) {
    // It ends with what the last of them said.
    const bool quotes =
        quarantine.evidence_size() > 0 &&
        quarantine.evidence(quarantine.evidence_size() - 1).job() != 0 &&
        !sight.ReadsOutputOf(quarantine.evidence(quarantine.evidence_size() - 1).job());
    const size_t last = quarantine.reason().find(", last: ");
    if (quotes) quarantine.set_reason(quarantine.reason().substr(0, last));
    for (pb::Blame& blame : *quarantine.mutable_evidence()) MaskBlame(sight, &blame);
  }
  if (sight.all()) return;
  for (pb::DeviceUse& use : *host->mutable_use()) KeepSeen(sight, use.mutable_jobs());
}

void Mask(const Sight& sight, pb::PreviewResponse* response) {
  if (AsItIs(sight)) return;
  for (pb::PreviewResponse::Candidate& candidate : *response->mutable_candidates()) {
    MaskTaken(sight, candidate.mutable_takes_from());
    KeepSeen(sight, candidate.mutable_after_jobs());
    candidate.set_reason(HideJobs(sight, candidate.reason()));
  }
}

void Mask(const Sight& sight, pb::ExplainResponse* response) {
  const uint64_t number = response->job().number();
  const bool output = sight.ReadsOutputOf(number);
  for (pb::ExplainResponse::Relaxation& change : *response->mutable_relaxations()) {
    if (!output) MaskEnvironment(change.mutable_spec());
    if (AsItIs(sight)) continue;
    change.set_change(HideJobs(sight, change.change()));
    MaskTaken(sight, change.mutable_takes_from());
  }
  for (pb::ExplainResponse::Why& why : *response->mutable_why()) {
    if (const char* plain = PlainText(why.code()); !output && plain != nullptr) why.set_text(plain);
    if (AsItIs(sight)) continue;
    why.set_text(HideJobs(sight, why.text()));
    auto* holders = why.mutable_holders();
    for (pb::ExplainResponse::Holder& holder : *holders)
      holder.set_id(NameOfMember(sight.state(), holder.job()));
    holders->erase(std::remove_if(holders->begin(), holders->end(),
                                  [&](const pb::ExplainResponse::Holder& h) {
                                    return !sight.SeesJob(h.job());
                                  }),
                   holders->end());
  }
}

void Mask(const Sight& sight, pb::SimulateResponse* response) {
  if (sight.all()) return;
  for (pb::SimulateResponse::Submitted& submitted : *response->mutable_submitted())
    MaskTaken(sight, submitted.mutable_takes_from());
  for (pb::SimulateResponse::Effect& effect : *response->mutable_effects()) {
    if (sight.SeesJob(effect.job())) continue;
    effect.clear_job();
    effect.clear_queue();
    effect.clear_name();
  }
  auto* queues = response->mutable_queues();
  queues->erase(std::remove_if(queues->begin(), queues->end(),
                               [&](const pb::SimulateResponse::QueueEffect& row) {
                                 return !sight.Sees(row.path());
                               }),
                queues->end());
}

void Mask(const Sight& sight, pb::ApplyQueuesResponse* response) {
  if (!sight.all()) MaskTaken(sight, response->mutable_evicted());
}

void Mask(const Sight& sight, pb::TopRequest::By by, pb::TopResponse* response) {
  if (!sight.all() && by == pb::TopRequest::QUEUE) KeepSeenQueues(sight, response->mutable_rows());
}

void Mask(const Sight& sight, pb::GetLedgerRequest::By by, pb::LedgerResponse* response) {
  if (!sight.all() && by == pb::GetLedgerRequest::QUEUE)
    KeepSeenQueues(sight, response->mutable_rows());
}

}  // namespace muster
