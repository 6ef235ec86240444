#include "trainer/loop/exchange.h"

#include <algorithm>

namespace muster::trainer {
namespace {

// Between two exchanges of ranks that wait; far below the least step_timeout_s.
constexpr std::chrono::milliseconds kMoment{200};

// A sum as four halves of its words and whether it is out of range, which doubles hold exactly.
void AppendSum(const kernels::ExactSum& sum, std::vector<double>& row) {
  for (const uint64_t word : {sum.low, sum.high}) {
    row.push_back(static_cast<double>(word & 0xFFFFFFFFu));
    row.push_back(static_cast<double>(word >> 32));
  }
  row.push_back(sum.out_of_range != 0 ? 1 : 0);
}
kernels::ExactSum SumAt(const std::vector<double>& row, size_t at) {
  const auto word = [&](size_t first) {
    return static_cast<uint64_t>(row[first]) | static_cast<uint64_t>(row[first + 1]) << 32;
  };
  return {word(at), word(at + 2), row[at + 4] != 0 ? uint64_t{1} : 0};
}

}  // namespace

StepExchange Exchange(World& world, const StepExchange& mine,
                      const CheckpointWriter::Report& writer) {
  std::vector<double> row = {mine.loss,
                             mine.z_loss,
                             mine.aux_loss,
                             mine.stop ? 1.0 : 0.0,
                             mine.checkpoint ? 1.0 : 0.0,
                             static_cast<double>(mine.profile_steps),
                             mine.unsynced ? 1.0 : 0.0};
  row.insert(row.end(), writer.begin(), writer.end());
  AppendSum(mine.squared_norm, row);
  const size_t pairs = row.size();
  row.insert(row.end(), mine.pairs.begin(), mine.pairs.end());
  StepExchange all;
  for (const std::vector<double>& one : world.GatherRows(row)) {
    all.loss += one[0];
    all.z_loss += one[1];
    all.aux_loss += one[2];
    all.stop |= one[3] != 0;
    all.checkpoint |= one[4] != 0;
    all.profile_steps = std::max(all.profile_steps, static_cast<int>(one[5]));
    all.unsynced |= one[6] != 0;
    all.writers.push_back({one[7], one[8], one[9]});
    all.squared_norm.Add(SumAt(one, 10));
    for (size_t i = 0; i < all.pairs.size(); ++i) all.pairs[i] += one[pairs + i];
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
