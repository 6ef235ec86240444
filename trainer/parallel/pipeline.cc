#include "trainer/parallel/pipeline.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <utility>

namespace muster::trainer {
namespace {

constexpr std::pair<PipelineKind, std::string_view> kNames[] = {
    {PipelineKind::kGpipe, "gpipe"},
    {PipelineKind::k1F1B, "1f1b"},
    {PipelineKind::kInterleaved, "interleaved"},
    {PipelineKind::kZeroBubble, "zero_bubble"}};

// Forwards of a rank before its first backward.
int Ahead(PipelineKind kind, int rank, int ranks, int chunks, int forwards) {
  int ahead = forwards;
  if (kind == PipelineKind::kInterleaved)
    ahead = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1;
  else if (kind != PipelineKind::kGpipe)
    ahead = ranks - rank;
  return std::min(ahead, forwards);
}

}  // namespace

std::string_view PipelineName(PipelineKind kind) {
  return std::find_if(std::begin(kNames), std::end(kNames),
                      [&](const auto& one) { return one.first == kind; })
      ->second;
}

std::optional<PipelineKind> PipelineNamed(std::string_view name) {
  for (const auto& [kind, its] : kNames) {
    if (its == name) return kind;
  }
  return std::nullopt;
}

std::vector<PipelineStep> PipelineOrder(PipelineKind kind, int rank, int ranks, int chunks,
                                        int micros) {
  if (rank < 0 || rank >= ranks || chunks < 1 || micros < 0 ||
      (chunks > 1 && kind != PipelineKind::kInterleaved))
    throw std::invalid_argument("such a pipeline can't be");
  // Stretches take turns by groups of as many micro-batches as there are ranks. What lacks in the
  // last group is left out of the order of a whole one: nothing else waits for it.
  const int group = chunks > 1 ? ranks : std::max(1, micros);
  const int filled = (micros + group - 1) / group * group, all = filled * chunks;
  const auto step = [&](PipelineStep::Kind step_kind, int number) {
    const int in_groups = number / (group * chunks) * group;
    const int chunk = number / group % chunks, micro = in_groups + number % group;
    const bool forward = step_kind == PipelineStep::kForward;
    return PipelineStep{step_kind, forward ? chunk : chunks - 1 - chunk, micro};
  };
  std::vector<PipelineStep> steps;
  int forwards = 0, backwards = 0, weights = 0;
  const auto add = [&](PipelineStep::Kind step_kind, int& number) {
    steps.push_back(step(step_kind, number++));
  };
  const int ahead = Ahead(kind, rank, ranks, chunks, all);
  while (forwards < ahead) add(PipelineStep::kForward, forwards);
  while (backwards < all) {
    add(PipelineStep::kBackward, backwards);
    if (kind == PipelineKind::kZeroBubble && backwards > rank) add(PipelineStep::kWeights, weights);
    if (forwards < all) add(PipelineStep::kForward, forwards);
  }
  while (kind == PipelineKind::kZeroBubble && weights < all) add(PipelineStep::kWeights, weights);
  std::erase_if(steps, [&](const PipelineStep& one) { return one.micro >= micros; });
  return steps;
}

double BubbleShare(PipelineKind kind, int ranks, int chunks, int micros) {
  // In units of a stretch's forward: what a rank does, and what it waits for.
  const bool zero = kind == PipelineKind::kZeroBubble;
  const double work = 3.0 * micros * chunks, idle = (zero ? 1.0 : 3.0) * (ranks - 1);
  return idle / (work + idle);
}

std::vector<int> CutLayers(const std::vector<int64_t>& costs, int64_t end_cost, int stages) {
  const int layers = static_cast<int>(costs.size());
  if (stages < 1 || stages > layers)
    throw std::invalid_argument("there are fewer layers than stages");
  std::vector<int64_t> until(layers + 1, 0);
  for (int i = 0; i < layers; ++i) until[i + 1] = until[i] + costs[i];
  const auto cost = [&](int begin, int end) {
    return until[end] - until[begin] + (end == layers ? end_cost : 0);
  };
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  // best[s][end]: of the first `end` layers in s stretches, the smallest result of joining costs by
  // `join`; from[s][end] where the last of them begins.
  std::vector<std::vector<int>> from;
  const auto cut = [&](const auto& join) {
    std::vector<std::vector<int64_t>> best(stages + 1, std::vector<int64_t>(layers + 1, kNever));
    from.assign(stages + 1, std::vector<int>(layers + 1, 0));
    best[0][0] = 0;
    for (int s = 1; s <= stages; ++s) {
      for (int end = s; end <= layers; ++end) {
        for (int begin = s - 1; begin < end; ++begin) {
          if (best[s - 1][begin] == kNever) continue;
          const int64_t joined = join(best[s - 1][begin], cost(begin, end));
          if (joined < best[s][end]) best[s][end] = joined, from[s][end] = begin;
        }
      }
    }
    return best[stages][layers];
  };
  const int64_t most = cut([](int64_t a, int64_t b) { return std::max(a, b); });
  cut([&](int64_t sum, int64_t one) { return one > most ? kNever : sum + one * one; });
  std::vector<int> first(stages + 1, layers);
  for (int s = stages; s > 0; --s) first[s - 1] = from[s][first[s]];
  return first;
}

}  // namespace muster::trainer
