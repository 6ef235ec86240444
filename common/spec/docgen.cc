// muster-docgen DESCRIPTORS (--table | --reference) OUT: the comments of job.proto as the table
// that fields.cc includes, or as docs/job-reference.md. Runs at build time only.
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/spec/reference.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"

namespace muster {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

struct Row {
  std::string path, type, doc;
  bool task;
};

std::string YamlName(std::string name) {
  for (const char* unit : {"_milli", "_ns", "_bytes", "_json"}) {
    if (absl::EndsWith(name, unit)) return name.substr(0, name.size() - std::string(unit).size());
  }
  return name;
}

// Levels and rules by name, but for what is refused with "not yet".
std::string Choices(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 1; i < type.value_count(); ++i) {
    google::protobuf::SourceLocation place;
    type.value(i)->GetSourceLocation(&place);
    if (!absl::StrContains(absl::AsciiStrToLower(place.trailing_comments), "not yet"))
      names.push_back(absl::AsciiStrToLower(type.value(i)->name()));
  }
  return absl::StrJoin(names, ", ");
}

std::string Type(const FieldDescriptor& field) {
  if (field.is_map()) return "map of text";
  if (field.message_type() != nullptr && field.message_type()->name() == "SweepValues")
    return "map of lists of text";
  if (field.is_repeated() && field.cpp_type() == FieldDescriptor::CPPTYPE_INT32)
    return "list of whole numbers";
  if (field.is_repeated()) return field.message_type() != nullptr ? "list of maps" : "list of text";
  const std::string& name = field.name();
  if (absl::EndsWith(name, "_ns")) return "duration";
  if (absl::EndsWith(name, "_bytes")) return "size";
  if (absl::EndsWith(name, "_milli")) return "number";
  if (absl::EndsWith(name, "_json")) return "map";
  if (field.enum_type() != nullptr) return Choices(*field.enum_type());
  if (field.message_type() != nullptr) {
    if (field.name() == "workers") return "whole number, or {min, max, multiple_of}";
    if (field.message_type()->name() == "Workers") return "whole number, or {min, max}";
    if (field.message_type()->name() == "Schedule") return "text, or map";
    if (field.message_type()->name() == "Run") return "text, or list of text";
    return "map";
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) return "true or false";
  return field.cpp_type() == FieldDescriptor::CPPTYPE_STRING ? "text" : "whole number";
}

// The comment as one paragraph; the wire's unit is of no interest to who writes YAML.
std::string Doc(const FieldDescriptor& field) {
  google::protobuf::SourceLocation place;
  if (!field.GetSourceLocation(&place)) return "";
  std::string text =
      place.leading_comments.empty() ? place.trailing_comments : place.leading_comments;
  text = absl::StrJoin(absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty()), " ");
  text = absl::StrReplaceAll(text, {{" Nanoseconds.", ""},
                                    {" nanoseconds;", ""},
                                    {", in thousandths of a core", ", in cores"},
                                    {", in thousandths;", ":"},
                                    {" in bytes", ""},
                                    {" JSON text.", ""}});
  if (text.empty()) return text;
  text[0] = absl::ascii_toupper(static_cast<unsigned char>(text[0]));
  if (text.back() != '.') text += '.';
  return text;
}

void Collect(const Descriptor& message, const std::string& prefix, bool task,
             std::vector<Row>* rows) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string path =
        prefix.empty() ? YamlName(field.name()) : absl::StrCat(prefix, ".", YamlName(field.name()));
    if (path == "independent_workers.multiple_of") continue;  // refused: they come and go singly
    rows->push_back({path, Type(field), Doc(field), task});
    const Descriptor* below = field.message_type();
    if (below != nullptr && !field.is_repeated() && below->name() != "Run")
      Collect(*below, path, task, rows);
  }
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

int Main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: muster-docgen DESCRIPTORS (--table | --reference) OUT\n";
    return 2;
  }
  google::protobuf::FileDescriptorSet files;
  std::ifstream in(argv[1], std::ios::binary);
  DescriptorPool pool;
  if (!in || !files.ParseFromIstream(&in)) {
    std::cerr << argv[1] << ": not a descriptor set\n";
    return 1;
  }
  for (const auto& file : files.file()) {
    if (pool.BuildFile(file) == nullptr) {
      std::cerr << argv[1] << ": " << file.name() << " doesn't build\n";
      return 1;
    }
  }
  std::vector<Row> rows;
  for (const auto& [name, task] :
       {std::pair("muster.v1.JobSpec", false), std::pair("muster.v1.TaskSpec", true)}) {
    const Descriptor* message = pool.FindMessageTypeByName(name);
    if (message == nullptr) {
      std::cerr << argv[1] << ": no " << name << "\n";
      return 1;
    }
    Collect(*message, "", task, &rows);
  }
  for (const Row& row : rows) {
    if (!row.doc.empty()) continue;
    std::cerr << "job.proto: " << row.path << " has no comment\n";
    return 1;
  }
  std::ofstream out(argv[3]);
  if (std::string_view(argv[2]) == "--table") {
    for (const Row& row : rows)
      out << "{" << Quoted(row.path) << ", " << Quoted(row.type) << ",\n " << Quoted(row.doc)
          << ", " << (row.task ? "true" : "false") << "},\n";
  } else {
    std::vector<FieldDoc> fields;
    for (const Row& row : rows)
      fields.push_back({row.path.c_str(), row.type.c_str(), row.doc.c_str(), row.task});
    out << RenderJobReference(fields);
  }
  out.close();
  return out ? 0 : 1;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::Main(argc, argv); }
