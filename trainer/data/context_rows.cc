#include "trainer/data/context_rows.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace muster::trainer {
namespace {

// Of rows without documents, each is one.
std::vector<ops::DocumentSpan> DocumentsOf(const BatchMeta& whole) {
  if (whole.positions.defined()) return whole.documents;
  std::vector<ops::DocumentSpan> rows;
  for (int64_t row = 0; row < whole.batch; ++row) rows.push_back({row, 0, whole.length});
  return rows;
}

// Where each of the micro-batch's tokens stands among those that are gathered: rank after rank.
std::vector<int64_t> GatheredPlaces(const ContextPlan& plan, int64_t tokens) {
  std::vector<int64_t> places(static_cast<size_t>(tokens), -1);
  int64_t place = 0;
  for (const ContextPart& part : plan.parts) {
    for (const int64_t token : part.tokens) {
      if (token >= 0) places[token] = place;
      ++place;
    }
  }
  return places;
}

ops::ContextCall MakeCall(const std::vector<ContextSequence>& sequences,
                          const std::vector<int64_t>& gathered, int64_t first_own, int64_t length,
                          bool bounds) {
  ops::ContextCall call;
  // Of calls whose longest sequence is one query, FlashAttention takes them for decoding, and hands
  // back log-sums in an order that its backward doesn't know. It is an upper bound.
  call.longest_queries = 2;
  std::vector<int64_t> queries, keys;
  std::vector<int32_t> query_bounds = {0}, key_bounds = {0};
  for (const ContextSequence& one : sequences) {
    call.sequences.push_back({one.queries(), one.keys()});
    call.longest_queries = std::max(call.longest_queries, one.queries());
    call.longest_keys = std::max(call.longest_keys, one.keys());
    const int64_t row = one.row * length;
    for (int64_t at = one.begin; at < one.end; ++at)
      queries.push_back(gathered[row + at] - first_own);
    keys.insert(keys.end(), gathered.begin() + row + one.document_begin,
                gathered.begin() + row + one.end);
    query_bounds.push_back(static_cast<int32_t>(queries.size()));
    key_bounds.push_back(static_cast<int32_t>(keys.size()));
  }
  call.queries = at::tensor(queries, at::kLong);
  call.keys = at::tensor(keys, at::kLong);
  if (bounds) {
    call.query_bounds = at::tensor(query_bounds, at::kInt);
    call.key_bounds = at::tensor(key_bounds, at::kInt);
  }
  return call;
}

}  // namespace

BatchMeta TakeContextPart(BatchMeta whole, const ContextShare& share, bool bounds) {
  if (share.ranks == 1) return whole;
  const std::vector<ops::DocumentSpan> documents = DocumentsOf(whole);
  const ContextPlan plan =
      PlanContext(documents, whole.batch, whole.length, share.ranks, share.sharding);
  const ContextPart& own = plan.parts[share.rank];
  const std::vector<int64_t> gathered = GatheredPlaces(plan, whole.tokens());

  auto context = std::make_shared<ContextMeta>();
  context->row_tokens.assign(static_cast<size_t>(whole.batch), 0);
  for (const ops::DocumentSpan& span : documents)
    context->row_tokens[span.row] += span.end - span.begin;
  for (const int64_t token : own.tokens) context->counts.push_back(token < 0 ? 0 : 1);
  const auto first_own = static_cast<int64_t>(own.tokens.size()) * share.rank;
  for (const std::vector<ContextSequence>& call : own.calls) {
    if (!call.empty())
      context->calls.push_back(MakeCall(call, gathered, first_own, whole.length, bounds));
  }

  const at::Tensor tokens = at::tensor(own.tokens, at::kLong), is_one = tokens.ge(0),
                   places = tokens.clamp_min(0);
  // Zero at places that only fill up.
  const auto take = [&](const at::Tensor& all) {
    return all.index_select(0, places).mul_(is_one.to(all.scalar_type()));
  };
  at::Tensor positions = whole.positions;
  if (!positions.defined())
    positions = at::arange(whole.length, at::TensorOptions().dtype(at::kLong)).repeat(whole.batch);
  BatchMeta part = std::move(whole);
  part.length = plan.length;
  part.ids = take(part.ids), part.targets = take(part.targets), part.weights = take(part.weights);
  part.positions = take(positions);
  part.in_documents = part.in_documents.defined() ? take(part.in_documents) : is_one.to(at::kFloat);
  part.documents.clear();
  part.sequences = {};
  part.context = std::move(context);
  return part;
}

void MoveContext(ContextMeta& context, at::Device device) {
  for (ops::ContextCall& call : context.calls) {
    for (at::Tensor* one : {&call.queries, &call.keys, &call.query_bounds, &call.key_bounds}) {
      if (one->defined()) *one = one->pin_memory().to(device, /*non_blocking=*/true);
    }
  }
}

}  // namespace muster::trainer
