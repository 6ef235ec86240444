// Why each waiting task waits, and when it is expected to start.
#include <algorithm>
#include <map>

#include "scheduler/decide/round.h"

namespace muster {

// Jobs that hold the cell's devices, largest first.
void Round::FillHolders(int32_t cell, const JobRow& job, pb::Verdict* verdict) {
  const auto [known, first] = holders_.try_emplace(cell);
  if (first) {
    std::map<uint64_t, int64_t> held;
    for (const int32_t b : holding_[cell]) held[m_.bases[b].ref.job] += m_.bases[b].worker_milli * m_.bases[b].current->workers;
    std::vector<std::pair<int64_t, uint64_t>> sorted;
    for (const auto& [number, milli] : held) sorted.emplace_back(-milli, number);
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size() && i < 9; ++i) known->second.push_back(sorted[i].second);
  }
  for (const uint64_t number : known->second) {
    if (number != job.number && verdict->held_by_size() < 8) verdict->add_held_by(number);
  }
}

pb::Verdict Round::VerdictOf(const JobRow& job, int32_t task) {
  pb::Verdict verdict;
  const TaskRow& row = job.tasks[task];
  if (row.state == pb::TASK_BLOCKED) {
    verdict.set_code(pb::V_AFTER);
    return verdict;
  }
  const auto found = m_.base_of.find({job.number, task});
  if (row.backoff_until_ns > now_ns_) {
    LookAt(row.backoff_until_ns);
    verdict.set_code(pb::V_BACKOFF);
    verdict.set_expected_start_ns(row.backoff_until_ns);
    return verdict;
  }
  if (found == m_.base_of.end()) {     // held, or its queue is gone
    verdict.set_code(pb::V_HELD);
    return verdict;
  }
  const int32_t b = found->second;
  const Base& base = m_.bases[b];
  int32_t cell = base.charge;
  for (size_t i = 0; i < base.cells.size() && cell < 0; ++i) {
    if (base.opened[i] && m_.cells[base.cells[i]].capacity_milli > 0) cell = base.cells[i];
  }
  for (size_t i = 0; i < base.cells.size() && cell < 0; ++i) {
    if (base.opened[i]) cell = base.cells[i];
  }
  const int64_t demand = base.worker_milli * base.min_workers;
  if (cell < 0 || m_.cells[cell].capacity_milli < demand) {
    bool drained = false;
    for (const int32_t c : base.cells) {
      drained = drained || s_.clusters()[m_.cells[c].cluster].drained ||
                std::any_of(m_.cells[c].hosts.begin(), m_.cells[c].hosts.end(), [&](HostId id) { return s_.host(id).drained; });
    }
    verdict.set_code(drained ? pb::V_HELD : pb::V_CLUSTER);
    if (cell >= 0) verdict.set_missing_milli(demand - m_.cells[cell].capacity_milli);
    return verdict;
  }
  verdict.set_cluster(CellName(cell));
  verdict.set_flavour(m_.flavours[m_.cells[cell].flavour]);
  const int64_t free_milli = std::max<int64_t>(0, now_.FreeMilli(m_.cells[cell], base.spec->resources().gpus_milli() > 0));
  verdict.set_missing_milli(std::max<int64_t>(0, demand - free_milli));
  FillHolders(cell, job, &verdict);
  if (base.entitled && served_[b]) {
    verdict.set_code(pb::V_RECLAIMING);
    return verdict;
  }
  if (base.entitled) {
    const bool shape = free_milli >= demand && WithinLimits(base, cell, base.min_workers, use_now_);
    bool elsewhere = false;            // another of its clusters has room: it keeps to its charged one until spilling pays
    for (size_t i = 0; i < base.cells.size() && !shape; ++i) {
      elsewhere = elsewhere || (base.cells[i] != cell &&
                                now_.FreeMilli(m_.cells[base.cells[i]], base.spec->resources().gpus_milli() > 0) >= demand);
    }
    verdict.set_code(shape ? pb::V_PLACEMENT : elsewhere ? pb::V_ENTITLED_CELL : pb::V_CAPACITY);
  } else {
    bool within = true;
    for (int32_t n = base.leaf; n >= 0; n = s_.queues().nodes[n].parent) {
      const int32_t f = m_.cells[cell].flavour;
      within = within && m_.entitled[n][f] + demand <= quota_[n * m_.flavours.size() + f].limit;
    }
    verdict.set_code(within ? pb::V_SHARE : pb::V_LIMIT);
  }
  int64_t start_ns = 0;
  const Kept* reservation = nullptr;
  for (const Kept& kept : reserved_[cell]) {
    if (kept.base == b) reservation = &kept;
  }
  start_ns = reservation != nullptr ? reservation->start_ns : EarliestStart(b, cell);
  if (start_ns > now_ns_) verdict.set_expected_start_ns(start_ns);
  return verdict;
}

void Round::GiveVerdicts() {
  for (const Placed& placed : placed_) {
    pb::Verdict& verdict = plan_.verdicts[m_.bases[placed.base].ref];
    verdict.set_code(pb::V_STARTING_NOW);
    verdict.set_cluster(CellName(placed.cell));
    verdict.set_flavour(m_.flavours[m_.cells[placed.cell].flavour]);
    verdict.set_expected_start_ns(now_ns_);
  }
  for (const uint64_t number : s_.active_jobs()) {
    const JobRow& job = *s_.FindJob(number);
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      const TaskRow& row = job.tasks[t];
      const TaskRef ref{number, static_cast<int32_t>(t)};
      if (plan_.verdicts.contains(ref)) continue;
      if (row.state == pb::TASK_BLOCKED || row.waiting()) {
        plan_.verdicts[ref] = VerdictOf(job, ref.task);
      } else if (const AttemptRow* current = row.current();
                 current != nullptr && std::any_of(current->parts.begin(), current->parts.end(), [&](const PartRow& part) {
                   return !part.over() && s_.host(part.host).state == pb::HOST_UNREACHABLE;
                 })) {
        plan_.verdicts[ref].set_code(pb::V_UNREACHABLE);
        plan_.verdicts[ref].set_cluster(s_.clusters()[current->cluster].name);
      }
    }
  }
}

}  // namespace muster
