#include "trainer/loop/resume.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/data/packing.h"
#include "trainer/model/init.h"
#include "trainer/model/lora.h"
#include "trainer/model/reward.h"

namespace muster::trainer {
namespace {

using nlohmann::ordered_json;

// Weights without a checkpoint: adapters and models are drawn, or come from `init`.
void BeginWithout(const Setup& setup, Engine& engine) {
  const auto seed = static_cast<uint64_t>(setup.config.seed);
  for (const std::unique_ptr<FlatParam>& flat : engine.flats()) {
    if (setup.config.lora.on())
      InitialiseAdapters(*flat, seed);
    else if (setup.init_weights != nullptr)
      setup.init_weights->Read(*flat);
    else
      InitialiseMasters(*flat, seed, setup.model.initializer_range, setup.model.norms_from_one);
    if (setup.model.score && !setup.init_weights->Has(kScoreName))
      DrawParameter(*flat, kScoreName, seed, setup.model.initializer_range);
  }
}

Problems WhyAnother(const Setup& setup, const Checkpoint& checkpoint) {
  const CheckpointMeta& meta = checkpoint.meta();
  Problems problems;
  const std::vector<std::string> other =
      ParseModelConfig(meta.model, "model", false, problems).DifferencesFrom(setup.model);
  problems.clear();
  if (!other.empty()) {
    problems.push_back(
        {setup.config.model ? "trainer.model" : "trainer.init",
         absl::StrCat(
             "is another model than that of ", checkpoint.path(), ", whose ",
             absl::StrJoin(other, "; "),
             "; give the model that was trained, or a new place for this one's checkpoints")});
  }
  if (meta.step > setup.config.max_steps) {
    problems.push_back(
        {"trainer.max_steps",
         absl::StrCat(setup.config.max_steps, " is below the step of ", checkpoint.path(), ", ",
                      meta.step,
                      "; raise it, or resume from an earlier checkpoint. `muster-trainer export` "
                      "writes this one's model as it is")});
  }
  return problems;
}

// Whether a changed field ("seed: 1 -> 2") says which rows a step takes.
bool ChangesRows(const std::string& changed) {
  const std::string key = changed.substr(0, changed.find(':'));
  return key == "seed" || key == "packing" || key == "document_mask" || key == "max_length" ||
         key == "max_row_length" || key == "global_batch_size";
}

// On the rank that leads.
void TellWhatChanged(const Setup& setup, const Checkpoint& checkpoint) {
  const CheckpointMeta& meta = checkpoint.meta();
  if (meta.trainer.is_object()) {
    if (const std::vector<std::string> changed = ChangedFields(meta.trainer, setup.trainer);
        !changed.empty()) {
      const bool other_rows =
          meta.step > 0 && std::any_of(changed.begin(), changed.end(), ChangesRows);
      std::fprintf(stderr, "note: changed since %s: %s%s\n", checkpoint.path().c_str(),
                   absl::StrJoin(changed, ", ").c_str(),
                   other_rows ? " (the rows that steps take are others)" : "");
    }
  }
  if (meta.step == 0) return;
  if (meta.data_fingerprint != setup.DataFingerprint())
    std::fprintf(stderr, "note: the data is not what %s was trained on\n",
                 checkpoint.path().c_str());
  if (meta.packing_version != kPackingVersion)
    std::fprintf(stderr, "note: %s was packed by version %d: the data's order is another\n",
                 checkpoint.path().c_str(), meta.packing_version);
}

void TellLoaded(const Beginning& beginning, const std::vector<SkippedCheckpoint>& skipped,
                Progress& progress) {
  std::fprintf(stderr, "resumed from %s at step %lld\n", beginning.path.c_str(),
               static_cast<long long>(beginning.state.step));
  ordered_json loaded = {
      {"step", beginning.state.step}, {"path", beginning.path}, {"skipped", ordered_json::array()}};
  for (const SkippedCheckpoint& one : skipped)
    loaded["skipped"].push_back({{"path", one.path}, {"why", one.why}});
  progress.Send({{"loaded", loaded}}, Progress::kDurable);
}

}  // namespace

Beginning LoadWeights(const Setup& setup, World& world, Engine& engine, Progress& progress) {
  const bool leads = world.rank() == 0;
  LoadOutcome outcome = OpenNewest(world, setup.surroundings.resume_from, engine.flats());
  for (const SkippedCheckpoint& skipped : outcome.skipped) {
    if (leads)
      std::fprintf(stderr, "checkpoint refused: %s: %s\n", skipped.path.c_str(),
                   skipped.why.c_str());
  }
  TORCH_CHECK(outcome.checkpoint != nullptr || outcome.skipped.empty(),
              "none of the checkpoints to resume from can be used; start the job anew to begin "
              "without one");
  if (setup.config.lora.on()) {
    for (const std::unique_ptr<FlatParam>& flat : engine.model_flats())
      setup.init_weights->Read(*flat);
  }
  Beginning beginning;
  if (outcome.checkpoint == nullptr) {
    BeginWithout(setup, engine);
    return beginning;
  }
  const Checkpoint& checkpoint = *outcome.checkpoint;
  beginning.path = checkpoint.path();
  beginning.problems = WhyAnother(setup, checkpoint);
  if (!beginning.problems.empty()) return beginning;
  if (leads) TellWhatChanged(setup, checkpoint);
  std::string error;
  for (const std::unique_ptr<FlatParam>& flat : engine.flats()) {
    if (absl::Status s = checkpoint.Read(*flat); !s.ok() && error.empty())
      error = std::string(s.message());
  }
  for (const std::string& one : world.GatherTexts(error))
    TORCH_CHECK(one.empty(), "cannot read ", checkpoint.path(), ": ", one);
  const CheckpointMeta& meta = checkpoint.meta();
  beginning.state = {meta.step, meta.next_sequence, meta.recent_losses};
  if (leads) TellLoaded(beginning, outcome.skipped, progress);
  return beginning;
}

}  // namespace muster::trainer
