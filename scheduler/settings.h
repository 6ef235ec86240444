// What musterd was told: its flags and the operator's files.
#pragma once

#include <string>
#include <vector>

#include "common/spec/config_files.h"
#include "muster/v1/record.pb.h"
#include "scheduler/state/options.h"
#include "scheduler/state/state.h"

namespace muster {

struct Flags {
  std::string config;
  std::string data_dir, listen, clusters, queues, master_key, log_level = "info";
  bool single_user = false;
  bool adopt_restored = false;
};

// Says why on stderr; musterd's exit status for it.
int Fail(const std::string& message);

// The file of --config, and what flags say otherwise. False: said why.
bool ReadConfig(const Flags& flags, MusterdConfig* config);

SchedulingOptions OptionsOf(const MusterdConfig& config);

// The clusters file as it is now, the queues into a store without any: events for the engine's
// first step. False: said why.
bool FirstEvents(const MusterdConfig& config, const State& state, std::vector<pb::Event>* events);

}  // namespace muster
