#include "trainer/loop/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <system_error>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/checksum.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/loop/exchange.h"
#include "trainer/loop/stop.h"
#include "trainer/model/pairs.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;

constexpr char kTensor[] = "logps";
constexpr char kFolder[] = "reference-logps";
constexpr int kVersion = 1;  // of how they are computed
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::span<const uint8_t> BytesOf(const Logps& logps) {
  return {reinterpret_cast<const uint8_t*>(logps.data()), logps.size() * sizeof(logps[0])};
}

Logps FromBytes(std::span<const uint8_t> bytes) {
  Logps logps(bytes.size() / sizeof(Logps::value_type));
  std::memcpy(static_cast<void*>(logps.data()), bytes.data(), logps.size() * sizeof(logps[0]));
  return logps;
}

std::string Digest(const Logps& logps) {
  Sha256 hash;
  hash.Add(BytesOf(logps));
  return hash.Hex();
}

// What rank 0 has, on all ranks; nothing where it has nothing.
std::optional<Logps> Share(World& world, const std::optional<Logps>& mine) {
  std::string text;
  if (mine) {
    const std::span<const uint8_t> bytes = BytesOf(*mine);
    text = absl::StrCat("+", std::string(bytes.begin(), bytes.end()));
  }
  text = world.Broadcast(text);
  if (text.empty()) return std::nullopt;
  return FromBytes({reinterpret_cast<const uint8_t*>(text.data()) + 1, text.size() - 1});
}

// Adds what this rank and others know of these micro-batches' pairs. Ranks of one slice, and of
// stages without a head, know the same or nothing.
void Collect(World& world, const std::vector<BatchMeta>& batches, Logps& logps) {
  std::vector<double> mine;
  for (const BatchMeta& batch : batches) {
    const PairLogps& its = batch.pairs->reference;
    const bool known = its.chosen.defined();
    const at::Tensor chosen = known ? its.chosen.cpu() : at::Tensor();
    const at::Tensor rejected = known ? its.rejected.cpu() : at::Tensor();
    for (size_t row = 0; row < batch.pairs->pairs.size(); ++row) {
      mine.push_back(static_cast<double>(known ? batch.pairs->pairs[row] : -1));
      mine.push_back(known ? chosen.data_ptr<double>()[row] : kNone);
      mine.push_back(known ? rejected.data_ptr<double>()[row] : kNone);
    }
  }
  // Of sums as trees, a rank without a part has fewer rows (CutBatch).
  double most = 0;
  for (const std::vector<double>& one : world.GatherRows({static_cast<double>(mine.size())}))
    most = std::max(most, one[0]);
  mine.resize(static_cast<size_t>(most), -1);
  for (const std::vector<double>& one : world.GatherRows(mine)) {
    for (size_t at = 0; at < one.size(); at += 3) {
      if (one[at] >= 0) logps[static_cast<size_t>(one[at])] = {one[at + 1], one[at + 2]};
    }
  }
}

std::optional<Logps> Compute(const Setup& setup, World& world, Engine& engine,
                             const TokenShards& shards, BatchReader& reader, int64_t rows) {
  for (const std::unique_ptr<FlatParam>& flat : engine.model_flats())
    setup.init_weights->Read(*flat);
  Logps logps(shards.num_documents() / 2, {kNone, kNone});
  for (int64_t first = 0; first < rows; first += setup.config.global_batch_size) {
    const absl::StatusOr<StepBatches> batches = reader.Read(first);
    TORCH_CHECK(batches.ok(), std::string(batches.status().message()));
    engine.FindReference(batches->micro);
    Collect(world, batches->micro, logps);
    if (OnAny(world, StopRequested())) return std::nullopt;
  }
  return logps;
}

}  // namespace

std::string ReferenceKey(const Setup& setup, const TokenShards& shards) {
  std::string all = absl::StrCat(kVersion, " ", shards.fingerprint(), " ", setup.config.max_length,
                                 " ", setup.config.dtype);
  const TrainConfig& config = setup.config;
  if (config.matmul != "dtype") absl::StrAppend(&all, " ", config.matmul);
  // What makes their bits where those are to be the same: who is together in a micro-batch, and how
  // layers are shared out.
  if (config.deterministic == Determinism::kElastic)
    absl::StrAppend(&all, " elastic ", config.micro_batch_size, " ", config.global_batch_size, " ",
                    config.seed, " ", config.parallel.tp, " ", config.parallel.ep);
  std::vector<std::string> files;
  std::error_code unknown;  // files that go meanwhile are told of by who reads them
  for (const fs::directory_entry& file : fs::directory_iterator(setup.init_directory, unknown)) {
    const std::string name = file.path().filename().string();
    if (file.path().extension() != ".safetensors" && name != "config.json") continue;
    files.push_back(absl::StrCat("\n", name, " ", file.file_size(unknown), " ",
                                 file.last_write_time(unknown).time_since_epoch().count()));
  }
  std::sort(files.begin(), files.end());
  for (const std::string& one : files) all += one;
  return Sha256Hex(all);
}

std::string ReferencePath(const Setup& setup, const std::string& key) {
  return absl::StrCat(setup.surroundings.Resolve(kFolder), "/", key.substr(0, 16), ".safetensors");
}

absl::StatusOr<Logps> ReadReference(const std::string& path, const std::string& key,
                                    int64_t pairs) {
  if (!fs::exists(path)) return absl::NotFoundError(path);
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  const SafetensorsHeader& header = file->header();
  const auto said = [&](const char* name) {
    const auto found = header.metadata.find(name);
    return found == header.metadata.end() ? "" : found->second;
  };
  const auto tensor = header.tensors.find(kTensor);
  if (tensor == header.tensors.end() || tensor->second.dtype != "F64" ||
      tensor->second.shape != std::vector<int64_t>{pairs, 2} || said("key") != key)
    return absl::DataLossError(absl::StrCat(path, " is of other pairs or weights"));
  Logps logps = FromBytes(file->Data(tensor->second));
  if (said("sha256") != Digest(logps))
    return absl::DataLossError(absl::StrCat(path, " does not match its sha256"));
  return logps;
}

absl::Status WriteReference(const std::string& path, const std::string& key, const Logps& logps) {
  if (absl::Status s = MakeDirectories(fs::path(path).parent_path().string()); !s.ok()) return s;
  return WriteSafetensors(
             path, {{kTensor, "F64", {static_cast<int64_t>(logps.size()), 2}, BytesOf(logps)}},
             {{"key", key}, {"sha256", Digest(logps)}})
      .status();
}

std::optional<Logps> MakeReference(const Setup& setup, World& world, Engine& engine,
                                   const TokenShards& shards, BatchReader& reader, int64_t rows) {
  const bool leads = world.rank() == 0;
  const std::string key = leads ? ReferenceKey(setup, shards) : "";
  const std::string path = leads ? ReferencePath(setup, key) : "";
  std::optional<Logps> kept;
  if (leads) {
    absl::StatusOr<Logps> read = ReadReference(path, key, shards.num_documents() / 2);
    if (read.ok()) {
      kept = *std::move(read);
      std::fprintf(stderr, "reference log-probabilities of %s\n", path.c_str());
    } else if (!absl::IsNotFound(read.status())) {
      std::fprintf(stderr, "note: %s; they are computed anew\n",
                   std::string(read.status().message()).c_str());
    }
  }
  if (std::optional<Logps> shared = Share(world, kept)) return shared;
  if (leads)
    std::fprintf(stderr, "computing reference log-probabilities of %lld pairs\n",
                 static_cast<long long>(rows));
  std::optional<Logps> logps = Compute(setup, world, engine, shards, reader, rows);
  const absl::Status written =
      leads && logps ? WriteReference(path, key, *logps) : absl::OkStatus();
  if (!written.ok())
    std::fprintf(
        stderr,
        "note: reference log-probabilities can't be kept (%s); a run that goes on computes "
        "them anew, from init\n",
        std::string(written.message()).c_str());
  return logps;
}

void GiveReference(const Logps& logps, const std::vector<BatchMeta>& batches) {
  for (const BatchMeta& batch : batches) {
    PairBatch& pairs = *batch.pairs;
    const auto rows = static_cast<int64_t>(pairs.pairs.size());
    const at::Tensor chosen = at::zeros({rows}, at::kDouble), rejected = at::zeros_like(chosen);
    for (int64_t row = 0; row < rows; ++row) {
      if (pairs.pairs[row] < 0) continue;
      std::tie(chosen.data_ptr<double>()[row], rejected.data_ptr<double>()[row]) =
          logps.at(static_cast<size_t>(pairs.pairs[row]));
    }
    pairs.reference = {chosen.to(pairs.shares.device()), rejected.to(pairs.shares.device())};
  }
}

}  // namespace muster::trainer
