#include "trainer/loop/auto_layout.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
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
constexpr int kMostTimesRanks = 64;  // that are tried where nothing fits

GpuHosts HostsOf(const TrainConfig& config, const RankDevice& device) {
  const bool gpu = !device.gpu.empty();
  const auto known = [](double value, double otherwise) { return value > 0 ? value : otherwise; };
  GpuHosts hosts;
  hosts.peak_flops = known(config.peak_tflops > 0 ? config.peak_tflops * 1e12
                                                  : PeakFlops(device.gpu, config.dtype == "bf16"),
                           gpu ? kGpuFlops : kCpuFlops);
  hosts.within_bytes_per_s = known(LinkWithinHost(device.gpu), gpu ? kGpuWithin : kCpuWithin);
  hosts.between_bytes_per_s = known(LinkBetweenHosts(device.gpu), gpu ? kGpuBetween : kCpuBetween);
  hosts.device_bytes = device.bytes;
  hosts.ranks_per_host = device.ranks_per_host;
  hosts.gpu_kernels = device.gpu_kernels;
  hosts.runtime_bytes = gpu ? 0 : kCpuRuntimeBytes;
  return hosts;
}

FixedKeys FixedIn(const json& trainer, const TrainConfig& config) {
  return {trainer.contains("shard_size"), trainer.contains("zero_stage"),
          trainer.contains("recompute"), config.micro_batch_size > 0};
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

// Keys that are refused beside each other where the file is read.
bool GoTogether(const TrainConfig& c) {
  return !(c.masters == "split" && (c.dtype != "bf16" || c.offload != "none")) &&
         !(c.moments == "int8" && c.offload != "none") &&
         !(c.quantize.on && c.offload == "parameters");
}

// "; moments: bf16 would do, or 8 ranks".
std::string WhatWouldDo(const TrainConfig& config, const ModelConfig& model, int ranks,
                        const GpuHosts& hosts, const FixedKeys& fixed) {
  std::vector<std::string> remedies;
  const FixedKeys free;
  const bool any_fixed =
      fixed.shard_size || fixed.zero_stage || fixed.recompute || fixed.micro_batch_size;
  const auto fits = [&](const TrainConfig& with, int with_ranks, const FixedKeys& keys) {
    return !SearchLayouts(with, model, with_ranks, hosts, 1, keys).best.empty();
  };
  if (any_fixed && fits(config, ranks, free))
    remedies.emplace_back("to leave out shard_size, zero_stage, recompute and micro_batch_size");
  for (const Change& change : kChanges) {
    if (change.gpus_only && hosts.runtime_bytes > 0) continue;
    TrainConfig with = config;
    change.make(with);
    if (!GoTogether(with) || !fits(with, ranks, fixed)) continue;
    remedies.emplace_back(change.text);
    break;
  }
  for (int times = 2; times <= kMostTimesRanks; times *= 2) {
    if (!fits(config, ranks * times, fixed)) continue;
    remedies.push_back(absl::StrCat(ranks * times, " ranks"));
    break;
  }
  return remedies.empty() ? "; take devices with more memory, or a smaller model"
                          : absl::StrCat("; what would do: ", absl::StrJoin(remedies, ", or "));
}

std::string NoneFits(const TrainConfig& config, const ModelConfig& model, int ranks,
                     const GpuHosts& hosts, const FixedKeys& fixed, const FoundLayouts& found) {
  if (found.tried == 0)
    return absl::StrCat("auto: no layout of ", ranks,
                        " ranks goes together with what else is asked for; name one, such as "
                        "parallel: {tp: 2}, to be told why");
  return absl::StrCat("auto: of ", found.tried, " layouts of ", ranks,
                      ranks == 1 ? " rank" : " ranks", " none fits the ",
                      SizeText(hosts.device_bytes),
                      " that a rank may fill, with 5 % to spare; the smallest needs ",
                      SizeText(found.least_bytes), WhatWouldDo(config, model, ranks, hosts, fixed));
}

// All of it that a rank may fill; 0: nobody says.
int64_t BytesOf(const TrainConfig& config, at::Device device, int ranks_on_host) {
  if (!config.memory_per_rank.empty()) return ParseBytes(config.memory_per_rank);
  return device.is_cuda() ? DeviceMemory(device) : HostMemoryLimit() / ranks_on_host;
}

// One name for all ranks of a host.
std::string NameOfHost() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string name;
  std::getline(file, name);
  return name;
}

// Rank 0's choice.
absl::StatusOr<Layout> Choose(const World& world, const Setup& setup,
                              const std::vector<std::string>& hosts) {
  const auto on_host = static_cast<int>(std::count(hosts.begin(), hosts.end(), hosts[0]));
  const bool gpu = world.device().is_cuda();
  RankDevice device{gpu ? DeviceName(world.device()) : "",
                    BytesOf(setup.config, world.device(), on_host), NeighboursOnHosts(hosts),
                    ops::fused::Compiled()};
  if (gpu && device.gpu.empty()) device.gpu = "GPU";
  if (device.bytes <= 0)
    return absl::InvalidArgumentError(
        "auto: how much memory a rank may fill isn't known here; add memory_per_rank, such as "
        "memory_per_rank: 80GiB");
  absl::StatusOr<Layout> chosen =
      ChooseLayout(setup.trainer, setup.config, setup.model, world.size(), device);
  if (chosen.ok()) {
    std::printf("layout: %s (parallel: auto, %d rank%s, %d on a host; about %s of %s a rank)\n",
                chosen->FieldsText().c_str(), world.size(), world.size() == 1 ? "" : "s", on_host,
                SizeText(chosen->estimate.DeviceBytes()).c_str(), SizeText(device.bytes).c_str());
    std::fflush(stdout);
  }
  return chosen;
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

absl::StatusOr<Layout> ChooseLayout(const json& trainer, const TrainConfig& config,
                                    const ModelConfig& model, int ranks, const RankDevice& device) {
  const GpuHosts hosts = HostsOf(config, device);
  const FixedKeys fixed = FixedIn(trainer, config);
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

void SettleLayout(World& world, Setup& setup, Problems& problems) {
  const std::vector<std::string> hosts = world.GatherTexts(NameOfHost());
  std::string told;
  if (world.rank() == 0) {
    const absl::StatusOr<Layout> chosen = Choose(world, setup, hosts);
    told = chosen.ok() ? chosen->fields.dump() : std::string(chosen.status().message());
  }
  told = world.Broadcast(told);
  const ordered_json fields = ordered_json::parse(told, nullptr, /*allow_exceptions=*/false);
  if (!fields.is_object()) {
    problems.push_back({"trainer.parallel", told});
    return;
  }
  Take(fields, setup, problems);
  setup.layout = fields;
}

}  // namespace muster::trainer
