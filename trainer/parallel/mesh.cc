#include "trainer/parallel/mesh.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace muster::trainer {
namespace {

constexpr MeshDim kSlowestFirst[kMeshDims] = {MeshDim::kPp, MeshDim::kDpReplicate,
                                              MeshDim::kDpShard, MeshDim::kCp, MeshDim::kTp};

}  // namespace

Mesh::Mesh(int ranks, int tp, int shard_size, int pp, int ep, int cp) : shape_(1), ep_(ep) {
  const int in_stage = pp < 1 || ranks % pp != 0 ? 0 : ranks / pp;
  if (shard_size == 0) shard_size = in_stage;
  if (in_stage < 1 || tp < 1 || cp < 1 || ep < 1 || shard_size < 1 || shard_size % (cp * tp) != 0 ||
      shard_size % ep != 0 || in_stage % shard_size != 0)
    throw std::invalid_argument("such a mesh can't be");
  shape_[MeshDim::kPp] = pp;
  shape_[MeshDim::kTp] = tp;
  shape_[MeshDim::kCp] = cp;
  shape_[MeshDim::kDpShard] = shard_size / (cp * tp);
  shape_[MeshDim::kDpReplicate] = in_stage / shard_size;
}

int Mesh::size() const {
  int ranks = 1;
  for (const MeshDim dim : kSlowestFirst) ranks *= shape_[dim];
  return ranks;
}

int Mesh::units() const { return size() / pp() / std::lcm(ep_, cp() * tp()); }

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

std::vector<int> Mesh::ExpertRanks(int rank) const {
  std::vector<int> ranks;
  for (int other = rank / ep_ * ep_; other < (rank / ep_ + 1) * ep_; ++other)
    ranks.push_back(other);
  return ranks;
}

HolderRanks HoldersOf(const Mesh& mesh, int rank, const Holding& holding) {
  std::vector<MeshDim> shard = {MeshDim::kDpShard, MeshDim::kCp};
  if (!holding.sliced) shard.push_back(MeshDim::kTp);
  std::vector<MeshDim> copies = {MeshDim::kDpReplicate};
  if (holding.both_ends) copies.push_back(MeshDim::kPp);
  std::vector<MeshDim> whole = shard;
  whole.insert(whole.end(), copies.begin(), copies.end());
  HolderRanks holders{mesh.Along(rank, whole), mesh.Along(rank, shard), mesh.Along(rank, copies)};
  if (holding.experts) {
    for (std::vector<int>* ranks : {&holders.whole, &holders.shard})
      std::erase_if(*ranks, [&](int other) { return mesh.EpIndex(other) != mesh.EpIndex(rank); });
  }
  for (std::vector<int>* ranks : {&holders.whole, &holders.replicate}) {
    std::erase_if(*ranks, [&](int other) {
      const int stage = mesh.PpIndex(other);
      return holding.both_ends && stage != 0 && stage + 1 != mesh.pp();
    });
  }
  return holders;
}

int IndexAmongHolders(const Mesh& mesh, int rank, const Holding& holding) {
  const int slices = holding.sliced ? 1 : mesh.tp(),
            with_data = mesh.DpIndex(rank) * mesh.cp() + mesh.CpIndex(rank),
            in_stage = with_data * slices + (holding.sliced ? 0 : mesh.TpIndex(rank));
  if (holding.experts) return in_stage / mesh.ep();
  return (holding.both_ends && mesh.PpIndex(rank) > 0 ? mesh.dp() * mesh.cp() * slices : 0) +
         in_stage;
}

std::pair<int64_t, int64_t> PartOf(int64_t count, int part, int parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

}  // namespace muster::trainer
