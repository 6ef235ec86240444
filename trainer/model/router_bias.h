// The biases that even out how often experts are chosen, without a loss (DeepSeek-V3, arXiv
// 2412.19437, section 2.1.2): after each step, the bias of an expert that met more tokens than the
// mean goes down by a fixed amount, that of one that met fewer goes up.
//
// A layer's biases are a flat of their own (FlatLayout::MarkRouterBias), which the optimizer leaves
// alone. In place of a gradient it holds how many tokens met each expert. So micro-batches and
// ranks are added up as gradients are, each token once, and the sums are whole numbers: exact, and
// the same in every layout, up to 2^24 tokens an expert and step.
#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/blocks.h"
#include "trainer/parallel/flat_param.h"
#include "trainer/parallel/tensor_group.h"

namespace muster::trainer {

// [P] fp32 of this rank's part of a micro-batch's tokens: 1 if it counts; 0: padding.
at::Tensor CountedPart(const BatchMeta& meta, const TensorGroup& tensor, at::Device device);

// Moves the biases among `flats` by `speed`, after the gradients of a step were summed.
void MoveRouterBiases(const std::vector<std::unique_ptr<FlatParam>>& flats, double speed);

}  // namespace muster::trainer
