#include "common/spec/check_blocks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/spec/blocks.h"
#include "common/spec/check_spec.h"
#include "common/spec/yaml_tree.h"

namespace muster {
namespace {

using Emit = std::function<void(const std::string&, const std::string&)>;

bool IsLevel(v1::TopologyLevel level) {
  return level == v1::ISLAND || level == v1::HOST || level == v1::RACK || level == v1::BLOCK;
}

// "4 or 8": the multiples next to `count`.
std::string Nearest(int64_t count, int64_t multiple) {
  const int64_t below = count / multiple * multiple;
  if (below == 0) return absl::StrCat(multiple);
  return below + multiple > kMaxWorkers ? absl::StrCat(below)
                                        : absl::StrCat(below, " or ", below + multiple);
}

// Whether it names levels that it may.
bool CheckLevels(const v1::RankBlock& block, const std::string& path, const Emit& emit) {
  bool good = true;
  for (const auto& [level, field] :
       {std::pair(block.preferred(), ".preferred"), std::pair(block.required(), ".required")}) {
    if (level == v1::TOPOLOGY_LEVEL_UNSPECIFIED || IsLevel(level)) continue;
    good = false;
    emit(path + field,
         "must be one of island, host, rack, block: the whole gang is in one cluster");
  }
  if (!good) return false;
  if (block.preferred() == v1::TOPOLOGY_LEVEL_UNSPECIFIED &&
      block.required() == v1::TOPOLOGY_LEVEL_UNSPECIFIED) {
    emit(path, "says nothing of where; give required or preferred: island, host, rack or block");
    return false;
  }
  if (block.required() == v1::TOPOLOGY_LEVEL_UNSPECIFIED || block.preferred() < block.required())
    return true;
  emit(path + ".preferred", "is no tighter than required; prefer a tighter level, or leave it out");
  return false;
}

// Whether its size is one that workers, and the block before it, go into.
bool CheckSize(const v1::TaskSpec& task, int b, const std::string& path, const Emit& emit) {
  const int64_t gpus = task.topology().blocks(b).gpus();
  const int64_t a_worker = task.resources().gpus_milli() / 1000;
  if (gpus < 1 || gpus > kMaxWorkers) {
    emit(path + ".gpus",
         absl::StrCat("must be a whole number from 1 to ", kMaxWorkers, "; got ", gpus));
    return false;
  }
  if (gpus % a_worker != 0 && a_worker % gpus != 0) {
    emit(path + ".gpus", absl::StrCat(gpus, " GPUs are no whole number of workers with ", a_worker,
                                      "; use ", Nearest(gpus, a_worker)));
    return false;
  }
  const int64_t before = b == 0 ? 0 : task.topology().blocks(b - 1).gpus();
  if (before == 0 || (gpus > before && gpus % before == 0)) return true;
  emit(path + ".gpus", gpus <= before
                           ? absl::StrCat(gpus, " is no more than the block before it, ", before,
                                          "; list each size once, the smallest first")
                           : absl::StrCat(gpus, " is no multiple of the block before it, ", before,
                                          "; use ", Nearest(gpus, before)));
  return false;
}

}  // namespace

void CheckBlocks(const v1::TaskSpec& task, const std::string& path, const Emit& emit) {
  const v1::Topology& topology = task.topology();
  if (topology.blocks().empty()) return;
  const std::string blocks = JoinPath(path, "topology.blocks");
  if (topology.blocks_size() > kMaxRankBlocks)
    return emit(blocks, absl::StrCat("more than ", kMaxRankBlocks, " blocks"));
  const int64_t gpus_milli = task.resources().gpus_milli();
  if (gpus_milli <= 0 || gpus_milli % 1000 != 0)
    return emit(blocks,
                "are of whole GPUs; give resources.gpus a whole number, or leave the blocks out");
  bool good = true;
  for (int b = 0; b < topology.blocks_size() && good; ++b) {
    const std::string at = absl::StrCat(blocks, "[", b, "]");
    good = CheckLevels(topology.blocks(b), at, emit) && CheckSize(task, b, at, emit);
  }
  if (!good) return;
  const int64_t most = LargestBlockOf(task);
  const auto check = [&](const char* field, int64_t workers) {
    if (workers < 1 || workers > kMaxWorkers || workers % most == 0) return;
    emit(JoinPath(path, absl::StrCat("workers", field)),
         absl::StrCat(workers, workers == 1 ? " worker is" : " workers are",
                      " no whole number of blocks of ", most, " (topology.blocks); use ",
                      Nearest(workers, most)));
  };
  const v1::Workers& workers = task.workers();
  if (workers.min() == workers.max()) {
    check("", task.has_workers() ? workers.min() : 1);
  } else {
    check(".min", workers.min());
    check(".max", workers.max());
  }
  if (workers.multiple_of() != 0) check(".multiple_of", workers.multiple_of());
}

}  // namespace muster
