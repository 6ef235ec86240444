// docs/job-reference.md from field docs: one rendering for muster-docgen, which writes it, and for
// the test that compares it.
#pragma once

#include <string>
#include <vector>

#include "common/spec/fields.h"

namespace muster {

std::string RenderJobReference(const std::vector<FieldDoc>& fields);

}  // namespace muster
