// Labelled ends of processes: one JSON object a line with id, label, exit_code, signal, gpus,
// events, tail (bench/failures/README.md).
#pragma once

#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/failures/classify.h"

namespace muster {

struct LabelledEnd {
  std::string id;
  std::string label;
  int exit_code = 0;
  int signal = 0;
  bool devices = true;
  std::vector<std::string> events;
  std::vector<std::string> tail;
};

// "SIGKILL": 9.
inline int SignalNumber(std::string_view name) {
  static constexpr std::pair<std::string_view, int> kSignals[] = {
      {"SIGHUP", 1},   {"SIGINT", 2},   {"SIGQUIT", 3}, {"SIGILL", 4},   {"SIGABRT", 6},
      {"SIGBUS", 7},   {"SIGFPE", 8},   {"SIGKILL", 9}, {"SIGUSR1", 10}, {"SIGSEGV", 11},
      {"SIGUSR2", 12}, {"SIGPIPE", 13}, {"SIGTERM", 15}};
  for (const auto& [known, number] : kSignals) {
    if (known == name) return number;
  }
  throw std::invalid_argument(std::string(name) + " is no known signal");
}

// Throws nlohmann::json::exception where the file is not as described.
inline std::vector<LabelledEnd> ReadLabelledEnds(const std::string& path) {
  std::vector<LabelledEnd> ends;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty()) continue;
    const nlohmann::json j = nlohmann::json::parse(line);
    const auto exit_code =
        j.contains("exit_code") && j["exit_code"].is_number() ? j["exit_code"].get<int>() : 0;
    const int signal = j.contains("signal") && j["signal"].is_string()
                           ? SignalNumber(j["signal"].get<std::string>())
                           : 0;
    LabelledEnd end{.id = j.at("id"),
                    .label = j.at("label"),
                    .exit_code = exit_code,
                    .signal = signal,
                    .devices = j.value("gpus", 1) > 0,
                    .events = {},
                    .tail = {}};
    if (j.contains("events") && j["events"].is_array())
      end.events = j["events"].get<std::vector<std::string>>();
    end.tail = j.at("tail").get<std::vector<std::string>>();
    ends.push_back(std::move(end));
  }
  return ends;
}

// What Muster would know of it: events that it sees itself are facts, the others lines of the
// kernel and the driver.
inline EndFacts FactsOf(const LabelledEnd& end) {
  EndFacts facts{.exit_code = end.exit_code,
                 .signal = end.signal,
                 .devices = end.devices,
                 .events = {},
                 .tail = {}};
  for (const std::string& event : end.events) {
    const auto is_zero = [](std::string_view words) {
      return words.ends_with(" 0");
    };  // "cgroup oom_kill 0": a count
    const auto says = [&](std::string_view words) {
      return event.find(words) != std::string::npos;
    };
    if (says("no progress for")) {
      facts.silent = true;
    } else if (says("oom_kill")) {
      facts.cgroup_oom = !is_zero(event);
    } else if (says("host unreachable") || says("host lost") || says("host rebooted")) {
      facts.host_lost = true;
    } else if (says("preempted") || says("PREEMPTED")) {
      facts.preempted = true;
    } else {
      facts.events.push_back(event);
    }
  }
  facts.tail.assign(end.tail.begin(), end.tail.end());
  return facts;
}

}  // namespace muster
