#include "cli/commands/foreign.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/render/format.h"

namespace muster {
namespace {

using Said = std::map<std::string, std::string>;  // option -> value

constexpr absl::string_view kMark = "#SBATCH";

// What is left in the end has no line in the translation.
std::string Take(Said* said, const std::string& option) {
  const auto taken = said->extract(option);
  return taken.empty() ? "" : taken.mapped();
}

// Slurm's one-letter options that have a counterpart here.
std::string LongName(char letter) {
  static const std::map<char, std::string> kNames = {
      {'J', "job-name"}, {'N', "nodes"},     {'n', "ntasks"}, {'c', "cpus-per-task"},
      {'t', "time"},     {'p', "partition"}, {'o', "output"}, {'e', "error"},
      {'G', "gpus"},     {'D', "chdir"},     {'a', "array"},  {'d', "dependency"}};
  const auto found = kNames.find(letter);
  return found == kNames.end() ? std::string(1, letter) : found->second;
}

Said SbatchOptions(absl::string_view file) {
  Said said;
  for (absl::string_view line : absl::StrSplit(file, '\n')) {
    if (!absl::ConsumePrefix(&line, kMark)) continue;
    line = line.substr(0, line.find(" #"));
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    for (size_t i = 0; i < words.size(); ++i) {
      absl::string_view word = words[i];
      const bool has_next = i + 1 < words.size() && words[i + 1][0] != '-';
      if (absl::ConsumePrefix(&word, "--")) {
        const size_t equals = word.find('=');
        const std::string name(word.substr(0, equals));
        said[name] = equals != absl::string_view::npos ? std::string(word.substr(equals + 1))
                     : has_next                        ? words[++i]
                                                       : "";
      } else if (word.size() > 1 && word[0] == '-') {
        const std::string name = LongName(word[1]);
        said[name] = word.size() > 2 ? std::string(word.substr(2)) : has_next ? words[++i] : "";
      }
    }
  }
  return said;
}

// "4:00:00", "1-12", "90" (minutes) as a duration of a job file; empty: not understood.
std::string Duration(absl::string_view time) {
  if (time.empty()) return "";
  int64_t days = 0;
  const size_t dash = time.find('-');
  if (dash != absl::string_view::npos && !absl::SimpleAtoi(time.substr(0, dash), &days)) return "";
  const std::vector<std::string> parts =
      absl::StrSplit(dash == absl::string_view::npos ? time : time.substr(dash + 1), ':');
  std::vector<int64_t> numbers;
  for (const std::string& part : parts) {
    if (!absl::SimpleAtoi(part, &numbers.emplace_back())) return "";
  }
  if (numbers.size() > 3) return "";
  // With days: hours[:minutes[:seconds]]; else minutes[:seconds], or hours:minutes:seconds.
  const bool hours_first = dash != absl::string_view::npos || numbers.size() == 3;
  int64_t seconds = days * 86400, unit = hours_first ? 3600 : 60;
  for (const int64_t number : numbers) {
    seconds += number * unit;
    unit /= 60;
  }
  return seconds % 3600 == 0 ? absl::StrCat(seconds / 3600, "h")
         : seconds % 60 == 0 ? absl::StrCat(seconds / 60, "m")
                             : absl::StrCat(seconds, "s");
}

// "gpu:a100:8", "a100:8", "H100:8", "8": how many, of which type ("" where it isn't said).
std::pair<std::string, std::string> Gpus(absl::string_view text) {
  absl::ConsumePrefix(&text, "gpu:");
  if (text == "gpu") return {"1", ""};
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.size() == 1) {
    const bool number = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
      return absl::ascii_isdigit(c);
    });
    return number ? std::pair(std::string(text), std::string())
                  : std::pair(std::string("1"), std::string(text));
  }
  return {parts[1], parts[0]};
}

std::string ResourcesLine(const std::pair<std::string, std::string>& gpus, const std::string& cpus,
                          const std::string& memory) {
  std::vector<std::string> fields;
  if (!gpus.first.empty()) {
    fields.push_back(absl::StrCat("gpus: ", gpus.first));
    fields.push_back(absl::StrCat(
        "gpu_types: [", gpus.second.empty() ? "TYPE" : absl::AsciiStrToLower(gpus.second), "]"));
  }
  if (!cpus.empty()) fields.push_back(absl::StrCat("cpus: ", cpus));
  if (!memory.empty()) fields.push_back(absl::StrCat("memory: ", memory));
  if (fields.empty()) return "";
  return absl::StrCat("  resources: {", absl::StrJoin(fields, ", "), "}",
                      gpus.first.empty() ? "" : "   # of each worker; types: muster cluster list",
                      "\n");
}

void AddField(std::string* text, absl::string_view name, const std::string& value) {
  if (!value.empty()) absl::StrAppend(text, "  ", name, ": ", value, "\n");
}

// Slurm's memory is in MiB without a unit; "64G" is 64 GiB.
std::string Memory(const std::string& text) {
  if (text.empty()) return "";
  const char last = absl::ascii_toupper(static_cast<unsigned char>(text.back()));
  if (absl::ascii_isdigit(static_cast<unsigned char>(last))) return text + "MiB";
  return absl::StrCat(text.substr(0, text.size() - 1), std::string(1, last), "iB");
}

// Of a worker, which has a node's tasks; Slurm's figure is a task's.
std::string CpusOfWorker(std::string cpus_per_task, const std::string& tasks_per_node) {
  int64_t of_task = 0, tasks = 0;
  if (!absl::SimpleAtoi(cpus_per_task, &of_task) || !absl::SimpleAtoi(tasks_per_node, &tasks))
    return cpus_per_task;
  return of_task > 0 && tasks > 0 && of_task < 1'000'000 && tasks < 1'000'000
             ? absl::StrCat(of_task * tasks)
             : cpus_per_task;
}

Foreign FromSlurm(absl::string_view file) {
  Said said = SbatchOptions(file);
  std::string text = "As a job file of Muster's it would begin:\n";
  const std::string array = Take(&said, "array");
  AddField(&text, "name", Take(&said, "job-name"));
  AddField(&text, "queue", Take(&said, "partition"));
  AddField(&text, "array", array);
  AddField(&text, "workers", Take(&said, "nodes"));
  std::string gpus;
  for (const char* option : {"gpus-per-node", "gres", "gpus"}) {
    const std::string value = Take(&said, option);
    if (gpus.empty()) gpus = value;
  }
  const std::string tasks = Take(&said, "ntasks-per-node");
  const std::string cpus = CpusOfWorker(Take(&said, "cpus-per-task"), tasks);
  absl::StrAppend(
      &text, ResourcesLine(gpus.empty() ? std::pair<std::string, std::string>() : Gpus(gpus), cpus,
                           Memory(Take(&said, "mem"))));
  AddField(&text, "processes_per_worker", tasks);
  AddField(&text, "workdir", Take(&said, "chdir"));
  if (const auto time = said.find("time"); time != said.end()) {
    const std::string limit = Duration(time->second);
    AddField(&text, "time_limit", limit);
    if (!limit.empty()) said.erase(time);
  }
  absl::StrAppend(&text,
                  "  run: |\n"
                  "    ...   # the script's commands; without srun: every process runs them; where "
                  "they are several, with RANK, WORLD_SIZE and MASTER_ADDR set\n");
  const std::string output = Take(&said, "output"), error = Take(&said, "error");
  if (!output.empty() || !error.empty()) text += "Output is kept by itself: muster logs JOB.\n";
  if (!array.empty()) text += "Its index is MUSTER_ARRAY_INDEX, in place of SLURM_ARRAY_TASK_ID.\n";
  if (!Take(&said, "dependency").empty())
    text +=
        "After another job: muster submit --after JOB. What belongs together may be tasks of one "
        "job: tasks: and their after:.\n";
  std::vector<std::string> left;
  for (const auto& [name, value] : said)
    left.push_back(absl::StrCat(name.size() == 1 ? "-" : "--", name));
  if (!left.empty())
    absl::StrAppend(&text, "Not in it, for you to look at: ", absl::StrJoin(left, ", "), ".\n");
  return {"this is a Slurm batch script", text + "All fields: muster fields\n", true};
}

// The value of a key at any depth, of the first line that has it.
std::string YamlValue(absl::string_view file, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(file, '\n')) {
    line = absl::StripLeadingAsciiWhitespace(line);
    if (!absl::ConsumePrefix(&line, key) || !absl::ConsumePrefix(&line, ":")) continue;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find(" #")));
    return std::string(line);
  }
  return "";
}

bool HasKey(absl::string_view file, absl::string_view key) {
  return absl::StrContains(absl::StrCat("\n", file), absl::StrCat("\n", key, ":"));
}

// "8+": at least 8.
std::string WithoutPlus(const std::string& value) {
  return std::string(absl::StripSuffix(value, "+"));
}

Foreign FromSkyPilot(absl::string_view file) {
  std::string text = "As a job file of Muster's it would begin:\n";
  AddField(&text, "name", YamlValue(file, "name"));
  AddField(&text, "workers", YamlValue(file, "num_nodes"));
  const std::string accelerators = YamlValue(file, "accelerators");
  const std::string cpus = WithoutPlus(YamlValue(file, "cpus")),
                    memory = WithoutPlus(YamlValue(file, "memory"));
  absl::StrAppend(&text, ResourcesLine(accelerators.empty() ? std::pair<std::string, std::string>()
                                                            : Gpus(accelerators),
                                       cpus, memory.empty() ? "" : memory + "GiB"));
  if (HasKey(file, "envs")) text += "  env: {...}   # as under envs:\n";
  if (HasKey(file, "setup")) text += "  setup: ...   # the same\n";
  text +=
      "  run: ...     # the same; every process runs it; where they are several, with RANK, "
      "WORLD_SIZE and MASTER_ADDR set\n";
  if (HasKey(file, "workdir"))
    text += "workdir: the same where it is relative; an absolute one has to be on the hosts.\n";
  if (HasKey(file, "file_mounts"))
    text += "file_mounts: has no counterpart: data lies on a storage that the hosts share.\n";
  return {"this looks like a SkyPilot task", text + "All fields: muster fields\n", false};
}

}  // namespace

Foreign TranslateForeign(absl::string_view file) {
  Foreign foreign;
  if (absl::StartsWith(file, kMark) || absl::StrContains(file, absl::StrCat("\n", kMark))) {
    foreign = FromSlurm(file);
  } else if (HasKey(file, "num_nodes") || HasKey(file, "file_mounts") || HasKey(file, "envs") ||
             !YamlValue(file, "accelerators").empty()) {
    foreign = FromSkyPilot(file);
  }
  std::string plain;  // what it quotes may hold anything
  for (absl::string_view line : absl::StrSplit(foreign.text, '\n', absl::SkipEmpty()))
    absl::StrAppend(&plain, Plain(std::string(line)), "\n");
  foreign.text = plain;
  return foreign;
}

}  // namespace muster
