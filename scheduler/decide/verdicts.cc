// Why each waiting task waits, and when it is expected to start. Some tens of thousands may wait:
// what they ask of a cell is worked out once, and their rows aren't read.
#include <algorithm>

#include "common/base/check.h"
#include "scheduler/decide/round.h"

namespace muster {

int64_t Round::FreeMilli(const Base& base, int32_t cell, std::vector<CellView>* cells) {
  int64_t& known = (*cells)[cell].free_milli[base.gpus];
  if (known < 0) known = std::max<int64_t>(0, now_.FreeMilli(m_.cells[cell], base.gpus));
  return known;
}

bool Round::Drained(int32_t cell, std::vector<CellView>* cells) {
  int& known = (*cells)[cell].drained;
  if (known < 0) {
    const std::vector<HostId>& hosts = m_.cells[cell].hosts;
    known = s_.clusters()[m_.cells[cell].cluster].drained ||
            std::any_of(hosts.begin(), hosts.end(), [&](HostId id) { return s_.host(id).drained; });
  }
  return known != 0;
}

Verdict Round::VerdictOf(int32_t b, std::vector<CellView>* cells) {
  const Base& base = m_.bases[b];
  Verdict verdict;
  verdict.task = base.ref;
  if (base.blocked) {
    verdict.code = pb::V_AFTER;
    return verdict;
  }
  if (base.backoff_until_ns > now_ns_) {
    LookAt(base.backoff_until_ns);
    verdict.code = pb::V_BACKOFF;
    verdict.expected_start_ns = base.backoff_until_ns;
    return verdict;
  }
  if (base.held) {
    verdict.code = pb::V_HELD;
    return verdict;
  }
  if (!base.wants_place()) {
    verdict.code = pb::V_UNREACHABLE;
    verdict.cluster = base.current->cluster;
    return verdict;
  }
  int32_t cell = base.charge;
  for (size_t i = 0; i < base.cells.size() && cell < 0; ++i) {
    if (base.opened[i] && m_.cells[base.cells[i]].capacity_milli > 0) cell = base.cells[i];
  }
  for (size_t i = 0; i < base.cells.size() && cell < 0; ++i) {
    if (base.opened[i]) cell = base.cells[i];
  }
  const int64_t demand = base.worker_milli * base.min_workers;
  if (cell < 0 || m_.cells[cell].capacity_milli < demand) {
    const bool drained = std::any_of(base.cells.begin(), base.cells.end(),
                                     [&](int32_t c) { return Drained(c, cells); });
    verdict.code = drained ? pb::V_HELD : pb::V_CLUSTER;
    if (cell >= 0) verdict.missing_milli = demand - m_.cells[cell].capacity_milli;
    return verdict;
  }
  verdict.cluster = m_.cells[cell].cluster;
  verdict.flavour = m_.cells[cell].flavour;
  const int64_t free_milli = FreeMilli(base, cell, cells);
  verdict.missing_milli = std::max<int64_t>(0, demand - free_milli);
  if (base.entitled && served_[b]) {
    verdict.code = pb::V_RECLAIMING;
    return verdict;
  }
  if (base.entitled) {
    const bool shape = free_milli >= demand && WithinLimits(base, cell, base.min_workers, use_now_);
    bool elsewhere =
        false;  // another of its clusters has room: it keeps to its charged one until spilling pays
    for (size_t i = 0; i < base.cells.size() && !shape && !elsewhere; ++i) {
      elsewhere = base.cells[i] != cell && FreeMilli(base, base.cells[i], cells) >= demand;
    }
    verdict.code = shape ? pb::V_PLACEMENT : elsewhere ? pb::V_ENTITLED_CELL : pb::V_CAPACITY;
  } else {
    bool within = true;
    const int32_t f = m_.cells[cell].flavour;
    for (int32_t n = base.leaf; n >= 0 && within; n = m_.parent[n]) {
      within = m_.entitled[n][f] + demand <= QuotaOf(n, f).limit_milli;
    }
    verdict.code = within ? pb::V_SHARE : pb::V_LIMIT;
  }
  const Kept* reservation = nullptr;
  for (const Kept& kept : reserved_[cell]) {
    if (kept.base == b) reservation = &kept;
  }
  const int64_t start_ns = reservation != nullptr ? reservation->start_ns : EarliestStart(b, cell);
  if (start_ns > now_ns_) verdict.expected_start_ns = start_ns;
  return verdict;
}

void Round::GiveVerdicts() {
  std::vector<std::pair<int32_t, int32_t>> placed;  // base and cell
  for (const Placed& one : placed_) placed.emplace_back(one.base, one.cell);
  std::sort(placed.begin(), placed.end());
  std::vector<CellView> cells(m_.cells.size());
  std::vector<Verdict> verdicts;
  verdicts.reserve(m_.told.size());
  auto next = placed.begin();
  EachOf(m_.bases, m_.told, [&](int32_t b) {
    if (next != placed.end() && next->first == b) {
      Verdict& verdict = verdicts.emplace_back();
      verdict.task = m_.bases[b].ref;
      verdict.code = pb::V_STARTING_NOW;
      verdict.cluster = m_.cells[next->second].cluster;
      verdict.flavour = m_.cells[next->second].flavour;
      verdict.expected_start_ns = now_ns_;
      ++next;
    } else {
      verdicts.push_back(VerdictOf(b, &cells));
    }
  });
  MUSTER_CHECK(next == placed.end());  // what is placed waits, or its host can't be reached
  plan_.verdicts = Verdicts(std::move(verdicts), m_.flavours);
}

}  // namespace muster
