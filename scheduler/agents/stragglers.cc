#include "scheduler/agents/stragglers.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "scheduler/engine/engine.h"

namespace muster {
namespace {

constexpr int32_t kNewsPermille = 200;  // a known straggler that changes by less is no news

int64_t MedianOf(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) /
                                                              2);  // of an even number the lower
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<pb::StragglerSeen> Stragglers::Told(
    const pb::AttemptKey& key, const AttemptRow& attempt,
    const google::protobuf::RepeatedPtrField<pb::RankTime>& times) {
  Gang& gang = gangs_[AttemptText(key)];
  gang.key = key;
  for (const pb::RankTime& time : times) {
    if (time.steps() >= kStragglerSteps && time.own_us() > 0) gang.ranks[time.rank()] = time;
  }
  gang.told += static_cast<size_t>(times.size());
  if (gang.ranks.size() < kStragglerRanks || gang.told < gang.ranks.size()) return {};
  gang.told = 0;
  std::vector<int64_t> all;
  for (const auto& [rank, time] : gang.ranks) all.push_back(time.own_us());
  const int64_t median_us = MedianOf(std::move(all));
  std::vector<pb::StragglerSeen> news;
  for (const auto& [rank, time] : gang.ranks) {
    const auto known =
        std::find_if(attempt.stragglers.begin(), attempt.stragglers.end(),
                     [r = rank](const pb::Straggler& row) { return row.rank() == r; });
    const int32_t before = known == attempt.stragglers.end() ? 0 : known->permille();
    const int64_t exact =
        static_cast<int64_t>(static_cast<__int128>(time.own_us()) * 1000 / median_us);
    const auto permille =
        static_cast<int32_t>(std::min<int64_t>(exact, std::numeric_limits<int32_t>::max()));
    int32_t now = before;
    if (before == 0 && permille >= kStragglerPermille) now = permille;
    if (before != 0 && permille < kNoStragglerPermille) now = 0;
    if (now != 0 && std::abs(permille - now) >= kNewsPermille) now = permille;
    if (now == before) continue;
    pb::StragglerSeen& seen = news.emplace_back();
    *seen.mutable_key() = key;
    seen.set_rank(rank);
    seen.set_permille(now);
  }
  return news;
}

void Stragglers::Forget(const State& state) {
  std::erase_if(gangs_, [&](const auto& entry) {
    const AttemptRow* attempt = state.FindAttempt(entry.second.key);
    return attempt == nullptr || attempt->ended();
  });
}

}  // namespace muster
