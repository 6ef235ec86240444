// Answers without what their reader may not see: others' jobs by number, queue and name; of jobs
// whose output they may not read the environment, and every line that quotes it. Members of arrays
// are named as commands take them, in place of their numbers. Pure.
//
// Who sees everything gets everything, at no cost while there is no array.
#pragma once

#include <string>

#include "muster/v1/cluster.pb.h"
#include "muster/v1/cluster_service.pb.h"
#include "muster/v1/job.pb.h"
#include "muster/v1/job_service.pb.h"
#include "muster/v1/queue_service.pb.h"
#include "scheduler/access/roles.h"

namespace muster {

// "held by jobs 3, 318 (research/nlp)" -> "held by job 3 and others' work": of a sentence the
// numbers of jobs that aren't seen, and their queues; "job 20" -> "job 17_3" of a member.
std::string HideJobs(const Sight& sight, const std::string& sentence);

void MaskJob(const Sight& sight, const JobRow& job, pb::Job* told);
void Mask(const Sight& sight, pb::Host* host);
void Mask(const Sight& sight, pb::PreviewResponse* response);
void Mask(const Sight& sight, pb::ExplainResponse* response);  // its job apart
void Mask(const Sight& sight, pb::SimulateResponse* response);
void Mask(const Sight& sight, pb::ApplyQueuesResponse* response);
// Rows of queues that aren't seen are left out.
void Mask(const Sight& sight, pb::TopRequest::By by, pb::TopResponse* response);
void Mask(const Sight& sight, pb::GetLedgerRequest::By by, pb::LedgerResponse* response);

}  // namespace muster
