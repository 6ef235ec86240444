// Row `openb`: GPU allocation on Alibaba's 2023 GPU trace when the load reaches 130 %
// (docs/scheduling.md §3), with the very index and scorer that Decide places one-host slices by.
//
//   bench_openb NODES.csv PODS.csv POLICY FIRST_SEED LAST_SEED [MOST_SCORED]
//
// Prints a JSON line a seed: allocation in %, 8-GPU pods refused before 100 % load, gangs (pods of
// two GPUs and more) that an empty fleet would hold and that are refused below 80 % load, those of
// them that take any model of GPU, pods refused, seconds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "scheduler/decide/place/slices.h"

namespace muster {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;
constexpr uint64_t kAnyModel = ~uint64_t{0};

struct Node {
  HostKind kind;
  HostRoom room;
};

struct Pod {
  SliceWish wish;
  int64_t gpus_milli = 0;
  bool operator<(const Pod& o) const { return wish < o.wish; }
};

// Rows of a CSV file without its header; exits with a message if it can't be read or a row is
// short.
std::vector<std::vector<std::string>> ReadCsv(const std::string& path, size_t columns) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) {
    std::fprintf(stderr, "%s: can't be read\n", path.c_str());
    std::exit(2);
  }
  std::vector<std::vector<std::string>> rows;
  for (int number = 2; std::getline(in, line); ++number) {
    rows.push_back(absl::StrSplit(absl::StripSuffix(line, "\r"), ','));
    if (rows.back().size() < columns) {
      std::fprintf(stderr, "%s:%d: %zu fields, not %zu\n", path.c_str(), number, rows.back().size(),
                   columns);
      std::exit(2);
    }
  }
  return rows;
}

int64_t Number(const std::string& text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    std::fprintf(stderr, "not a number: %s\n", text.c_str());
    std::exit(2);
  }
  return value;
}

struct Workload {
  std::vector<Node> nodes;
  std::vector<HostKind> kinds;
  std::vector<Pod> pods;
  int64_t capacity_milli = 0;
};

Workload Load(const std::string& nodes, const std::string& pods) {
  Workload w;
  std::map<std::string, uint64_t> labels;
  const auto label = [&](const std::string& model) {
    return uint64_t{1} << labels.emplace(model, labels.size()).first->second;
  };
  for (const auto& row : ReadCsv(nodes, 5)) {
    Node node;
    const int32_t gpus = static_cast<int32_t>(Number(row[3]));
    node.kind = {{gpus}, Number(row[1]), Number(row[2]) * kMib, label(row[4])};
    auto kind = std::find(w.kinds.begin(), w.kinds.end(), node.kind);
    if (kind == w.kinds.end()) kind = w.kinds.insert(kind, node.kind);
    node.room.kind = static_cast<int32_t>(kind - w.kinds.begin());
    node.room.cpus_milli = node.kind.cpus_milli;
    node.room.memory_bytes = node.kind.memory_bytes;
    node.room.device_milli.assign(gpus, 1000);
    w.capacity_milli += gpus * 1000;
    w.nodes.push_back(std::move(node));
  }
  for (const auto& row : ReadCsv(pods, 5)) {
    Pod pod;
    const int64_t gpus = Number(row[3]);
    pod.gpus_milli = gpus == 1 ? Number(row[4]) : gpus * 1000;
    // 0 would mean the GPUs' share of the host.
    pod.wish.worker = {pod.gpus_milli, std::max<int64_t>(1, Number(row[1])),
                       std::max<int64_t>(1, Number(row[2]) * kMib), 0};
    if (row.size() > 5 && !row[5].empty()) {
      pod.wish.labels = 0;
      for (const auto& model : absl::StrSplit(row[5], '|'))
        pod.wish.labels |= label(std::string(model));
    }
    w.pods.push_back(pod);
  }
  return w;
}

// All specs, for V; for FGD the most common ones that make up 95 % of the pods, without memory, as
// its reference implementation has it.
std::vector<TypicalSlice> Typical(const std::vector<Pod>& pods, bool fgd) {
  std::map<SliceWish, int64_t> count;
  for (const Pod& pod : pods) {
    SliceWish wish = pod.wish;
    if (fgd) wish.worker.memory_bytes = 1;
    ++count[wish];
  }
  std::vector<TypicalSlice> typical;
  for (const auto& [wish, n] : count) typical.push_back({wish, n});
  if (!fgd) return typical;
  std::stable_sort(typical.begin(), typical.end(),
                   [](const TypicalSlice& a, const TypicalSlice& b) { return a.count > b.count; });
  int64_t covered = 0;
  size_t size = 0;
  while (covered * 100 < static_cast<int64_t>(pods.size()) * 95) covered += typical[size++].count;
  typical.resize(size);
  return typical;
}

// Shuffled; then clones of random ones until the next would pass 130 % of the GPUs, or random ones
// removed until they don't.
std::vector<Pod> Arrivals(const Workload& w, std::mt19937_64* random) {
  std::vector<Pod> pods = w.pods;
  for (size_t i = pods.size(); i > 1; --i) std::swap(pods[i - 1], pods[(*random)() % i]);
  const int64_t most = w.capacity_milli * 13 / 10;
  int64_t sum = 0;
  for (const Pod& pod : pods) sum += pod.gpus_milli;
  while (sum > most) {
    const size_t i = (*random)() % pods.size();
    sum -= pods[i].gpus_milli;
    pods.erase(pods.begin() + static_cast<int64_t>(i));
  }
  const size_t originals = pods.size();
  if (originals < w.pods.size()) return pods;
  for (;;) {
    const Pod& pod = pods[(*random)() % originals];
    if (sum + pod.gpus_milli > most) return pods;
    sum += pod.gpus_milli;
    pods.emplace_back(pod);
  }
}

// Some host holds the pod when all are empty.
bool EmptyFleetHolds(const Workload& w, const Pod& pod) {
  return std::any_of(w.nodes.begin(), w.nodes.end(), [&](const Node& node) {
    const std::optional<Demand> demand = DemandOn(pod.wish, node.kind);
    return demand.has_value() && Holds(node.room, node.kind, *demand, pod.wish);
  });
}

void Run(const Workload& w, HostScorer* scorer, int most_scored, int seed) {
  const auto began = std::chrono::steady_clock::now();
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  const std::vector<Pod> pods = Arrivals(w, &random);
  SliceIndex index(scorer, most_scored);
  std::vector<int32_t> order(w.nodes.size());
  for (size_t n = 0; n < order.size(); ++n) order[n] = static_cast<int32_t>(n);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  for (size_t n = 0; n < order.size(); ++n)
    index.Set(static_cast<int32_t>(n), w.nodes[order[n]].room);

  int64_t arrived_milli = 0, used_milli = 0;
  int refused = 0, refused_8 = 0, refused_early = 0, refused_early_any = 0;
  for (const Pod& pod : pods) {
    arrived_milli += pod.gpus_milli;
    const auto choice = index.Pick(pod.wish);
    if (!choice.has_value()) {
      ++refused;
      if (pod.gpus_milli >= 2000 && arrived_milli * 100 < w.capacity_milli * 80 &&
          EmptyFleetHolds(w, pod)) {
        ++refused_early;
        if (pod.wish.labels == kAnyModel) ++refused_early_any;
      }
      if (pod.gpus_milli == 8000 && arrived_milli <= w.capacity_milli) ++refused_8;
      continue;
    }
    HostRoom room = index.at(choice->slot);
    const HostKind& kind = w.kinds[room.kind];
    const auto device =
        std::find(room.device_milli.begin(), room.device_milli.end(), choice->share_of) -
        room.device_milli.begin();
    Subtract(&room, kind, *DemandOn(pod.wish, kind), static_cast<int32_t>(device));
    index.Set(choice->slot, room);
    used_milli += pod.gpus_milli;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf(
      "{\"seed\": %d, \"allocation\": %.4f, \"refused_8_gpu\": %d, \"gangs_refused_early\": %d, "
      "\"any_model_refused_early\": %d, \"refused\": %d, \"pods\": %zu, \"seconds\": %.2f}\n",
      seed, 100.0 * static_cast<double>(used_milli) / static_cast<double>(w.capacity_milli),
      refused_8, refused_early, refused_early_any, refused, pods.size(), seconds);
  std::fflush(stdout);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  using namespace muster;
  const std::map<std::string, PlacementPolicy> policies = {{"v", PlacementPolicy::kV},
                                                           {"fgd", PlacementPolicy::kFgd},
                                                           {"best_fit", PlacementPolicy::kBestFit}};
  if (argc < 6 || argc > 7 || !policies.contains(argv[3])) {
    std::fprintf(stderr,
                 "usage: bench_openb NODES.csv PODS.csv v|fgd|best_fit FIRST_SEED LAST_SEED "
                 "[MOST_SCORED]\n");
    return 2;
  }
  const Workload workload = Load(argv[1], argv[2]);
  const PlacementPolicy policy = policies.at(argv[3]);
  std::vector<KindCount> kinds;
  for (const HostKind& kind : workload.kinds) kinds.push_back({kind, 0});
  for (const Node& node : workload.nodes) ++kinds[node.room.kind].hosts;
  HostScorer scorer(policy, Typical(workload.pods, policy == PlacementPolicy::kFgd), kinds);
  const int most_scored = argc >= 7 ? static_cast<int>(Number(argv[6])) : SliceIndex::kMostScored;
  for (int seed = static_cast<int>(Number(argv[4])); seed <= Number(argv[5]); ++seed)
    Run(workload, &scorer, most_scored, seed);
  return 0;
}
