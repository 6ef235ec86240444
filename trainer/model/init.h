// Weights from scratch: a pure function of (seed, parameter name, element), so of neither rank nor
// sharding.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

// Of a stream's name (philox.h).
uint64_t NameHash(const std::string& name);

// Writes elements [begin, begin + n) of the parameter `name` drawn from normal(0, stddev):
// Philox4x32-10 (Salmon et al., SC 2011) keyed by seed and name, Box-Muller on pairs.
void FillNormal(uint64_t seed, const std::string& name, double stddev, int64_t begin, int64_t n,
                float* out);

// The same stream as numbers in (0, 1].
void FillUniform(uint64_t seed, const std::string& name, int64_t begin, int64_t n, float* out);

// Fills a flat's masters: norms with 1, or with 0 where their weights count from 1, biases with 0,
// everything else from normal(0, stddev), as transformers does.
void InitialiseMasters(FlatParam& flat, uint64_t seed, double stddev, bool norms_from_one = false);

// Draws the parameter `name` of a flat that has it, and leaves the others.
void DrawParameter(FlatParam& flat, const std::string& name, uint64_t seed, double stddev);

}  // namespace muster::trainer
