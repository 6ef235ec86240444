#include "scheduler/api/log_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

std::string NoSuchAttempt(const JobRow& job, int32_t index, int32_t attempt) {
  const std::vector<AttemptRow>& attempts = job.tasks[index].attempts;
  const std::string whose = absl::StrCat("job ", job.number, job.tasks.size() > 1 ? absl::StrCat(", task ", job.task_spec(index).name()) : "");
  if (attempts.empty()) return absl::StrCat(whose, ": nothing of it has run");
  const int32_t first = attempts.front().number, last = attempts.back().number;
  return absl::StrCat(whose, " has no attempt ", attempt, "; there ", first == last ? absl::StrCat("is ", first) : absl::StrCat("are ", first, " to ", last));
}

constexpr size_t kMaxBacklog = 1000;   // chunks a reader may be behind; what comes then is counted as dropped

}  // namespace

LogStream::LogStream(const ApiContext* context, WatchHub* hub, pb::LogsRequest request)
    : context_(context), hub_(hub), request_(std::move(request)) {}

void LogStream::Begin(uint64_t job) {
  std::lock_guard lock(state_mutex_);
  job_ = job;
  watch_ = hub_->Add(job, [this](const View& view, const JobRow* row, const std::vector<std::string>&) { Look(view, row); });
}

void LogStream::Gone() {
  uint64_t watch = 0;
  std::set<uint64_t> open;
  {
    std::lock_guard lock(state_mutex_);
    over_ = true;
    std::swap(watch, watch_);
    std::swap(open, open_);
  }
  if (watch != 0) hub_->Remove(watch);
  for (const uint64_t request : open) context_->sessions->CancelLogs(request);
}

void LogStream::Look(const View& view, const JobRow* job) {
  {
    std::lock_guard lock(state_mutex_);
    if (over_ || !open_.empty()) return;
  }
  if (job == nullptr) {
    Finally(grpc::Status(grpc::StatusCode::NOT_FOUND, "the job was forgotten: it ended long ago"));
    return;
  }
  int32_t index = -1;
  if (const std::string& name = task_.empty() ? request_.task() : task_; !name.empty()) {
    index = TaskIndex(*job->spec, name);
    if (index < 0) {
      Finally(grpc::Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("job ", job->number, " has no task \"", name, "\"")));
      return;
    }
  } else {
    int64_t newest_ns = -1;
    for (size_t i = 0; i < job->tasks.size(); ++i) {
      const TaskRow& task = job->tasks[i];
      if (!task.attempts.empty() && task.attempts.back().place_ns >= newest_ns) {
        newest_ns = task.attempts.back().place_ns;
        index = i;
      }
    }
  }
  // The attempt asked for, else the newest, then each that follows it.
  const AttemptRow* attempt = nullptr;
  if (index >= 0) {
    for (const AttemptRow& candidate : job->tasks[index].attempts) {
      if (request_.attempt() != 0 ? candidate.number == request_.attempt() : candidate.number > asked_) {
        attempt = &candidate;
        if (asked_ != 0) break;
      }
    }
  }
  const bool ended = job->finished() || (index >= 0 && job->tasks[index].finished());
  const bool one_only = request_.attempt() != 0 || !request_.follow();
  if (attempt == nullptr || (asked_ != 0 && one_only)) {
    if (asked_ != 0 && (ended || one_only)) {
      std::string error;
      {
        std::lock_guard lock(state_mutex_);
        error = error_;
      }
      Finally(error.empty() ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNAVAILABLE, error));
    } else if (asked_ == 0 && request_.attempt() != 0 && index >= 0 && (ended || !request_.follow() || request_.attempt() < job->tasks[index].next_attempt)) {
      Finally(grpc::Status(grpc::StatusCode::NOT_FOUND, NoSuchAttempt(*job, index, request_.attempt())));
    } else if (asked_ == 0 && (ended || !request_.follow())) {
      Finally(grpc::Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("job ", job->number, ": nothing of it has run")));
    }
    return;
  }
  // Before its processes exist there is nothing to read, and its hosts may not know it yet.
  if (attempt->start_ns == 0 && !attempt->ended()) {
    if (!request_.follow()) {
      Finally(grpc::Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("attempt ", attempt->number, " has not started yet")));
    }
    return;
  }
  if (grpc::Status status = Ask(view, *job, index, *attempt); !status.ok()) Finally(status);
}

grpc::Status LogStream::Ask(const View& view, const JobRow& job, int32_t task, const AttemptRow& attempt) {
  task_ = job.task_spec(task).name();
  asked_ = attempt.number;
  pb::LogRequest request;
  *request.mutable_key() = KeyOf(job, task, attempt.number);
  request.set_rank(request_.rank());
  request.set_follow(request_.follow());
  request.set_tail_lines(request_.tail_lines());
  const int32_t per_worker = std::max(1, job.task_spec(task).processes_per_worker());
  bool asked = false;
  for (const PartRow& part : attempt.parts) {
    const int32_t first = part.first_group_rank * per_worker;
    if (request_.rank() >= 0 && (request_.rank() < first || request_.rank() >= first + part.workers * per_worker)) continue;
    const HostRow& host = view.state.host(part.host);
    std::lock_guard lock(state_mutex_);     // a chunk waits until its request is in open_
    if (over_) return grpc::Status::OK;
    const uint64_t number = context_->sessions->RequestLogs(
        view.state.clusters()[host.cluster].name, host.name, request,
        // The call may be over while an agent still sends.
        [self = weak_from_this(), name = task_, attempt_number = attempt.number](const pb::LogChunk& chunk) {
          if (const auto alive = self.lock(); alive != nullptr) alive->Chunk(name, attempt_number, chunk);
        });
    if (number == 0) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, absl::StrCat(view.state.HostName(part.host), " is not connected; its output can't be read now"));
    }
    open_.insert(number);
    asked = true;
  }
  if (asked) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("attempt ", attempt.number, " has no rank ", request_.rank()));
}

void LogStream::Chunk(const std::string& task, int32_t attempt, const pb::LogChunk& chunk) {
  bool look = false;
  pb::LogsResponse response;
  {
    std::lock_guard lock(state_mutex_);
    if (over_ || open_.count(chunk.request()) == 0) return;
    if (!chunk.error().empty()) error_ = chunk.error();
    dropped_bytes_ += chunk.dropped_bytes();
    if (!chunk.data().empty() && backlog() >= kMaxBacklog) {
      dropped_bytes_ += chunk.data().size();
    } else if (!chunk.data().empty() || (chunk.end() && dropped_bytes_ > 0)) {
      response.set_task(task);
      response.set_attempt(attempt);
      response.set_rank(chunk.rank());
      response.set_data(chunk.data());
      *response.mutable_from_stderr() = chunk.from_stderr();
      response.set_dropped_bytes(std::exchange(dropped_bytes_, 0));
    }
    if (chunk.end()) {
      open_.erase(chunk.request());
      look = open_.empty();
    }
  }
  if (!response.task().empty()) Push(std::move(response));
  if (!look) return;
  // All hosts are through: end, or wait for the task's next attempt. Asked of the hub's thread, as the job's changes are.
  std::lock_guard lock(state_mutex_);
  if (over_) return;
  hub_->Poke(watch_);
}

}  // namespace muster
