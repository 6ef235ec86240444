#include "common/spec/check_trainer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr int64_t kMostNumber = int64_t{1} << 40;

// The whole number `key` of `map`; nothing where it is none from 1 on.
std::optional<int64_t> Number(const nlohmann::json& map, const char* key) {
  if (!map.is_object()) return std::nullopt;
  const auto found = map.find(key);
  if (found == map.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  if (!(value >= 1) || value > static_cast<double>(kMostNumber)) return std::nullopt;
  const auto whole = static_cast<int64_t>(value);
  return static_cast<double>(whole) == value ? std::optional(whole) : std::nullopt;
}

const nlohmann::json& Inner(const nlohmann::json& map, const char* key) {
  static const nlohmann::json none;
  const auto found = map.find(key);
  return found == map.end() ? none : *found;
}

// "2 or 4": the nearest numbers to `tp` that divide both.
std::string Nearest(int64_t tp, int64_t one, int64_t other) {
  int64_t below = 1, above = 0;
  for (int64_t n = 1; n <= std::min(one, other); ++n) {
    if (one % n != 0 || other % n != 0) continue;
    if (n < tp) below = n;
    if (n > tp && above == 0) above = n;
  }
  return above > 0 ? absl::StrCat(below, " or ", above) : absl::StrCat(below);
}

// owner/model: one slash, not at an end, and no leading dot.
bool IsHubName(std::string_view text) {
  const size_t slash = text.find('/');
  return slash != std::string_view::npos && slash > 0 && slash + 1 < text.size() &&
         text.find('/', slash + 1) == std::string_view::npos && text[0] != '.';
}

}  // namespace

void CheckTrainerPaths(const nlohmann::json& trainer, const std::string& path,
                       const EmitProblem& emit) {
  for (const char* field : {"init", "data", "export"}) {
    const auto found = trainer.find(field);
    if (found == trainer.end() || !found->is_string()) continue;
    const std::string& given = found->get_ref<const std::string&>();
    std::string problem;
    if (absl::StrContains(given, "://")) {
      problem =
          "not yet: URLs. Give a directory that the hosts see, absolute or under the job's "
          "directory";
    } else if (std::string_view(field) == "init" && IsHubName(given)) {
      problem = absl::StrCat("not yet: names on the hub. Give a Hugging Face directory: /models/",
                             given, ", or ./", given, " under the job's directory");
    }
    if (!problem.empty()) emit(JoinPath(path, field), problem, Document::Where::kValue);
  }
}

void CheckTrainerLayout(const nlohmann::json& trainer, const pb::TaskSpec& task,
                        const std::string& path, const EmitProblem& emit) {
  constexpr int64_t kMostRanks = int64_t{1} << 24;
  const std::optional<int64_t> tp = Number(Inner(trainer, "parallel"), "tp");
  if (!tp || *tp == 1) return;
  const auto refuse = [&](const std::string& text) {
    emit(path + ".parallel.tp", text, Document::Where::kValue);
  };
  if (const auto shard = Number(trainer, "shard_size"); shard && *shard % *tp != 0) {
    emit(path + ".shard_size",
         absl::StrCat(*shard, " is no multiple of parallel.tp, ", *tp, "; use ",
                      (*shard / *tp + 1) * *tp, ", or leave it out"),
         Document::Where::kValue);
  }
  if (const nlohmann::json& graphs = Inner(trainer, "cuda_graphs"); graphs == true) {
    emit(path + ".cuda_graphs", "does not go together with parallel.tp; leave one of them out",
         Document::Where::kValue);
  }
  const int64_t processes = task.processes_per_worker() > 0
                                ? task.processes_per_worker()
                                : std::max<int64_t>(1, task.resources().gpus_milli() / 1000);
  const int64_t least = std::max<int64_t>(1, task.workers().min()),
                most = std::max<int64_t>(least, task.workers().max());
  // Of a gang of any size, what each of its workers has.
  const int64_t ranks = least == most ? least * processes : processes;
  if (ranks > kMostRanks) return;  // said elsewhere
  const int64_t heads =
      Number(Inner(trainer, "model"), "num_key_value_heads").value_or(*tp * ranks);
  if (heads % *tp != 0) {
    return refuse(
        absl::StrCat(*tp, " doesn't divide the model's ", heads, " num_key_value_heads; with ",
                     ranks, ranks == 1 ? " rank" : " ranks", " use ", Nearest(*tp, heads, ranks)));
  }
  if (ranks % *tp == 0) return;
  if (least == most) {
    const int64_t fewer = ranks / *tp * *tp;
    return refuse(
        absl::StrCat(*tp, " doesn't divide the ", ranks, ranks == 1 ? " rank" : " ranks",
                     " (workers x processes_per_worker)", "; use ", Nearest(*tp, heads, ranks),
                     ", or ", fewer > 0 ? absl::StrCat(fewer, " or ") : "", fewer + *tp, " ranks"));
  }
  refuse(absl::StrCat(*tp, " must divide the ranks of a gang of ", least, " to ", most,
                      " workers, whatever its size: use ", Nearest(*tp, heads, ranks),
                      ", which divides the ", processes, processes == 1 ? " process" : " processes",
                      " of a worker, or ", "give workers one number"));
}

}  // namespace muster
