// Submitting a job, gRPC apart: idempotency, resolution, the event. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "muster/v1/job_service.pb.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/check_after.h"
#include "scheduler/engine/engine.h"

namespace muster {

struct SubmitOutcome {
  absl::Status status;    // OK: the job is durable
  Resolution resolution;  // its problems, if the spec was refused; `resolved` has gone into the job
  uint64_t number = 0;
  bool existed = false;  // the owner's key was known, with the same spec
};

// `done` is called once, on the engine's thread or at once. INVALID_ARGUMENT or FAILED_PRECONDITION
// with problems; ALREADY_EXISTS: the key is known with another spec (contract 18). UNAVAILABLE: it
// can't be checked yet (Resolution::not_now), or the engine is full. `request` is not looked at any
// more once `done` is called. `new_id` draws the job's uid (contract 16), on the engine's thread;
// the fault simulation draws it from its seed.
// `change` is Engine::Call, or what stands before it.
// `named` finds the jobs that the spec names, for the submitter, on the engine's thread.
using Change = std::function<void(Engine::Operation, Engine::Done)>;
void Submit(const Engine* engine, const Change& change, const SpecDefaults& defaults,
            const std::string& owner, std::shared_ptr<const pb::SubmitRequest> request,
            std::function<void(const SubmitOutcome&)> done,
            std::function<std::string()> new_id = RandomId, FindNamed named = FindNamedJob);
// Changes by Engine::Call itself.
void Submit(Engine* engine, const SpecDefaults& defaults, const std::string& owner,
            std::shared_ptr<const pb::SubmitRequest> request,
            std::function<void(const SubmitOutcome&)> done,
            std::function<std::string()> new_id = RandomId);

// Deterministic hash of a spec as submitted: SHA-256, 32 bytes.
std::string RequestHash(const pb::JobSpec& spec);

}  // namespace muster
