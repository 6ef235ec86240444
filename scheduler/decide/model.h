// What Decide works on: the cells, and the tasks that want or hold devices, read from State once a decision.
//
// Inside of scheduler/decide. A base is a task at its minimum size; its growth workers are counted with it.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "scheduler/state/options.h"
#include "scheduler/state/state.h"

namespace muster {

inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
inline constexpr char kCpuFlavour[] = "cpu";  // cells of work without GPUs

// The devices of one flavour in one cluster; for work without GPUs the CPUs of the cluster's hosts.
struct Cell {
  int32_t cluster = 0;
  int32_t flavour = 0;            // index in Model::flavours
  int64_t capacity_milli = 0;     // healthy now
  int64_t known_milli = 0;        // of all hosts ever heard from, up or not
  std::vector<HostId> hosts;      // in State's order
  int64_t charged_milli = 0;      // to units of S
};

struct Base {
  TaskRef ref;
  const JobRow* job = nullptr;
  const TaskRow* row = nullptr;
  const pb::TaskSpec* spec = nullptr;
  const AttemptRow* current = nullptr;  // that holds devices, stopping ones too; nullptr: it waits
  int32_t leaf = -1;                    // queue node
  int32_t min_workers = 1, max_workers = 1;
  int64_t worker_milli = 0;             // devices' (or CPUs') thousandths a worker
  std::vector<int32_t> cells;           // in order of preference
  std::vector<bool> opened;             // parallel to cells
  int32_t bound_cell = -1;              // where it runs
  bool ends = false;                    // cancelled, failed or out of time: it won't start again
  bool may_be_lost = false;             // its hosts can't be reached and it may be replaced

  // The entitled set: filled by Entitle.
  bool entitled = false;
  bool guaranteed = false;              // accepted within its leaf's guarantee
  int32_t charge = -1;                  // cell
  int32_t growth = 0;                   // growth workers entitled
  int32_t order = 0;                    // of acceptance

  int32_t entitled_workers() const { return entitled ? min_workers + growth : 0; }
  bool running() const { return current != nullptr && current->state != pb::TASK_STOPPING; }
  bool wants_place() const { return row->waiting(); }
};

struct Model {
  std::vector<std::string> flavours;    // sorted; kCpuFlavour among them
  std::vector<Cell> cells;
  std::vector<Base> bases;              // by job number and task
  std::vector<int64_t> flavour_milli;   // capacity of each flavour
  std::vector<std::vector<int64_t>> entitled;  // [queue node][flavour]: U
  std::map<TaskRef, int32_t> base_of;

  int32_t FlavourIndex(const std::string& flavour) const;
  int32_t CellOf(int32_t cluster, int32_t flavour) const;
};

// Units of unfinished tasks; what is blocked, held, cancelled or in a long backoff is no unit.
Model BuildModel(const State& state, int64_t now_ns, const SchedulingOptions& options);

// Fills `entitled` of the bases, `charged_milli` of the cells and `entitled` of the queues: SCHEDULING.md §1.
void Entitle(const State& state, Model* model);

// While at least three hosts and more than half of a cluster are silent, nothing of them may become Lost (CONTRACTS 11).
bool MassLoss(const State& state, int32_t cluster, int64_t now_ns, const SchedulingOptions& options);
// Every member of the attempt is Gone or may be declared lost, or will be once reachable members are stopped (CONTRACTS 9).
bool MayBeLost(const State& state, const pb::TaskSpec& spec, const AttemptRow& attempt, int64_t now_ns,
               const SchedulingOptions& options);

// When the attempt is expected to end: from its progress, else its time limit; 0 = unknown.
int64_t ExpectedEnd(const Base& base, int64_t now_ns);

}  // namespace muster
