// What the sandbox is made of: four clusters with 4,096 GPUs, a quota tree, and jobs as a lab
// submits them.
#pragma once

#include <cstdint>
#include <string>

#include "muster/v1/cluster.pb.h"
#include "muster/v1/job.pb.h"
#include "muster/v1/queue.pb.h"
#include "sim/random.h"

namespace muster::sandbox {

namespace pb = ::muster::v1;

// phx (2,048 h100-80g), dal (1,024 a100-80g), fra (768 h100-80g), sin (256 l40s-48g); racks of 8
// hosts, blocks of 4 racks.
pb::ClusterFile Clusters();
// prod; research with nlp, vision and rl; platform; scratch.
pb::QueueTree Queues();

struct PopulationJob {
  pb::JobSpec spec;
  std::string owner;
  int64_t duration_ns = 0;  // at its least size
};
// A job that wants this flavour. Draws from `random` only: the same numbers give the same job.
PopulationJob DrawJob(const std::string& flavour, sim::Random* random);

}  // namespace muster::sandbox
