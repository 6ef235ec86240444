// The fields of a job file, from the comments of job.proto: `muster fields`, docs/job-reference.md,
// completion.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster {

struct FieldDoc {
  const char* path;  // YAML path below the job or a task: "workers.min", "resources.gpus"
  const char* type;  // as a user writes it: text, whole number, number, duration, size, list of
                     // text, map, …
  const char* doc;   // meaning; default; limit
  bool task;         // belongs to a task (written at the top when the job has one task)
};

// In the proto's order, a message's own fields after it.
const std::vector<FieldDoc>& JobFields();

// Text for `muster fields [PATH]`; PATH "" lists the top, "resources" that field and what is below
// it. With a schema, "trainer" and "trainer.max_steps" are answered from it. Empty: no such field
// (suggest with FieldSuggestion).
std::string FieldsText(std::string_view path, std::string_view trainer_schema_json = {});
// The same for programs: a JSON list of {path, type, doc, task}; below "trainer" what its schema
// says there. Empty: no such field.
std::string FieldsJson(std::string_view path, std::string_view trainer_schema_json = {});
// Whether `path` is trainer, or a field below it.
bool IsTrainersField(std::string_view path);
std::string FieldSuggestion(
    std::string_view path,
    std::string_view trainer_schema_json = {});  // " Did you mean resources.gpus?" or empty

// docs/job-reference.md, whole. muster-docgen writes it; a test compares it with the committed
// file.
std::string JobReferenceMarkdown();

}  // namespace muster
