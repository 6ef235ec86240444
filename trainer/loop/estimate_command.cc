// What is told of an estimate, and what would make a rank fit.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/checkpoint/files.h"
#include "trainer/loop/auto_layout.h"
#include "trainer/loop/estimate.h"
#include "trainer/loop/layout_search.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/mfu.h"
#include "trainer/loop/placement.h"
#include "trainer/loop/sizes.h"
#include "trainer/model/family.h"
#include "trainer/model/lora.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kDoesNotFit = 3;  // exit code

// Bytes a second of the links, as given or by the device's name; 0: unknown, and of CPUs.
double WithinHost(const NamedHosts& given) {
  return given.within_bytes_per_s > 0 ? given.within_bytes_per_s
         : given.device.empty()       ? 0
                                      : LinkWithinHost(given.device);
}
double BetweenHosts(const NamedHosts& given) {
  return given.between_bytes_per_s > 0 ? given.between_bytes_per_s
         : given.device.empty()        ? 0
                                       : LinkBetweenHosts(given.device);
}

// A step by the times that a search goes by. What isn't known of the device takes none there.
struct ToldStep {
  StepTime time;
  bool knows_peak = false, knows_links = false;
};

ToldStep TellStep(const Estimate& e, const TrainConfig& config, const ModelConfig& model, int ranks,
                  const NamedHosts& given) {
  const std::string& device = given.device;
  const double peak = device.empty()           ? 0
                      : config.peak_tflops > 0 ? config.peak_tflops * 1e12
                                               : PeakFlops(device, config.dtype == "bf16");
  const double within = WithinHost(given), between = BetweenHosts(given);
  constexpr double kNoTime = 1e30;  // FLOP, or bytes, a second
  GpuHosts hosts;
  hosts.ranks_per_host = given.ranks_per_host;
  hosts.peak_flops = peak > 0 ? peak : kNoTime;
  hosts.within_bytes_per_s = within > 0 ? within : kNoTime;
  hosts.between_bytes_per_s = between > 0 ? between : kNoTime;
  return {TimeOfStep(e, config, model, ranks, hosts), peak > 0, within > 0 && between > 0};
}

// What `--search` was asked with.
struct SearchSetting {
  size_t most = 0;  // 0: it wasn't
  GpuHosts hosts;
  FixedKeys fixed;
};

// Bytes a second; 0: not given. Adds what is wrong with it.
double ReadLink(const std::string& flag, const std::string& given, const std::string& device,
                Problems& problems) {
  double gigabytes = 0;
  if (given.empty()) return 0;
  if (!absl::SimpleAtod(given, &gigabytes) || !(gigabytes > 0) || gigabytes > 1e5)
    problems.push_back({flag, absl::StrCat("must be GB/s of a GPU, one way; got ", given)});
  else if (device.empty())
    problems.push_back(
        {flag, "goes with --device GPU, such as h100-80g; add that, or leave it out"});
  return gigabytes * 1e9;
}

// Adds a problem where a search would need it.
void NeedLink(const std::string& flag, double bytes_per_s, const std::string& device,
              Problems& problems) {
  if (bytes_per_s == 0)
    problems.push_back({flag, absl::StrCat("must be given, as the links of ", device,
                                           " aren't known: GB/s of a GPU, one way")});
}

// Bytes of a GPU; 0: not known. Adds what is wrong with it.
int64_t ReadDevice(const EstimateOptions& options, Problems& problems) {
  if (absl::StartsWithIgnoreCase(options.device, "cpu"))  // a flavour, such as cpu-slot
    problems.push_back({"--device", absl::StrCat("must be a GPU, such as h100-80g; got ",
                                                 options.device, ". Of CPUs leave it out")});
  if (options.device_memory.empty()) return MemoryInName(options.device);
  const int64_t bytes = ParseBytes(options.device_memory);
  if (bytes < 1 << 20)
    problems.push_back({"--device-memory",
                        absl::StrCat("must be a size such as 80GiB; got ", options.device_memory)});
  else if (options.device.empty())
    problems.push_back(
        {"--device-memory", "goes with --device GPU, such as h100-80g; add that, or leave it out"});
  return bytes;
}

// Ranks that share a host; adds what is wrong with what was asked for.
int ReadRanksPerHost(const EstimateOptions& options, Problems& problems) {
  int per_host = 0;
  if (!absl::SimpleAtoi(options.ranks_per_host, &per_host) || per_host < 1 || per_host > 1024)
    problems.push_back({"--ranks-per-host", absl::StrCat("must be a whole number from 1; got ",
                                                         options.ranks_per_host)});
  return per_host;
}

// With `parallel: auto` in `trainer` it is of what that would look for.
SearchSetting ReadSearch(const EstimateOptions& options, const json& trainer,
                         const TrainConfig& config, int64_t device_bytes, const NamedHosts& named,
                         Problems& problems) {
  SearchSetting setting;
  if (options.search.empty()) return setting;
  int most = 0;
  if (!absl::SimpleAtoi(options.search, &most) || most < 1 || most > 100)
    problems.push_back({"--search", absl::StrCat("must be how many layouts to tell, 1 to 100; got ",
                                                 options.search)});
  GpuHosts& hosts = setting.hosts;
  hosts.peak_flops = config.peak_tflops > 0 ? config.peak_tflops * 1e12
                                            : PeakFlops(options.device, config.dtype == "bf16");
  hosts.device_bytes = BytesToFill(config, device_bytes);
  if (options.device.empty() || hosts.peak_flops == 0)
    problems.push_back(
        {"--search",
         absl::StrCat(options.device.empty() ? "needs --device, such as h100-80g; known are "
                                             : absl::StrCat("doesn't know the peak of ",
                                                            options.device, "; known are "),
                      KnownDevices(), ", and trainer.peak_tflops tells another's")});
  else if (hosts.device_bytes == 0)
    problems.push_back({"--search", absl::StrCat("needs to know the memory of ", options.device,
                                                 ": --device-memory 80GiB")});
  if (!problems.empty()) return setting;
  hosts.within_bytes_per_s = WithinHost(named);
  hosts.between_bytes_per_s = BetweenHosts(named);
  NeedLink("--within-host", hosts.within_bytes_per_s, options.device, problems);
  NeedLink("--between-hosts", hosts.between_bytes_per_s, options.device, problems);
  hosts.ranks_per_host = named.ranks_per_host;
  if (config.parallel.automatic) setting.fixed = KeysThatStay(trainer, config);
  setting.most = static_cast<size_t>(most);
  return setting;
}

// What `parallel: auto` would choose. Of ranks on CPUs, whose hosts are taken to be like this one.
absl::StatusOr<Layout> ChooseBy(const EstimateOptions& options, const json& trainer,
                                const TrainConfig& config, const ModelConfig& model, int ranks,
                                int64_t device_bytes, int ranks_per_host, Problems& problems) {
  const bool gpu = !options.device.empty();
  const int per_host = std::min(ranks, ranks_per_host);
  const RankDevice device{
      .gpu = options.device,
      .bytes = BytesToFill(config, gpu ? device_bytes : HostMemoryLimit() / per_host),
      .ranks_per_host = per_host};
  if (device.bytes > 0) return ChooseLayout(trainer, config, model, ranks, device);
  if (gpu)
    problems.push_back({"--device-memory", absl::StrCat("is needed with parallel: auto, as the "
                                                        "memory of ",
                                                        options.device, " isn't known: 80GiB")});
  else
    problems.push_back({"trainer.memory_per_rank",
                        "is needed with parallel: auto, as this host doesn't say how much memory "
                        "it has, such as memory_per_rank: 16GiB"});
  return absl::InvalidArgumentError("");
}

// Which ranks of the layout belong together, and by how many a run in it may grow.
void AddPlacement(const TrainConfig& config, int ranks, ordered_json& out) {
  out["ranks_multiple"] = RanksMultiple(config.parallel, config.shard_size);
  out["placement"] = ordered_json::array();
  for (const RankGroup& one : PlacementOf(config.parallel, config.shard_size, ranks))
    out["placement"].push_back({{"group", one.name}, {"ranks", one.ranks}, {"level", one.level}});
}

// Of layouts; exit code 3 where none fits.
int TellLayouts(const TrainConfig& config, const ModelConfig& model, int ranks,
                const EstimateOptions& options, const SearchSetting& setting) {
  const GpuHosts& hosts = setting.hosts;
  const FoundLayouts found =
      SearchLayouts(config, model, ranks, hosts, setting.most, setting.fixed);
  const Estimate given = MakeEstimate(config, model, ranks, /*gpus=*/true, 0);
  const bool given_fits = given.DeviceBytes() <= hosts.device_bytes;
  const double given_s = StepSeconds(given, config, model, ranks, hosts);
  if (options.json == "true") {
    ordered_json out = {
        {"ranks", ranks},
        {"tried", found.tried},
        {"given",
         {{"step_time_s", given_s}, {"memory_bytes", given.DeviceBytes()}, {"fits", given_fits}}},
        {"layouts", ordered_json::array()}};
    for (const Layout& one : found.best) {
      ordered_json layout = {{"step_time_s", one.step_s},
                             {"memory_bytes", one.estimate.DeviceBytes()},
                             {"bubble_share", one.estimate.bubble},
                             {"fields", one.fields}};
      AddPlacement(one.config, ranks, layout);
      out["layouts"].push_back(std::move(layout));
    }
    std::printf("%s\n", out.dump().c_str());
    return found.best.empty() ? kDoesNotFit : 0;
  }
  std::printf("by estimate alone; of several GPUs it was compared with none yet\n");
  std::printf("%d x %s, %d a host; %.4g GB/s of each to its host's others, %.4g to other hosts\n",
              ranks, options.device.c_str(), hosts.ranks_per_host, hosts.within_bytes_per_s / 1e9,
              hosts.between_bytes_per_s / 1e9);
  const bool spares = given.DeviceBytes() <= BytesButSpare(hosts.device_bytes);
  std::printf("as given: about %.3g s a step, %s, which %s\n", given_s,
              SizeText(given.DeviceBytes()).c_str(),
              !given_fits ? "does not fit"
              : spares    ? "fits"
                          : "fits with less than 5 % to spare");
  if (found.best.empty()) {
    std::printf(
        "no layout fits, of %lld that were tried with offload, moments, masters and gradient_dtype "
        "as they are; without --search it is said whether those would do; else take more ranks, or "
        "a GPU with more memory\n",
        static_cast<long long>(found.tried));
    return kDoesNotFit;
  }
  std::printf(
      "the fastest that fit with 5 %% to spare, by estimate (%lld were made; what could not be "
      "among the %zu fastest needed none):\n%8s %12s  %s\n",
      static_cast<long long>(found.tried), setting.most, "step", "memory", "fields");
  for (const Layout& one : found.best)
    std::printf("%6.3g s %12s  %s\n", one.step_s, SizeText(one.estimate.DeviceBytes()).c_str(),
                one.FieldsText().c_str());
  return 0;
}

// What a rank may fill of its device.
struct Room {
  int64_t bytes = 0;    // 0: not known
  bool by_key = false;  // memory_per_rank bounds it
};

// What makes a rank fit with the spare that a search leaves, or else at all.
std::optional<Remedy> RemedyFor(const TrainConfig& config, const ModelConfig& model, int ranks,
                                int64_t room) {
  std::optional<Remedy> remedy = FindRemedy(config, model, ranks, BytesButSpare(room));
  return remedy ? remedy : FindRemedy(config, model, ranks, room);
}

// Whether a rank that needs `bytes` fits into the room that it has; `remedy`: what would make it,
// or leave it 5 % to spare.
void TellFit(const EstimateOptions& options, const Room& room, int64_t bytes,
             const std::optional<Remedy>& remedy) {
  if (options.device.empty()) {
    std::printf("counted for ranks on CPUs; for GPUs add --device, such as --device h100-80g\n");
    return;
  }
  const std::string has = room.by_key ? absl::StrCat("memory_per_rank is ", SizeText(room.bytes))
                                      : absl::StrCat(options.device, " has ", SizeText(room.bytes));
  const std::string with =
      remedy ? absl::StrCat("; with ", remedy->fields, " it needs ", SizeText(remedy->bytes)) : "";
  if (room.bytes == 0)
    std::printf("whether it fits isn't known, as the memory of %s isn't: --device-memory SIZE\n",
                options.device.c_str());
  else if (bytes > room.bytes)
    std::printf("does not fit: %s%s\n", has.c_str(),
                remedy ? with.c_str() : "; take more ranks, or a GPU with more memory");
  else if (bytes > BytesButSpare(room.bytes))
    std::printf(
        "fits: %s, with less to spare than the 5 %% that --search and parallel: auto leave%s\n",
        has.c_str(), with.c_str());
  else
    std::printf("fits: %s\n", has.c_str());
}

ordered_json ClassesToJson(const std::vector<MemoryClass>& memory) {
  ordered_json out = ordered_json::array();
  for (const MemoryClass& one : memory)
    out.push_back(
        {{"class", one.name}, {"bytes", one.bytes}, {"on", one.on_host ? "host" : "rank"}});
  return out;
}

void AddLinks(const ToldStep& step, int ranks_per_host, ordered_json& out) {
  const bool times = step.knows_peak && step.knows_links;
  out["ranks_per_host"] = ranks_per_host;
  for (const auto& [name, link] : {std::pair("within_host", step.time.within),
                                   std::pair("between_hosts", step.time.between)}) {
    ordered_json& one = out["links"][name];
    one["bytes_per_step"] = link.bytes;
    if (times) one["seconds_per_step"] = link.seconds, one["exposed_s_per_step"] = link.exposed_s;
  }
  if (times)
    out["exposed_communication_s"] = step.time.within.exposed_s + step.time.between.exposed_s;
}

std::string RowText(const std::string& name, int64_t bytes, const std::string& note) {
  char line[200];
  std::snprintf(line, sizeof line, "  %-44s %s%s\n", name.c_str(), SizeText(bytes, 10).c_str(),
                note.c_str());
  return line;
}

std::string LinksText(const ToldStep& step, int ranks_per_host) {
  std::string text = absl::StrCat("of that, with ", ranks_per_host, " ranks a host:\n");
  for (const auto& [name, link] : {std::pair("inside a host", step.time.within),
                                   std::pair("between hosts", step.time.between)}) {
    char note[80] = "";
    if (step.knows_peak && step.knows_links)
      std::snprintf(note, sizeof note, "  %.3g s, %.3g of them exposed", link.seconds,
                    link.exposed_s);
    text += RowText(name, link.bytes, note);
  }
  return text;
}

// What any of the stages has.
std::vector<MemoryClass> ClassesOf(const std::vector<StageEstimate>& stages) {
  std::vector<MemoryClass> classes;
  for (const StageEstimate& stage : stages) {
    for (const MemoryClass& one : stage.memory) {
      if (std::none_of(classes.begin(), classes.end(),
                       [&](const MemoryClass& has) { return has.name == one.name; }))
        classes.push_back(one);
    }
  }
  return classes;
}

std::string SizeOf(const MemoryClass& wanted, const StageEstimate& stage) {
  for (const MemoryClass& one : stage.memory) {
    if (one.name == wanted.name) return SizeText(one.bytes);
  }
  return "-";
}

// A class a row, a stage a column; some stages beside each other.
std::string StagesText(const std::vector<StageEstimate>& stages) {
  constexpr size_t kBeside = 4;
  std::string text;
  for (size_t begin = 0; begin < stages.size(); begin += kBeside) {
    const size_t end = std::min(stages.size(), begin + kBeside);
    const auto row = [&](const std::string& name, const auto& cell, const char* note = "") {
      char part[80];
      std::snprintf(part, sizeof part, "  %-44s", name.c_str());
      text += part;
      for (size_t i = begin; i < end; ++i) {
        std::snprintf(part, sizeof part, " %14s", cell(i).c_str());
        text += part;
      }
      absl::StrAppend(&text, note, "\n");
    };
    row("", [&](size_t i) { return absl::StrCat("stage ", i + 1); });
    row("layers", [&](size_t i) { return absl::StrCat(stages[i].layers); });
    row("micro-batches in flight", [&](size_t i) { return absl::StrCat(stages[i].in_flight); });
    for (const MemoryClass& one : ClassesOf(stages))
      row(
          one.name, [&](size_t i) { return SizeOf(one, stages[i]); },
          one.on_host ? "  on the host" : "");
    row("together", [&](size_t i) { return SizeText(stages[i].bytes); });
  }
  return text;
}

// That `parallel: auto` finds no layout.
int TellNone(const absl::Status& why, int ranks, const EstimateOptions& options) {
  const std::string text = absl::StrCat(
      std::string(why.message()), options.device.empty()
                                      ? "; counted for ranks on CPUs of a host like this one: for "
                                        "GPUs add --device, such as --device h100-80g"
                                      : "");
  if (options.json == "true") {
    const ordered_json out = {{"ranks", ranks}, {"none_fits", text}};
    std::printf("%s\n", out.dump().c_str());
  } else {
    std::printf("does not fit: %s\n", text.c_str());
  }
  return kDoesNotFit;
}

}  // namespace

std::optional<Remedy> FindRemedy(const TrainConfig& config, const ModelConfig& model, int ranks,
                                 int64_t device_bytes) {
  struct Change {
    const char* text;
    bool (*make)(TrainConfig&, int);  // false: it is so already, or can't be
  };
  // Each beside those before it, the cheapest first.
  static constexpr Change kChanges[] = {
      {"recompute: pointwise",
       [](TrainConfig& c, int) {
         return c.recompute == "none" && (c.recompute = "pointwise", true);
       }},
      {"recompute: keep_attention",
       [](TrainConfig& c, int) {
         return c.recompute == "pointwise" && (c.recompute = "keep_attention", true);
       }},
      {"recompute: full",
       [](TrainConfig& c, int) { return c.recompute != "full" && (c.recompute = "full", true); }},
      {"zero_stage: 3",
       [](TrainConfig& c, int ranks) {
         return c.zero_stage < 3 && ranks > 1 && (c.zero_stage = 3, true);
       }},
      {"micro_batch_size: 1",
       [](TrainConfig& c, int) {
         // Of router_aux_loss: batch it changes the loss.
         return c.micro_batch_size != 1 && c.router_aux_loss != "batch" &&
                (c.micro_batch_size = 1, true);
       }},
      {"offload: optimizer",
       [](TrainConfig& c, int) { return c.offload == "none" && (c.offload = "optimizer", true); }},
      {"offload: parameters",
       [](TrainConfig& c, int) {
         return c.zero_stage == 3 && c.offload == "optimizer" && (c.offload = "parameters", true);
       }},
  };
  const auto needed = [&](const TrainConfig& c) {
    return MakeEstimate(c, model, ranks, /*gpus=*/true, 0).DeviceBytes();
  };
  if (needed(config) <= device_bytes) return std::nullopt;
  TrainConfig changed = config;
  std::vector<std::string> fields;
  for (const Change& change : kChanges) {
    TrainConfig next = changed;
    if (!change.make(next, ranks) || !GoTogether(next)) continue;
    Problems problems;
    CheckLayoutKeys(next, problems);
    CheckLayout(next, model, ranks, /*gpus=*/true, /*gpu_kernels=*/true, problems);
    if (!problems.empty()) continue;
    changed = std::move(next);
    const std::string key(change.text, std::string_view(change.text).find(':'));
    fields.erase(
        std::remove_if(fields.begin(), fields.end(),
                       [&](const std::string& field) { return field.starts_with(key + ":"); }),
        fields.end());
    fields.emplace_back(change.text);
    if (const int64_t bytes = needed(changed); bytes <= device_bytes)
      return Remedy{absl::StrJoin(fields, ", "), bytes};
  }
  return std::nullopt;
}

ordered_json ToJson(const Estimate& e, const TrainConfig& config, const ModelConfig& model,
                    int ranks, const NamedHosts& hosts) {
  ordered_json out = {{"ranks", ranks},
                      {"parameters", e.parameters},
                      {"trained_parameters", e.trained_parameters},
                      {"micro_batch_size", e.micro_batch},
                      {"micro_batches", e.micro_batches},
                      {"memory_bytes", e.DeviceBytes()},
                      {"memory", ClassesToJson(e.memory)},
                      {"gather_bytes_per_step", e.gather_bytes},
                      {"reduce_bytes_per_step", e.reduce_bytes},
                      {"slice_bytes_per_step", e.slice_bytes},
                      {"context_bytes_per_step", e.context_bytes},
                      {"expert_bytes_per_step", e.expert_bytes},
                      {"flops_per_step", e.flops},
                      {"saving_bytes", e.saving_bytes}};
  if (e.uneven_bytes > 0) out["uneven_memory_bytes"] = e.uneven_bytes;
  AddPlacement(config, ranks, out);
  if (e.stages.size() > 1) {
    out["stage"] = e.stage;
    out["pipeline_bytes_per_step"] = e.pipeline_bytes;
    out["bubble_share"] = e.bubble;
    for (const StageEstimate& one : e.stages)
      out["stages"].push_back({{"layers", one.layers},
                               {"memory_bytes", one.bytes},
                               {"micro_batches_in_flight", one.in_flight},
                               {"memory", ClassesToJson(one.memory)}});
  }
  const ToldStep step = TellStep(e, config, model, ranks, hosts);
  AddLinks(step, hosts.ranks_per_host, out);
  if (step.knows_peak) out["step_time_s"] = step.time.step_s;
  return out;
}

std::string ToText(const Estimate& e, const TrainConfig& config, const ModelConfig& model,
                   int ranks, const NamedHosts& hosts) {
  const std::string& device = hosts.device;
  std::string text = absl::StrCat(
      e.parameters, " parameters",
      e.trained_parameters != e.parameters ? absl::StrCat(", ", e.trained_parameters, " trained")
                                           : "",
      ", ", ranks, ranks == 1 ? " rank, " : " ranks, ", e.micro_batches, " x ", e.micro_batch,
      config.OfPairs() ? " pairs of sequences of " : " sequences of ", config.max_length,
      " tokens a rank and step",
      config.parallel.cp > 1 ? absl::StrCat(", in ", config.parallel.cp, " parts") : "", "\n");
  char line[160];
  const auto row = [&](const std::string& name, int64_t bytes, const std::string& note) {
    text += RowText(name, bytes, note);
  };
  if (e.stages.size() > 1) {
    absl::StrAppend(&text, "memory of a rank by stage:\n", StagesText(e.stages), "of stage ",
                    e.stage + 1, ", which needs the most:\n");
  } else {
    text += "memory of a rank:\n";
    for (const MemoryClass& one : e.memory)
      row(one.name, one.bytes, one.on_host ? "  on the host" : "");
    row("together", e.DeviceBytes(), "");
  }
  if (e.uneven_bytes > 0) row("if its experts meet twice the mean", e.uneven_bytes, "");
  row("copies while a checkpoint is written", e.saving_bytes, "  on the host");
  text += "sent by a rank a step:\n";
  row("weights gathered", e.gather_bytes, "");
  row("gradients summed", e.reduce_bytes, "");
  if (e.slice_bytes > 0) row("tokens inside layers (tp)", e.slice_bytes, "");
  if (e.context_bytes > 0) row("keys and values (cp)", e.context_bytes, "");
  if (e.expert_bytes > 0) row("tokens to experts and back (ep)", e.expert_bytes, "");
  if (e.pipeline_bytes > 0) row("between stages (pp)", e.pipeline_bytes, "");
  const ToldStep step = TellStep(e, config, model, ranks, hosts);
  if (ranks > 1) text += LinksText(step, hosts.ranks_per_host);
  if (e.bubble > 0) {
    std::snprintf(line, sizeof line, "stages wait for each other: about %.1f %% of a step\n",
                  100 * e.bubble);
    text += line;
  }
  std::snprintf(line, sizeof line, "products a step: %.4g TFLOP\n", e.flops / 1e12);
  text += line;
  if (step.knows_peak) {
    std::snprintf(line, sizeof line,
                  "step time: about %.3g s (%s at %.0f %% of its peak, %d in a host)\n",
                  step.time.step_s, device.c_str(), 100 * kUsualShareOfPeak, hosts.ranks_per_host);
    text += line;
  } else if (!device.empty()) {
    text += absl::StrCat("step time: unknown, as the peak of ", device, " is; known are ",
                         KnownDevices(), ", and peak_tflops tells another's\n");
  }
  return text;
}

int RunEstimate(const EstimateOptions& options) {
  Problems problems;
  int ranks = 0;
  if (!absl::SimpleAtoi(options.ranks, &ranks) || ranks < 1 || ranks > 1 << 20) {
    problems.push_back(
        {"--ranks", absl::StrCat("must be a whole number from 1; got ", options.ranks)});
    ranks = 0;
  }
  if (!options.json.empty() && options.json != "true" && options.json != "false")
    problems.push_back({"--json", absl::StrCat("must be true or false; got ", options.json)});
  const absl::StatusOr<std::string> text = ReadFile(options.config_path);
  if (!text.ok()) problems.push_back({"--config", std::string(text.status().message())});
  const absl::StatusOr<json> parsed =
      text.ok() ? ParseJson(*text, options.config_path) : json::object();
  if (!parsed.ok())
    problems.push_back(
        {"--config", absl::StrCat(std::string(parsed.status().message()),
                                  "; it takes what a job file has below trainer:, as JSON. Of a "
                                  "job file, muster submit --dry-run says whether a rank fits")});
  TrainConfig config;
  ModelConfig model;
  if (text.ok() && parsed.ok()) {
    config = ParseTrainConfig(*parsed, problems);
    if (config.model) {
      model = ParseModelConfig(*config.model, "trainer.model", /*strict=*/true, problems);
    } else if (!config.init.empty()) {
      const absl::StatusOr<std::string> content = ReadFile(config.init + "/config.json");
      const absl::StatusOr<json> its =
          content.ok() ? ParseJson(*content, config.init + "/config.json") : content.status();
      if (!its.ok())
        problems.push_back({"trainer.init", absl::StrCat(std::string(its.status().message()),
                                                         "; give a Hugging Face directory")});
      else
        model = ParseModelConfig(
            WithoutQuantization(*its, config.quantize, "trainer.init/config.json", problems),
            "trainer.init/config.json", /*strict=*/false, problems);
    }
    model.score |= config.reward.on();
    if (ranks > 0)  // else what is wrong is said
      CheckLayout(config, model, ranks, !options.device.empty(), /*gpu_kernels=*/true, problems);
    if (const int capability = CapabilityOf(options.device); capability > 0)
      CheckGpu(config, capability, problems);
    if (!config.lora.target_modules.empty() && model.num_layers > 0)
      TargetModules(model, config.lora, "trainer.lora", problems);
  }
  const int64_t device_bytes = ReadDevice(options, problems);
  const NamedHosts named{
      options.device, ReadRanksPerHost(options, problems),
      ReadLink("--within-host", options.within_host, options.device, problems),
      ReadLink("--between-hosts", options.between_hosts, options.device, problems)};
  const SearchSetting search = ReadSearch(options, parsed.ok() ? *parsed : json::object(), config,
                                          device_bytes, named, problems);
  const bool chooses = config.parallel.automatic && search.most == 0;
  absl::StatusOr<Layout> chosen = absl::UnknownError("");
  if (chooses && problems.empty())
    chosen = ChooseBy(options, *parsed, config, model, ranks, device_bytes, named.ranks_per_host,
                      problems);
  if (!problems.empty()) {
    std::fprintf(stderr, "estimate: %zu problem%s\n%s", problems.size(),
                 problems.size() == 1 ? "" : "s", ToText(problems).c_str());
    return 2;
  }
  if (search.most > 0) return TellLayouts(config, model, ranks, options, search);
  if (chooses && !chosen.ok()) return TellNone(chosen.status(), ranks, options);
  if (chooses) config = chosen->config;
  const Estimate estimate = MakeWholeEstimate(config, model, ranks, !options.device.empty(),
                                              ReadMemoryUse(at::kCPU).now_bytes);
  const int64_t room = options.device.empty() ? 0 : BytesToFill(config, device_bytes);
  const int64_t bytes = estimate.DeviceBytes();
  const std::optional<Remedy> remedy =
      room > 0 ? RemedyFor(config, model, ranks, room) : std::nullopt;
  const bool fits = room == 0 || bytes <= room;
  if (options.json == "true") {
    ordered_json out = ToJson(estimate, config, model, ranks, named);
    if (chooses) out["chosen"] = chosen->fields;
    if (remedy && !fits) out["fits_with"] = remedy->fields, out["fits_with_bytes"] = remedy->bytes;
    std::printf("%s\n", out.dump().c_str());
    return fits ? 0 : kDoesNotFit;
  }
  if (chooses) std::printf("parallel: auto takes  %s\n", chosen->FieldsText().c_str());
  std::fputs(ToText(estimate, config, model, ranks, named).c_str(), stdout);
  TellFit(options, {room, /*by_key=*/room != device_bytes}, bytes, remedy);
  return fits ? 0 : kDoesNotFit;
}

}  // namespace muster::trainer
