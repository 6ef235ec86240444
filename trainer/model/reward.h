// The head of a reward model: a score of a document, read off at its last token, as transformers'
// models for sequence classification have it with one label. Its loss is of pairs (pairs.h), whose
// `chosen` and `rejected` are one token each.
#pragma once

#include <memory>

#include "trainer/model/family.h"
#include "trainer/model/pairs.h"
#include "trainer/model/projection.h"

namespace muster::trainer {

inline constexpr char kScoreName[] = "score.weight";

// -log σ(chosen's - rejected's) + c · (chosen's + rejected's)², c center_rewards_coefficient, of
// the rewards that are in batch.policy.
PairCosts RewardCosts(const PairBatch& batch, const RewardConfig& config);
// This micro-batch's summands of the step's means, as PairMeans has them, without
// log-probabilities.
at::Tensor RewardMeans(const PairBatch& batch);

// Final norm, score and loss. `score`: [1, d], which every rank of a slice has whole.
std::unique_ptr<Block> MakeRewardHead(const ModelConfig& config, Parameter norm, Parameter score,
                                      const BlockOptions& options);

}  // namespace muster::trainer
