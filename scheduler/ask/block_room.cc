#include "scheduler/ask/block_room.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/state/topology.h"

namespace muster {
namespace {

// Whole units that the sum has more than before.
int64_t More(int64_t* sum, int64_t workers, int64_t unit) {
  const int64_t before = *sum / unit;
  *sum += workers;
  return (*sum / unit - before) * unit;
}

}  // namespace

int64_t BlockRoom::Add(const HostRow& host, int64_t workers, pb::TopologyLevel within) {
  int64_t more = workers - workers % units_.host;
  if (within == pb::ISLAND || within == pb::HOST || !asks()) return more;
  more = More(&racks_[{host.block, host.rack}], more, units_.rack);
  if (within == pb::RACK) return more;
  return More(&blocks_[host.block], more, units_.block);
}

bool HasBlocksFor(const pb::TaskSpec& task, int64_t gpus) {
  const auto& blocks = task.topology().blocks();
  return std::all_of(blocks.begin(), blocks.end(), [gpus](const pb::RankBlock& block) {
    return block.gpus() % gpus == 0 || gpus % block.gpus() == 0;
  });
}

std::string BlocksText(const pb::TaskSpec& task) {
  std::vector<std::string> sizes;
  for (const pb::RankBlock& block : task.topology().blocks()) {
    if (!Binds(block.required()) || (WorkersOf(block, task) == 1 && block.required() != pb::ISLAND))
      continue;
    sizes.push_back(absl::StrCat(block.gpus(), " GPUs within one ",
                                 absl::AsciiStrToLower(pb::TopologyLevel_Name(block.required()))));
  }
  if (sizes.empty()) return "";
  return absl::StrCat("in blocks of ", absl::StrJoin(sizes, " and of "),
                      " each, as topology.blocks says");
}

}  // namespace muster
