#include "sim/peers/shockwave.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace muster::sim {
namespace {

struct Model {
  std::string_view name;
  int64_t samples;  // of its data set
  int largest;      // batch size that adaptation goes up to
};
constexpr Model kModels[] = {{"ResNet-18", 50000, 256},
                             {"ResNet-50", 100000, 128},
                             {"Transformer", 10000, 128},
                             {"LM", 59675, 80},
                             {"Recommendation", 117907, 8192}};

const Model* Find(std::string_view name) {
  const auto* const model = std::find_if(std::begin(kModels), std::end(kModels),
                                         [&](const Model& m) { return m.name == name; });
  return model == std::end(kModels) ? nullptr : model;
}

// Epochs from which the batch size is 2, 4, 8, 16 times the first (GNS).
struct Growth {
  std::string_view model;
  int batch_size;
  int gpus;
  std::vector<int> doublings;
};
const std::vector<Growth>& GnsTable() {
  static const std::vector<Growth> kTable = {{"ResNet-18", 16, 1, {31, 41, 51, 71}},
                                             {"ResNet-18", 32, 1, {21, 31, 51}},
                                             {"ResNet-18", 64, 1, {11, 31}},
                                             {"ResNet-18", 128, 1, {11}},
                                             {"ResNet-18", 16, 2, {21, 31, 91, 111}},
                                             {"ResNet-18", 32, 2, {11, 21, 41}},
                                             {"ResNet-18", 64, 2, {21, 41}},
                                             {"ResNet-18", 128, 2, {41}},
                                             {"ResNet-18", 16, 4, {11, 21, 81, 91}},
                                             {"ResNet-18", 32, 4, {21, 31, 61}},
                                             {"ResNet-18", 64, 4, {11, 61}},
                                             {"ResNet-18", 128, 4, {11}},
                                             {"ResNet-50", 64, 1, {101}},
                                             {"ResNet-50", 32, 2, {101, 111}},
                                             {"ResNet-50", 64, 2, {81}},
                                             {"ResNet-50", 32, 4, {131, 221}},
                                             {"ResNet-50", 64, 4, {191}},
                                             {"LM", 5, 1, {31, 41, 61, 71}},
                                             {"LM", 10, 1, {11, 21, 41}},
                                             {"LM", 20, 1, {11, 41}},
                                             {"LM", 40, 1, {11}},
                                             {"LM", 5, 2, {31, 51, 61, 71}},
                                             {"LM", 10, 2, {11, 31, 41}},
                                             {"LM", 20, 2, {31, 41}},
                                             {"LM", 40, 2, {11}},
                                             {"LM", 5, 4, {11, 31, 71, 91}},
                                             {"LM", 10, 4, {11, 31, 61}},
                                             {"LM", 20, 4, {11, 61}},
                                             {"LM", 40, 4, {61}},
                                             {"Recommendation", 512, 1, {21, 41, 71, 91}},
                                             {"Recommendation", 1024, 1, {21, 51, 91}},
                                             {"Recommendation", 2048, 1, {21, 41}},
                                             {"Recommendation", 4096, 1, {41}}};
  return kTable;
}

// Accordion keeps the first batch size in critical regimes.
bool Critical(std::string_view model, int batch_size, int epoch) {
  const auto within = [epoch](int from, int until) { return epoch >= from && epoch < until; };
  if (model == "ResNet-18")
    return within(0, batch_size == 256 ? 20 : 10) || within(150, 160) || within(250, 260);
  if (model == "ResNet-50") return epoch % 30 < 10;
  if (model == "LM") return epoch < 10;
  if (model == "Recommendation") {
    return epoch < (batch_size <= 1024   ? 30
                    : batch_size == 2048 ? 40
                                         : 10) ||
           within(60, 70) || within(80, 90);
  }
  return true;
}

}  // namespace

absl::StatusOr<Throughputs> ParseThroughputs(std::string_view json) {
  google::protobuf::Struct root;
  if (!google::protobuf::util::JsonStringToMessage({json.data(), json.size()}, &root).ok()) {
    return absl::InvalidArgumentError("the throughputs are no JSON object");
  }
  const auto gpu = root.fields().find("v100");
  if (gpu == root.fields().end())
    return absl::InvalidArgumentError("the throughputs have no \"v100\"");
  Throughputs throughputs;
  for (const auto& [key, value] : gpu->second.struct_value().fields()) {
    char model[64];
    int batch_size = 0, gpus = 0;
    const auto alone = value.struct_value().fields().find("null");
    if (std::sscanf(key.c_str(), "('%63[^ (] (batch size %d)', %d)", model, &batch_size, &gpus) !=
        3)
      continue;
    if (alone == value.struct_value().fields().end() || alone->second.number_value() <= 0) continue;
    throughputs[{model, batch_size, gpus}] = alone->second.number_value();
  }
  if (throughputs.empty())
    return absl::InvalidArgumentError(
        "the throughputs name no \"('MODEL (batch size B)', GPUS)\" under \"v100\"");
  return throughputs;
}

int64_t StepsOfEpoch(std::string_view model, int batch_size) {
  const Model* const found = Find(model);
  return found == nullptr || batch_size <= 0 ? 0 : (found->samples + batch_size - 1) / batch_size;
}

std::vector<int> BatchSizes(Adaptation adaptation, std::string_view model, int batch_size, int gpus,
                            int epochs) {
  std::vector<int> sizes(static_cast<size_t>(epochs), batch_size);
  const Model* const found = Find(model);
  if (found == nullptr || adaptation == Adaptation::kStatic) return sizes;
  if (adaptation == Adaptation::kAccordion) {
    for (int epoch = 0; epoch < epochs; ++epoch) {
      // The first 30 % of a job count as critical, which keeps its accuracy.
      if (!Critical(model, batch_size, epoch) && 10 * epoch > 3 * epochs)
        sizes[epoch] = found->largest;
    }
    return sizes;
  }
  for (const Growth& growth : GnsTable()) {
    if (growth.model != model || growth.batch_size != batch_size || growth.gpus != gpus) continue;
    for (const int from : growth.doublings) {
      for (int epoch = from; epoch < epochs; ++epoch)
        sizes[epoch] = std::min(2 * sizes[epoch], found->largest);
    }
  }
  return sizes;
}

absl::StatusOr<double> AdaptedSeconds(const Throughputs& throughputs, Adaptation adaptation,
                                      const std::string& model, int batch_size, int gpus,
                                      int64_t steps) {
  const int64_t first = StepsOfEpoch(model, batch_size);
  if (first == 0) return absl::NotFoundError(absl::StrCat("model ", model, " is not known"));
  const auto epochs = static_cast<int>((steps + first - 1) / first);
  const std::vector<int> sizes = BatchSizes(adaptation, model, batch_size, gpus, epochs);
  double seconds = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const auto rate = throughputs.find({model, sizes[epoch], gpus});
    if (rate == throughputs.end()) {
      return absl::NotFoundError(absl::StrCat(model, " with batch size ", sizes[epoch], " on ",
                                              gpus, " GPUs was not measured"));
    }
    // The last epoch may be a part of one.
    const double share = epoch + 1 < epochs ? 1.0
                                            : static_cast<double>(steps - first * (epochs - 1)) /
                                                  static_cast<double>(first);
    seconds += share * static_cast<double>(StepsOfEpoch(model, sizes[epoch])) / rate->second;
  }
  return seconds;
}

}  // namespace muster::sim
