#include "scheduler/api/submit.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/pki/sha256.h"
#include "common/spec/members.h"
#include "common/spec/when.h"
#include "scheduler/ask/check_on.h"
#include "scheduler/state/bytes.h"

namespace muster {

std::string RequestHash(const pb::JobSpec& spec) { return Sha256(DeterministicBytes(spec)); }

namespace {

// One submission on its way through the engine.
struct Pending {
  SubmitOutcome outcome;
  SpecDefaults defaults;
  std::string owner, hash;
  std::string queue;  // once it is known
  std::shared_ptr<const pb::SubmitRequest> request;
  // What the resolution was made against; another one by the time of the step: it is made again.
  std::shared_ptr<const View> view;
  std::function<void(const SubmitOutcome&)> done;
  std::function<std::string()> new_id;
  FindNamed named;
};

absl::StatusOr<std::vector<pb::Event>> EventsOf(Pending* pending, const State& state) {
  SubmitOutcome& outcome = pending->outcome;
  const pb::SubmitRequest& request = *pending->request;
  if (const uint64_t known = state.FindByIdempotencyKey(pending->owner, request.idempotency_key());
      known != 0) {
    outcome.resolution = Resolution();
    if (state.FindJob(known)->request_hash != pending->hash) {
      return absl::AlreadyExistsError(
          absl::StrCat("job ", known,
                       " was submitted with this idempotency key and another spec. "
                       "Use a new key for a new job"));
    }
    outcome.number = known;
    outcome.existed = true;
    return std::vector<pb::Event>();
  }
  const bool configured_anew = &state.queues() != &pending->view->state.queues() ||
                               &state.clusters() != &pending->view->state.clusters();
  const bool refused = !outcome.resolution.ok() && !outcome.resolution.by_itself;
  if (refused || configured_anew)
    outcome.resolution = ResolveSpec(state, request.spec(), pending->defaults,
                                     request.wait_for_capacity(), pending->owner);
  pending->view = nullptr;
  if (outcome.resolution.ok())
    outcome.resolution.problems = CheckHolder(state, outcome.resolution.resolved, pending->owner);
  if (outcome.resolution.ok())
    outcome.resolution.problems = CheckAfter(state, outcome.resolution.resolved, pending->named);
  const std::optional<int64_t> first_ns = FirstTimeNs(outcome.resolution.resolved, state.now_ns());
  if (outcome.resolution.ok() && !first_ns.has_value())
    outcome.resolution.problems.push_back({"schedule", "has no time in the next twelve years"});
  if (!outcome.resolution.not_now.empty())
    return absl::UnavailableError(outcome.resolution.not_now);
  if (!outcome.resolution.ok()) {
    return outcome.resolution.never_fits
               ? absl::FailedPreconditionError("this job can never start, so it was not accepted")
               : absl::InvalidArgumentError("the job was not accepted");
  }
  std::vector<pb::Event> events(1);
  pb::JobSubmitted* submitted = events[0].mutable_job_submitted();
  submitted->set_uid(pending->new_id());
  submitted->set_number(state.next_job_number());
  pending->queue = outcome.resolution.resolved.queue();
  submitted->set_owner(pending->owner);
  submitted->mutable_spec()->Swap(&outcome.resolution.resolved);
  SetPredecessors(state, submitted);
  submitted->set_not_before_ns(*first_ns);
  submitted->set_members(MembersOf(submitted->spec()));
  submitted->set_idempotency_key(request.idempotency_key());
  submitted->set_umask(request.has_umask() ? request.umask() & 0777 : 022);
  submitted->set_request_hash(pending->hash);
  outcome.number = submitted->number();
  return events;
}

}  // namespace

void Submit(Engine* engine, const SpecDefaults& defaults, const std::string& owner,
            std::shared_ptr<const pb::SubmitRequest> request,
            std::function<void(const SubmitOutcome&)> done, std::function<std::string()> new_id) {
  const Change change = [engine](Engine::Operation operation, Engine::Done then) {
    engine->Call(std::move(operation), std::move(then));
  };
  Submit(engine, change, defaults, owner, std::move(request), std::move(done), std::move(new_id));
}

void Submit(const Engine* engine, const Change& change, const SpecDefaults& defaults,
            const std::string& owner, std::shared_ptr<const pb::SubmitRequest> request,
            std::function<void(const SubmitOutcome&)> done, std::function<std::string()> new_id,
            FindNamed named) {
  auto pending = std::make_shared<Pending>();
  const std::string& key = request->idempotency_key();
  const bool printable =
      std::all_of(key.begin(), key.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  if (key.empty() || key.size() > 128 || !printable) {
    pending->outcome.status = absl::InvalidArgumentError("the request is wrong");
    pending->outcome.resolution.problems.push_back(
        {"idempotency_key", "must be 1 to 128 printable characters"});
    done(pending->outcome);
    return;
  }
  if (engine->Full()) {
    pending->outcome.status = absl::UnavailableError(
        "more submissions wait than can be answered soon; try again in a moment, with the same "
        "idempotency key");
    done(pending->outcome);
    return;
  }
  pending->defaults = defaults;
  pending->owner = owner;
  pending->hash = RequestHash(request->spec());
  pending->done = std::move(done);
  pending->new_id = std::move(new_id);
  pending->named = std::move(named);
  // Resolved here, against the newest durable state, so that the engine's thread doesn't have to;
  // it does so itself only where that was refused for want of hosts (who joins before it may be
  // what was missing) or the configuration is another by then.
  pending->view = engine->Snapshot();
  pending->outcome.resolution = ResolveSpec(pending->view->state, request->spec(), defaults,
                                            request->wait_for_capacity(), owner);
  pending->request = std::move(request);
  change([pending](const State& state) { return EventsOf(pending.get(), state); },
         [pending](absl::Status status) {
           SubmitOutcome& outcome = pending->outcome;
           outcome.status = std::move(status);
           if (outcome.status.ok() && !outcome.existed) {
             LogInfo(
                 "job submitted",
                 {{"job", outcome.number}, {"owner", pending->owner}, {"queue", pending->queue}});
           }
           pending->done(outcome);
         });
}

}  // namespace muster
