// What a training run is made from: the configuration, and what the job says beside it, all of it
// checked before anything runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/checkpoint/hugging_face.h"
#include "trainer/data/packing.h"
#include "trainer/data/shards.h"
#include "trainer/loop/config.h"
#include "trainer/model/config.h"

namespace muster::trainer {

std::string Env(const char* name);  // "" where it isn't set

// What Muster tells a training process beside its configuration.
struct Surroundings {
  std::string job_directory;  // relative paths start here
  std::string checkpoint_directory;
  std::vector<std::string> resume_from;
  double checkpoint_interval_s = 0;  // 0: off
  int checkpoint_keep = 2;
  std::string export_staging;
  std::string requests;  // a directory; empty: nobody asks

  // Absolute; relative paths start in the job's directory.
  std::string Resolve(const std::string& path) const;
};

// A checked configuration with what it names.
struct Setup {
  nlohmann::json trainer;  // as given
  TrainConfig config;
  Surroundings surroundings;
  ModelConfig model;
  std::string init_directory;                        // empty: from scratch
  std::shared_ptr<HuggingFaceWeights> init_weights;  // null: from scratch
  std::vector<std::unique_ptr<TokenShards>> shards;  // of data, or of the mixture's parts
  std::unique_ptr<Packer> packer;
  struct Evaluation {
    std::unique_ptr<TokenShards> shards;
    std::unique_ptr<Packer> packer;
  };
  std::vector<Evaluation> evaluations;
  std::string export_target;
  nlohmann::ordered_json layout;  // that `parallel: auto` has chosen; null: it was given

  // Of all inputs; which tokenizer an export gets.
  std::string DataFingerprint() const;
  const std::string& TokenizerDirectory() const { return shards[0]->tokenizer_directory(); }
};

// Adds all that is wrong; without problems the result can be trained.
Setup ReadSetup(const std::string& config_path, Problems& problems);

}  // namespace muster::trainer
