#include "scheduler/state/abilities.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {

Abilities NeedsOf(const pb::JobSpec& job, const pb::TaskSpec& task) {
  return (job.secrets_size() > 0 ? kGivesSecrets : 0) |
         (task.workdir_digest().empty() ? 0 : kUnpacks) |
         (task.image().empty() ? 0 : kEntersImages);
}

Abilities AbilitiesOf(const pb::Inventory& inventory) {
  return (inventory.gives_secrets() ? kGivesSecrets : 0) | (inventory.unpacks() ? kUnpacks : 0) |
         (inventory.enters_images() ? kEntersImages : 0);
}

std::string WhyUnable(const pb::Inventory& inventory, Abilities needs) {
  const Abilities has = AbilitiesOf(inventory), lacks = needs & ~has;
  if (lacks == 0) return "";
  // An agent that knows the others is no older one: it is the host that doesn't let it.
  if (lacks == kEntersImages && Can(has, kGivesSecrets | kUnpacks)) {
    return "can't enter images: namespaces of users are not to be had there, or its Linux is older "
           "than 5.11; muster-agent's log says which. Allow them, or go without image";
  }
  std::vector<std::string> unknown;
  if ((lacks & kGivesSecrets) != 0) unknown.emplace_back("secrets");
  if ((lacks & kUnpacks) != 0) unknown.emplace_back("a workdir that comes along");
  if ((lacks & kEntersImages) != 0) unknown.emplace_back("images");
  return absl::StrCat("has a muster-agent that doesn't know ", absl::StrJoin(unknown, " and "),
                      ": upgrade muster-agent there");
}

}  // namespace muster
