#include "scheduler/api/log_stream.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/protocol.h"
#include "common/base/units.h"
#include "common/spec/members.h"
#include "common/spec/task_names.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/services.h"

namespace muster {
namespace {

// As commands take it.
std::string NameOf(const JobRow& job) {
  return job.array != 0 ? MemberId(*job.spec, job.array, job.member) : absl::StrCat(job.number);
}

std::string NoSuchAttempt(const JobRow& job, int32_t index, int32_t attempt) {
  const std::vector<AttemptRow>& attempts = job.tasks[index].attempts;
  const std::string whose = absl::StrCat(
      "job ", NameOf(job),
      job.tasks.size() > 1 ? absl::StrCat(", task ", job.task_spec(index).name()) : "");
  if (attempts.empty()) return absl::StrCat(whose, ": nothing of it has run");
  const int32_t first = attempts.front().number, last = attempts.back().number;
  return absl::StrCat(
      whose, " has no attempt ", attempt, "; there ",
      first == last ? absl::StrCat("is ", first) : absl::StrCat("are ", first, " to ", last));
}

// The task whose newest attempt was placed last, the first of those that start together; -1: none
// was placed.
int32_t NewestTask(const JobRow& job) {
  int32_t newest = -1;
  int64_t newest_ns = -1;
  for (size_t i = 0; i < job.tasks.size(); ++i) {
    const TaskRow& task = job.tasks[i];
    if (!task.attempts.empty() && task.attempts.back().place_ns > newest_ns) {
      newest_ns = task.attempts.back().place_ns;
      newest = static_cast<int32_t>(i);
    }
  }
  return newest;
}

std::atomic<int> g_readers{0};  // of all users

StreamCounts& ReadersByUser() {
  static auto* const counts = new StreamCounts;
  return *counts;
}

// "": it is counted; else why it isn't.
std::string TakeReader(const std::string& user) {
  if (!ReadersByUser().Take(user, kLogReadersMax))
    return absl::StrCat(kLogReadersMax,
                        " calls of yours read logs now, and no more of one user "
                        "are served at once; end one of them");
  if (g_readers.fetch_add(1) < kLogReadersOfAll) return "";
  g_readers.fetch_sub(1);
  ReadersByUser().Give(user);
  return absl::StrCat(kLogReadersOfAll,
                      " calls of all users read logs now, and no more are served "
                      "at once; try again later");
}

void GiveReader(const std::string& user) {
  ReadersByUser().Give(user);
  g_readers.fetch_sub(1);
}

constexpr size_t kBacklogBytesMax = 4 << 20;  // that a reader may be behind
constexpr size_t kAskBelowBytes = 1 << 20;    // hosts are asked again once it is less behind
constexpr int64_t kAskedBytes = 2 << 20,
                  kAskedBytesMin = 64 << 10;  // of all hosts together, and of one
constexpr size_t kAskedAtOnce = 16;  // hosts, where each has an end; with follow all must be heard
// An agent that reports anew (its inventory changed) is away for a moment. After this long it is
// asked again; given up the second time if the attempt has ended, or if nobody follows.
constexpr int64_t kAwaitHostNs = 1500 * kMillisecond, kAwaitHostFollowedNs = 5 * kSecond;

}  // namespace

LogStream::LogStream(const ApiContext* context, WatchHub* hub, pb::LogsRequest request,
                     const Caller& caller)
    : context_(context),
      hub_(hub),
      request_(std::move(request)),
      who_(caller.principal()),
      job_(caller.job()) {
  if (!request_.has_from()) return;
  task_ = request_.from().task();
  attempt_ = request_.from().attempt() - 1;
  begun_ = true;
}

void LogStream::Begin() {
  if (IsWholeArray(*job_, request_.id())) {
    const std::string first = MemberId(*job_->spec, job_->array, 0);
    return Finally(grpc::Status(
        grpc::StatusCode::INVALID_ARGUMENT,
        absl::StrCat("job ", job_->array, " is an array; name one of its members, such as ", first,
                     ". All of them: muster jobs ", job_->array, " --tasks")));
  }
  std::string refused;
  {
    std::lock_guard lock(state_mutex_);
    refused = TakeReader(who_->user);
    if (refused.empty()) {
      counted_ = true;
      // Of one that State has forgotten since it ended, hosts may have output yet.
      const std::shared_ptr<const JobRow> job = std::move(job_);
      watch_ = hub_->Add(job, [this](const WatchHub::News& news) { Look(news.view, news.job); });
      return;
    }
  }
  Finally(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, refused));
}

void LogStream::Gone() {
  uint64_t watch = 0;
  std::map<uint64_t, size_t> open;
  {
    std::lock_guard lock(state_mutex_);
    over_ = true;
    if (std::exchange(counted_, false)) GiveReader(who_->user);
    std::swap(watch, watch_);
    std::swap(open, open_);
  }
  if (watch != 0) hub_->Remove(watch);
  for (const auto& [request, source] : open) context_->sessions->CancelLogs(request);
}

void LogStream::Written() {
  if (backlog_bytes() >= kAskBelowBytes) return;
  std::lock_guard lock(state_mutex_);
  if (over_) return;
  for (const Source& source : sources_) {
    if (source.state != Source::kToAsk) continue;
    hub_->Poke(watch_);
    return;
  }
}

void LogStream::Look(const View& view, const JobRow* job) {
  if (job == nullptr) {
    {
      std::lock_guard lock(state_mutex_);
      if (over_ || !open_.empty()) return;
    }
    EndNotFound("the job was forgotten: it ended long ago");
    return;
  }
  if (!Sight(view.state, *who_).Output(*job)) {
    Finally(grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                         "you may not read this job's output any more"));
    return;
  }
  const std::string& name = task_.empty() ? request_.task() : task_;
  const int32_t task = name.empty() ? NewestTask(*job) : TaskIndex(*job->spec, name);
  if (!name.empty() && task < 0) {
    EndNotFound(NoSuchTask(absl::StrCat("job ", NameOf(*job)), *job->spec, name));
    return;
  }
  while (true) {
    std::string incomplete;
    {
      std::lock_guard lock(state_mutex_);
      if (over_ || !AskHosts(*job, task)) return;
      incomplete = incomplete_;
    }
    const AttemptRow* attempt = NextAttempt(*job, task);
    if (attempt == nullptr) {
      EndWithout(*job, task, incomplete);
      return;
    }
    // Before its processes exist there is nothing to read, and its hosts may not know it yet.
    if (attempt->start_ns == 0 && !attempt->ended()) {
      if (!request_.follow())
        EndNotFound(absl::StrCat("attempt ", attempt->number, " has not started yet"));
      return;
    }
    std::vector<Source> sources = SourcesOf(view, *job, task, *attempt);
    if (sources.empty()) {
      EndNotFound(absl::StrCat("attempt ", attempt->number, " has no rank ", request_.rank()));
      return;
    }
    task_ = job->task_spec(task).name();
    attempt_ = attempt->number;
    begun_ = asked_ = true;
    std::lock_guard lock(state_mutex_);
    sources_ = std::move(sources);
  }
}

void LogStream::EndNotFound(const std::string& why) {
  Finally(grpc::Status(grpc::StatusCode::NOT_FOUND, why));
}

// The attempt asked for, else the newest, then each that follows it.
const AttemptRow* LogStream::NextAttempt(const JobRow& job, int32_t task) const {
  if (task < 0 || (asked_ && OneOnly())) return nullptr;
  const AttemptRow* next = nullptr;
  for (const AttemptRow& candidate : job.tasks[task].attempts) {
    const bool wanted = request_.attempt() != 0 ? candidate.number == request_.attempt()
                                                : candidate.number > attempt_;
    if (!wanted) continue;
    next = &candidate;
    if (begun_) break;
  }
  return next;
}

// There is no further attempt: ends, unless one may come that is to be followed.
void LogStream::EndWithout(const JobRow& job, int32_t task, const std::string& incomplete) {
  const bool ended = job.finished() || (task >= 0 && job.tasks[task].finished());
  if (asked_) {
    if (ended || OneOnly())
      Finally(incomplete.empty() ? grpc::Status::OK : NotNow(incomplete, "OUTPUT_INCOMPLETE"));
    return;
  }
  const bool over = ended || !request_.follow();
  if (request_.attempt() != 0 && task >= 0 &&
      (over || request_.attempt() < job.tasks[task].next_attempt)) {
    EndNotFound(NoSuchAttempt(job, task, request_.attempt()));
  } else if (over && begun_) {
    Finally(grpc::Status::OK);
  } else if (over) {
    EndNotFound(absl::StrCat("job ", NameOf(job), ": nothing of it has run"));
  }
}

std::vector<LogStream::Source> LogStream::SourcesOf(const View& view, const JobRow& job,
                                                    int32_t task, const AttemptRow& attempt) const {
  const int32_t per_worker = std::max(1, job.task_spec(task).processes_per_worker());
  const bool goes_on = request_.has_from() && request_.from().attempt() == attempt.number;
  std::vector<Source> sources;
  for (const PartRow& part : attempt.parts) {
    const int32_t first = part.first_group_rank * per_worker,
                  end = first + part.workers * per_worker;
    if (request_.rank() >= 0 && (request_.rank() < first || request_.rank() >= end)) continue;
    if (request_.rank() == kReportsRank && first != 0) continue;
    const HostRow& host = view.state.host(part.host);
    Source& source = sources.emplace_back();
    source.cluster = view.state.clusters()[host.cluster].name;
    source.host = host.name;
    source.heard = goes_on;
    if (!goes_on) continue;
    for (const auto& [rank, offset] : request_.from().next_offsets()) {
      if ((rank >= first && rank < end) || (rank == kReportsRank && first == 0))
        source.next_offsets[rank] = offset;
    }
  }
  return sources;
}

bool LogStream::AskHosts(const JobRow& job, int32_t task) {
  if (sources_.empty()) return true;
  bool live = false;
  for (const AttemptRow& attempt : job.tasks[task].attempts) {
    if (attempt.number == attempt_) live = request_.follow() && !attempt.ended();
  }
  const size_t at_once =
      request_.follow() ? sources_.size() : std::min(sources_.size(), kAskedAtOnce);
  pb::LogRequest request;
  *request.mutable_key() = KeyOf(job, task, attempt_);
  request.set_rank(request_.rank());
  request.set_follow(request_.follow());
  request.set_max_bytes(std::max(kAskedBytesMin, kAskedBytes / static_cast<int64_t>(at_once)));
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    if (live) source.breaks = 0;
    if (source.state == Source::kToAsk && !source.broken.empty() &&
        (source.breaks >= 2 || !source.resumable)) {
      Incomplete(source, source.broken);
      source.state = Source::kDone;
    }
    if (source.state != Source::kToAsk || open_.size() >= at_once ||
        backlog_bytes() >= kAskBelowBytes)
      continue;
    // Of a rank that goes on, hosts take no notice of it.
    request.set_tail_lines(source.heard && request_.follow() ? 0 : request_.tail_lines());
    request.clear_from();
    for (const auto& [rank, offset] : source.next_offsets) (*request.mutable_from())[rank] = offset;
    source.broken.clear();
    const uint64_t number = context_->sessions->RequestLogs(
        source.cluster, source.host, request,
        // The call may be over while an agent still sends.
        [self = weak_from_this(), name = task_,
         attempt_number = attempt_](const pb::LogChunk& chunk) {
          if (const auto alive = self.lock(); alive != nullptr)
            alive->Chunk(name, attempt_number, chunk);
        },
        request_.follow() ? kAwaitHostFollowedNs : kAwaitHostNs);
    source.state = Source::kOpen;
    open_[number] = i;
  }
  if (std::any_of(sources_.begin(), sources_.end(),
                  [](const Source& source) { return source.state != Source::kDone; }))
    return false;
  sources_.clear();
  return true;
}

void LogStream::Incomplete(const Source& source, const std::string& why) {
  if (incomplete_.empty()) incomplete_ = absl::StrCat(source.cluster, "/", source.host, why);
}

void LogStream::Chunk(const std::string& task, int32_t attempt, const pb::LogChunk& chunk) {
  // An agent of an older release gives output where reports are asked for: it keeps none, and would
  // send all of its output, again and again.
  const bool is_output = !chunk.data().empty() || chunk.dropped_bytes() > 0;
  const bool wanted = request_.rank() != kReportsRank || chunk.rank() == kReportsRank;
  const bool has_output = wanted && is_output, keeps_none = !wanted && is_output;
  const bool fits = !has_output || backlog_bytes() < kBacklogBytesMax;
  bool too_slow = false;
  if (has_output) {
    std::lock_guard lock(
        state_mutex_);  // of a request that is just being made, it waits until that is in open_
    const auto it = open_.find(chunk.request());
    if (over_ || it == open_.end()) return;
    Source& source = sources_[it->second];
    if (chunk.next_offset() == 0) source.resumable = false;
    source.heard = true;
    if (fits && chunk.next_offset() != 0) source.next_offsets[chunk.rank()] = chunk.next_offset();
    too_slow = !fits && !source.resumable;
  }
  if (too_slow) {
    Finally(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                         "output comes faster than it is read, and the agent of its host, of an "
                         "older release, doesn't wait; --tail N reads the end of it"));
    return;
  }
  if (has_output && fits) {
    pb::LogsResponse response;
    response.set_task(task);
    response.set_attempt(attempt);
    response.set_rank(chunk.rank());
    response.set_data(chunk.data());
    *response.mutable_from_stderr() = chunk.from_stderr();
    response.set_dropped_bytes(chunk.dropped_bytes());
    response.set_next_offset(chunk.next_offset());
    Push(std::move(response), chunk.data().size());
  }
  if (!chunk.end() && fits && !keeps_none) return;
  std::lock_guard lock(state_mutex_);  // only behind Push: who sees that all are done ends the call
  const auto it = open_.find(chunk.request());
  if (over_ || it == open_.end()) return;
  Source& source = sources_[it->second];
  if (!chunk.end()) context_->sessions->CancelLogs(chunk.request());
  source.state = !keeps_none && (!fits || chunk.more()) ? Source::kToAsk : Source::kDone;
  if (fits && !keeps_none && !chunk.error().empty()) {
    if (chunk.more()) {
      source.broken = absl::StrCat(" ", chunk.error());
      ++source.breaks;
    } else {
      Incomplete(source, absl::StrCat(": ", chunk.error()));
    }
  }
  open_.erase(it);
  hub_->Poke(watch_);  // asks again, ends, or waits for the next attempt, on its thread as for the
                       // job's changes
}

}  // namespace muster
