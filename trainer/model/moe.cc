#include "trainer/model/moe.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/model/balance.h"
#include "trainer/model/experts_config.h"

namespace muster::trainer {
namespace {

at::Tensor TakeSaved(SavedPart saved, int slot) { return std::exchange(saved[slot], at::Tensor()); }

ops::RouterRule RuleOf(const ExpertsConfig& experts) {
  return {experts.per_token, experts.normalise,  experts.sigmoid,
          experts.groups,    experts.top_groups, experts.scale};
}

// rows · weights, a number a row, rounded once.
at::Tensor Scaled(const at::Tensor& rows, const at::Tensor& weights) {
  return (rows * weights.unsqueeze(1)).to(rows.scalar_type());
}

}  // namespace

MoePart::MoePart(const ModelConfig& config, int64_t layer, const FlatList& flats,
                 const Adapters& adapters, const TensorGroup& tensor, const ExpertGroup& group)
    : experts_(config.experts), rule_(RuleOf(config.experts)), tensor_(tensor), group_(group) {
  norm_ = Norm(config, Parameter(flats, absl::StrCat("model.layers.", layer,
                                                     ".post_attention_layernorm.weight")));
  router_ = Parameter(flats, RouterName(config, layer));
  if (experts_.sigmoid) router_bias_ = Parameter(flats, RouterBiasName(config, layer));
  if (experts_.shared > 0) {
    const auto name = [&](const char* linear) { return SharedExpertsName(config, layer, linear); };
    shared_gate_up_ = Projection(flats, {name("gate_proj"), name("up_proj")}, adapters, {tensor},
                                 Projection::Slices::kOfOutputs);
    shared_down_ =
        Projection(flats, {name("down_proj")}, adapters, {tensor}, Projection::Slices::kOfInputs);
  }
  const int64_t own = experts_.count / group.size(), first = group.rank() * own;
  gate_up_ = Parameter(flats, ExpertName(config, layer, first, ExpertMatrix::kGate),
                       static_cast<int>(2 * own));
  down_ = Parameter(flats, ExpertName(config, layer, first, ExpertMatrix::kDown),
                    static_cast<int>(own));
}

bool MoePart::Keeps(int slot, RecomputeMode mode) {
  if (slot == kExperts || slot == kAllExperts || slot == kBalance || slot == kTold) return true;
  return mode == RecomputeMode::kNone ||
         (mode == RecomputeMode::kPointwise && slot != kNorm && slot != kAct && slot != kSharedAct);
}

int64_t MoePart::SavedElements(const ModelConfig& config, RecomputeMode mode, int slices,
                               int groups) {
  const ExpertsConfig& e = config.experts;
  // Tokens that a rank's experts are shown, by its own tokens; fp32 and int64 count as two and four
  // of bf16.
  const int64_t shown = groups > 1 ? 1 : slices;
  int64_t sum = 0;
  for (int slot = 0; slot < kCount; ++slot) {
    if (!Keeps(slot, mode)) continue;
    switch (slot) {
      case kMiddle:
      case kNorm:
        sum += config.hidden_size;
        break;
      case kProbabilities:
        sum += 2 * e.count;
        break;
      case kExperts:
        sum += 4 * e.per_token;
        break;
      case kAllExperts:
        sum += shown > 1 ? shown * 4 * e.per_token : 0;
        break;
      case kInputs:
        sum += groups > 1 ? e.per_token * config.hidden_size : 0;
        break;
      case kRowWeights:
        sum += shown * 2 * e.per_token;
        break;
      case kGateUp:
        sum += shown * e.per_token * 2 * e.width;
        break;
      case kAct:
        sum += shown * e.per_token * e.width;
        break;
      case kSharedGateUp:  // of all tokens, as an MLP's
        sum += slices * 2 * e.shared_width;
        break;
      case kSharedAct:
        sum += slices * e.shared_width;
        break;
      default:
        break;
    }
  }
  return sum / slices;
}

MoePart::Rows MoePart::RowsOf(SavedPart saved) const {
  Rows rows;
  rows.order = ops::OrderByExpert(saved[kAllExperts], experts_.count);
  rows.route = group_.Plan(rows.order.counts, saved[kTold]);
  return rows;
}

at::Tensor MoePart::Inputs(const BatchMeta& meta, const Rows& rows, SavedPart saved) const {
  if (saved[kInputs].defined()) return saved[kInputs];
  return group_.ToExperts(ops::RowsOfPairs(Gathered(saved[kNorm], meta), rows.order), rows.route);
}

// What goes into the second product. A weight is a factor of a whole row, so it may stand before it
// or behind it; here the gradient of a weight needs no result of that product.
at::Tensor MoePart::Weighted(SavedPart saved) const {
  return Scaled(saved[kAct], saved[kRowWeights]);
}

bool MoePart::Complete(const BatchMeta&, SavedPart saved) const {
  if (saved[kAct].defined()) return true;
  if (!saved[kGateUp].defined()) return false;
  const ops::RmsNormResult norm = norm_.Forward(saved[kMiddle]);
  saved[kNorm] = norm.y, saved[kRstd] = norm.rstd;
  saved[kAct] = ops::GatedUnit(saved[kGateUp]);
  if (experts_.shared > 0) saved[kSharedAct] = ops::GatedUnit(saved[kSharedGateUp]);
  return true;
}

void MoePart::Recompute(at::Tensor attention, const at::Tensor& residual, const BatchMeta& meta,
                        SavedPart saved) const {
  ops::ResidualNormResult norm = norm_.Forward(std::move(attention), residual);
  saved[kMiddle] = norm.sum, saved[kNorm] = norm.y, saved[kRstd] = norm.rstd;
  const bool again = saved[kExperts].defined();
  const ops::Routing routing =
      ops::Route(norm.y, router_.w, router_bias_.w, rule_, saved[kExperts]);
  saved[kProbabilities] = routing.probabilities;
  if (!again) {
    saved[kExperts] = routing.experts;
    saved[kAllExperts] = Gathered(routing.experts, meta);
    if (meta.balance) saved[kBalance] = meta.balance->Count(routing.experts, routing.probabilities);
    if (group_.size() > 1)
      saved[kTold] = group_.TellCounts(ops::OrderByExpert(routing.experts, experts_.count).counts);
  }
  const Rows rows = RowsOf(saved);
  const at::Tensor inputs = Inputs(meta, rows, saved);
  if (group_.size() > 1) saved[kInputs] = inputs;
  saved[kRowWeights] = group_.ToExperts(
      Gathered(routing.weights, meta).flatten().index_select(0, rows.order.pairs), rows.route);
  saved[kGateUp] = ops::GroupedLinear(inputs, gate_up_.w, rows.route.counts);
  saved[kAct] = ops::GatedUnit(saved[kGateUp]);
  if (experts_.shared == 0) return;
  saved[kSharedGateUp] = shared_gate_up_.Forward(norm.y, meta);
  saved[kSharedAct] = ops::GatedUnit(saved[kSharedGateUp]);
}

at::Tensor MoePart::Forward(const BatchMeta& meta, SavedPart saved) const {
  const Rows rows = RowsOf(saved);
  const at::Tensor results = group_.FromExperts(
      ops::GroupedLinear(Weighted(saved), down_.w, rows.route.counts), rows.route);
  at::Tensor y = ops::SumOfPairs(results, rows.order, experts_.per_token);
  if (Cut()) y = tensor_.SumScatterTokens(y);
  if (experts_.shared > 0) y.add_(shared_down_.Forward(saved[kSharedAct], meta));
  return y.add_(saved[kMiddle]);
}

// Of what the router was given. What it chose is told to the bias here, once a micro-batch, however
// often a forward is computed.
at::Tensor MoePart::RouterBackward(const at::Tensor& d_weights, const BatchMeta& meta,
                                   SavedPart saved) const {
  const at::Tensor experts = TakeSaved(saved, kExperts), counted = TakeSaved(saved, kBalance);
  if (meta.counted.defined() && router_bias_.d.defined())
    router_bias_.d.ToAdd().scatter_add_(0, experts.flatten(),
                                        meta.counted.unsqueeze(1).expand_as(experts).flatten());
  return ops::RouteBackward(
      d_weights, meta.balance ? meta.balance->Gradient(counted) : at::Tensor(),
      TakeSaved(saved, kProbabilities), experts, rule_, saved[kNorm], router_.w, router_.d);
}

at::Tensor MoePart::SharedBackward(const at::Tensor& dy, const BatchMeta& meta,
                                   SavedPart saved) const {
  at::Tensor d_act = shared_down_.Backward(dy, TakeSaved(saved, kSharedAct), meta);
  const at::Tensor d_gate_up = ops::GatedUnitBackward(d_act, TakeSaved(saved, kSharedGateUp));
  d_act.reset();
  return shared_gate_up_.Backward(d_gate_up, saved[kNorm], meta);
}

at::Tensor MoePart::Backward(const at::Tensor& dy, const BatchMeta& meta, SavedPart saved) const {
  const Rows rows = RowsOf(saved);
  const std::vector<int64_t>& counts = rows.route.counts;
  at::Tensor d_weighted = ops::GroupedLinearBackward(
      group_.ToExperts(ops::RowsOfPairs(Gathered(dy, meta), rows.order), rows.route),
      Weighted(saved), down_.w, down_.d, counts);
  const at::Tensor d_row_weights =
      (d_weighted.to(at::kFloat) * TakeSaved(saved, kAct)).sum({1}, /*keepdim=*/false, at::kFloat);
  at::Tensor d_act = Scaled(d_weighted, TakeSaved(saved, kRowWeights));
  d_weighted.reset();
  at::Tensor d_gate_up = ops::GatedUnitBackward(d_act, TakeSaved(saved, kGateUp));
  d_act.reset();
  at::Tensor d_rows = ops::GroupedLinearBackward(d_gate_up, Inputs(meta, rows, saved), gate_up_.w,
                                                 gate_up_.d, counts);
  d_gate_up.reset();
  TakeSaved(saved, kInputs), TakeSaved(saved, kTold), TakeSaved(saved, kAllExperts);
  at::Tensor d_norm =
      ops::SumOfPairs(group_.FromExperts(d_rows, rows.route), rows.order, experts_.per_token);
  d_rows.reset();
  at::Tensor d_weights = group_.FromExperts(d_row_weights, rows.route)
                             .index_select(0, rows.order.places)
                             .view({-1, experts_.per_token});
  if (Cut()) {
    d_norm = tensor_.SumScatterTokens(d_norm);
    d_weights = tensor_.SumScatterTokens(d_weights);
  }
  d_norm.add_(RouterBackward(d_weights, meta, saved));
  if (experts_.shared > 0) d_norm.add_(SharedBackward(dy, meta, saved));
  TakeSaved(saved, kNorm);
  return norm_.Backward(d_norm, TakeSaved(saved, kMiddle), TakeSaved(saved, kRstd), dy);
}

}  // namespace muster::trainer
