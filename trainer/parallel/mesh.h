// The layout of a run's ranks: a mesh with a dimension for each way to share work out, and the
// groups of ranks that it means. One place says who is who. Pure: makes no process groups (groups.h
// does), needs no torch.
//
// Dimensions, from the one whose index changes slowest from rank to rank to the fastest:
//   pp            stages of a pipeline
//   dp_replicate  copies of what is sharded (hybrid sharding)
//   dp_shard      ranks that share such a copy; they take other rows of the batch than each other
//   cp            parts of a sequence
//   tp            slices of each layer's weights
// So the ranks that talk most are neighbours. Expert parallelism is no dimension of its own: of the
// ranks along dp_shard, cp and tp, groups of ep neighbours share out the experts of a layer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace muster::trainer {

enum class MeshDim { kPp, kDpReplicate, kDpShard, kCp, kTp };
inline constexpr int kMeshDims = 5;

// A number for each dimension: how long a mesh is in it, or a rank's index in it.
class MeshNumbers {
 public:
  explicit MeshNumbers(int value) { numbers_.fill(value); }
  int& operator[](MeshDim dim) { return numbers_[static_cast<size_t>(dim)]; }
  int operator[](MeshDim dim) const { return numbers_[static_cast<size_t>(dim)]; }
  bool operator==(const MeshNumbers&) const = default;

 private:
  std::array<int, kMeshDims> numbers_;
};

// Value type.
class Mesh {
 public:
  Mesh() : shape_(1) {}
  // `ranks` in `pp` stages, parts of rows of `cp` and slices of `tp`; `shard_size` neighbours share
  // one copy of what is sharded (0: all of a stage do). pp must divide the ranks, cp · tp
  // shard_size, and that a stage's ranks. ep neighbours share out experts; it must divide the shard
  // group.
  Mesh(int ranks, int tp, int shard_size, int pp = 1, int ep = 1, int cp = 1);

  int size() const;
  int tp() const { return shape_[MeshDim::kTp]; }
  int pp() const { return shape_[MeshDim::kPp]; }
  int cp() const { return shape_[MeshDim::kCp]; }
  // Ranks that take different rows of the batch, and a rank's number among them.
  int dp() const { return shape_[MeshDim::kDpReplicate] * shape_[MeshDim::kDpShard]; }
  int DpIndex(int rank) const;
  int TpIndex(int rank) const { return PlaceOf(rank)[MeshDim::kTp]; }
  int PpIndex(int rank) const { return PlaceOf(rank)[MeshDim::kPp]; }
  int CpIndex(int rank) const { return PlaceOf(rank)[MeshDim::kCp]; }
  int ep() const { return ep_; }
  int EpIndex(int rank) const { return rank % ep_; }
  // Parts of a stage whose ranks, neighbours, compute gradients without the others: a *unit* is of
  // tp · cp ranks, and of more where ep reaches beyond them. Each takes other rows.
  int units() const;
  // The ranks that share out experts with `rank`.
  std::vector<int> ExpertRanks(int rank) const;
  // Which part of the model a rank has, of how many: ranks with one number have the same.
  int PartNumber(int rank) const {
    return (PpIndex(rank) * tp() + TpIndex(rank)) * ep_ + EpIndex(rank);
  }
  int Parts() const { return pp() * tp() * ep_; }

  const MeshNumbers& shape() const { return shape_; }
  MeshNumbers PlaceOf(int rank) const;
  int RankAt(const MeshNumbers& place) const;
  // The ranks that differ from `rank` in `dims` only, itself among them, in the order of their
  // numbers.
  std::vector<int> Along(int rank, const std::vector<MeshDim>& dims) const;

 private:
  MeshNumbers shape_;
  int ep_ = 1;
};

// The ranks that hold one flat (flat_param.h), and which of them share it and copy it.
struct HolderRanks {
  // All of them: their gradients are summed. Of these `shard` share one copy of what is sharded,
  // and `replicate` hold the same part of other copies.
  std::vector<int> whole, shard, replicate;
  bool operator==(const HolderRanks&) const = default;
};
// How a flat is held: as slices, each by the ranks of one tp index, or by all tp ranks alike; by
// one stage, or by the first and the last as copies of each other (embeddings that the head is tied
// to); or it is of experts that are shared out, held by the ranks of one ep index.
struct Holding {
  bool sliced = false, both_ends = false, experts = false;
};
// Of a flat that `rank` holds so.
HolderRanks HoldersOf(const Mesh& mesh, int rank, const Holding& holding);
// Where `rank` stands in its HoldersOf's `whole`.
int IndexAmongHolders(const Mesh& mesh, int rank, const Holding& holding);

// Part `part` of `parts` of `count` things: [first, second). They differ by one at most, and the
// last part is never smaller than another.
std::pair<int64_t, int64_t> PartOf(int64_t count, int part, int parts);

}  // namespace muster::trainer
