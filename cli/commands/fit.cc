#include "cli/commands/fit.h"

#include <algorithm>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/commands/local_trainer.h"

namespace muster {
namespace {

constexpr int kMostFlavours = 4;
constexpr int kDoesNotFit = 3;  // estimate's exit code then
constexpr double kGiB = 1 << 30;

// What `muster-trainer estimate` answers; not an object if it doesn't.
nlohmann::json Ask(const std::string& config, int64_t ranks, int64_t ranks_per_host,
                   const std::string& flavour, int64_t memory_bytes) {
  const std::optional<std::string> text =
      AskLocalTrainer({"estimate", "--config", "/dev/stdin", "--ranks", absl::StrCat(ranks),
                       "--device", flavour, "--device-memory", absl::StrCat(memory_bytes),
                       "--ranks-per-host", absl::StrCat(ranks_per_host), "--json", "true"},
                      config, {0, kDoesNotFit});
  return text ? nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false)
              : nlohmann::json();
}

std::string Line(const std::string& flavour, int64_t memory_bytes, int64_t ranks_per_host,
                 const nlohmann::json& told) {
  const auto number = [&](const char* key) {
    return told.contains(key) && told[key].is_number() ? told[key].get<double>() : 0.0;
  };
  if (told.contains("none_fits") && told["none_fits"].is_string())
    return absl::StrCat(flavour, ": does not fit: parallel: ", told["none_fits"].get<std::string>(),
                        "\n");
  const std::string chosen = told.contains("chosen")
                                 ? absl::StrCat(" with ", told["chosen"].dump(),
                                                " (parallel: auto, ", ranks_per_host, " to a host)")
                                 : "";
  const double needed = number("memory_bytes"), has = static_cast<double>(memory_bytes);
  if (needed <= 0) return "";
  if (needed <= has)
    return absl::StrFormat("%s: a rank needs about %.1f of a GPU's %.0f GiB%s.\n", flavour,
                           needed / kGiB, has / kGiB, chosen);
  std::string line =
      absl::StrFormat("%s: does not fit: a rank needs about %.1f GiB, a GPU has %.0f.", flavour,
                      needed / kGiB, has / kGiB);
  const bool remedy = told.contains("fits_with") && told["fits_with"].is_string();
  if (remedy)
    absl::StrAppendFormat(&line, " With %s it needs about %.1f.",
                          told["fits_with"].get<std::string>(), number("fits_with_bytes") / kGiB);
  else
    line += " Take more workers, or GPUs with more memory.";
  return line + "\n";
}

// Of each flavour that the task may start on, of those whose memory is known, the fewest workers
// that it would start with: they hold the most. The candidates are the previewed task's.
std::map<std::string, int64_t> WorkersOn(const pb::PreviewResponse& preview,
                                         const pb::TaskSpec& task) {
  std::map<std::string, int64_t> workers;
  if (task.name() != preview.task()) {
    for (const std::string& flavour : task.resources().gpu_types()) {
      if (FlavourMemoryBytes(flavour) > 0) workers[flavour] = task.workers().min();
    }
    return workers;
  }
  for (const pb::PreviewResponse::Candidate& candidate : preview.candidates()) {
    if (candidate.start_ns() < 0 || candidate.declared() ||
        FlavourMemoryBytes(candidate.flavour()) == 0)
      continue;
    const auto [at, added] = workers.try_emplace(candidate.flavour(), candidate.workers());
    if (!added) at->second = std::min<int64_t>(at->second, candidate.workers());
  }
  return workers;
}

// A line for each flavour; *left: of how many the trainer may still be asked.
std::string OfFlavours(const pb::PreviewResponse& preview, const pb::TaskSpec& task, int* left) {
  if (task.resources().gpus_milli() < 1000 || LocalTrainer().empty()) return "";
  std::string text;
  for (const auto& [flavour, count] : WorkersOn(preview, task)) {
    if (--*left < 0) break;
    // A worker's processes share a host; whether workers do isn't known before they are placed.
    const int64_t per_host = std::max(1, task.processes_per_worker()),
                  ranks = std::max<int64_t>(1, count) * per_host;
    const int64_t memory_bytes = FlavourMemoryBytes(flavour);
    const nlohmann::json told = Ask(task.trainer_json(), ranks, per_host, flavour, memory_bytes);
    if (told.is_object()) text += Line(flavour, memory_bytes, per_host, told);
  }
  return text;
}

bool ChoosesLayout(const std::string& trainer_json) {
  const nlohmann::json trainer =
      nlohmann::json::parse(trainer_json, nullptr, /*allow_exceptions=*/false);
  const auto parallel = trainer.find("parallel");
  return parallel != trainer.end() && parallel->is_string() &&
         parallel->get<std::string>() == "auto";
}

}  // namespace

int64_t FlavourMemoryBytes(const std::string& flavour) {
  const size_t dash = flavour.rfind('-');
  int64_t gib = 0;
  if (dash == std::string::npos || !flavour.ends_with('g') ||
      !absl::SimpleAtoi(flavour.substr(dash + 1, flavour.size() - dash - 2), &gib))
    return 0;
  return gib > 0 && gib <= 1 << 20 ? gib << 30 : 0;
}

std::string FitText(const pb::PreviewResponse& preview) {
  const bool several = preview.resolved().tasks_size() > 1;
  int left = kMostFlavours;
  std::string text;
  for (const pb::TaskSpec& task : preview.resolved().tasks()) {
    if (task.trainer_json().empty()) continue;
    std::string of_task = OfFlavours(preview, task, &left);
    if (of_task.empty() && ChoosesLayout(task.trainer_json()))
      of_task =
          "parallel: auto: the ranks choose their layout when they start; rank 0 says which in the "
          "job's output.\n";
    for (const absl::string_view line : absl::StrSplit(of_task, '\n', absl::SkipEmpty()))
      absl::StrAppend(&text, several ? absl::StrCat("Task ", Plain(task.name()), ": ") : "", line,
                      "\n");
  }
  return text;
}

}  // namespace muster
