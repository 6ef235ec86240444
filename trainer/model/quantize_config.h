// The `quantize:` map: frozen weights kept in 4 bits (QLoRA, Dettmers et al., arXiv 2305.14314);
// and what a config.json says of weights that bitsandbytes has quantised already.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "trainer/model/config.h"

namespace muster::trainer {

struct QuantizeConfig {
  bool on = false;
  bool nested = false;  // `double`: the blocks' largest values are quantised, too
};

// The `quantize:` map. Adds every problem under `path`.
QuantizeConfig ParseQuantize(const nlohmann::json& value, const std::string& path,
                             Problems& problems);
// Its JSON Schema.
nlohmann::ordered_json QuantizeSchema();

// A config.json's content without its `quantization_config`, where that is of weights which
// `quantize` means; problems are added under `path`. Other ones stay in, and are refused as what
// can't be trained.
nlohmann::json WithoutQuantization(nlohmann::json content, const QuantizeConfig& quantize,
                                   const std::string& path, Problems& problems);

// The `quantization_config` of weights in NF4 whose linears compute in `dtype` (torch's name of
// it). `score`: the head is one.
nlohmann::ordered_json QuantizationConfig(bool nested, bool score, const std::string& dtype);

}  // namespace muster::trainer
