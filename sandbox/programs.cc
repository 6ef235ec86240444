#include "sandbox/programs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/units.h"
#include "scheduler/engine/engine.h"

namespace muster::sandbox {
namespace {

constexpr int64_t kDefaultDurationNs =
    30 * kSecond;  // of a program that says nothing about its length
constexpr size_t kLinesKept = 200;

// "sleep 20" anywhere in the text: 20 s.
int64_t SleepIn(const std::string& text) {
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n\t;&|"), absl::SkipEmpty());
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    double seconds = 0;
    if (words[i] == "sleep" && absl::SimpleAtod(words[i + 1], &seconds) && seconds >= 0 &&
        seconds < 1e7) {
      return static_cast<int64_t>(seconds * static_cast<double>(kSecond));
    }
  }
  return 0;
}

int64_t DurationOf(const pb::TaskSpec& task) {
  int64_t duration_ns = SleepIn(task.run().shell());
  if (duration_ns == 0) duration_ns = SleepIn(absl::StrJoin(task.run().exec(), " "));
  if (duration_ns == 0 && !task.trainer_json().empty()) {
    int64_t steps = 300;  // a second a step
    const size_t at = task.trainer_json().find("\"max_steps\":");
    if (at != std::string::npos) {
      const std::string_view rest = std::string_view(task.trainer_json()).substr(at + 12);
      const std::string_view digits = rest.substr(0, rest.find_first_not_of(" 0123456789"));
      int64_t parsed = 0;
      if (absl::SimpleAtoi(std::string(digits), &parsed) && parsed > 0) steps = parsed;
    }
    duration_ns = steps * kSecond;
  }
  if (duration_ns == 0) duration_ns = kDefaultDurationNs;
  return task.time_limit_ns() > 0 ? std::min(duration_ns, task.time_limit_ns()) : duration_ns;
}

std::string TaskText(const pb::AttemptKey& key) {
  return absl::StrCat(key.job_uid(), "/", key.task());
}

}  // namespace

void Programs::Know(const std::string& job_uid, int64_t duration_ns, int32_t workers) {
  work_[absl::StrCat(job_uid, "/main")] = duration_ns * std::max(1, workers);
}

sim::Work Programs::WorkOf(const pb::Prepare& prepare) {
  const std::string task = TaskText(prepare.key());
  const int64_t total_ns =
      work_.try_emplace(task, DurationOf(prepare.task()) * std::max(1, prepare.gang_workers()))
          .first->second;
  return {total_ns, prepare.task().checkpoint().interval_ns(), absl::StrCat("/sandbox/", task)};
}

void Programs::Told(int32_t host, const pb::SchedulerMessage& message) {
  switch (message.body_case()) {
    case pb::SchedulerMessage::kPrepare:
      return OnPrepare(host, message.prepare());
    case pb::SchedulerMessage::kStop:
      if (message.stop().cause() == pb::CANCEL) work_.erase(TaskText(message.stop().key()));
      return;
    case pb::SchedulerMessage::kForget:
      return OnForget(host, message.forget().key());
    case pb::SchedulerMessage::kLogRequest:
      return OnLogs(host, message.log_request());
    case pb::SchedulerMessage::kLogCancel:
      for (auto& [key, output] : outputs_) output.followers.erase(message.log_cancel().request());
      return;
    default:
      return;
  }
}

void Programs::OnPrepare(int32_t host, const pb::Prepare& prepare) {
  if (prepare.here().first_group_rank() != 0) return;
  const auto [it, fresh] = outputs_.try_emplace(AttemptText(prepare.key()));
  if (!fresh) return;
  const pb::TaskSpec& task = prepare.task();
  it->second.host = host;
  it->second.gpus =
      std::max<int64_t>(1, prepare.gang_workers() * task.resources().gpus_milli() / 1000);
  const std::string program = !task.trainer_json().empty() ? "muster-trainer"
                              : task.run().exec_size() > 0 ? absl::StrJoin(task.run().exec(), " ")
                                                           : task.run().shell();
  Print(prepare.key(), absl::StrCat("sandbox: nothing runs here; a real host would start ",
                                    prepare.gang_workers(), " x: ", program));
}

// Figures as such jobs have them, so that there is something to look at.
void Programs::Saying(int32_t /*host*/, pb::AgentMessage* message) {
  if (message->has_report() && message->report().phase() == pb::GONE) {
    if (!message->report().stop_sent()) work_.erase(TaskText(message->report().key()));
  } else if (message->has_checkpoint()) {
    Print(message->checkpoint().key(),
          absl::StrCat("checkpoint at step ", message->checkpoint().checkpoint().step()));
  } else if (message->has_progress()) {
    const pb::AttemptKey& key = message->progress().key();
    pb::Progress* const progress = message->mutable_progress()->mutable_progress();
    const double done =
        static_cast<double>(progress->step()) / static_cast<double>(progress->total_steps());
    progress->set_loss(1.7 + 3.3 * std::exp(-6 * done));
    progress->set_tokens_per_s(6500.0 * static_cast<double>(outputs_[AttemptText(key)].gpus));
    progress->set_mfu_causal(0.38);
    Print(key,
          absl::StrFormat("step %d/%d  loss %.3f  %.0f tok/s", progress->step(),
                          progress->total_steps(), progress->loss(), progress->tokens_per_s()));
  }
}

void Programs::Print(const pb::AttemptKey& key, const std::string& line) {
  Output& output = outputs_[AttemptText(key)];
  output.lines.push_back(line + "\n");
  if (output.lines.size() > kLinesKept) output.lines.pop_front();
  for (const uint64_t request : output.followers)
    SayLogs(output.host, request, output.lines.back(), false);
}

void Programs::OnLogs(int32_t host, const pb::LogRequest& request) {
  const auto it = outputs_.find(AttemptText(request.key()));
  if (it == outputs_.end() || it->second.host != host || request.rank() > 0)
    return SayLogs(host, request.request(), "", true);
  Output& output = it->second;
  const size_t all = output.lines.size();
  const size_t tail =
      request.tail_lines() > 0 ? std::min(static_cast<size_t>(request.tail_lines()), all) : all;
  SayLogs(host, request.request(),
          absl::StrJoin(output.lines.end() - static_cast<int64_t>(tail), output.lines.end(), ""),
          !request.follow());
  if (request.follow()) output.followers.insert(request.request());
}

void Programs::OnForget(int32_t host, const pb::AttemptKey& key) {
  const auto it = outputs_.find(AttemptText(key));
  if (it == outputs_.end() || it->second.host != host) return;
  for (const uint64_t request : it->second.followers) SayLogs(host, request, "", true);
  outputs_.erase(it);
}

void Programs::SayLogs(int32_t host, uint64_t request, const std::string& data, bool end) {
  pb::AgentMessage message;
  message.mutable_log_chunk()->set_request(request);
  message.mutable_log_chunk()->set_data(data);
  message.mutable_log_chunk()->set_end(end);
  agents_->Say(host, std::move(message));
}

}  // namespace muster::sandbox
