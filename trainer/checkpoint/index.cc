#include "trainer/checkpoint/index.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace muster::trainer {

using nlohmann::json;

std::string CheckpointName(int64_t step) {
  char name[64];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

std::string RankFileName(int rank, int size) {
  char name[64];
  std::snprintf(name, sizeof name, "rank-%05d-of-%05d.safetensors", rank, size);
  return name;
}

std::string FlatTensorName(int flat, const char* kind) {
  return absl::StrCat("flat.", flat, ".", kind);
}

json TensorMap(const std::vector<RankLayouts>& layouts, const Shares& shares) {
  json map = json::object();
  size_t flats = 0;
  for (const RankLayouts& of_rank : layouts) flats = std::max(flats, of_rank.size());
  for (int f = 0; f < static_cast<int>(flats); ++f) {
    for (int rank = 0; rank < static_cast<int>(layouts.size()); ++rank) {
      if (f >= static_cast<int>(layouts[rank].size())) continue;
      const FlatLayout& layout = *layouts[rank][f];
      const auto [begin, end] = shares(f, rank);
      for (const SegmentPiece& piece : PiecesIn(layout, begin, end)) {
        const Segment& segment = layout.segments()[piece.segment];
        json& entry = map[segment.name];
        entry["shape"] = segment.parameter_shape();
        json& added = entry["pieces"].emplace_back(json{{"file", rank},
                                                        {"flat", f},
                                                        {"tensor_begin", piece.segment_begin},
                                                        {"file_begin", piece.range_begin},
                                                        {"numel", piece.numel}});
        if (segment.slice)
          added["slice"] = {{"dim", segment.slice->dim},
                            {"begin", segment.slice->begin},
                            {"end", segment.slice->end}};
      }
    }
  }
  return map;
}

namespace {

// JSON has no place for bytes that aren't UTF-8: a path with such isn't remembered.
std::string IfText(const std::string& path) {
  try {
    const std::string text = json(path).dump();
    return text.empty() ? "" : path;
  } catch (const json::type_error&) {
    return "";
  }
}

}  // namespace

std::string IndexText(const CheckpointMeta& meta, const std::vector<WrittenFile>& files,
                      json tensors) {
  const int ranks = static_cast<int>(files.size());
  const bool sliced = std::any_of(tensors.begin(), tensors.end(), [](const json& tensor) {
    return tensor["pieces"][0].contains("slice");
  });
  json index = {{"format", sliced ? kSlicedFormat : kCheckpointFormat},
                {"step", meta.step},
                {"next_sequence", meta.next_sequence},
                {"world_size", ranks},
                {"zero_stage", meta.zero_stage},
                {"dtype", meta.dtype},
                {"optimizer", meta.optimizer},
                {"seed", meta.seed},
                {"recent_losses", meta.recent_losses},
                {"packing_version", meta.packing_version},
                {"data_fingerprint", meta.data_fingerprint},
                {"model", meta.model},
                {"trainer", meta.trainer},
                {"source", IfText(meta.source)},
                {"tokenizer", IfText(meta.tokenizer)},
                {"tensors", std::move(tensors)}};
  for (int rank = 0; rank < ranks; ++rank) {
    index["files"].push_back({{"name", RankFileName(rank, ranks)},
                              {"size_bytes", files[rank].size_bytes},
                              {"crc32c", files[rank].crc32c}});
  }
  return SealedIndex(std::move(index));
}

}  // namespace muster::trainer
