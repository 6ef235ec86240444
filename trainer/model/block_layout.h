// How the parameters of a block become flats.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/model/blocks.h"
#include "trainer/parallel/mesh.h"

namespace muster::trainer {

// The flats of one block: of what a slice of the model has a part of, of experts that ranks share
// out, of a router's biases, and of what all have alike. Without slices, shares and biases they are
// one, unless the linears' matrices are to stand apart. Adds to `layout`, which must outlive it.
class BlockLayout {
 public:
  BlockLayout(const TensorSlice& slice, ModelLayout& layout, bool linears_apart = false)
      : slice_(slice), layout_(layout), linears_apart_(linears_apart) {
    layout.block_flats.emplace_back();
  }
  // Of `units` equal parts of dimension `dim` the slice has its share.
  void Cut(const std::string& name, std::vector<int64_t> shape, int dim, int64_t units,
           bool weight_decay, bool joined = false) {
    if (linears_apart_ && slice_.count == 1 && shape.size() == 2) {
      FlatLayout& flat = FlatFor(linears_);
      flat.MarkLinears();
      return flat.Add(name, std::move(shape), weight_decay, joined);
    }
    if (slice_.count == 1) return FlatFor(alike_).Add(name, std::move(shape), weight_decay, joined);
    const int64_t unit = shape[dim] / units;
    const auto [begin, end] = PartOf(units, slice_.index, slice_.count);
    FlatFor(sliced_).AddSlice(name, std::move(shape), {dim, begin * unit, end * unit}, weight_decay,
                              joined);
  }
  // Of an expert that a rank has whole, or does not have.
  void Whole(const std::string& name, std::vector<int64_t> shape, bool joined) {
    FlatLayout& flat = FlatFor(experts_);
    flat.HoldByExperts();
    flat.Add(name, std::move(shape), /*weight_decay=*/true, joined);
  }
  void Keep(const std::string& name, std::vector<int64_t> shape, bool weight_decay = false) {
    FlatFor(alike_).Add(name, std::move(shape), weight_decay);
  }
  // Of a router.
  void KeepRouterBias(const std::string& name, int64_t experts) {
    FlatLayout& flat = FlatFor(router_bias_);
    flat.MarkRouterBias();
    flat.Add(name, {experts}, /*weight_decay=*/false);
  }
  // The block also uses another's flat.
  void Share(int flat) { layout_.block_flats.back().push_back(flat); }

 private:
  FlatLayout& FlatFor(int& number) {
    if (number < 0) {
      number = static_cast<int>(layout_.flats.size());
      layout_.flats.emplace_back();
      Share(number);
    }
    return layout_.flats[number];
  }

  const TensorSlice slice_;
  ModelLayout& layout_;
  const bool linears_apart_;
  int sliced_ = -1, alike_ = -1, experts_ = -1, linears_ = -1, router_bias_ = -1;
};

}  // namespace muster::trainer
