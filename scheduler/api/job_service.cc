#include <algorithm>
#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "common/spec/members.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/find_jobs.h"
#include "scheduler/api/jobs_of_users.h"
#include "scheduler/api/log_stream.h"
#include "scheduler/api/mask.h"
#include "scheduler/api/named_jobs.h"
#include "scheduler/api/outlook.h"
#include "scheduler/api/pack_service.h"
#include "scheduler/api/queued_writer.h"
#include "scheduler/api/secret_service.h"
#include "scheduler/api/services.h"
#include "scheduler/api/submit.h"
#include "scheduler/api/tunnel_stream.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/check_on.h"
#include "scheduler/ask/explain.h"
#include "scheduler/ask/simulate.h"
#include "scheduler/ask/usage.h"

namespace muster {
namespace {

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

// OK: the caller may have as many more as the request brings.
grpc::Status TakeRoom(const ApiContext& context, const Caller& caller,
                      const pb::SubmitRequest& request) {
  if (context.jobs_of_users == nullptr || caller.who().trusted) return grpc::Status::OK;
  const absl::Status taken = context.jobs_of_users->Take(
      caller.view()->state, caller.user(), std::clamp(MembersOf(request.spec()), 1, kMaxMembers),
      static_cast<int64_t>(request.ByteSizeLong()), context.clock->MonotonicNs());
  return absl::IsUnavailable(taken) ? NotNow(std::string(taken.message()), "BUSY") : ToGrpc(taken);
}

constexpr int64_t kPreviewBudgetNs = 500 * kMillisecond;
constexpr int64_t kMaxBudgetMs = 20'000;
constexpr int64_t kMaxHorizonNs = 30 * kDay;
constexpr int kMaxHypotheticalJobs = 100;
// Of a page: the next job begins another one. A job may have a megabyte, and clients take 64.
constexpr size_t kPageBytes = 16 << 20;

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
  WatchStream(const ApiContext* context, WatchHub* hub, StreamCounts* streams, const Caller& caller,
              bool whole)
      : context_(context),
        hub_(hub),
        streams_(streams),
        who_(caller.principal()),
        whole_(whole),
        job_(caller.job()) {}

  void Begin() {
    {
      std::lock_guard lock(mutex_);
      const std::shared_ptr<const JobRow> job = std::move(job_);
      if (streams_->Take(who_->user, kWatchesMax)) {
        id_ = hub_->Add(
            job, [this](const WatchHub::News& news) { Changed(news); },
            whole_ ? MembersOf(*job->spec) : 1);
        return;
      }
    }
    Finally(grpc::Status(
        grpc::StatusCode::RESOURCE_EXHAUSTED,
        absl::StrCat("you follow ", kWatchesMax,
                     " jobs now, and no more are served at once; end one, or try again later")));
  }

 protected:
  void Gone() override {
    uint64_t id = 0;
    {
      std::lock_guard lock(mutex_);
      std::swap(id, id_);
    }
    if (id == 0) return;
    streams_->Give(who_->user);
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
    const Sight sight(news.view.state, *who_);
    if (!sight.Sees(*row)) {  // not any more
      Finally(grpc::Status(grpc::StatusCode::NOT_FOUND, "you may not see this job any more"));
      return;
    }
    // A slow reader gets fewer messages, not older ones: what happened is told once it has read
    // what waits.
    // They quote what processes wrote.
    // Of an array only how it is as a whole is told.
    if (sight.Output(*row) && !whole_)
      held_.insert(held_.end(), news.events.begin(), news.events.end());
    behind_ = true;
    const bool over = whole_ ? row->ended != nullptr : row->finished();
    if (backlog() > 0 && !over) return;
    behind_ = false;
    pb::WatchJobResponse response;
    *response.mutable_job() = whole_ ? TellArray(*context_, sight, news.view, *row, &news.holders)
                                     : TellJob(*context_, sight, news.view, *row, &news.holders);
    for (const std::string& sentence : held_) response.add_events(HideJobs(sight, sentence));
    held_.clear();
    Push(std::move(response));
    if (over) Finally(grpc::Status::OK);
  }

  const ApiContext* const context_;
  WatchHub* const hub_;
  StreamCounts* const streams_;
  const std::shared_ptr<const Principal> who_;
  const bool whole_;                   // an array as a whole
  std::shared_ptr<const JobRow> job_;  // until Begin: it may hold a whole State
  std::mutex mutex_;
  uint64_t id_ = 0;
  std::atomic<bool> behind_ = false;  // something is to be told, but a message waits
  std::vector<std::string> held_;     // the hub's thread only
};

}  // namespace

JobServiceImpl::JobServiceImpl(const ApiContext* context, WatchHub* hub, const Door* door)
    : GuardedService(context->guard, door), context_(context), hub_(hub) {
  Unary("JobService/Preview", &JobServiceImpl::Preview);
  Unary("JobService/Submit", &JobServiceImpl::Submit);
  Unary("JobService/Get", &JobServiceImpl::Get);
  Unary("JobService/List", &JobServiceImpl::List);
  ServerStream("JobService/Watch", &JobServiceImpl::Watch);
  Unary("JobService/Cancel", &JobServiceImpl::Cancel);
  ServerStream("JobService/Logs", &JobServiceImpl::Logs);
  BidiStreamByFirst("JobService/Exec", &JobServiceImpl::Exec);
  BidiStreamByFirst("JobService/Forward", &JobServiceImpl::Forward);
  Unary("JobService/Explain", &JobServiceImpl::Explain);
  Unary("JobService/Simulate", &JobServiceImpl::Simulate);
}

grpc::Status CheckSize(const google::protobuf::Message& request) {
  if (request.ByteSizeLong() <= kMaxRequestBytes) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the request is larger than 1 MiB");
}

namespace {

void AddLiveUsage(const ApiContext& context, const State& state, const pb::AttemptKey& key,
                  const AttemptRow& attempt, pb::Task* told) {
  if (context.sessions == nullptr || told->attempts().empty()) return;
  if (std::optional<pb::Usage> usage = SumUsage(state, attempt, context.sessions->UsageOf(key));
      usage.has_value())
    *told->mutable_attempts()->rbegin()->mutable_usage() = *std::move(usage);
}

}  // namespace

pb::Job TellJob(const ApiContext& context, const Sight& sight, const View& view, const JobRow& job,
                PoolHolders* holders) {
  pb::Job told = DescribeJob(view.state, *view.plan, job, holders);
  for (size_t i = 0; i < job.tasks.size() && i < static_cast<size_t>(told.tasks_size()); ++i) {
    const AttemptRow* attempt = job.tasks[i].current();
    if (attempt == nullptr) continue;
    const std::optional<pb::Progress> live =
        context.engine->LiveProgress(KeyOf(job, i, attempt->number));
    if (live.has_value() && live->at_ns() >= told.tasks(i).progress().at_ns())
      *told.mutable_tasks(i)->mutable_progress() = *live;
    AddLiveUsage(context, view.state, KeyOf(job, i, attempt->number), *attempt,
                 told.mutable_tasks(i));
  }
  const bool waits = std::any_of(job.tasks.begin(), job.tasks.end(),
                                 [](const TaskRow& task) { return task.waiting(); });
  if (waits && context.outlook != nullptr) {
    if (const std::shared_ptr<const Forecast> forecast = context.outlook->Newest();
        forecast != nullptr)
      AddForecast(*forecast, job.number, view.now_ns, &told);
  }
  MaskJob(sight, job, &told);
  return told;
}

pb::Job TellArray(const ApiContext& context, const Sight& sight, const View& view,
                  const JobRow& first, PoolHolders* holders) {
  const JobRow& telling = TellingMember(view.state, first);
  return DescribeArray(view.state, first, TellJob(context, sight, view, telling, holders));
}

bool IsWholeArray(const JobRow& job, std::string_view id) {
  return job.array != 0 && job.member == 0 && id.find('_') == std::string_view::npos;
}

namespace {

// As the caller named it: an array by its number, or a job, of an array a member.
pb::Job TellNamed(const ApiContext& context, const Sight& sight, const View& view,
                  const JobRow& job, std::string_view id) {
  return IsWholeArray(job, id) ? TellArray(context, sight, view, job)
                               : TellJob(context, sight, view, job);
}

}  // namespace

grpc::ServerUnaryReactor* JobServiceImpl::Preview(const Caller& caller,
                                                  grpc::CallbackServerContext* call,
                                                  const pb::PreviewRequest* request,
                                                  pb::PreviewResponse* response) {
  if (grpc::Status status = CheckSize(*request); !status.ok()) return Reply(call, status);
  const absl::StatusOr<FindNamed> named =
      NamedFor(caller.view(), context_->history, caller.principal(), request->spec());
  if (!named.ok()) return Reply(call, ToGrpc(named.status()));
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  // The budget counts from here: one that waited for its turn looks less far ahead.
  const Spent spent =
      SpentOf(context_->clock, kPreviewBudgetNs, [call] { return call->IsCancelled(); });
  const bool asked = context_->outlook->AskBriefly(
      [this, caller, reactor, request, response, spent, find = *named] {
        const std::shared_ptr<const View> view = context_->engine->Snapshot();
        Resolution resolution = ResolveSpec(view->state, request->spec(), context_->defaults,
                                            request->wait_for_capacity(), caller.user());
        if (resolution.ok())
          resolution.problems = CheckHolder(view->state, resolution.resolved, caller.user());
        if (resolution.ok())
          resolution.problems = CheckAfter(view->state, resolution.resolved, find);
        if (!resolution.ok()) {
          reactor->Finish(RefusedSpec(resolution));
          return;
        }
        FutureOptions options;
        options.expired = [&spent] { return spent(100); };
        *response = muster::Preview(view->state, resolution.resolved, caller.user(),
                                    std::max(view->now_ns, context_->clock->WallNs()),
                                    context_->scheduling, options);
        Mask(Sight(view->state, caller.who()), response);
        reactor->Finish(grpc::Status::OK);
      });
  if (!asked) reactor->Finish(BusyForNow());
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::Submit(const Caller& caller,
                                                 grpc::CallbackServerContext* call,
                                                 const pb::SubmitRequest* request,
                                                 pb::SubmitResponse* response) {
  if (grpc::Status status = CheckSize(*request); !status.ok()) return Reply(call, status);
  // One that is known already needs no room, and has to be told as what it is: done.
  const auto known = [&] {
    return context_->engine->Snapshot()->state.FindByIdempotencyKey(
               caller.user(), request->idempotency_key()) != 0;
  };
  if (const std::string why = WhyNoSubmissions(*context_); !why.empty() && !known()) {
    return Reply(
        call, NotNow(why, context_->engine->WhyNotServing().empty() ? "STORE_FULL" : "READ_ONLY"));
  }
  std::vector<FieldProblem> missing = CheckPacks(*context_, caller.user(), request->spec());
  for (FieldProblem& problem : CheckSecrets(*context_, caller.user(), request->spec()))
    missing.push_back(std::move(problem));
  if (!missing.empty() && !known())
    return Reply(call, BadRequest("what the job names isn't here, nothing was submitted", missing));
  const absl::StatusOr<FindNamed> named =
      NamedFor(caller.view(), context_->history, caller.principal(), request->spec());
  if (!named.ok()) return Reply(call, ToGrpc(named.status()));
  // Last, as it counts as there from then on.
  if (!known()) {
    if (grpc::Status status = TakeRoom(*context_, caller, *request); !status.ok())
      return Reply(call, status);
  }
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  // The request is there until Finish.
  const std::shared_ptr<const pb::SubmitRequest> kept(std::shared_ptr<void>(), request);
  muster::Submit(
      context_->engine,
      [caller](Engine::Operation operation, Engine::Done done) {
        caller.Change(std::move(operation), std::move(done));
      },
      context_->defaults, caller.user(), kept,
      [this, caller, reactor, response](const SubmitOutcome& outcome) {
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
            const Sight sight(view->state, caller.who());
            *response->mutable_job() =
                job->array != 0 ? TellArray(*context_, sight, *view, *job, &*answered_holders_)
                                : TellJob(*context_, sight, *view, *job, &*answered_holders_);
          }
          response->set_existed(outcome.existed);
        }
        reactor->Finish(ToGrpc(outcome.status));
      },
      RandomId, *named);
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::Get(const Caller& caller,
                                              grpc::CallbackServerContext* call,
                                              const pb::GetJobRequest* request, pb::Job* response) {
  const View& view = *caller.view();
  *response =
      TellNamed(*context_, Sight(view.state, caller.who()), view, *caller.job(), request->id());
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* JobServiceImpl::List(const Caller& caller,
                                               grpc::CallbackServerContext* call,
                                               const pb::ListJobsRequest* request,
                                               pb::ListJobsResponse* response) {
  if (grpc::Status status = CheckSize(*request); !status.ok()) return Reply(call, status);
  const std::shared_ptr<const View>& view = caller.view();
  const Sight sight(view->state, caller.who());
  if (!request->queue().empty() && !sight.all() && !sight.Knows(request->queue())) {
    return Reply(call, grpc::Status(grpc::StatusCode::NOT_FOUND,
                                    absl::StrCat("there is no queue \"", request->queue(),
                                                 "\" for you. See: muster queue list")));
  }
  absl::StatusOr<JobPage> page = ListJobs(view, context_->history, *request,
                                          [&](const JobRow& job) { return sight.Sees(job); });
  if (!page.ok()) return Reply(call, ToGrpc(page.status()));
  PoolHolders holders(view->state);
  size_t bytes = 0;
  for (const std::shared_ptr<const JobRow>& row : page->jobs) {
    if (bytes >= kPageBytes) {
      // As ListJobs makes them: of members the next one's place, else the last job of this page.
      page->next_page_token =
          absl::StrCat(request->array().empty() ? response->jobs().rbegin()->number()
                                                : static_cast<uint64_t>(row->member));
      break;
    }
    pb::Job* job = response->add_jobs();
    *job = row->array != 0 && request->array().empty()
               ? TellArray(*context_, sight, *view, *row, &holders)
               : TellJob(*context_, sight, *view, *row, &holders);
    for (pb::TaskSpec& task : *job->mutable_spec()->mutable_tasks()) {
      task.clear_run();
      task.clear_setup();
      task.clear_trainer_json();
      if (row->array != 0) task.clear_env();
    }
    if (row->array != 0) {  // a page has a thousand members; their own values are beside the spec
      job->mutable_spec()->clear_sweep();
      job->mutable_spec()->clear_env();
    }
    bytes += job->ByteSizeLong();
  }
  response->set_next_page_token(page->next_page_token);
  return Reply(call, grpc::Status::OK);
}

grpc::ServerWriteReactor<pb::WatchJobResponse>* JobServiceImpl::Watch(
    const Caller& caller, grpc::CallbackServerContext*, const pb::WatchJobRequest* request) {
  const auto stream = std::make_shared<WatchStream>(context_, hub_, &watches_, caller,
                                                    IsWholeArray(*caller.job(), request->id()));
  stream->KeepAlive(stream);
  stream->Begin();
  return stream.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::Cancel(const Caller& caller,
                                                 grpc::CallbackServerContext* call,
                                                 const pb::CancelJobRequest* request,
                                                 pb::Job* response) {
  const View& view = *caller.view();
  const std::string& id = request->id();
  const bool whole = IsWholeArray(*caller.job(), id);
  const uint64_t number = caller.job()->number;
  if (view.state.FindJob(number) == nullptr) {  // it ended long ago
    *response = TellNamed(*context_, Sight(view.state, caller.who()), view, *caller.job(), id);
    return Reply(call, grpc::Status::OK);
  }
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Change(
      [number, whole, by = caller.user()](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
        std::vector<pb::Event> events(1);
        events[0].mutable_job_cancel()->set_number(number);
        events[0].mutable_job_cancel()->set_by(by);
        events[0].mutable_job_cancel()->set_array(whole);
        return events;
      },
      [this, caller, reactor, response, number, id](absl::Status status) {
        if (status.ok()) {
          const std::shared_ptr<const View> now = context_->engine->Snapshot();
          if (const JobRow* row = now->state.FindJob(number); row != nullptr)
            *response = TellNamed(*context_, Sight(now->state, caller.who()), *now, *row, id);
        }
        reactor->Finish(ToGrpc(status));
      });
  return reactor;
}

grpc::ServerWriteReactor<pb::LogsResponse>* JobServiceImpl::Logs(const Caller& caller,
                                                                 grpc::CallbackServerContext*,
                                                                 const pb::LogsRequest* request) {
  const auto stream = std::make_shared<LogStream>(context_, hub_, *request, caller);
  stream->KeepAlive(stream);
  stream->Begin();
  return stream.get();
}

grpc::ServerBidiReactor<pb::TunnelInput, pb::TunnelOutput>* JobServiceImpl::Exec(
    AdmitFirst<pb::TunnelInput> admit, grpc::CallbackServerContext* call) {
  const auto stream = std::make_shared<UserTunnel>(context_, hub_, std::move(admit),
                                                   door()->Explainer(*call), /*command=*/true);
  stream->Begin();
  return stream.get();
}

grpc::ServerBidiReactor<pb::TunnelInput, pb::TunnelOutput>* JobServiceImpl::Forward(
    AdmitFirst<pb::TunnelInput> admit, grpc::CallbackServerContext* call) {
  const auto stream = std::make_shared<UserTunnel>(context_, hub_, std::move(admit),
                                                   door()->Explainer(*call), /*command=*/false);
  stream->Begin();
  return stream.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::Explain(const Caller& caller,
                                                  grpc::CallbackServerContext* call,
                                                  const pb::ExplainRequest* request,
                                                  pb::ExplainResponse* response) {
  const int64_t budget_ns = BudgetNs(request->budget_ms(), 2000);
  const bool whole = IsWholeArray(*caller.job(), request->id());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool asked =
      context_->outlook->Ask([this, caller, call, reactor, response, budget_ns, whole] {
        const std::shared_ptr<const View>& view = caller.view();
        const std::shared_ptr<const JobRow>& job = caller.job();
        const Sight sight(view->state, caller.who());
        const int64_t now_ns = std::max(view->now_ns, context_->clock->WallNs());
        const JobRow& about = whole ? ExplainedMember(view->state, *job) : *job;
        *response = muster::Explain(
            view->state, *view->plan, about.number, now_ns, context_->scheduling,
            SpentOf(context_->clock, budget_ns, [call] { return call->IsCancelled(); }));
        *response->mutable_job() = whole ? TellArray(*context_, sight, *view, *job)
                                         : TellJob(*context_, sight, *view, *job);
        Mask(sight, response);
        reactor->Finish(grpc::Status::OK);
      });
  if (!asked) reactor->Finish(Busy());
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::Simulate(const Caller& caller,
                                                   grpc::CallbackServerContext* call,
                                                   const pb::SimulateRequest* request,
                                                   pb::SimulateResponse* response) {
  if (grpc::Status status = CheckSize(*request); !status.ok()) return Reply(call, status);
  std::vector<FieldProblem> problems;
  if (request->jobs_size() > kMaxHypotheticalJobs)
    problems.push_back({"jobs", absl::StrCat("at most ", kMaxHypotheticalJobs, " at once")});
  if (request->delay_ns() < 0 || request->delay_ns() > kMaxHorizonNs)
    problems.push_back({"delay", "0..30d"});
  if (request->horizon_ns() < 0 || request->horizon_ns() > kMaxHorizonNs)
    problems.push_back({"horizon", "0..30d"});
  const std::shared_ptr<const View>& view = caller.view();
  const auto changes = std::make_shared<Changes>();
  if (problems.empty()) {
    pb::JobSpec names;  // of all
    for (const pb::JobSpec& job : request->jobs()) {
      names.mutable_after()->MergeFrom(job.after());
      names.mutable_after_any()->MergeFrom(job.after_any());
    }
    const absl::StatusOr<FindNamed> named =
        NamedFor(view, context_->history, caller.principal(), names);
    if (!named.ok()) return Reply(call, ToGrpc(named.status()));
    *changes = ResolveChanges(view->state, *request, context_->defaults, caller.user(), *named);
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
  const bool asked = context_->outlook->Ask([this, caller, call, reactor, response, view, changes,
                                             options, budget_ns, delay_ns = request->delay_ns()] {
    const int64_t now_ns = std::max(view->now_ns, context_->clock->WallNs());
    const Sight sight(view->state, caller.who());
    *response = muster::Simulate(
        view->state, *changes, caller.user(), delay_ns, now_ns, context_->scheduling, options,
        SpentOf(context_->clock, budget_ns, [call] { return call->IsCancelled(); }),
        [&](const JobRow& job) { return sight.Sees(job); });
    Mask(sight, response);
    reactor->Finish(grpc::Status::OK);
  });
  if (!asked) reactor->Finish(Busy());
  return reactor;
}

}  // namespace muster
