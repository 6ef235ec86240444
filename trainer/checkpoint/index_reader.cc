#include "trainer/checkpoint/index_reader.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <set>
#include <stdexcept>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/checksum.h"
#include "trainer/checkpoint/json_text.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

struct BadIndex : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The integer `value`, which is called `key`. Of one that T can't hold, or a fraction, the library
// would make some other.
template <typename T>
T Integer(const json& value, const char* key, T least) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (std::in_range<T>(number) && static_cast<T>(number) >= least) return static_cast<T>(number);
  } else if (value.is_number_integer()) {
    const int64_t number = value.get<int64_t>();
    if (std::in_range<T>(number) && static_cast<T>(number) >= least) return static_cast<T>(number);
  }
  throw BadIndex(absl::StrCat("index.json's ", key, " is no integer from ", least, " to ",
                              std::numeric_limits<T>::max()));
}

// Whether `name` is that of a file in the directory where the index lies.
bool IsFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// Elements of a tensor; each is 4 bytes in a file.
int64_t NumelOf(const std::string& name, const std::vector<int64_t>& shape) {
  int64_t bytes = 4;
  for (const int64_t dim : shape) {
    if (dim < 1 || __builtin_mul_overflow(bytes, dim, &bytes))
      throw BadIndex(absl::StrCat("index.json has a bad shape of ", name));
  }
  return bytes / 4;
}

std::optional<Slice> SliceOf(const std::string& name, const json& piece,
                             const std::vector<int64_t>& shape) {
  if (!piece.contains("slice")) return std::nullopt;
  const json& value = piece["slice"];
  const Slice slice{Integer<int>(value.at("dim"), "dim", 0),
                    Integer<int64_t>(value.at("begin"), "begin", 0),
                    Integer<int64_t>(value.at("end"), "end", 1)};
  if (slice.dim >= static_cast<int>(shape.size()) || slice.begin >= slice.end ||
      slice.end > shape[slice.dim])
    throw BadIndex(absl::StrCat("index.json has a bad slice of ", name));
  return slice;
}

// Whether the pieces make up the slices, and the slices the tensor, each once.
bool MakeUp(const CheckpointIndex::Tensor& tensor) {
  struct Stretch {
    int dim;
    int64_t slice_begin, slice_end, begin, end;
    auto operator<=>(const Stretch&) const = default;
  };
  std::vector<Stretch> stretches;
  int64_t extent = 1;  // of the dimension that is sliced
  for (const CheckpointIndex::Piece& piece : tensor.pieces) {
    const Slice slice = piece.slice.value_or(Slice{-1, 0, 1});
    if (piece.slice) extent = tensor.shape[slice.dim];
    stretches.push_back(
        {slice.dim, slice.begin, slice.end, piece.tensor_begin, piece.tensor_begin + piece.numel});
  }
  std::sort(stretches.begin(), stretches.end());
  int64_t slices_end = 0, end = 0, numel = 0;
  for (size_t i = 0; i < stretches.size(); ++i) {
    const Stretch& one = stretches[i];
    if (one.dim != stretches[0].dim) return false;
    if (i == 0 || one.slice_begin != stretches[i - 1].slice_begin ||
        one.slice_end != stretches[i - 1].slice_end) {
      if (end != numel || one.slice_begin != slices_end) return false;
      slices_end = one.slice_end;
      end = 0;
      numel =
          SlicePlaces(tensor.shape,
                      one.dim < 0 ? std::nullopt
                                  : std::optional(Slice{one.dim, one.slice_begin, one.slice_end}))
              .numel();
    }
    if (one.begin != end) return false;
    end = one.end;
  }
  return !stretches.empty() && end == numel && slices_end == extent;
}

CheckpointIndex::Tensor TensorOf(const std::string& name, const json& value,
                                 const std::vector<CheckpointIndex::File>& files) {
  CheckpointIndex::Tensor tensor;
  for (const json& dim : value.at("shape"))
    tensor.shape.push_back(Integer<int64_t>(dim, "shape", 1));
  NumelOf(name, tensor.shape);
  for (const json& p : value.at("pieces")) {
    const CheckpointIndex::Piece piece{Integer<int>(p.at("file"), "file", 0),
                                       Integer<int>(p.at("flat"), "flat", 0),
                                       Integer<int64_t>(p.at("tensor_begin"), "tensor_begin", 0),
                                       Integer<int64_t>(p.at("file_begin"), "file_begin", 0),
                                       Integer<int64_t>(p.at("numel"), "numel", 1),
                                       SliceOf(name, p, tensor.shape)};
    const int64_t numel = SlicePlaces(tensor.shape, piece.slice).numel();
    if (piece.file >= static_cast<int>(files.size()) || piece.tensor_begin >= numel ||
        piece.numel > numel - piece.tensor_begin) {
      throw BadIndex(absl::StrCat("index.json has a bad piece of ", name));
    }
    const int64_t in_file = static_cast<int64_t>(files[piece.file].size_bytes / 4);
    if (piece.file_begin >= in_file || piece.numel > in_file - piece.file_begin) {
      throw BadIndex(absl::StrCat("index.json has a piece of ", name, " outside its file"));
    }
    tensor.pieces.push_back(piece);
  }
  if (!MakeUp(tensor))
    throw BadIndex(absl::StrCat("index.json covers ", name, " in part only, or twice"));
  return tensor;
}

// No bytes of a file are those of two pieces.
void CheckApart(const std::map<std::string, CheckpointIndex::Tensor>& tensors) {
  struct Stretch {
    int file, flat;
    int64_t begin, end;
    auto operator<=>(const Stretch&) const = default;
  };
  std::vector<Stretch> stretches;
  for (const auto& [name, tensor] : tensors) {
    for (const CheckpointIndex::Piece& p : tensor.pieces)
      stretches.push_back({p.file, p.flat, p.file_begin, p.file_begin + p.numel});
  }
  std::sort(stretches.begin(), stretches.end());
  for (size_t i = 1; i < stretches.size(); ++i) {
    const Stretch &before = stretches[i - 1], &after = stretches[i];
    if (before.file == after.file && before.flat == after.flat && after.begin < before.end) {
      throw BadIndex(absl::StrCat("index.json has two pieces in one place of flat ", after.flat,
                                  " in file ", after.file));
    }
  }
}

bool HasSlices(const CheckpointIndex& index) {
  return std::any_of(index.tensors.begin(), index.tensors.end(), [](const auto& tensor) {
    return tensor.second.pieces.front().slice.has_value();  // all of a tensor's, or none
  });
}

}  // namespace

absl::StatusOr<CheckpointIndex> ReadIndex(const std::string& text) {
  absl::StatusOr<json> parsed = ParseJsonObject(text, kIndexDepth);
  if (!parsed.ok())
    return absl::DataLossError(absl::StrCat("index.json ", std::string(parsed.status().message())));
  json& index = *parsed;
  try {
    const bool sliced = index.at("format") == kSlicedFormat;
    if (!sliced && index.at("format") != kCheckpointFormat) {
      return absl::DataLossError(
          absl::StrCat("index.json's format is not ", kCheckpointFormat, " or ", kSlicedFormat));
    }
    const uint32_t told = Integer<uint32_t>(index.at("crc32c"), "crc32c", 0);
    index.erase("crc32c");
    const std::string body = index.dump();
    if (Crc32c(body.data(), body.size()) != told)
      return absl::DataLossError("index.json doesn't match its checksum");
    CheckpointIndex read;
    CheckpointMeta& meta = read.meta;
    meta.step = Integer<int64_t>(index.at("step"), "step", 0);
    meta.next_sequence = Integer<int64_t>(index.at("next_sequence"), "next_sequence", 0);
    meta.seed = Integer<int64_t>(index.at("seed"), "seed", std::numeric_limits<int64_t>::min());
    meta.recent_losses = index.value("recent_losses", std::vector<double>{});
    meta.packing_version = Integer<int>(index.at("packing_version"), "packing_version", 0);
    meta.data_fingerprint = index.at("data_fingerprint").get<std::string>();
    meta.zero_stage = Integer<int>(index.at("zero_stage"), "zero_stage", 0);
    meta.dtype = index.at("dtype").get<std::string>();
    meta.optimizer = index.value("optimizer", true);
    meta.model = index.at("model");
    meta.trainer = index.at("trainer");
    meta.source = index.value("source", "");  // since 2026-11-22
    meta.tokenizer = index.value("tokenizer", "");
    std::set<std::string> names;
    for (const json& file : index.at("files")) {
      read.files.push_back({file.at("name").get<std::string>(),
                            Integer<uint64_t>(file.at("size_bytes"), "size_bytes", 0),
                            Integer<uint32_t>(file.at("crc32c"), "crc32c", 0)});
      if (!IsFileName(read.files.back().name))
        return absl::DataLossError("index.json names a file outside the checkpoint");
      if (!names.insert(read.files.back().name).second)
        return absl::DataLossError("index.json names a file twice");
    }
    for (const auto& [name, value] : index.at("tensors").items())
      read.tensors.emplace(name, TensorOf(name, value, read.files));
    CheckApart(read.tensors);
    if (!sliced && HasSlices(read))
      return absl::DataLossError(
          absl::StrCat("index.json has slices, which ", kCheckpointFormat, " has not"));
    return read;
  } catch (const json::exception& e) {
    return absl::DataLossError(absl::StrCat("index.json is incomplete: ", e.what()));
  } catch (const BadIndex& e) {
    return absl::DataLossError(e.what());
  }
}

std::string SealedIndex(json index) {
  index.erase("crc32c");
  const std::string body = index.dump();
  index["crc32c"] = Crc32c(body.data(), body.size());
  return index.dump(1) + "\n";
}

std::map<std::string, std::string> WeightMapIn(const std::string& index_text,
                                               std::vector<std::string>& problems) {
  std::map<std::string, std::string> map;
  const absl::StatusOr<json> index = ParseJsonObject(index_text, kIndexDepth);
  if (index.ok() && index->contains("weight_map") && (*index)["weight_map"].is_object()) {
    for (const auto& [tensor, file] : (*index)["weight_map"].items()) {
      if (file.is_string() && IsFileName(file.get<std::string>()))
        map.emplace(tensor, file.get<std::string>());
      else
        problems.push_back(
            absl::StrCat(": weight_map.", tensor, " is no file name; download it again"));
    }
  }
  if (map.empty()) problems.emplace_back(" has no weight_map; download it again");
  return map;
}

}  // namespace muster::trainer
