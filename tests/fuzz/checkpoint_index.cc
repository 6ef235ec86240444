// The index of a checkpoint, with the checksum that it has and with the one that it should have,
// and that of a Hugging Face directory: the files lie in the directory, and a checkpoint's pieces
// make up each tensor once, inside their files.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "trainer/checkpoint/index_reader.h"
#include "trainer/checkpoint/json_text.h"

namespace {

using muster::trainer::CheckpointIndex;
using Wide = __int128;

void CheckName(const std::string& name) {
  MUSTER_CHECK(!name.empty() && name != "." && name != ".." &&
               name.find('/') == std::string::npos && name.find('\0') == std::string::npos);
}

bool Overlap(Wide a, Wide a_count, Wide b, Wide b_count) {
  return a < b + b_count && b < a + a_count;
}

// Indices of the sliced dimension: of the piece's slice, and all; 1 where there is none.
Wide Extent(const CheckpointIndex::Piece& piece, const std::vector<int64_t>& shape) {
  if (!piece.slice) return 1;
  MUSTER_CHECK(piece.slice->dim >= 0 && piece.slice->dim < static_cast<int>(shape.size()) &&
               piece.slice->begin >= 0 && piece.slice->begin < piece.slice->end &&
               piece.slice->end <= shape[piece.slice->dim]);
  return piece.slice->end - piece.slice->begin;
}
Wide Whole(const CheckpointIndex::Piece& piece, const std::vector<int64_t>& shape) {
  return piece.slice ? shape[piece.slice->dim] : 1;
}

void CheckIndex(const CheckpointIndex& index) {
  MUSTER_CHECK(index.meta.step >= 0 && index.meta.next_sequence >= 0);
  for (const CheckpointIndex::File& file : index.files) CheckName(file.name);
  std::vector<CheckpointIndex::Piece> all;
  for (const auto& [name, tensor] : index.tensors) {
    Wide numel = 1, covered = 0;
    for (const int64_t dim : tensor.shape) {
      MUSTER_CHECK(dim >= 1);
      numel *= dim;
      MUSTER_CHECK(numel * 4 <= INT64_MAX);
    }
    for (size_t i = 0; i < tensor.pieces.size(); ++i) {
      const CheckpointIndex::Piece& piece = tensor.pieces[i];
      const Wide slice = numel * Extent(piece, tensor.shape) / Whole(piece, tensor.shape);
      MUSTER_CHECK(piece.numel >= 1 && piece.tensor_begin >= 0 &&
                   Wide{piece.tensor_begin} + piece.numel <= slice);
      MUSTER_CHECK(piece.file >= 0 && piece.file < static_cast<int>(index.files.size()) &&
                   piece.flat >= 0 && piece.file_begin >= 0);
      MUSTER_CHECK((Wide{piece.file_begin} + piece.numel) * 4 <=
                   Wide{index.files[piece.file].size_bytes});
      for (size_t j = 0; j < i; ++j) {
        const CheckpointIndex::Piece& other = tensor.pieces[j];
        if (piece.slice == other.slice) {
          MUSTER_CHECK(!Overlap(piece.tensor_begin, piece.numel, other.tensor_begin, other.numel));
        } else {
          MUSTER_CHECK(piece.slice && other.slice && piece.slice->dim == other.slice->dim);
          MUSTER_CHECK(piece.slice->end <= other.slice->begin ||
                       other.slice->end <= piece.slice->begin);
        }
      }
      covered += piece.numel;
      all.push_back(piece);
    }
    MUSTER_CHECK(covered == numel);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      MUSTER_CHECK(all[i].file != all[j].file || all[i].flat != all[j].flat ||
                   !Overlap(all[i].file_begin, all[i].numel, all[j].file_begin, all[j].numel));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster::trainer;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const absl::StatusOr<CheckpointIndex> index = ReadIndex(text); index.ok()) CheckIndex(*index);
  if (const absl::StatusOr<nlohmann::json> parsed = ParseJsonObject(text, kIndexDepth);
      parsed.ok()) {
    const absl::StatusOr<CheckpointIndex> index = ReadIndex(SealedIndex(*parsed));
    if (index.ok()) CheckIndex(*index);
    MUSTER_CHECK(index.status().message() != "index.json doesn't match its checksum");
  }
  std::vector<std::string> problems;
  const std::map<std::string, std::string> files = WeightMapIn(text, problems);
  MUSTER_CHECK(!files.empty() || !problems.empty());
  for (const auto& [tensor, name] : files) CheckName(name);
  return 0;
}
