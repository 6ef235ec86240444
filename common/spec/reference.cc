#include "common/spec/reference.h"

#include <string_view>

namespace muster {
namespace {

std::string Cell(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::string RenderJobReference(const std::vector<FieldDoc>& fields) {
  std::string out =
      "# Job file reference\n\n"
      "<!-- Made by muster-docgen from proto/muster/v1/job.proto. Don't edit: change the comments "
      "there, then run\n"
      "     `ninja job-reference`. -->\n\n"
      "A job file is YAML. Durations and sizes carry a unit (`10m`, `64GiB`); unknown fields, "
      "duplicate fields, anchors,\n"
      "aliases and tags are errors. A job with one task writes the task's fields at the top; a job "
      "with several writes\n"
      "`tasks:`, a list of maps, and each task has a `name`. The same text is in `muster fields`.\n"
      "The keys below `trainer:` are those of the trainer itself: `muster fields trainer`, or "
      "`muster-trainer --schema`.\n";
  for (const bool task : {false, true}) {
    out += task ? "\n## A task's fields\n\n" : "\n## A job's fields\n\n";
    out += "| field | type | meaning |\n|---|---|---|\n";
    for (const FieldDoc& field : fields) {
      if (field.task != task) continue;
      out += "| `" + std::string(field.path) + "` | " + Cell(field.type) + " | " + Cell(field.doc) +
             " |\n";
    }
  }
  return out;
}

}  // namespace muster
