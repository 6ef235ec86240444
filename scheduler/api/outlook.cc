#include "scheduler/api/outlook.h"

#include <algorithm>

#include "common/base/units.h"

namespace muster {
namespace {

constexpr int64_t kForecastBudgetNs = 2 * kSecond;
constexpr int64_t kForecastOldNs = kMinute;  // after that a forecast of an earlier state isn't told
constexpr int64_t kForecastKeptNs =
    3 * kSecond;  // and ten times as long as it took: a tenth of a core at most
constexpr int kSlowThreads = 1, kBriefThreads = 2;
constexpr size_t kSlowQuestions = 16, kBriefQuestions = 256;  // that may wait

}  // namespace

Spent SpentOf(Clock* clock, int64_t budget_ns, std::function<bool()> given_up) {
  return [clock, budget_ns, begin_ns = clock->MonotonicNs(),
          given_up = std::move(given_up)](int percent) {
    return (given_up && given_up()) || clock->MonotonicNs() - begin_ns >= budget_ns / 100 * percent;
  };
}

Outlook::Outlook(const Engine* engine, Clock* clock, const SchedulingOptions& scheduling)
    : engine_(engine),
      clock_(clock),
      scheduling_(scheduling),
      slow_(kSlowThreads, kSlowQuestions),
      brief_(kBriefThreads, kBriefQuestions),
      looking_([this] { Look(); }) {}

Outlook::~Outlook() { Stop(); }

void Outlook::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (looking_.joinable()) looking_.join();
  slow_.Stop();
  brief_.Stop();
}

std::shared_ptr<const Forecast> Outlook::Newest() {
  const uint64_t commit = engine_->Snapshot()->commit;
  std::lock_guard lock(mutex_);
  if (!wanted_ && (forecast_ == nullptr ||
                   (commit != forecast_commit_ && clock_->MonotonicNs() >= not_before_ns_))) {
    wanted_ = true;
    wake_.notify_one();
  }
  // Of a state that was: one that nobody asked for since may be of yesterday.
  const bool old =
      commit != forecast_commit_ && clock_->MonotonicNs() >= not_before_ns_ + kForecastOldNs;
  return old ? nullptr : forecast_;
}

void Outlook::Look() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || wanted_; });
      if (stopping_) return;
    }
    const std::shared_ptr<const View> view = engine_->Snapshot();
    const int64_t now_ns = clock_->WallNs();
    const int64_t begin_ns = clock_->MonotonicNs();
    FutureOptions options;
    options.expired = [this, spent = SpentOf(clock_, kForecastBudgetNs)] {
      if (spent(100)) return true;
      std::lock_guard lock(mutex_);
      return stopping_;
    };
    auto forecast =
        std::make_shared<const Forecast>(MakeForecast(view->state, now_ns, scheduling_, options));
    const int64_t end_ns = clock_->MonotonicNs();
    std::lock_guard lock(mutex_);
    forecast_ = std::move(forecast);
    forecast_commit_ = view->commit;
    not_before_ns_ = end_ns + std::max(kForecastKeptNs, 10 * (end_ns - begin_ns));
    wanted_ = false;
  }
}

}  // namespace muster
