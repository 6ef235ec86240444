#include "cli/render/json.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "google/protobuf/util/json_util.h"

namespace muster {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A JSON string is a YAML string, whatever is in it.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7f) {
      absl::StrAppend(&out, "\\u", absl::Hex(c, absl::kZeroPad4));
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

// index < 0: the field is singular
std::string Scalar(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection* r = message.GetReflection();
  bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: return absl::StrCat(one ? r->GetInt32(message, field) : r->GetRepeatedInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_INT64: return absl::StrCat(one ? r->GetInt64(message, field) : r->GetRepeatedInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT32: return absl::StrCat(one ? r->GetUInt32(message, field) : r->GetRepeatedUInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT64: return absl::StrCat(one ? r->GetUInt64(message, field) : r->GetRepeatedUInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE: return absl::StrCat(one ? r->GetDouble(message, field) : r->GetRepeatedDouble(message, field, index));
    case FieldDescriptor::CPPTYPE_FLOAT: return absl::StrCat(one ? r->GetFloat(message, field) : r->GetRepeatedFloat(message, field, index));
    case FieldDescriptor::CPPTYPE_BOOL: return (one ? r->GetBool(message, field) : r->GetRepeatedBool(message, field, index)) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM: return (one ? r->GetEnum(message, field) : r->GetRepeatedEnum(message, field, index))->name();
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string text = one ? r->GetString(message, field) : r->GetRepeatedString(message, field, index);
      return Quoted(field->type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text) : text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE: break;
  }
  MUSTER_CHECK_MSG(false, "a message is no scalar");
  return "";
}

void Append(const Message& message, int indent, bool in_list, std::string* out);

// One value after "key:" or "-"
void AppendMessage(const Message& message, int indent, std::string* out) {
  std::string inner;
  Append(message, indent, false, &inner);
  absl::StrAppend(out, inner.empty() ? " {}\n" : "\n", inner);
}

void AppendMap(const Message& message, const FieldDescriptor* field, int indent, std::string* out) {
  const FieldDescriptor* key = field->message_type()->FindFieldByNumber(1);
  const FieldDescriptor* value = field->message_type()->FindFieldByNumber(2);
  std::vector<const Message*> entries;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    entries.push_back(&message.GetReflection()->GetRepeatedMessage(message, field, i));
  }
  std::sort(entries.begin(), entries.end(), [&](const Message* a, const Message* b) { return Scalar(*a, key, -1) < Scalar(*b, key, -1); });
  std::string pad(static_cast<size_t>(indent), ' ');
  for (const Message* entry : entries) {
    absl::StrAppend(out, pad, Scalar(*entry, key, -1), ":");
    if (value->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      AppendMessage(entry->GetReflection()->GetMessage(*entry, value), indent + 2, out);
    } else {
      absl::StrAppend(out, " ", Scalar(*entry, value, -1), "\n");
    }
  }
}

void Append(const Message& message, int indent, bool in_list, std::string* out) {
  const Reflection* r = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  r->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    // The first field of a list's element stands behind its "- ".
    std::string pad = in_list && field == fields.front() ? "" : std::string(static_cast<size_t>(indent), ' ');
    absl::StrAppend(out, pad, field->name(), ":");
    if (field->is_map()) {
      *out += "\n";
      AppendMap(message, field, indent + 2, out);
    } else if (!field->is_repeated()) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        AppendMessage(r->GetMessage(message, field), indent + 2, out);
      } else {
        absl::StrAppend(out, " ", Scalar(message, field, -1), "\n");
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      *out += "\n";
      for (int i = 0; i < r->FieldSize(message, field); ++i) {
        std::string inner;
        Append(r->GetRepeatedMessage(message, field, i), indent + 2, true, &inner);
        absl::StrAppend(out, std::string(static_cast<size_t>(indent), ' '), "- ", inner.empty() ? "{}\n" : inner);
      }
    } else {
      *out += " [";
      for (int i = 0; i < r->FieldSize(message, field); ++i) absl::StrAppend(out, i ? ", " : "", Scalar(message, field, i));
      *out += "]\n";
    }
  }
}

}  // namespace

std::string ToJson(const Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = pretty;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  MUSTER_CHECK_MSG(status.ok(), "every message of ours has a JSON form");
  if (json.empty() || json.back() != '\n') json += '\n';
  return json;
}

std::string ToYaml(const Message& message) {
  std::string out;
  Append(message, 0, false, &out);
  return out.empty() ? "{}\n" : out;
}

}  // namespace muster
