#include "trainer/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/checksum.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kFormat[] = "muster-checkpoint-1";
constexpr const char* kKinds[] = {"master", "exp_avg", "exp_avg_sq"};

std::string FlatTensorName(int flat, const char* kind) { return absl::StrCat("flat.", flat, ".", kind); }

std::string RankFileName(int rank, int size) {
  char name[64];
  std::snprintf(name, sizeof name, "rank-%05d-of-%05d.safetensors", rank, size);
  return name;
}

std::span<const uint8_t> Bytes(const at::Tensor& host) {
  return {static_cast<const uint8_t*>(host.data_ptr()), static_cast<size_t>(host.nbytes())};
}

absl::StatusOr<WrittenFile> WriteRankFile(const World& world, const Flats& flats, const std::string& directory) {
  std::vector<at::Tensor> host;  // keeps the bytes alive
  std::vector<SafetensorsTensor> tensors;
  for (size_t i = 0; i < flats.size(); ++i) {
    FlatParam& flat = *flats[i];
    const at::Tensor* owned[] = {&flat.masters(), &flat.exp_avg(), &flat.exp_avg_sq()};
    for (int kind = 0; kind < 3; ++kind) {
      host.push_back(flat.OfShard(*owned[kind]).cpu().contiguous());
      tensors.push_back({FlatTensorName(static_cast<int>(i), kKinds[kind]), "F32", {host.back().numel()}, Bytes(host.back())});
    }
  }
  return WriteSafetensors(directory + "/" + RankFileName(world.rank(), world.size()), tensors, {{"format", kFormat}});
}

// Global tensor -> flat ranges, from the layouts alone.
json TensorMap(const Flats& flats, int size) {
  json map = json::object();
  for (size_t f = 0; f < flats.size(); ++f) {
    const FlatLayout& layout = flats[f]->layout();
    const int64_t shard = layout.PaddedNumel(size) / size;
    for (int rank = 0; rank < size; ++rank) {
      for (const SegmentPiece& piece : PiecesIn(layout, rank * shard, (rank + 1) * shard)) {
        const Segment& segment = layout.segments()[piece.segment];
        json& entry = map[segment.name];
        entry["shape"] = segment.shape;
        entry["pieces"].push_back(
            {{"file", rank}, {"flat", f}, {"tensor_begin", piece.segment_begin}, {"file_begin", piece.range_begin}, {"numel", piece.numel}});
      }
    }
  }
  return map;
}

std::string IndexText(json index) {
  index.erase("crc32c");
  const std::string body = index.dump();
  index["crc32c"] = Crc32c(body.data(), body.size());
  return index.dump(1) + "\n";
}

}  // namespace

std::string CheckpointName(int64_t step) {
  char name[64];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

absl::Status SaveCheckpoint(World& world, const Flats& flats, const CheckpointMeta& meta, const std::string& parent) {
  const std::string directory = parent + "/" + CheckpointName(meta.step);
  absl::Status status = MakeDirectories(directory);
  absl::StatusOr<WrittenFile> written = status.ok() ? WriteRankFile(world, flats, directory) : status;
  const auto rows = world.GatherRows({written.ok() ? 1.0 : 0.0, written.ok() ? static_cast<double>(written->size_bytes) : 0.0,
                                      written.ok() ? static_cast<double>(written->crc32c) : 0.0});
  const bool all = std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row[0] == 1; });
  if (all && world.rank() == 0) {
    json index = {{"format", kFormat}, {"step", meta.step}, {"next_sequence", meta.next_sequence}, {"world_size", world.size()},
                  {"zero_stage", meta.zero_stage}, {"dtype", meta.dtype}, {"seed", meta.seed}, {"packing_version", meta.packing_version},
                  {"data_fingerprint", meta.data_fingerprint}, {"model", meta.model}, {"trainer", meta.trainer}};
    for (int r = 0; r < world.size(); ++r) {
      index["files"].push_back({{"name", RankFileName(r, world.size())},
                                {"size_bytes", static_cast<uint64_t>(rows[r][1])},
                                {"crc32c", static_cast<uint32_t>(rows[r][2])}});
    }
    index["tensors"] = TensorMap(flats, world.size());
    status = WriteFileDurably(directory + "/index.json", IndexText(std::move(index)));
    if (status.ok()) status = SyncDirectory(parent);
  }
  const std::string mine = !written.ok() ? std::string(written.status().message()) : status.ok() ? "" : std::string(status.message());
  const std::vector<std::string> errors = world.GatherTexts(mine);
  for (size_t r = 0; r < errors.size(); ++r) {
    if (!errors[r].empty()) return absl::UnavailableError(absl::StrCat("rank ", r, ": ", errors[r]));
  }
  return absl::OkStatus();
}

std::vector<std::string> ListCheckpoints(const std::string& parent) {
  std::vector<std::string> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error)) {
    if (absl::StartsWith(entry.path().filename().string(), "step-") && fs::exists(entry.path() / "index.json")) found.push_back(entry.path().string());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

void PruneCheckpoints(const std::string& parent, int keep) {
  const std::vector<std::string> published = ListCheckpoints(parent);
  if (static_cast<int>(published.size()) <= keep || keep < 1) return;
  const std::string oldest_kept = published[keep - 1];
  std::vector<std::string> old;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error)) {
    if (absl::StartsWith(entry.path().filename().string(), "step-") && entry.path().string() < oldest_kept) old.push_back(entry.path().string());
  }
  for (const std::string& path : old) {
    fs::remove(path + "/index.json", error);  // first: a half-removed checkpoint may not look published
    RemoveTree(path);
  }
}

absl::StatusOr<Checkpoint> Checkpoint::Parse(const std::string& path, const std::string& index_text) {
  json index = json::parse(index_text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object()) return absl::DataLossError("index.json is not a JSON object");
  try {
    if (index.at("format") != kFormat) return absl::DataLossError(absl::StrCat("index.json's format is not ", kFormat));
    const uint32_t told = index.at("crc32c").get<uint32_t>();
    index.erase("crc32c");
    const std::string body = index.dump();
    if (Crc32c(body.data(), body.size()) != told) return absl::DataLossError("index.json doesn't match its checksum");
    Checkpoint c;
    c.path_ = path;
    c.meta_.step = index.at("step").get<int64_t>();
    c.meta_.next_sequence = index.at("next_sequence").get<int64_t>();
    c.meta_.seed = index.at("seed").get<int64_t>();
    c.meta_.packing_version = index.at("packing_version").get<int>();
    c.meta_.data_fingerprint = index.at("data_fingerprint").get<std::string>();
    c.meta_.zero_stage = index.at("zero_stage").get<int>();
    c.meta_.dtype = index.at("dtype").get<std::string>();
    c.meta_.model = index.at("model");
    c.meta_.trainer = index.at("trainer");
    for (const json& file : index.at("files")) {
      c.files_.push_back({file.at("name").get<std::string>(), file.at("size_bytes").get<uint64_t>(), file.at("crc32c").get<uint32_t>()});
      if (c.files_.back().name.find('/') != std::string::npos) return absl::DataLossError("index.json names a file outside the checkpoint");
    }
    for (const auto& [name, value] : index.at("tensors").items()) {
      Tensor tensor;
      tensor.shape = value.at("shape").get<std::vector<int64_t>>();
      for (const json& p : value.at("pieces")) {
        const Piece piece{p.at("file").get<int>(), p.at("flat").get<int>(), p.at("tensor_begin").get<int64_t>(),
                          p.at("file_begin").get<int64_t>(), p.at("numel").get<int64_t>()};
        if (piece.file < 0 || piece.file >= static_cast<int>(c.files_.size()) || piece.tensor_begin < 0 || piece.file_begin < 0 || piece.numel < 1) {
          return absl::DataLossError(absl::StrCat("index.json has a bad piece of ", name));
        }
        tensor.pieces.push_back(piece);
      }
      c.tensors_.emplace(name, std::move(tensor));
    }
    c.open_.resize(c.files_.size());
    return c;
  } catch (const json::exception& e) {
    return absl::DataLossError(absl::StrCat("index.json is incomplete: ", e.what()));
  }
}

absl::StatusOr<const SafetensorsFile*> Checkpoint::OpenFile(int file) const {
  if (open_[file] == nullptr) {
    absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(path_ + "/" + files_[file].name);
    if (!opened.ok()) return opened.status();
    open_[file] = std::make_unique<SafetensorsFile>(*std::move(opened));
  }
  return open_[file].get();
}

absl::Status Checkpoint::VerifyFiles(int rank, int size) const {
  for (size_t i = static_cast<size_t>(rank); i < files_.size(); i += static_cast<size_t>(size)) {
    absl::StatusOr<MappedFile> file = MappedFile::Open(path_ + "/" + files_[i].name);
    if (!file.ok()) return file.status();
    const std::span<const uint8_t> bytes = file->bytes();
    if (bytes.size() != files_[i].size_bytes) {
      return absl::DataLossError(absl::StrCat(files_[i].name, " has ", bytes.size(), " bytes where index.json means ", files_[i].size_bytes));
    }
    if (Crc32c(bytes.data(), bytes.size()) != files_[i].crc32c) return absl::DataLossError(absl::StrCat(files_[i].name, " doesn't match its checksum"));
    if (absl::StatusOr<SafetensorsHeader> header = ParseSafetensors(bytes); !header.ok()) return header.status();
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(FlatParam& flat) const {
  at::Tensor* targets[] = {&flat.masters(), &flat.exp_avg(), &flat.exp_avg_sq()};
  for (int kind = 0; kind < 3; ++kind) {
    const at::Tensor host = at::zeros({flat.owned_end() - flat.owned_begin()}, at::kFloat);
    for (const SegmentPiece& want : PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
      const Segment& segment = flat.layout().segments()[want.segment];
      const auto tensor = tensors_.find(segment.name);
      if (tensor == tensors_.end() || tensor->second.shape != segment.shape) {
        return absl::FailedPreconditionError(absl::StrCat("it has no ", segment.name, " of this model's shape"));
      }
      int64_t filled = 0;
      for (const Piece& have : tensor->second.pieces) {
        const int64_t from = std::max(want.segment_begin, have.tensor_begin);
        const int64_t to = std::min(want.segment_begin + want.numel, have.tensor_begin + have.numel);
        if (from >= to) continue;
        absl::StatusOr<const SafetensorsFile*> file = OpenFile(have.file);
        if (!file.ok()) return file.status();
        const auto entry = (*file)->header().tensors.find(FlatTensorName(have.flat, kKinds[kind]));
        const int64_t file_from = have.file_begin + from - have.tensor_begin;
        if (entry == (*file)->header().tensors.end() || entry->second.dtype != "F32" ||
            static_cast<uint64_t>(file_from + to - from) * 4 > entry->second.end - entry->second.begin) {
          return absl::DataLossError(absl::StrCat(files_[have.file].name, " lacks a part of ", segment.name));
        }
        std::memcpy(host.data_ptr<float>() + want.range_begin + from - want.segment_begin,
                    (*file)->Data(entry->second).data() + file_from * 4, static_cast<size_t>(to - from) * 4);
        filled += to - from;
      }
      if (filled != want.numel) return absl::DataLossError(absl::StrCat("index.json covers ", segment.name, " in part only, or twice"));
    }
    targets[kind]->copy_(host);
  }
  flat.MarkStale();
  return absl::OkStatus();
}

LoadOutcome OpenNewest(World& world, const std::vector<std::string>& candidates) {
  LoadOutcome outcome;
  for (const std::string& path : candidates) {
    // Rank 0's view of the index counts, so that all ranks judge the same bytes.
    std::string text, mine;
    if (world.rank() == 0) {
      absl::StatusOr<std::string> read = ReadFile(path + "/index.json", size_t{1} << 30);
      if (read.ok()) text = *std::move(read);
      else mine = std::string(read.status().message());
    }
    text = world.Broadcast(text);
    std::unique_ptr<Checkpoint> checkpoint;
    if (mine.empty()) {
      absl::StatusOr<Checkpoint> parsed = Checkpoint::Parse(path, text);
      absl::Status status = parsed.status();
      if (status.ok()) {
        checkpoint = std::make_unique<Checkpoint>(*std::move(parsed));
        status = checkpoint->VerifyFiles(world.rank(), world.size());
      }
      if (!status.ok()) mine = std::string(status.message());
    }
    const std::vector<std::string> errors = world.GatherTexts(mine);
    const auto bad = std::find_if(errors.begin(), errors.end(), [](const std::string& e) { return !e.empty(); });
    if (bad == errors.end()) {
      outcome.checkpoint = std::move(checkpoint);
      return outcome;
    }
    outcome.skipped.push_back({path, *bad});
  }
  return outcome;
}

}  // namespace muster::trainer
