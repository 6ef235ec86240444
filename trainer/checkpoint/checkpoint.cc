#include "trainer/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "trainer/checkpoint/checksum.h"
#include "trainer/checkpoint/objects.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;

// Bytes of a file that are read and checked at once: so few that they are still in the CPU's cache
// when they are checked.
constexpr size_t kChunkBytes = size_t{256} << 10;

int64_t StepOf(const std::string& path) {
  int64_t step = -1;
  return absl::SimpleAtoi(absl::StripPrefix(fs::path(path).filename().string(), "step-"), &step)
             ? step
             : -1;
}

// Reads `part` of the file's bytes to `to`, or to nowhere, and continues `crc` over them. By reads:
// a disk's error passes the checkpoint over, where touching a mapped page would end the process.
absl::Status ReadAndCheck(const MappedFile& file, std::span<const uint8_t> part, uint8_t* to,
                          uint32_t& crc) {
  std::vector<uint8_t> scratch(to == nullptr ? std::min(kChunkBytes, part.size()) : 0);
  for (size_t at = 0; at < part.size(); at += kChunkBytes) {
    const std::span<const uint8_t> chunk =
        part.subspan(at, std::min(kChunkBytes, part.size() - at));
    uint8_t* out = to == nullptr ? scratch.data() : to + at;
    if (absl::Status s = file.Copy(chunk, out); !s.ok()) return s;
    crc = Crc32c(out, chunk.size(), crc);
  }
  return absl::OkStatus();
}

// That file `file`, whose header is `header`, has what the index says lies there: the index was
// checked against the file's size alone.
absl::Status CheckPieces(const CheckpointIndex& index, int file, const SafetensorsHeader& header) {
  const int kinds = index.meta.optimizer ? 3 : 1;
  for (const auto& [name, tensor] : index.tensors) {
    for (const CheckpointIndex::Piece& piece : tensor.pieces) {
      for (int kind = 0; piece.file == file && kind < kinds; ++kind) {
        const auto entry = header.tensors.find(FlatTensorName(piece.flat, kCheckpointKinds[kind]));
        if (entry == header.tensors.end() || entry->second.dtype != "F32" ||
            static_cast<uint64_t>(piece.file_begin + piece.numel) * 4 >
                entry->second.end - entry->second.begin)
          return absl::DataLossError(absl::StrCat("lacks a part of ", name));
      }
    }
  }
  return absl::OkStatus();
}

// The directories step-… in `parent`, all or those with an index.
std::vector<std::string> StepDirectories(const std::string& parent, bool published,
                                         absl::Status* status = nullptr) {
  std::set<std::string> found;
  const auto add = [&](const std::string& path, bool has_index) {
    if ((has_index || !published) &&
        absl::StartsWith(fs::path(path).filename().string(), "step-") && StepOf(path) >= 0)
      found.insert(path);
  };
  if (IsObject(parent)) {  // which has no directories
    const absl::StatusOr<std::vector<std::string>> objects = ObjectsBelow(parent);
    if (status != nullptr) *status = objects.status();
    for (const std::string& object : objects.ok() ? *objects : std::vector<std::string>()) {
      const size_t slash = object.rfind('/');
      if (slash > parent.size() && object.rfind('/', slash - 1) == parent.size())
        add(object.substr(0, slash), object.substr(slash + 1) == "index.json");
    }
  } else {
    std::error_code error, hidden;
    for (const fs::directory_entry& entry : fs::directory_iterator(parent, error))
      add(entry.path().string(), fs::exists(entry.path() / "index.json", hidden));
    if (status != nullptr && error && error != std::errc::no_such_file_or_directory)
      *status = absl::UnavailableError(error.message());
  }
  return {found.begin(), found.end()};
}

}  // namespace

std::vector<std::string> ListCheckpoints(const std::string& parent, absl::Status* status) {
  std::vector<std::string> found = StepDirectories(parent, /*published=*/true, status);
  std::sort(found.begin(), found.end(),
            [](const std::string& a, const std::string& b) { return StepOf(a) > StepOf(b); });
  return found;
}

void PruneCheckpoints(const std::string& parent, int keep, int64_t newest) {
  std::vector<std::string> published = ListCheckpoints(parent);
  std::erase_if(published, [&](const std::string& path) { return StepOf(path) > newest; });
  if (static_cast<int>(published.size()) <= keep || keep < 1) return;
  const int64_t oldest_kept = StepOf(published[keep - 1]);
  for (const std::string& path : StepDirectories(parent, /*published=*/false)) {
    if (StepOf(path) >= oldest_kept) continue;
    RemoveFile(path + "/index.json")
        .IgnoreError();  // first: a half-removed checkpoint may not look published
    RemoveTree(path);
  }
}

absl::StatusOr<Checkpoint> Checkpoint::Parse(const std::string& path,
                                             const std::string& index_text) {
  absl::StatusOr<CheckpointIndex> index = ReadIndex(index_text);
  if (!index.ok()) return index.status();
  Checkpoint c;
  c.path_ = path;
  c.index_ = *std::move(index);
  c.open_.resize(c.index_.files.size());
  c.read_.resize(c.index_.files.size());
  return c;
}

absl::StatusOr<const SafetensorsFile*> Checkpoint::OpenFile(int file) const {
  if (open_[file] == nullptr) {
    absl::StatusOr<SafetensorsFile> opened =
        SafetensorsFile::Open(path_ + "/" + index_.files[file].name);
    if (!opened.ok()) return opened.status();
    open_[file] = std::make_unique<SafetensorsFile>(*std::move(opened));
  }
  return open_[file].get();
}

std::vector<Checkpoint::Want> Checkpoint::WantsIn(int file, const SafetensorsHeader& header,
                                                  const Flats& flats) const {
  std::vector<Want> wants;
  for (const std::unique_ptr<FlatParam>& flat : flats) {
    const std::vector<SegmentPiece> pieces =
        PiecesIn(flat->layout(), flat->owned_begin(), flat->owned_end());
    for (int kind = 0; kind < (index_.meta.optimizer ? 3 : 1); ++kind) {
      const at::Tensor kept = flat->InPlace(static_cast<FlatParam::State>(kind));
      if (!kept.defined()) continue;
      for (const SegmentPiece& want : pieces) {
        const Segment& segment = flat->layout().segments()[want.segment];
        const auto tensor = index_.tensors.find(segment.name);
        if (tensor == index_.tensors.end() || tensor->second.shape != segment.parameter_shape())
          continue;  // Read says so
        for (const Piece& have : tensor->second.pieces) {
          if (have.file != file) continue;
          const auto entry = header.tensors.find(FlatTensorName(have.flat, kCheckpointKinds[kind]));
          if (entry == header.tensors.end() || entry->second.dtype != "F32") continue;
          ForEachCommon(
              segment.places(), want.segment_begin, want.segment_begin + want.numel,
              SlicePlaces(tensor->second.shape, have.slice), have.tensor_begin,
              have.tensor_begin + have.numel, [&](int64_t own, int64_t there, int64_t count) {
                const uint64_t begin = static_cast<uint64_t>(have.file_begin + there -
                                                             have.tensor_begin) *
                                       4,
                               bytes = static_cast<uint64_t>(count) * 4;
                if (begin + bytes > entry->second.end - entry->second.begin) return;
                wants.push_back(
                    {header.data_offset + entry->second.begin + begin, bytes,
                     reinterpret_cast<uint8_t*>(kept.data_ptr<float>() + want.range_begin + own -
                                                want.segment_begin)});
              });
        }
      }
    }
  }
  std::sort(wants.begin(), wants.end(),
            [](const Want& a, const Want& b) { return a.begin < b.begin; });
  return wants;
}

absl::Status Checkpoint::VerifyFiles(int rank, int size, const Flats& flats) {
  for (size_t i = static_cast<size_t>(rank); i < index_.files.size();
       i += static_cast<size_t>(size)) {
    absl::StatusOr<MappedFile> file =
        MappedFile::Open(path_ + "/" + index_.files[i].name, /*for_copies=*/true);
    if (!file.ok()) return file.status();
    const std::span<const uint8_t> bytes = file->bytes();
    if (bytes.size() != index_.files[i].size_bytes) {
      const bool cut = bytes.size() < index_.files[i].size_bytes;
      return absl::DataLossError(absl::StrCat(index_.files[i].name, " has ", bytes.size(),
                                              " bytes where index.json means ",
                                              index_.files[i].size_bytes, ": ",
                                              cut ? index_.files[i].size_bytes - bytes.size()
                                                  : bytes.size() - index_.files[i].size_bytes,
                                              cut ? " are lacking" : " too many"));
    }
    const auto with_name = [&](const absl::Status& s) {
      return absl::DataLossError(
          absl::StrCat(index_.files[i].name, ": ", std::string(s.message())));
    };
    absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(*file);
    std::vector<Want> wants;
    if (header.ok()) wants = WantsIn(static_cast<int>(i), *header, flats);
    uint32_t crc = 0;
    size_t at = 0;
    for (const Want& want : wants) {  // apart from each other, as the pieces are
      if (absl::Status s = ReadAndCheck(*file, bytes.subspan(at, want.begin - at), nullptr, crc);
          !s.ok())
        return with_name(s);
      if (absl::Status s = ReadAndCheck(*file, bytes.subspan(want.begin, want.bytes), want.to, crc);
          !s.ok())
        return with_name(s);
      at = want.begin + want.bytes;
    }
    if (absl::Status s = ReadAndCheck(*file, bytes.subspan(at), nullptr, crc); !s.ok())
      return with_name(s);
    if (crc != index_.files[i].crc32c)
      return absl::DataLossError(absl::StrCat(index_.files[i].name, " doesn't match its checksum"));
    if (!header.ok()) return with_name(header.status());
    if (absl::Status s = CheckPieces(index_, static_cast<int>(i), *header); !s.ok())
      return with_name(s);
    for (const std::unique_ptr<FlatParam>& flat : flats) {
      for (int kind = 0; kind < 3; ++kind) {
        if (flat->InPlace(static_cast<FlatParam::State>(kind)).defined())
          read_[i].insert({flat.get(), kind});
      }
    }
    if (IsObject(path_))
      open_[i] = std::make_unique<SafetensorsFile>(*std::move(file),
                                                   *std::move(header));  // it has been fetched
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadRange(const Segment& segment, int kind, int64_t begin, int64_t n,
                                   float* out) const {
  return ReadRange(segment, kind, begin, n, out, nullptr);
}

absl::Status Checkpoint::CopyPiece(const Segment& segment, int kind, const Piece& have,
                                   int64_t begin, int64_t n, float* out) const {
  absl::StatusOr<const SafetensorsFile*> file = OpenFile(have.file);
  if (!file.ok()) return file.status();
  const auto entry =
      (*file)->header().tensors.find(FlatTensorName(have.flat, kCheckpointKinds[kind]));
  const auto first = static_cast<uint64_t>(have.file_begin + begin - have.tensor_begin) * 4,
             bytes = static_cast<uint64_t>(n) * 4;
  if (entry == (*file)->header().tensors.end() || entry->second.dtype != "F32" ||
      first + bytes > entry->second.end - entry->second.begin) {
    return absl::DataLossError(absl::StrCat(index_.files[have.file].name, " lacks a part of ",
                                            segment.name, "; take another checkpoint of the run"));
  }
  absl::Status s = (*file)->file().Copy((*file)->Data(entry->second).subspan(first, bytes),
                                        reinterpret_cast<uint8_t*>(out));
  if (s.ok()) return s;
  return absl::DataLossError(
      absl::StrCat(index_.files[have.file].name, ": ", std::string(s.message())));
}

absl::Status Checkpoint::ReadRange(const Segment& segment, int kind, int64_t begin, int64_t n,
                                   float* out, const FlatParam* flat) const {
  const auto tensor = index_.tensors.find(segment.name);
  if (tensor == index_.tensors.end())
    return absl::FailedPreconditionError(
        absl::StrCat("it has no ", segment.name, ", which this run trains"));
  if (tensor->second.shape != segment.parameter_shape()) {
    return absl::FailedPreconditionError(
        absl::StrCat(segment.name, " is [", absl::StrJoin(tensor->second.shape, ", "),
                     "] there and [", absl::StrJoin(segment.parameter_shape(), ", "), "] here"));
  }
  if (kind > 0 && !index_.meta.optimizer) {
    std::fill_n(out, n, 0.0f);
    return absl::OkStatus();
  }
  int64_t filled = 0;
  for (const Piece& have : tensor->second.pieces) {
    absl::Status status;
    ForEachCommon(segment.places(), begin, begin + n, SlicePlaces(tensor->second.shape, have.slice),
                  have.tensor_begin, have.tensor_begin + have.numel,
                  [&](int64_t own, int64_t there, int64_t count) {
                    if (!status.ok()) return;
                    filled += count;
                    if (read_[have.file].contains({flat, kind})) return;
                    status = CopyPiece(segment, kind, have, there, count, out + own - begin);
                  });
    if (!status.ok()) return status;
  }
  if (filled != n)
    return absl::DataLossError(
        absl::StrCat("index.json covers ", segment.name, " in part only, or twice"));
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(FlatParam& flat) const {
  for (int kind = 0; kind < 3; ++kind) {
    const at::Tensor host = flat.Landing(static_cast<FlatParam::State>(kind));
    for (const SegmentPiece& want : PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
      const Segment& segment = flat.layout().segments()[want.segment];
      if (absl::Status s = ReadRange(segment, kind, want.segment_begin, want.numel,
                                     host.data_ptr<float>() + want.range_begin, &flat);
          !s.ok())
        return s;
    }
    flat.SetOwned(static_cast<FlatParam::State>(kind), host);
  }
  return absl::OkStatus();
}

void ReadAheadOf(const std::string& path, int rank, int size, size_t most_bytes) noexcept try {
  if (IsObject(path)) return;
  std::error_code error;
  std::vector<std::string> files;
  for (fs::directory_iterator it(path, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (it->path().extension() == ".safetensors") files.push_back(it->path().string());
  }
  std::sort(files.begin(), files.end());  // in the order of the index
  for (size_t i = static_cast<size_t>(rank); i < files.size() && most_bytes > 0;
       i += static_cast<size_t>(size))
    most_bytes -= ReadAhead(files[i], most_bytes);
} catch (const std::exception&) {
  // A hint; what is wrong shows when it is read.
}

LoadOutcome OpenNewest(World& world, const std::vector<std::string>& candidates,
                       const Flats& flats) {
  LoadOutcome outcome;
  // Those of one rank, as each of them is opened together.
  const std::string all = world.Broadcast(absl::StrJoin(candidates, "\n"));
  const std::vector<std::string> paths = absl::StrSplit(all, '\n', absl::SkipEmpty());
  for (const std::string& path : paths) {
    // Rank 0's view of the index counts, so that all ranks judge the same bytes.
    std::string text, mine;
    if (world.rank() == 0) {
      absl::StatusOr<std::string> read = ReadFile(path + "/index.json", size_t{1} << 30);
      if (read.ok())
        text = *std::move(read);
      else
        mine = std::string(read.status().message());
    }
    text = world.Broadcast(text);
    std::unique_ptr<Checkpoint> checkpoint;
    if (mine.empty()) {
      absl::StatusOr<Checkpoint> parsed = Checkpoint::Parse(path, text);
      absl::Status status = parsed.status();
      if (status.ok()) {
        checkpoint = std::make_unique<Checkpoint>(*std::move(parsed));
        status = checkpoint->VerifyFiles(world.rank(), world.size(), flats);
      }
      if (!status.ok()) mine = std::string(status.message());
    }
    const std::vector<std::string> errors = world.GatherTexts(mine);
    const auto bad =
        std::find_if(errors.begin(), errors.end(), [](const std::string& e) { return !e.empty(); });
    if (bad == errors.end()) {
      outcome.checkpoint = std::move(checkpoint);
      return outcome;
    }
    outcome.skipped.push_back({path, *bad});
  }
  return outcome;
}

}  // namespace muster::trainer
