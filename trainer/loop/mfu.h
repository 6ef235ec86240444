// Model FLOP/s utilisation in the two conventions in use. Per token, forward and backward: 6N for
// the parameters, plus attention's products, 12·L·H·S when every position attends to all (PaLM,
// appendix B) or half of it when causal. N: all parameters that a token
// meets (of experts, the chosen ones'), tied ones once; L layers; H = heads *
// head_dim; S sequence length (of documents packed together, the sum of their lengths' squares by
// the sum of their lengths).
//
// Of preferences (dpo) with LoRA the frozen model is the reference, which is a forward pass: 2N and
// a third of attention's products. That logits are made twice there, as no token's gradient is
// known before its pair's cost is, doesn't count: it is recomputed.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/model/config.h"

namespace muster::trainer {

// With LoRA the frozen weights have no gradients of their own: 4N for them, and 6 for each of the
// adapters' parameters.
struct FlopsPerToken {
  double causal = 0, full = 0;
};
FlopsPerToken ModelFlopsPerToken(const ModelConfig& config, double length,
                                 int64_t adapter_parameters = 0, bool dpo = false);

// Dense peak FLOP/s of a GPU by its CUDA name or its flavour ("h100-80g"), for bf16 tensor cores or
// plain fp32, from the makers' data sheets; 0 when unknown (and for CPUs, whose peak depends on too
// much): MFU is left out then.
double PeakFlops(const std::string& device_name, bool bf16);
// Whether a device's name, whatever its case, is of the model `known` ("A40"): an A4000 is another.
bool IsOfModel(const std::string& device_name, const std::string& known);
// Its CUDA compute capability (89: 8.9); 0 when unknown.
int CapabilityOf(const std::string& device_name);
// The names it knows, "H100 PCIE, H100 NVL, …".
std::string KnownDevices();

}  // namespace muster::trainer
