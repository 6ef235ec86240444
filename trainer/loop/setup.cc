#include "trainer/loop/setup.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checksum.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/objects.h"
#include "trainer/checkpoint/push.h"
#include "trainer/data/batches.h"
#include "trainer/loop/guard.h"
#include "trainer/loop/progress.h"
#include "trainer/model/family.h"
#include "trainer/model/init.h"
#include "trainer/model/lora.h"
#include "trainer/parallel/engine.h"

namespace muster::trainer {

namespace fs = std::filesystem;
using nlohmann::json;

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Without a slash at its end: what lies beside a directory is named after it.
std::string Surroundings::Resolve(const std::string& path) const {
  std::string resolved = fs::path(path).is_absolute() || job_directory.empty()
                             ? fs::absolute(path).lexically_normal().string()
                             : (fs::path(job_directory) / path).lexically_normal().string();
  while (resolved.size() > 1 && resolved.back() == '/') resolved.pop_back();
  return resolved;
}

std::string Setup::DataFingerprint() const {
  if (shards.size() == 1) return shards[0]->fingerprint();
  std::string all;
  for (const MixturePart& part : config.mixture) absl::StrAppend(&all, part.weight, " ");
  for (const auto& one : shards) absl::StrAppend(&all, one->fingerprint());
  return Sha256Hex(all);
}

namespace {

// Why `path` can't be looked at, as where a folder above it may not be entered; "": it can, or it
// isn't there.
std::string WhyHidden(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error) || !error ? "" : error.message();
}

Surroundings ReadSurroundings(Problems& problems) {
  Surroundings s;
  s.job_directory = Env("MUSTER_JOB_DIR");
  s.checkpoint_directory = Env("MUSTER_CHECKPOINT_DIR");
  s.export_staging = Env("MUSTER_EXPORT_STAGING");
  s.requests = Env("MUSTER_REQUEST_DIR");
  while (IsObject(s.checkpoint_directory) && s.checkpoint_directory.back() == '/')
    s.checkpoint_directory.pop_back();
  s.resume_from = absl::StrSplit(Env("MUSTER_RESUME_FROM"), ',', absl::SkipWhitespace());
  if (const std::string text = Env("MUSTER_CHECKPOINT_INTERVAL_S"); !text.empty()) {
    if (!absl::SimpleAtod(text, &s.checkpoint_interval_s) || !(s.checkpoint_interval_s >= 0)) {
      problems.push_back({"MUSTER_CHECKPOINT_INTERVAL_S",
                          absl::StrCat("must be a number of seconds; got ", text)});
    }
  }
  if (const std::string text = Env("MUSTER_CHECKPOINT_KEEP"); !text.empty()) {
    if (!absl::SimpleAtoi(text, &s.checkpoint_keep) || s.checkpoint_keep < 1) {
      problems.push_back(
          {"MUSTER_CHECKPOINT_KEEP", absl::StrCat("must be a whole number from 1; got ", text)});
    }
  }
  return s;
}

// Where checkpoints go, and where the run goes on from if nobody said.
void FindCheckpoints(const TrainConfig& config, Surroundings& s, Problems& problems) {
  if (!config.checkpoints.empty()) {
    s.checkpoint_directory = config.checkpoints;
    while (s.checkpoint_directory.ends_with('/')) s.checkpoint_directory.pop_back();
    // Attempts don't write over each other's.
    for (const char* name : {"MUSTER_JOB", "MUSTER_TASK", "MUSTER_ATTEMPT"}) {
      if (const std::string part = Env(name); !part.empty())
        absl::StrAppend(&s.checkpoint_directory, "/", part);
    }
  }
  // Started by hand again in the same place: go on from there.
  if (std::getenv("MUSTER_RESUME_FROM") != nullptr || s.checkpoint_directory.empty()) return;
  absl::Status status;
  s.resume_from = ListCheckpoints(s.checkpoint_directory, &status);
  if (status.ok()) return;
  const std::string why = absl::StrCat("can't be listed: ", std::string(status.message()));
  if (IsObject(s.checkpoint_directory))
    problems.push_back({"trainer.checkpoints", why});
  else
    problems.push_back(
        {"MUSTER_CHECKPOINT_DIR",
         absl::StrCat(s.checkpoint_directory, " ", why,
                      "; see that it is a directory that may be read and written, or name "
                      "another")});
}

// Whether `given`, under `path`, is a URL; says then what to do instead.
bool RefuseUrl(const std::string& given, const std::string& path, Problems& problems) {
  if (given.find("://") == std::string::npos) return false;
  problems.push_back({path, absl::StrCat(given,
                                         ": a directory is wanted, as every rank maps its files; "
                                         "fetch it to one that all hosts of the job have, "
                                         "such as in a first task of the job")});
  return true;
}

void CheckInit(Setup& setup, Problems& problems) {
  if (RefuseUrl(setup.config.init, "trainer.init", problems)) return;
  const std::string directory = setup.surroundings.Resolve(setup.config.init);
  if (const std::string why = WhyHidden(directory); !why.empty()) {
    problems.push_back({"trainer.init", absl::StrCat(directory, " can't be looked at: ", why,
                                                     "; see that this user may read it")});
    return;
  }
  if (!fs::is_directory(directory)) {
    problems.push_back(
        {"trainer.init", absl::StrCat(directory,
                                      " is no directory. Names on a hub are not supported yet: "
                                      "give a Hugging Face directory")});
    return;
  }
  absl::StatusOr<std::string> text = ReadFile(directory + "/config.json");
  const absl::StatusOr<json> parsed =
      text.ok() ? ParseJson(*text, directory + "/config.json") : text.status();
  if (!parsed.ok() || !parsed->is_object()) {
    problems.push_back(
        {"trainer.init",
         !text.ok()
             ? absl::StrCat(directory, "/config.json is missing; give a Hugging Face directory")
         : !parsed.ok()
             ? absl::StrCat(std::string(parsed.status().message()), "; copy or download it again")
             : absl::StrCat(directory,
                            "/config.json is no JSON object; copy or download it again")});
    return;
  }
  const json content =
      WithoutQuantization(*parsed, setup.config.quantize, "trainer.init/config.json", problems);
  const size_t before = problems.size();
  std::vector<std::string> ignored;
  setup.model =
      ParseModelConfig(content, "trainer.init/config.json", /*strict=*/false, problems, &ignored);
  for (const std::string& key : ignored)
    std::fprintf(stderr, "trainer.init/config.json: %s is not known and ignored\n", key.c_str());
  if (problems.size() > before) return;
  const bool draws_score = setup.config.reward.on() && !setup.model.score;
  setup.model.score |= setup.config.reward.on();
  setup.init_directory = directory;
  setup.init_weights = std::make_shared<HuggingFaceWeights>(HuggingFaceWeights::Open(
      directory, MakeLayout(setup.model, {.linears_apart = setup.config.quantize.on}).flats,
      setup.model.tie_word_embeddings, "trainer.init", problems, setup.config.quantize.nested,
      draws_score));
}

// What a token costs beside attention, in pairs of tokens that attend: 2 flops a weight against 4 a
// layer's query width.
int64_t LinearWork(const ModelConfig& model) {
  const int64_t pair = 2 * model.num_layers * model.num_heads * model.head_dim;
  const int64_t weights = model.NumActiveParameters() -
                          (model.tie_word_embeddings ? 0 : model.vocab_size * model.hidden_size);
  return std::max<int64_t>(1, pair > 0 ? weights / pair : 1);
}

// Opens `directory` and packs it; adds what is wrong under `path`.
std::unique_ptr<TokenShards> OpenData(const Setup& setup, const std::string& directory,
                                      const PackingOptions& options, const std::string& path,
                                      std::unique_ptr<Packer>& packer, Problems& problems) {
  absl::StatusOr<TokenShards> opened = TokenShards::Open(directory);
  if (!opened.ok()) {
    problems.push_back({path, std::string(opened.status().message())});
    return nullptr;
  }
  auto shards = std::make_unique<TokenShards>(*std::move(opened));
  if (shards->has_pairs() != (options.kind == "pairs")) {
    const char* kind = setup.config.dpo.on() ? "dpo" : "reward";
    problems.push_back(
        {path, shards->has_pairs()
                   ? absl::StrCat(directory,
                                  " holds pairs of a chosen and a rejected answer, which dpo: {} "
                                  "and reward: {} train on; add one of them, or prepare prompts "
                                  "with completions")
                   : absl::StrCat(directory, " holds no pairs, which ", kind,
                                  " trains on; prepare records with prompt, chosen and rejected, "
                                  "or leave ",
                                  kind, " out")});
    return shards;
  }
  if (options.max_length > 0) {
    absl::StatusOr<std::unique_ptr<Packer>> made = Packer::Make(shards.get(), options);
    if (made.ok())
      packer = *std::move(made);
    else
      problems.push_back(
          {path, absl::StrCat(directory, ": ", std::string(made.status().message()))});
  }
  // No model could be read where its vocabulary is empty; that is said already.
  if (setup.model.vocab_size > 1 && shards->vocab_size() > setup.model.vocab_size) {
    problems.push_back({setup.config.model ? "trainer.model.vocab_size" : "trainer.init",
                        absl::StrCat("vocab_size ", setup.model.vocab_size, " is below that of ",
                                     directory, ", ", shards->vocab_size())});
  }
  return shards;
}

void CheckData(Setup& setup, Problems& problems) {
  const TrainConfig& config = setup.config;
  PackingOptions options{config.RowKind(),
                         config.document_mask,
                         config.max_length,
                         static_cast<uint64_t>(config.seed),
                         config.max_row_length,
                         config.global_batch_size,
                         1};
  if (setup.model.vocab_size > 1) options.linear_work = LinearWork(setup.model);
  options.scored = config.reward.on();
  if (const json pad = setup.model.token_ids.value("pad_token_id", json()); pad.is_number_integer())
    options.pad_token = pad.get<int64_t>();
  std::vector<std::unique_ptr<Packer>> packers;
  std::vector<double> weights;
  for (const MixturePart& part : config.Parts()) {
    const std::string path = config.mixture.empty()
                                 ? "trainer.data"
                                 : absl::StrCat("trainer.mixture[", packers.size(), "].data");
    if (RefuseUrl(part.data, path, problems)) return;
    setup.shards.push_back(OpenData(setup, setup.surroundings.Resolve(part.data), options, path,
                                    packers.emplace_back(), problems));
    weights.push_back(part.weight);
    options.seed += 0x9E3779B97F4A7C15ull;  // each part in an order of its own
  }
  if (packers.size() == 1) setup.packer = std::move(packers[0]);
  if (packers.size() > 1 && problems.empty())
    setup.packer = MixPackers(std::move(packers), weights);
  if (setup.model.vocab_size > 1 && config.max_length > setup.model.max_position_embeddings) {
    problems.push_back(
        {"trainer.max_length",
         absl::StrCat(
             config.max_length, " is above the model's max_position_embeddings, ",
             setup.model.max_position_embeddings, "; use at most that",
             config.model
                 ? ", or raise it in trainer.model"
                 : ", or lengthen the model's context by a RoPE scaling in its config.json")});
  }
  if (config.eval_interval == 0) return;
  // Every evaluation takes the same rows in the same order.
  options.seed = static_cast<uint64_t>(config.seed);
  if (options.kind == "balanced") options.kind = "bfd";
  const auto evaluate_on = [&](const std::string& directory, const std::string& path) {
    Setup::Evaluation& one = setup.evaluations.emplace_back();
    one.shards = OpenData(setup, directory, options, path, one.packer, problems);
  };
  if (RefuseUrl(config.eval_data, "trainer.eval_data", problems)) return;
  if (!config.eval_data.empty())
    return evaluate_on(setup.surroundings.Resolve(config.eval_data), "trainer.eval_data");
  for (const MixturePart& part : config.Parts()) {
    const std::string directory = setup.surroundings.Resolve(part.data) + "/validation";
    std::error_code hidden;  // what can't be looked at is told of where the data is opened
    if (fs::exists(directory + "/index.json", hidden))
      evaluate_on(directory, "trainer.eval_interval");
  }
  if (setup.evaluations.empty()) {
    problems.push_back({"trainer.eval_interval",
                        "the data has no validation split; make one with `muster-trainer prepare "
                        "--validation-share 0.01`, or give eval_data"});
  }
}

// What the job reads and writes that no export may remove, and what it is.
std::vector<std::pair<const char*, std::string>> OwnDirectories(const Setup& setup) {
  const Surroundings& s = setup.surroundings;
  std::vector<std::pair<const char*, std::string>> own;
  for (const MixturePart& part : setup.config.Parts())
    own.emplace_back("the data", s.Resolve(part.data));
  if (!setup.config.eval_data.empty())
    own.emplace_back("eval_data", s.Resolve(setup.config.eval_data));
  if (!setup.init_directory.empty()) own.emplace_back("init", setup.init_directory);
  if (!s.checkpoint_directory.empty() && !IsObject(s.checkpoint_directory))
    own.emplace_back("the checkpoints", s.checkpoint_directory);
  own.emplace_back("the job", s.Resolve("."));
  return own;
}

// An export goes to its target by way of a directory beside it, and what was there by another one
// (WriteExport, ReplaceDirectory): whatever lies in these goes away.
void CheckWhatGoesAway(const Setup& setup, Problems& problems) {
  for (const auto& [what, directory] : OwnDirectories(setup)) {
    for (const char* beside : {"", ".staging.unfinished", ".replaced"}) {
      const std::string goes = setup.export_target + beside;
      if (!IsAtOrAbove(goes, directory)) continue;
      problems.push_back(
          {"trainer.export",
           absl::StrCat(goes, " is the directory of ", what, ", ", directory,
                        ", or holds it, and the export would remove it; name another directory")});
      return;
    }
  }
}

void CheckExport(Setup& setup, Problems& problems) {
  if (setup.config.export_dir.empty()) return;
  if (setup.config.export_dir.find("://") != std::string::npos) {  // checked already
    setup.export_target = PlaceOf(setup.config.export_dir);
    return;
  }
  setup.export_target = setup.surroundings.Resolve(setup.config.export_dir);
  if (const std::string why = WhyHidden(setup.export_target); !why.empty()) {
    problems.push_back(
        {"trainer.export", absl::StrCat(setup.export_target, " can't be looked at: ", why,
                                        "; name a directory that this user may write")});
    return;
  }
  std::error_code hidden;  // what can't be listed is no earlier export
  if (!setup.init_directory.empty() &&
      DirectoriesOverlap(setup.export_target, setup.init_directory)) {
    problems.push_back(
        {"trainer.export",
         absl::StrCat(setup.export_target, " is the directory of init, ", setup.init_directory,
                      ", or holds it or lies in it: the export would replace what a run that goes "
                      "on later begins with; name a directory apart from it")});
    return;
  }
  if (fs::exists(setup.export_target) &&
      !(fs::is_directory(setup.export_target) &&
        (fs::is_empty(setup.export_target, hidden) ||
         fs::exists(setup.export_target + "/config.json", hidden)))) {
    problems.push_back(
        {"trainer.export", absl::StrCat(setup.export_target,
                                        " exists and is no earlier export; name a new directory")});
    return;
  }
  CheckWhatGoesAway(setup, problems);
}

}  // namespace

Setup ReadSetup(const std::string& config_path, Problems& problems) {
  Setup setup;
  absl::StatusOr<std::string> text = ReadFile(config_path);
  if (!text.ok()) {
    problems.push_back({"--config", std::string(text.status().message())});
    return setup;
  }
  absl::StatusOr<json> parsed = ParseJson(*text, config_path);
  if (!parsed.ok()) {
    problems.push_back({"--config", std::string(parsed.status().message())});
    return setup;
  }
  setup.trainer = *std::move(parsed);
  if (!setup.trainer.is_object()) {
    problems.push_back(
        {"--config",
         absl::StrCat(config_path, " is not a JSON object; it holds the trainer: map as JSON")});
    return setup;
  }
  setup.surroundings = ReadSurroundings(problems);
  setup.config = ParseTrainConfig(setup.trainer, problems);
  FindCheckpoints(setup.config, setup.surroundings, problems);
  if (setup.config.model)
    setup.model = ParseModelConfig(*setup.config.model, "trainer.model", /*strict=*/true, problems);
  if (!setup.config.init.empty()) CheckInit(setup, problems);
  if (!setup.config.lora.target_modules.empty() && setup.model.num_layers > 0)
    TargetModules(setup.model, setup.config.lora, "trainer.lora", problems);
  if (!setup.config.Parts().empty()) CheckData(setup, problems);
  CheckExport(setup, problems);
  if (setup.config.save_steps > 0 && setup.surroundings.checkpoint_directory.empty()) {
    problems.push_back(
        {"trainer.save_steps",
         "needs a place for checkpoints: set MUSTER_CHECKPOINT_DIR, as Muster does"});
  }
  return setup;
}

}  // namespace muster::trainer
