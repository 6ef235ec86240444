#include "cli/commands/trace.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

constexpr size_t kSeenBytes = 65'536;
constexpr char kGroup[] = "With a trace";

// muster-sim's own, all but --random, --seed and what simulate has itself: --queues, -o.
// tests/system/test_simulator.py compares.
struct TraceOption {
  const char* names;
  const char* type;  // nullptr: a flag
  const char* help;
};
constexpr TraceOption kOptions[] = {
    {"--cluster", "FILE", "Clusters file, as musterd reads it; a Kueue generator brings its own"},
    {"--policy,--policies", "TEXT", "Who decides, joined by commas; default: muster"},
    {"--jobs", nullptr,
     "With -o json: every job with the times at which it held devices, for sim/plot.py"},
    {"--format", "TEXT:{csv,philly,shockwave,openb,kueue}",
     "Of the trace; default: by its first line"},
    {"--throughputs", "FILE", "Shockwave: measured steps a second"},
    {"--strict", nullptr, "Stop at the first broken line of the trace"},
    {"--from", "TEXT", "Leave out jobs submitted earlier, such as 20d"},
    {"--until", "TEXT", "Leave out jobs submitted then or later"},
    {"--load", "PERCENT", "Compress or stretch the times between submissions to this load"},
    {"--own-cluster", nullptr, "Jobs of a trace that names clusters stay in theirs"},
    {"--queue-by-size", nullptr, "Each job goes to the queue of its number of GPUs: g1, g2, ..."},
    {"--unknown-ends", nullptr, "Jobs report no progress"},
    {"--unchecked", nullptr, "Don't let Validate check each plan"},
    {"--round", "TEXT", "Decide only at multiples of this"},
    {"--report", "TEXT", "Starts, progress and checkpoints may wait so long for another event"},
    {"--launch", "TEXT", "From start to the first useful step; default 20s"},
    {"--stop", "TEXT", "From the stop signal to a checkpoint and exit; default 5s"},
    {"--placement", "TEXT:{v,fgd,best_fit}", "As in musterd.yaml; default v"},
    {"--grow-interval", "TEXT", "As in musterd.yaml; default 10m"},
    {"--starve-after", "TEXT", "As in musterd.yaml; default 30m"},
    {"--min-runtime", "TEXT", "As in musterd.yaml; default 5m"},
    {"--spill-cost", "TEXT", "As in musterd.yaml; default 60s"},
    {"--quantum", "TEXT", "Preemptive peers choose anew so often; default 5m"},
    {"--patience", "TEXT",
     "Who is covered by a guarantee for longer without starting is late; default 10m"},
    {"--verbose", nullptr, "One line a job"},
};

// Of our CSV, Philly's and openb's files; Gavel's lines have twelve cells between tabs.
bool LooksLikeTable(absl::string_view line) {
  if (std::count(line.begin(), line.end(), '\t') == 11) return true;
  const std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
  return cells.size() > 1 && std::any_of(cells.begin(), cells.end(), [](absl::string_view cell) {
           return cell == "submit_s" || cell == "creation_time";
         });
}

}  // namespace

bool IsTrace(const std::string& path) {
  for (const char* ending : {".csv", ".trace", ".gz"}) {
    if (absl::EndsWith(path, ending)) return true;
  }
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::string text(kSeenBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (absl::StartsWith(text, "\x1f\x8b") || absl::StartsWith(text, "cohorts:") ||
      absl::StrContains(text, "\ncohorts:"))
    return true;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!line.empty() && line[0] != '#') return LooksLikeTable(absl::StripSuffix(line, "\r"));
  }
  return false;
}

void AddTraceOptions(CLI::App* simulate, std::vector<std::string>* words) {
  simulate
      ->add_flag_callback(
          "--compare", [words] { words->insert(words->begin(), "compare"); },
          "A row a policy, of all unless --policies names some")
      ->group(kGroup);
  for (const TraceOption& option : kOptions) {
    const std::string names = option.names, name = names.substr(0, names.find(','));
    if (option.type == nullptr) {
      simulate->add_flag_callback(
                  names, [words, name] { words->push_back(name); }, option.help)
          ->group(kGroup);
    } else {
      simulate
          ->add_option_function<std::string>(
              names,
              [words, name](const std::string& value) {
                words->insert(words->end(), {name, value});
              },
              option.help)
          ->type_name(option.type)
          ->group(kGroup);
    }
  }
}

}  // namespace muster
