#include "trainer/loop/exchange.h"

#include <algorithm>

namespace muster::trainer {
namespace {

// Between two exchanges of ranks that wait; far below the least step_timeout_s.
constexpr std::chrono::milliseconds kMoment{200};

}  // namespace

StepExchange Exchange(World& world, const StepExchange& mine,
                      const CheckpointWriter::Report& writer) {
  const auto rows =
      world.GatherRows({mine.loss, mine.squared_norm, mine.stop ? 1.0 : 0.0,
                        mine.checkpoint ? 1.0 : 0.0, mine.z_loss, writer[0], writer[1], writer[2]});
  StepExchange all;
  for (const std::vector<double>& row : rows) {
    all.loss += row[0];
    all.squared_norm += row[1];
    all.stop |= row[2] != 0;
    all.checkpoint |= row[3] != 0;
    all.z_loss += row[4];
    all.writers.push_back({row[5], row[6], row[7]});
  }
  return all;
}

bool OnAny(World& world, bool mine) {
  const auto rows = world.GatherRows({mine ? 1.0 : 0.0});
  return std::any_of(rows.begin(), rows.end(),
                     [](const std::vector<double>& row) { return row[0] != 0; });
}

bool Await(World& world, const std::function<bool(std::chrono::milliseconds)>& done,
           const std::function<bool()>& stop) {
  while (true) {
    const bool mine = done(kMoment);
    bool all = true, stopped = false;
    for (const std::vector<double>& row :
         world.GatherRows({mine ? 1.0 : 0.0, stop && stop() ? 1.0 : 0.0})) {
      all &= row[0] != 0;
      stopped |= row[1] != 0;
    }
    if (all || stopped) return all;
  }
}

}  // namespace muster::trainer
