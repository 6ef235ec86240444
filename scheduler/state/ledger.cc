// The ledger (docs/asking.md, `ledger`): every device's time in one class, and what queues
// used, decayed.
#include <algorithm>

#include "common/base/check.h"
#include "common/base/units.h"
#include "scheduler/state/applier.h"

namespace muster {

int LedgerClassOf(std::string_view name) {
  for (int c = 0; c < static_cast<int>(std::size(kLedgerClasses)); ++c) {
    if (name == kLedgerClasses[c]) return c;
  }
  return -1;
}

// Of the idle devices those that tasks with a reservation lack, by queue: they would run, were the
// devices in their shape. In turn, while the idle ones of the pool hold all of what a task lacks.
std::map<std::string, int64_t> Applier::FragmentedMilli() const {
  std::map<std::pair<std::string, std::string>, int64_t> taken;
  std::map<std::string, int64_t> fragmented;
  for (const TaskRef& ref : *s_.reserved_) {
    const JobRow& job = *s_.FindJob(ref.job);
    const TaskRow& task = job.tasks[ref.task];
    const Reservation& reservation = *task.reservation;
    if (reservation.held || reservation.flavour.empty() || task.backoff_until_ns > s_.now_ns_)
      continue;
    const auto idle =
        s_.idle_->find({(*s_.clusters_)[reservation.cluster].name, reservation.flavour});
    if (idle == s_.idle_->end()) continue;
    int64_t lacks_milli = job.task_spec(ref.task).resources().gpus_milli() * reservation.workers;
    for (const HostSlice& part : reservation.parts) {  // what of its own is free already
      const HostRow& host = s_.host(part.host);
      for (size_t d = 0; d < part.devices.size() && host.usable(); ++d) {
        if (part.devices[d] < 0 ||
            part.devices[d] >= static_cast<int32_t>(host.device_used_milli.size()))
          continue;
        const int64_t share_milli = d < part.device_milli.size() ? part.device_milli[d] : 1000;
        lacks_milli -=
            std::clamp<int64_t>(1000 - host.device_used_milli[part.devices[d]], 0, share_milli);
      }
    }
    int64_t& taken_milli = taken[idle->first];
    if (lacks_milli <= 0 || taken_milli + lacks_milli > idle->second) continue;
    taken_milli += lacks_milli;
    fragmented[job.spec->queue()] += lacks_milli;
  }
  return fragmented;
}

// Whole milliseconds, so that a device's thousandth for a millisecond is one unit; the rest stays
// for the next step.
void Applier::BookLedger(int64_t now_ns) {
  if (s_.ledger_since_ns_ == 0) {
    s_.ledger_since_ns_ = s_.ledger_until_ns_ = now_ns;
    return;
  }
  const int64_t elapsed_ms = (now_ns - s_.ledger_until_ns_) / kMillisecond;
  if (elapsed_ms <= 0) return;
  s_.ledger_until_ns_ += elapsed_ms * kMillisecond;
  if (s_.capacity_milli_ == 0) return;
  std::map<std::pair<std::string, int>, int64_t> ledger = *s_.ledger_;
  int64_t booked = 0, fragmented_milli = 0;
  const auto book = [&](const std::string& queue, int ledger_class, int64_t milli) {
    if (milli == 0) return;
    ledger[{queue, ledger_class}] += milli * elapsed_ms;
    booked += milli * elapsed_ms;
  };
  for (const auto& [queue, milli] : FragmentedMilli()) {
    book(queue, static_cast<int>(LedgerClass::kFragmented), milli);
    fragmented_milli += milli;
  }
  for (const auto& [key, milli] : *s_.ledger_rate_) {
    book(key.first, key.second,
         key.second == static_cast<int>(LedgerClass::kIdle) ? milli - fragmented_milli : milli);
  }
  s_.ledger_capacity_device_us_ += s_.capacity_milli_ * elapsed_ms;
  MUSTER_CHECK(booked == s_.capacity_milli_ * elapsed_ms);
  s_.ledger_ =
      std::make_shared<const std::map<std::pair<std::string, int>, int64_t>>(std::move(ledger));
}

void Applier::TickHistory() {
  const int64_t tick = s_.now_ns_ / kHistoryTickNs;
  if (tick <= s_.history_tick_) return;
  const int64_t ticks = s_.history_tick_ == 0 ? 0 : tick - s_.history_tick_;
  s_.history_tick_ = tick;
  if (ticks > 0) NewRound();
  std::map<std::string, int64_t> booked;
  for (const auto& [key, device_us] : *s_.ledger_) {
    if (!key.first.empty() && key.second <= static_cast<int>(LedgerClass::kPreemption))
      booked[key.first] += device_us;
  }
  std::map<std::string, QueueHistory> history = *s_.history_;
  for (const auto& [queue, device_us] : booked) history.try_emplace(queue);
  for (auto& [queue, row] : history) {
    // What is less than a tick's part stays for ever, and orders queues that were quiet for long.
    for (int64_t t = 0; t < ticks && row.decayed_device_us >= kHistoryDecay; ++t)
      row.decayed_device_us -= row.decayed_device_us / kHistoryDecay;
    const int64_t device_us = booked[queue];
    if (ticks > 0) row.decayed_device_us += std::max<int64_t>(0, device_us - row.booked_device_us);
    row.booked_device_us = device_us;
  }
  s_.history_ = std::make_shared<const std::map<std::string, QueueHistory>>(std::move(history));
}

void Applier::BookLoss(const Found& found, pb::Cause cause) {
  const AttemptRow& attempt = *found.attempt;
  if (found.job->holder != 0 || attempt.start_ns == 0 || cause == pb::DONE || cause == pb::CANCEL ||
      cause == pb::TIME_LIMIT || cause == pb::EXPORT_FAILED || cause == pb::NOT_NEEDED)
    return;
  const int64_t from_ns = std::max(attempt.start_ns, attempt.last_checkpoint_ns);
  const int64_t to_ns = attempt.stop_ns != 0 ? attempt.stop_ns : s_.now_ns_;
  if (to_ns <= from_ns) return;
  std::map<std::pair<std::string, int>, int64_t> ledger = *s_.ledger_;
  int64_t& productive =
      ledger[{found.job->spec->queue(), static_cast<int>(LedgerClass::kProductive)}];
  const int64_t lost =
      std::min(productive, DevicesMilli(attempt, found.job->task_spec(found.index)) *
                               ((to_ns - from_ns) / kMillisecond));
  const bool preempted = cause == pb::PREEMPTION || cause == pb::RESIZE || cause == pb::DRAIN;
  productive -= lost;
  ledger[{found.job->spec->queue(),
          static_cast<int>(preempted ? LedgerClass::kPreemption : LedgerClass::kRestart)}] += lost;
  std::erase_if(ledger, [](const auto& row) { return row.second == 0; });
  s_.ledger_ =
      std::make_shared<const std::map<std::pair<std::string, int>, int64_t>>(std::move(ledger));
  s_.meta_changed_ = true;
}

}  // namespace muster
