#include "agent/reconcile/progress_line.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>

#include "common/base/utf8.h"

namespace muster::agent {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

// Beyond these the scheduler ends the stream, and would again each time it is repeated
// (scheduler/agents/check_message.cc).
constexpr size_t kMaxPath = 4096;
constexpr int kMaxRefused = 1000;

const Value* Find(const Struct& object, const char* key) {
  const auto found = object.fields().find(key);
  return found == object.fields().end() ? nullptr : &found->second;
}

double Number(const Struct& object, const char* key, double missing = 0) {
  const Value* value = Find(object, key);
  return value != nullptr && value->kind_case() == Value::kNumberValue &&
                 std::isfinite(value->number_value())
             ? value->number_value()
             : missing;
}

int64_t Whole(const Struct& object, const char* key, int64_t missing) {
  const double value = Number(object, key, static_cast<double>(missing));
  return value >= -1 && value <= 9e15 ? static_cast<int64_t>(value) : missing;
}

std::string Text(const Struct& object, const char* key) {
  const Value* value = Find(object, key);
  return value != nullptr ? value->string_value() : std::string();
}

std::string Path(const Struct& object, const char* key) {
  return std::string(CutUtf8(Text(object, key), kMaxPath));
}

const Struct* Object(const Struct& object, const char* key) {
  const Value* value = Find(object, key);
  return value != nullptr && value->kind_case() == Value::kStructValue ? &value->struct_value()
                                                                       : nullptr;
}

}  // namespace

std::optional<ProgressLine> ParseProgressLine(const std::string& json) {
  Struct root;
  if (!google::protobuf::util::JsonStringToMessage(json, &root).ok()) return std::nullopt;
  ProgressLine line;
  if (Find(root, "step") != nullptr) {
    v1::Progress& progress = line.progress.emplace();
    progress.set_step(std::max<int64_t>(0, Whole(root, "step", 0)));
    progress.set_total_steps(std::max<int64_t>(0, Whole(root, "total_steps", 0)));
    progress.set_loss(Number(root, "loss"));
    progress.set_tokens_per_s(Number(root, "tokens_per_s"));
    progress.set_mfu_causal(Number(root, "mfu_causal", Number(root, "mfu")));
    progress.set_mfu_full(Number(root, "mfu_full"));
    progress.set_grad_norm(Number(root, "grad_norm"));
  }
  if (const Struct* object = Object(root, "checkpoint"); object != nullptr &&
                                                         !Text(*object, "path").empty() &&
                                                         Text(*object, "path").size() <= kMaxPath) {
    v1::CheckpointReport& report = line.checkpoint.emplace();
    report.mutable_checkpoint()->set_step(std::max<int64_t>(0, Whole(*object, "step", 0)));
    report.mutable_checkpoint()->set_path(Text(*object, "path"));
    report.mutable_checkpoint()->set_size_bytes(std::max<int64_t>(0, Whole(*object, "bytes", 0)));
    report.set_loaded_step(Whole(*object, "loaded_step", -1));
    report.set_loaded_path(Path(*object, "loaded_path"));
  }
  if (const Struct* object = Object(root, "loaded"); object != nullptr) {
    v1::LoadedReport& report = line.loaded.emplace();
    report.set_step(Whole(*object, "step", -1));
    report.set_path(Path(*object, "path"));
    if (const Value* skipped = Find(*object, "skipped"); skipped != nullptr) {
      for (const Value& entry : skipped->list_value().values()) {
        if (report.refused_size() == kMaxRefused) break;
        report.add_refused(Text(entry.struct_value(), "path") + ": " +
                           Text(entry.struct_value(), "why"));
      }
    }
  }
  if (const Struct* object = Object(root, "export");
      object != nullptr && !Text(*object, "staged").empty() &&
      Text(*object, "staged").size() <= kMaxPath && Text(*object, "target").size() <= kMaxPath) {
    v1::ExportReport& report = line.export_report.emplace();
    report.set_staged(Text(*object, "staged"));
    report.set_target(Text(*object, "target"));
  }
  return line;
}

}  // namespace muster::agent
