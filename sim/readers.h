// Readers of published traces, into the jobs of sim/trace.h. Files may be gzipped.
//
//   csv        ours (sim/trace.h)
//   philly     job_id,cluster,submit_s,gpus,duration_s,kind: Philly (Jeon et al., ATC'19) and Kalos
//   (AcmeTrace). The job's cluster becomes its queue and its preferred cluster. More
//              than 8 GPUs are a gang: of the largest workers up to 8 GPUs that divide the number.
//   shockwave  Gavel's .trace lines (tabs): model, command, directory, steps argument, data, steps,
//   GPUs, mode, weight, SLO,
//              duration, arrival. With throughputs (SHOCKWAVE_throughputs.json[.gz]) the duration
//              follows the batch sizes that the job's mode (accordion, gns) gives each epoch
//              (sim/peers/shockwave.h); else it is the listed one.
//   openb      Alibaba's openb_pod_list: pods with CPUs, memory, whole GPUs or a share of one, GPU
//   models, from creation to
//              deletion.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "muster/v1/cluster.pb.h"
#include "sim/trace.h"

namespace muster::sim {

namespace pb = ::muster::v1;

// A file's content, decompressed when it is gzipped. At most 1 GiB.
absl::StatusOr<std::string> ReadMaybeCompressed(const std::string& path);

struct ReadOptions {
  std::string format;  // a name above; empty: by the first line
  std::string
      throughputs;  // for shockwave: file of measured steps a second; empty: durations as listed
  bool strict =
      false;  // the first broken line is an error; else it is left out and named in Trace::broken
};

// NOT_FOUND, or INVALID_ARGUMENT with file:line.
absl::StatusOr<Trace> ReadTrace(const std::string& path, const ReadOptions& options);

// ---- changes to a trace, before it is run ----

// Fits a trace to a fleet: jobs without GPU types may run on all flavours of the file; types are
// the file's, whatever the case of their letters; clusters that it lacks are dropped from the jobs'
// lists; where `spill` is set, the other clusters follow a job's own, in file order.
void FitToFleet(const pb::ClusterFile& clusters, bool spill, Trace* trace);
// Puts each job into the queue of its size, `g16` for 16 GPUs: for traces that name no tenants.
void QueueBySize(Trace* trace);
// Jobs submitted in [from_ns, until_ns), moved to begin at 0; until_ns 0 = to the end.
void Cut(int64_t from_ns, int64_t until_ns, Trace* trace);
// Stretches or compresses the times between submissions so that the work that arrives is `percent`
// of what `devices` can do until the last submission.
void ScaleToLoad(int64_t devices, int percent, Trace* trace);
// Work that arrives over what `devices` can do until the last submission, in per mille.
int64_t LoadPerMille(int64_t devices, const Trace& trace);
// How much of that work is later than the last submission even if every job starts at once, in per
// mille of all work.
int64_t LateWorkPerMille(const Trace& trace);

}  // namespace muster::sim
