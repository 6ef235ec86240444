#include <algorithm>
#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/find_jobs.h"
#include "scheduler/api/log_stream.h"
#include "scheduler/api/outlook.h"
#include "scheduler/api/queued_writer.h"
#include "scheduler/api/services.h"
#include "scheduler/api/submit.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/explain.h"
#include "scheduler/ask/simulate.h"

namespace muster {
namespace {

// NOT_FOUND, too, of what the caller may not see.
absl::StatusOr<std::shared_ptr<const JobRow>> FindSeen(const ApiContext& context,
                                                       const std::shared_ptr<const View>& view,
                                                       const std::string& id, const Identity& who) {
  absl::StatusOr<std::shared_ptr<const JobRow>> job = FindJob(view, context.history, id);
  if (job.ok() && (*job == nullptr || !MaySee(who, **job)))
    return absl::NotFoundError(absl::StrCat("there is no job \"", id, "\". See: muster jobs"));
  return job;
}

grpc::Status RefusedSpec(const Resolution& resolution) {
  if (!resolution.not_now.empty()) return NotNow(resolution.not_now, "TRAINER_SCHEMA_UNKNOWN");
  return resolution.never_fits
             ? NeverFits("this job can never start, so it was not accepted", resolution.problems,
                         resolution.may_wait)
             : BadRequest(absl::StrCat("the job has ", resolution.problems.size(), " problem",
                                       resolution.problems.size() == 1 ? "" : "s",
                                       ", nothing was submitted"),
                          resolution.problems);
}

constexpr int64_t kPreviewBudgetNs = 500 * kMillisecond;
constexpr int64_t kMaxBudgetMs = 20'000;
constexpr int64_t kMaxHorizonNs = 30 * kDay;
constexpr int kMaxHypotheticalJobs = 100;

int64_t BudgetNs(int64_t asked_ms, int64_t default_ms) {
  return (asked_ms <= 0 ? default_ms : std::min(asked_ms, kMaxBudgetMs)) * kMillisecond;
}

grpc::Status Busy() {
  return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                      "too many questions at once; ask again in a moment");
}

class WatchStream
    : public QueuedWriter<grpc::ServerWriteReactor<pb::WatchJobResponse>, pb::WatchJobResponse> {
 public:
  // `streams` are the user's.
  WatchStream(const ApiContext* context, WatchHub* hub, std::atomic<int>* streams)
      : context_(context), hub_(hub), streams_(streams) {}

  void Begin(const std::shared_ptr<const JobRow>& job) {
    {
      std::lock_guard lock(mutex_);
      if (streams_->fetch_add(1) < kWatchesMax) {
        id_ = hub_->Add(job, [this](const WatchHub::News& news) { Changed(news); });
        return;
      }
      streams_->fetch_sub(1);
    }
    Finally(grpc::Status(
        grpc::StatusCode::RESOURCE_EXHAUSTED,
        absl::StrCat("you follow ", kWatchesMax,
                     " jobs now, and no more are served at once; end one, or try again later")));
  }
  // Nothing to follow.
  void Refuse(const grpc::Status& status) { Finally(status); }

 protected:
  void Gone() override {
    uint64_t id = 0;
    {
      std::lock_guard lock(mutex_);
      std::swap(id, id_);
    }
    if (id == 0) return;
    streams_->fetch_sub(1);
    hub_->Remove(id);
  }

  void Written() override {
    if (backlog() > 0 || !behind_.exchange(false)) return;
    std::lock_guard lock(mutex_);
    if (id_ != 0) hub_->Poke(id_);
  }

 private:
  void Changed(const WatchHub::News& news) {
    const JobRow* row = news.job;
    if (row == nullptr) {
      Finally(
          grpc::Status(grpc::StatusCode::NOT_FOUND, "the job was forgotten: it ended long ago"));
      return;
    }
    // A slow reader gets fewer messages, not older ones: what happened is told once it has read
    // what waits.
    held_.insert(held_.end(), news.events.begin(), news.events.end());
    behind_ = true;
    if (backlog() > 0 && !row->finished()) return;
    behind_ = false;
    pb::WatchJobResponse response;
    *response.mutable_job() = TellJob(*context_, news.view, *row, &news.holders);
    for (std::string& sentence : held_) response.add_events(std::move(sentence));
    held_.clear();
    Push(std::move(response));
    if (row->finished()) Finally(grpc::Status::OK);
  }

  const ApiContext* const context_;
  WatchHub* const hub_;
  std::atomic<int>* const streams_;
  std::mutex mutex_;
  uint64_t id_ = 0;
  std::atomic<bool> behind_ = false;  // something is to be told, but a message waits
  std::vector<std::string> held_;     // the hub's thread only
};

}  // namespace

grpc::Status CheckSize(const google::protobuf::Message& request) {
  if (request.ByteSizeLong() <= kMaxRequestBytes) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the request is larger than 1 MiB");
}

grpc::Status OperatorOnly(const Identity& who, const char* what) {
  if (who.operator_) return grpc::Status::OK;
  return grpc::Status(
      grpc::StatusCode::PERMISSION_DENIED,
      absl::StrCat(what, " takes root or the user who runs musterd; you are ", who.user));
}

pb::Job TellJob(const ApiContext& context, const View& view, const JobRow& job,
                PoolHolders* holders) {
  pb::Job told = DescribeJob(view.state, *view.plan, job, holders);
  for (size_t i = 0; i < job.tasks.size() && i < static_cast<size_t>(told.tasks_size()); ++i) {
    const AttemptRow* attempt = job.tasks[i].current();
    if (attempt == nullptr) continue;
    const std::optional<pb::Progress> live =
        context.engine->LiveProgress(KeyOf(job, i, attempt->number));
    if (live.has_value() && live->at_ns() >= told.tasks(i).progress().at_ns())
      *told.mutable_tasks(i)->mutable_progress() = *live;
  }
  const bool waits = std::any_of(job.tasks.begin(), job.tasks.end(),
                                 [](const TaskRow& task) { return task.waiting(); });
  if (waits && context.outlook != nullptr) {
    if (const std::shared_ptr<const Forecast> forecast = context.outlook->Newest();
        forecast != nullptr)
      AddForecast(*forecast, job.number, view.now_ns, &told);
  }
  return told;
}

grpc::ServerUnaryReactor* JobServiceImpl::Preview(grpc::CallbackServerContext* call,
                                                  const pb::PreviewRequest* request,
                                                  pb::PreviewResponse* response) {
  if (grpc::Status status = CheckSize(*request); !status.ok()) return Reply(call, status);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  // The budget counts from here: one that waited for its turn looks less far ahead.
  const Spent spent =
      SpentOf(context_->clock, kPreviewBudgetNs, [call] { return call->IsCancelled(); });
  const bool asked = context_->outlook->AskBriefly([this, reactor, request, response, spent] {
    const std::shared_ptr<const View> view = context_->engine->Snapshot();
    const Resolution resolution =
        ResolveSpec(view->state, request->spec(), context_->defaults, request->wait_for_capacity());
    if (!resolution.ok()) {
      reactor->Finish(RefusedSpec(resolution));
      return;
    }
    FutureOptions options;
    options.expired = [&spent] { return spent(100); };
    *response = muster::Preview(view->state, resolution.resolved, who_.user,
                                std::max(view->now_ns, context_->clock->WallNs()),
                                context_->scheduling, options);
    reactor->Finish(grpc::Status::OK);
  });
  if (!asked) reactor->Finish(BusyForNow());
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::Submit(grpc::CallbackServerContext* call,
                                                 const pb::SubmitRequest* request,
                                                 pb::SubmitResponse* response) {
  if (grpc::Status status = CheckSize(*request); !status.ok()) return Reply(call, status);
  // One that is known already needs no room, and has to be told as what it is: done.
  const auto known = [&] {
    return context_->engine->Snapshot()->state.FindByIdempotencyKey(
               who_.user, request->idempotency_key()) != 0;
  };
  if (const std::string why = WhyNoSubmissions(*context_); !why.empty() && !known()) {
    return Reply(
        call, NotNow(why, context_->engine->WhyNotServing().empty() ? "STORE_FULL" : "READ_ONLY"));
  }
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  // The request is there until Finish.
  const std::shared_ptr<const pb::SubmitRequest> kept(std::shared_ptr<void>(), request);
  muster::Submit(context_->engine, context_->defaults, who_.user, kept,
                 [this, reactor, response](const SubmitOutcome& outcome) {
                   if (!outcome.resolution.ok()) {
                     reactor->Finish(RefusedSpec(outcome.resolution));
                     return;
                   }
                   if (outcome.status.ok()) {
                     const std::shared_ptr<const View> view = context_->engine->Snapshot();
                     if (answered_.lock() != view) {
                       answered_holders_.emplace(view->state);
                       answered_ = view;
                     }
                     if (const JobRow* job = view->state.FindJob(outcome.number); job != nullptr) {
                       *response->mutable_job() =
                           TellJob(*context_, *view, *job, &*answered_holders_);
                     }
                     response->set_existed(outcome.existed);
                   }
                   reactor->Finish(ToGrpc(outcome.status));
                 });
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::Get(grpc::CallbackServerContext* call,
                                              const pb::GetJobRequest* request, pb::Job* response) {
  const std::shared_ptr<const View> view = context_->engine->Snapshot();
  const absl::StatusOr<std::shared_ptr<const JobRow>> job =
      FindSeen(*context_, view, request->id(), who_);
  if (!job.ok()) return Reply(call, ToGrpc(job.status()));
  *response = TellJob(*context_, *view, **job);
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* JobServiceImpl::List(grpc::CallbackServerContext* call,
                                               const pb::ListJobsRequest* request,
                                               pb::ListJobsResponse* response) {
  if (grpc::Status status = CheckSize(*request); !status.ok()) return Reply(call, status);
  const std::shared_ptr<const View> view = context_->engine->Snapshot();
  absl::StatusOr<JobPage> page = ListJobs(view, context_->history, *request,
                                          [this](const JobRow& job) { return MaySee(who_, job); });
  if (!page.ok()) return Reply(call, ToGrpc(page.status()));
  PoolHolders holders(view->state);
  for (const std::shared_ptr<const JobRow>& row : page->jobs) {
    pb::Job* job = response->add_jobs();
    *job = TellJob(*context_, *view, *row, &holders);
    for (pb::TaskSpec& task : *job->mutable_spec()->mutable_tasks()) {
      task.clear_run();
      task.clear_setup();
      task.clear_trainer_json();
    }
  }
  response->set_next_page_token(page->next_page_token);
  return Reply(call, grpc::Status::OK);
}

grpc::ServerWriteReactor<pb::WatchJobResponse>* JobServiceImpl::Watch(
    grpc::CallbackServerContext* call, const pb::WatchJobRequest* request) {
  const auto stream = std::make_shared<WatchStream>(context_, hub_, &watches_);
  stream->KeepAlive(stream);
  const std::shared_ptr<const View> view = context_->engine->Snapshot();
  const absl::StatusOr<std::shared_ptr<const JobRow>> job =
      FindSeen(*context_, view, request->id(), who_);
  if (job.ok()) {
    stream->Begin(*job);
  } else {
    stream->Refuse(ToGrpc(job.status()));
  }
  return stream.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::Cancel(grpc::CallbackServerContext* call,
                                                 const pb::CancelJobRequest* request,
                                                 pb::Job* response) {
  const std::shared_ptr<const View> view = context_->engine->Snapshot();
  const absl::StatusOr<std::shared_ptr<const JobRow>> job =
      FindSeen(*context_, view, request->id(), who_);
  if (!job.ok()) return Reply(call, ToGrpc(job.status()));
  const uint64_t number = (*job)->number;
  if (view->state.FindJob(number) == nullptr) {  // it ended long ago
    *response = TellJob(*context_, *view, **job);
    return Reply(call, grpc::Status::OK);
  }
  pb::Event event;
  event.mutable_job_cancel()->set_number(number);
  event.mutable_job_cancel()->set_by(who_.user);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  context_->engine->Post(std::move(event), [this, reactor, response, number](absl::Status status) {
    if (status.ok()) {
      const std::shared_ptr<const View> now = context_->engine->Snapshot();
      if (const JobRow* row = now->state.FindJob(number); row != nullptr)
        *response = TellJob(*context_, *now, *row);
    }
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

grpc::ServerWriteReactor<pb::LogsResponse>* JobServiceImpl::Logs(grpc::CallbackServerContext* call,
                                                                 const pb::LogsRequest* request) {
  const std::shared_ptr<const View> view = context_->engine->Snapshot();
  const absl::StatusOr<std::shared_ptr<const JobRow>> job =
      FindSeen(*context_, view, request->id(), who_);
  const auto stream = std::make_shared<LogStream>(context_, hub_, *request);
  stream->KeepAlive(stream);
  if (job.ok()) {
    stream->Begin(*job);
  } else {
    stream->Finally(ToGrpc(job.status()));
  }
  return stream.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::Explain(grpc::CallbackServerContext* call,
                                                  const pb::ExplainRequest* request,
                                                  pb::ExplainResponse* response) {
  const std::shared_ptr<const View> view = context_->engine->Snapshot();
  const absl::StatusOr<std::shared_ptr<const JobRow>> found =
      FindSeen(*context_, view, request->id(), who_);
  if (!found.ok()) return Reply(call, ToGrpc(found.status()));
  const int64_t budget_ns = BudgetNs(request->budget_ms(), 2000);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool asked =
      context_->outlook->Ask([this, call, reactor, response, view, job = *found, budget_ns] {
        const int64_t now_ns = std::max(view->now_ns, context_->clock->WallNs());
        *response = muster::Explain(
            view->state, *view->plan, job->number, now_ns, context_->scheduling,
            SpentOf(context_->clock, budget_ns, [call] { return call->IsCancelled(); }));
        *response->mutable_job() = TellJob(*context_, *view, *job);
        reactor->Finish(grpc::Status::OK);
      });
  if (!asked) reactor->Finish(Busy());
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::Simulate(grpc::CallbackServerContext* call,
                                                   const pb::SimulateRequest* request,
                                                   pb::SimulateResponse* response) {
  if (grpc::Status status = CheckSize(*request); !status.ok()) return Reply(call, status);
  if (request->change_queues() || request->drain_size() > 0 || request->resume_size() > 0) {
    if (grpc::Status status = OperatorOnly(who_, "trying changes of queues and hosts");
        !status.ok())
      return Reply(call, status);
  }
  std::vector<FieldProblem> problems;
  if (request->jobs_size() > kMaxHypotheticalJobs)
    problems.push_back({"jobs", absl::StrCat("at most ", kMaxHypotheticalJobs, " at once")});
  if (request->delay_ns() < 0 || request->delay_ns() > kMaxHorizonNs)
    problems.push_back({"delay", "0..30d"});
  if (request->horizon_ns() < 0 || request->horizon_ns() > kMaxHorizonNs)
    problems.push_back({"horizon", "0..30d"});
  const std::shared_ptr<const View> view = context_->engine->Snapshot();
  const auto changes = std::make_shared<Changes>();
  if (problems.empty()) {
    *changes = ResolveChanges(view->state, *request, context_->defaults);
    problems = changes->problems;
  }
  if (!problems.empty()) {
    return Reply(call, BadRequest(absl::StrCat("the question has ", problems.size(), " problem",
                                               problems.size() == 1 ? "" : "s"),
                                  problems));
  }
  FutureOptions options;
  if (request->horizon_ns() > 0) options.horizon_ns = request->horizon_ns();
  options.horizon_ns += request->delay_ns();
  const int64_t budget_ns = BudgetNs(request->budget_ms(), 5000);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool asked = context_->outlook->Ask([this, call, reactor, response, view, changes, options,
                                             budget_ns, delay_ns = request->delay_ns()] {
    const int64_t now_ns = std::max(view->now_ns, context_->clock->WallNs());
    *response = muster::Simulate(
        view->state, *changes, who_.user, delay_ns, now_ns, context_->scheduling, options,
        SpentOf(context_->clock, budget_ns, [call] { return call->IsCancelled(); }),
        [this](const JobRow& job) { return MaySee(who_, job); });
    reactor->Finish(grpc::Status::OK);
  });
  if (!asked) reactor->Finish(Busy());
  return reactor;
}

}  // namespace muster
