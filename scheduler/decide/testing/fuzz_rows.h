// What State's rows say of queues, for the rules that the fuzzer recomputes with nothing of
// scheduler/decide and nothing of Validate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/state/state.h"

namespace muster {

// The queue and those above it.
inline std::vector<int32_t> PathOf(const State& state, const std::string& queue) {
  std::vector<int32_t> path;
  for (int32_t n = state.queues().Find(queue); n >= 0; n = state.queues().nodes[n].parent)
    path.push_back(n);
  return path;
}

inline std::optional<int64_t> LimitOf(const State& state, int32_t node,
                                      const std::string& flavour) {
  const auto& quotas = state.queues().nodes[node].spec.quota();
  const auto quota = quotas.find(flavour);
  if (quota == quotas.end() || !quota->second.has_limit_milli()) return std::nullopt;
  return quota->second.limit_milli();
}

// What a worker counts by, in thousandths of a device, or of a CPU for a task without any.
inline int64_t WorkerMilli(const pb::TaskSpec& spec) {
  const pb::Resources& wants = spec.resources();
  return wants.gpus_milli() > 0 ? wants.gpus_milli() : std::max<int64_t>(1, wants.cpus_milli());
}

inline std::string FlavourOf(const pb::TaskSpec& spec, const std::string& flavour) {
  return spec.resources().gpus_milli() > 0 ? flavour : "cpu";
}

inline bool OnUnreachable(const State& state, const AttemptRow& attempt) {
  return std::any_of(attempt.parts.begin(), attempt.parts.end(), [&](const PartRow& part) {
    return state.host(part.host).state == pb::HOST_UNREACHABLE;
  });
}

// Calls f(job, task, row, spec) for each task of an unfinished job on devices of its own.
template <typename F>
void EachTask(const State& state, F f) {
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    if (!job.spec->on().empty()) continue;
    for (size_t t = 0; t < job.tasks.size(); ++t)
      f(job, static_cast<int32_t>(t), job.tasks[t], job.task_spec(static_cast<int32_t>(t)));
  }
}

// By queue node and flavour.
using UseByFlavour = std::map<std::pair<int32_t, std::string>, int64_t>;

// What can't be reached may be given to others, and counts nowhere.
// `stopping` says by how many workers what is being stopped counts.
template <typename F>
UseByFlavour UseOf(const State& state, F stopping) {
  UseByFlavour use;
  EachTask(state, [&](const JobRow& job, int32_t, const TaskRow& row, const pb::TaskSpec& spec) {
    const AttemptRow* current = row.current();
    if (current == nullptr || current->released() || OnUnreachable(state, *current)) return;
    const int64_t workers =
        current->state == pb::TASK_STOPPING ? stopping(*current) : current->workers;
    for (const int32_t n : PathOf(state, job.spec->queue()))
      use[{n, FlavourOf(spec, current->flavour)}] += workers * WorkerMilli(spec);
  });
  return use;
}

}  // namespace muster
