#include "trainer/loop/auto_layout.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/mfu.h"
#include "trainer/loop/sizes.h"
#include "trainer/ops/fused.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Of devices that no table knows. Only what times are by each other matters.
constexpr double kGpuFlops = 100e12, kGpuWithin = 32e9, kGpuBetween = 12.5e9;
constexpr double kCpuFlops = 100e9, kCpuWithin = 5e9, kCpuBetween = 1e9;
// Of a process on a CPU before it trains: libtorch, its threads and what it reads with.
constexpr int64_t kCpuRuntimeBytes = int64_t{256} << 20;
// What is looked for where nothing fits: other ranks wait for the answer, and so does who submits.
constexpr int kMostTimesRanks = 8;
constexpr std::chrono::milliseconds kTimeForRemedies{1500};  // of each kind

double PeakOf(const std::string& gpu, bool bf16) {
  const double peak = PeakFlops(gpu, bf16);
  return peak > 0 ? peak : kGpuFlops;
}

GpuHosts HostsOf(const TrainConfig& config, const RankDevice& device) {
  const bool gpu = !device.gpu.empty();
  const auto known = [](double value, double otherwise) { return value > 0 ? value : otherwise; };
  GpuHosts hosts;
  hosts.peak_flops = config.peak_tflops > 0 ? config.peak_tflops * 1e12
                     : gpu                  ? PeakOf(device.gpu, config.dtype == "bf16")
                                            : kCpuFlops;
  hosts.within_bytes_per_s = known(LinkWithinHost(device.gpu), gpu ? kGpuWithin : kCpuWithin);
  hosts.between_bytes_per_s = known(LinkBetweenHosts(device.gpu), gpu ? kGpuBetween : kCpuBetween);
  hosts.device_bytes = device.bytes;
  hosts.ranks_per_host = device.ranks_per_host;
  hosts.gpu_kernels = device.gpu_kernels;
  hosts.runtime_bytes = gpu ? 0 : kCpuRuntimeBytes;
  return hosts;
}

// A change of one key, beside those that the search makes.
struct Change {
  const char* text;
  bool gpus_only;
  void (*make)(TrainConfig&);
};
// The cheapest first; the last ones cost digits.
constexpr Change kChanges[] = {
    {"masters: split", false, [](TrainConfig& c) { c.masters = "split"; }},
    {"offload: optimizer", true, [](TrainConfig& c) { c.offload = "optimizer"; }},
    {"offload: parameters", true, [](TrainConfig& c) { c.offload = "parameters"; }},
    {"moments: bf16", false, [](TrainConfig& c) { c.moments = "bf16"; }},
    {"moments: int8", false, [](TrainConfig& c) { c.moments = "int8"; }},
};

// What of the named keys stays where those are left out that may be, and these.
std::pair<FixedKeys, std::vector<const char*>> LeaveOut(const FixedKeys& fixed,
                                                        const TrainConfig& config) {
  FixedKeys others;
  std::vector<const char*> names;
  if (fixed.shard_size) names.push_back("shard_size");
  if (fixed.zero_stage) names.push_back("zero_stage");
  if (fixed.recompute) names.push_back("recompute");
  if (config.router_aux_loss == "batch")  // which must be said then
    others.micro_batch_size = fixed.micro_batch_size;
  else if (fixed.micro_batch_size)
    names.push_back("micro_batch_size");
  return {others, names};
}

// "; what would do: moments: bf16, or 8 ranks".
std::string WhatWouldDo(const TrainConfig& config, const ModelConfig& model, int ranks,
                        const GpuHosts& hosts, const FixedKeys& fixed) {
  std::vector<std::string> remedies;
  bool out_of_time = false;
  SearchEnd end{.at_first = true};
  const auto begin_kind = [&] { end.at = std::chrono::steady_clock::now() + kTimeForRemedies; };
  const auto fits = [&](const TrainConfig& with, int with_ranks, const FixedKeys& keys) {
    const FoundLayouts found = SearchLayouts(with, model, with_ranks, hosts, 1, keys, end);
    out_of_time |= found.out_of_time;
    return !found.best.empty();
  };
  begin_kind();
  const auto [others, names] = LeaveOut(fixed, config);
  if (!names.empty() && fits(config, ranks, others))
    remedies.push_back(absl::StrCat("to leave out ", absl::StrJoin(names, ", ")));
  begin_kind();
  for (const Change& change : kChanges) {
    if (change.gpus_only && hosts.runtime_bytes > 0) continue;
    TrainConfig with = config;
    change.make(with);
    if (!GoTogether(with) || !fits(with, ranks, fixed)) continue;
    remedies.emplace_back(change.text);
    break;
  }
  begin_kind();
  for (int times = 2; times <= kMostTimesRanks; times *= 2) {
    if (!fits(config, ranks * times, fixed)) continue;
    remedies.push_back(absl::StrCat(ranks * times, " ranks"));
    break;
  }
  if (!remedies.empty()) return absl::StrCat("; what would do: ", absl::StrJoin(remedies, ", or "));
  return out_of_time ? "; there was no time to find what would do: try more ranks, or devices with "
                       "more memory"
                     : "; take devices with more memory, or a smaller model";
}

// What is wrong with ranks that share out no layer, in which most layouts can be.
std::string WhyNotPlain(TrainConfig config, const ModelConfig& model, int ranks,
                        const GpuHosts& hosts, const FixedKeys& fixed) {
  config.parallel = ParallelConfig();
  if (config.offload == "parameters" && !fixed.zero_stage) config.zero_stage = 3;
  Problems problems;
  CheckLayoutKeys(config, problems);
  CheckLayout(config, model, ranks, /*gpus=*/hosts.runtime_bytes == 0, hosts.gpu_kernels, problems);
  return problems.empty()
             ? ""
             : absl::StrCat("; of the plain one ", problems[0].path, ": ", problems[0].text);
}

std::string Ranks(int ranks, const GpuHosts& hosts) {
  if (ranks == 1) return "1 rank";
  return absl::StrCat(ranks, " ranks, ", hosts.ranks_per_host, " to a host,");
}

// "; memory_per_rank: 327MiB would do, where a rank has as much", where the file bounds what a rank
// may fill; "" where the device does.
std::string MoreOfItsOwn(const TrainConfig& config, const GpuHosts& hosts, int64_t least_bytes) {
  if (ParseBytes(config.memory_per_rank) != hosts.device_bytes) return "";
  constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;
  const int64_t bytes = least_bytes + least_bytes / 19 + 1;  // 5 % of it to spare
  const int64_t unit = bytes < 10 * kGiB ? kMiB : kGiB;
  return absl::StrCat("; memory_per_rank: ", (bytes + unit - 1) / unit,
                      unit == kMiB ? "MiB" : "GiB", " would do, where a rank has as much");
}

std::string NoneFits(const TrainConfig& config, const ModelConfig& model, int ranks,
                     const GpuHosts& hosts, const FixedKeys& fixed, const FoundLayouts& found) {
  if (found.tried == 0)
    return absl::StrCat("auto: no layout of ", Ranks(ranks, hosts),
                        " goes together with what else is asked for",
                        WhyNotPlain(config, model, ranks, hosts, fixed));
  return absl::StrCat("auto: of ", found.tried, " layouts of ", Ranks(ranks, hosts),
                      " none fits the ", SizeText(hosts.device_bytes),
                      " that a rank may fill, with 5 % to spare; the smallest needs ",
                      SizeText(found.least_bytes), MoreOfItsOwn(config, hosts, found.least_bytes),
                      WhatWouldDo(config, model, ranks, hosts, fixed));
}

// One name for all ranks of a host.
std::string NameOfHost() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string name;
  std::getline(file, name);
  return name;
}

// What every rank has. Collective.
RankDevice GatherDevices(World& world, const TrainConfig& config) {
  const bool gpu = world.device().is_cuda();
  std::string name = gpu ? DeviceName(world.device()) : "";
  if (gpu && name.empty()) name = "GPU";
  const std::vector<std::string> hosts = world.GatherTexts(NameOfHost());
  const std::vector<std::string> gpus = world.GatherTexts(name);
  const auto on_host = std::count(hosts.begin(), hosts.end(), hosts[world.rank()]);
  const int64_t own =
      BytesToFill(config, gpu ? DeviceMemory(world.device()) : HostMemoryLimit() / on_host);
  const std::vector<std::vector<double>> bytes = world.GatherRows({static_cast<double>(own)});
  std::vector<RankHas> ranks;
  for (size_t r = 0; r < hosts.size(); ++r)
    ranks.push_back({hosts[r], gpus[r], static_cast<int64_t>(bytes[r][0])});
  return LeastOf(ranks, config.dtype == "bf16");
}

// Rank 0's choice, which it says.
absl::StatusOr<Layout> Choose(int ranks, const Setup& setup, const RankDevice& device) {
  if (device.bytes <= 0)
    return absl::InvalidArgumentError(
        "auto: how much memory a rank may fill isn't known here; add memory_per_rank, such as "
        "memory_per_rank: 80GiB");
  absl::StatusOr<Layout> chosen =
      ChooseLayout(setup.trainer, setup.config, setup.model, ranks, device);
  if (chosen.ok()) {
    std::printf("layout: %s (parallel: auto, %d rank%s, %d to a host; about %s of %s a rank)\n",
                chosen->FieldsText().c_str(), ranks, ranks == 1 ? "" : "s", device.ranks_per_host,
                SizeText(chosen->estimate.DeviceBytes()).c_str(), SizeText(device.bytes).c_str());
    std::fflush(stdout);
  }
  return chosen;
}

// The fields of rank 0's choice as JSON, or why there is none. Never throws: others wait for it.
std::string ChoiceAsText(int ranks, const Setup& setup, const RankDevice& device) {
  try {
    const absl::StatusOr<Layout> chosen = Choose(ranks, setup, device);
    return chosen.ok() ? chosen->fields.dump() : std::string(chosen.status().message());
  } catch (const std::exception& error) {
    return absl::StrCat("auto: rank 0 could not choose a layout: ", error.what(),
                        "; name one, such as parallel: {tp: 1}");
  }
}

// Puts the fields of a layout in place of `auto`.
void Take(const ordered_json& fields, Setup& setup, Problems& problems) {
  setup.trainer.erase("parallel");
  setup.trainer.erase("memory_per_rank");
  for (const auto& [name, value] : fields.items()) setup.trainer[name] = value;
  const TrainConfig chosen = ParseTrainConfig(setup.trainer, problems);
  TrainConfig& config = setup.config;  // which flags may have changed
  config.parallel = chosen.parallel;
  config.shard_size = chosen.shard_size;
  config.zero_stage = chosen.zero_stage;
  config.recompute = chosen.recompute;
  config.micro_batch_size = chosen.micro_batch_size;
}

}  // namespace

FixedKeys KeysThatStay(const json& trainer, const TrainConfig& config) {
  return {trainer.contains("shard_size"), trainer.contains("zero_stage"),
          trainer.contains("recompute"), config.micro_batch_size > 0};
}

int64_t BytesToFill(const TrainConfig& config, int64_t device_bytes) {
  const int64_t most = ParseBytes(config.memory_per_rank);
  return most > 0 && device_bytes > 0 ? std::min(most, device_bytes) : std::max(most, device_bytes);
}

absl::StatusOr<Layout> ChooseLayout(const json& trainer, const TrainConfig& config,
                                    const ModelConfig& model, int ranks, const RankDevice& device) {
  const GpuHosts hosts = HostsOf(config, device);
  const FixedKeys fixed = KeysThatStay(trainer, config);
  FoundLayouts found = SearchLayouts(config, model, ranks, hosts, 1, fixed);
  if (found.best.empty())
    return absl::InvalidArgumentError(NoneFits(config, model, ranks, hosts, fixed, found));
  return std::move(found.best[0]);
}

int NeighboursOnHosts(const std::vector<std::string>& hosts) {
  int together = 0;
  for (size_t begin = 0; begin < hosts.size();) {
    size_t end = begin;
    while (end < hosts.size() && hosts[end] == hosts[begin]) ++end;
    together = std::gcd(together, static_cast<int>(end - begin));
    begin = end;
  }
  return std::max(1, together);
}

RankDevice LeastOf(const std::vector<RankHas>& ranks, bool bf16) {
  const auto slowest =
      std::min_element(ranks.begin(), ranks.end(), [&](const RankHas& a, const RankHas& b) {
        return PeakOf(a.gpu, bf16) < PeakOf(b.gpu, bf16);
      });
  const auto smallest =
      std::min_element(ranks.begin(), ranks.end(),
                       [](const RankHas& a, const RankHas& b) { return a.bytes < b.bytes; });
  std::vector<std::string> hosts;
  for (const RankHas& rank : ranks) hosts.push_back(rank.host);
  return {slowest->gpu, smallest->bytes, NeighboursOnHosts(hosts), ops::fused::Compiled()};
}

void SettleLayout(World& world, Setup& setup, Problems& problems) {
  const RankDevice device = GatherDevices(world, setup.config);
  const std::string told =
      world.Broadcast(world.rank() == 0 ? ChoiceAsText(world.size(), setup, device) : "");
  const ordered_json fields = ordered_json::parse(told, nullptr, /*allow_exceptions=*/false);
  if (!fields.is_object()) {
    problems.push_back({"trainer.parallel", told});
    return;
  }
  Take(fields, setup, problems);
  setup.layout = fields;
}

}  // namespace muster::trainer
