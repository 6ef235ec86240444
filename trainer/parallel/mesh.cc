#include "trainer/parallel/mesh.h"

#include <algorithm>
#include <stdexcept>

namespace muster::trainer {
namespace {

constexpr MeshDim kSlowestFirst[kMeshDims] = {MeshDim::kPp, MeshDim::kDpReplicate,
                                              MeshDim::kDpShard, MeshDim::kCp, MeshDim::kTp};

}  // namespace

Mesh::Mesh(int ranks, int tp, int shard_size) : shape_(1) {
  if (shard_size == 0) shard_size = ranks;
  if (tp < 1 || shard_size < 1 || shard_size % tp != 0 || ranks % shard_size != 0)
    throw std::invalid_argument("such a mesh can't be");
  shape_[MeshDim::kTp] = tp;
  shape_[MeshDim::kDpShard] = shard_size / tp;
  shape_[MeshDim::kDpReplicate] = ranks / shard_size;
}

int Mesh::size() const {
  int ranks = 1;
  for (const MeshDim dim : kSlowestFirst) ranks *= shape_[dim];
  return ranks;
}

MeshNumbers Mesh::PlaceOf(int rank) const {
  MeshNumbers place(0);
  for (int i = kMeshDims - 1; i >= 0; --i) {
    const MeshDim dim = kSlowestFirst[i];
    place[dim] = rank % shape_[dim];
    rank /= shape_[dim];
  }
  return place;
}

int Mesh::RankAt(const MeshNumbers& place) const {
  int rank = 0;
  for (const MeshDim dim : kSlowestFirst) rank = rank * shape_[dim] + place[dim];
  return rank;
}

int Mesh::DpIndex(int rank) const {
  const MeshNumbers place = PlaceOf(rank);
  return place[MeshDim::kDpReplicate] * shape_[MeshDim::kDpShard] + place[MeshDim::kDpShard];
}

std::vector<int> Mesh::Along(int rank, const std::vector<MeshDim>& dims) const {
  const MeshNumbers own = PlaceOf(rank);
  std::vector<int> ranks;
  for (int other = 0; other < size(); ++other) {
    const MeshNumbers place = PlaceOf(other);
    const bool differs =
        std::any_of(std::begin(kSlowestFirst), std::end(kSlowestFirst), [&](MeshDim dim) {
          return place[dim] != own[dim] && std::find(dims.begin(), dims.end(), dim) == dims.end();
        });
    if (!differs) ranks.push_back(other);
  }
  return ranks;
}

HolderRanks HoldersOf(const Mesh& mesh, int rank, bool sliced) {
  std::vector<MeshDim> shard = {MeshDim::kDpShard, MeshDim::kCp};
  if (!sliced) shard.push_back(MeshDim::kTp);
  std::vector<MeshDim> whole = shard;
  whole.push_back(MeshDim::kDpReplicate);
  return {mesh.Along(rank, whole), mesh.Along(rank, shard),
          mesh.Along(rank, {MeshDim::kDpReplicate})};
}

int IndexAmongHolders(const Mesh& mesh, int rank, bool sliced) {
  return sliced ? mesh.DpIndex(rank) : rank;
}

std::pair<int64_t, int64_t> PartOf(int64_t count, int part, int parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

}  // namespace muster::trainer
