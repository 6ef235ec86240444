#include "cli/render/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

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

// The shortest text that reads back as the same number; as the proto's JSON has them, the others
// are text.
template <typename Float>
std::string Real(Float value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

// index < 0: the field is singular
std::string Scalar(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection* r = message.GetReflection();
  bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(one ? r->GetInt32(message, field)
                              : r->GetRepeatedInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(one ? r->GetInt64(message, field)
                              : r->GetRepeatedInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(one ? r->GetUInt32(message, field)
                              : r->GetRepeatedUInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(one ? r->GetUInt64(message, field)
                              : r->GetRepeatedUInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Real(one ? r->GetDouble(message, field) : r->GetRepeatedDouble(message, field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Real(one ? r->GetFloat(message, field) : r->GetRepeatedFloat(message, field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return (one ? r->GetBool(message, field) : r->GetRepeatedBool(message, field, index))
                 ? "true"
                 : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return (one ? r->GetEnum(message, field) : r->GetRepeatedEnum(message, field, index))->name();
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string text =
          one ? r->GetString(message, field) : r->GetRepeatedString(message, field, index);
      return Quoted(field->type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text) : text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
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

// A map's entries by key, so that the same message is always the same text.
std::vector<const Message*> SortedEntries(const Message& message, const FieldDescriptor* field) {
  const FieldDescriptor* key = field->message_type()->FindFieldByNumber(1);
  std::vector<const Message*> entries;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    entries.push_back(&message.GetReflection()->GetRepeatedMessage(message, field, i));
  }
  std::sort(entries.begin(), entries.end(), [&](const Message* a, const Message* b) {
    return Scalar(*a, key, -1) < Scalar(*b, key, -1);
  });
  return entries;
}

void AppendMap(const Message& message, const FieldDescriptor* field, int indent, std::string* out) {
  const FieldDescriptor* key = field->message_type()->FindFieldByNumber(1);
  const FieldDescriptor* value = field->message_type()->FindFieldByNumber(2);
  std::string pad(static_cast<size_t>(indent), ' ');
  for (const Message* entry : SortedEntries(message, field)) {
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
    std::string pad =
        in_list && field == fields.front() ? "" : std::string(static_cast<size_t>(indent), ' ');
    absl::StrAppend(out, pad, field->name(), ":");
    if (field->is_map()) {
      *out += '\n';
      AppendMap(message, field, indent + 2, out);
    } else if (!field->is_repeated()) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        AppendMessage(r->GetMessage(message, field), indent + 2, out);
      } else {
        absl::StrAppend(out, " ", Scalar(message, field, -1), "\n");
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      *out += '\n';
      for (int i = 0; i < r->FieldSize(message, field); ++i) {
        std::string inner;
        Append(r->GetRepeatedMessage(message, field, i), indent + 2, true, &inner);
        absl::StrAppend(out, std::string(static_cast<size_t>(indent), ' '), "- ",
                        inner.empty() ? "{}\n" : inner);
      }
    } else {
      *out += " [";
      for (int i = 0; i < r->FieldSize(message, field); ++i)
        absl::StrAppend(out, i ? ", " : "", Scalar(message, field, i));
      *out += "]\n";
    }
  }
}

// indent: 0 for one line, else how deep the next line stands.
std::string LineTo(int indent) {
  return indent == 0 ? "" : "\n" + std::string(static_cast<size_t>(indent), ' ');
}

void AppendJson(const Message& message, int indent, std::string* out);

void AppendJsonValue(const Message& message, const FieldDescriptor* field, int index, int indent,
                     std::string* out) {
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    const Reflection* r = message.GetReflection();
    AppendJson(
        index < 0 ? r->GetMessage(message, field) : r->GetRepeatedMessage(message, field, index),
        indent, out);
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    absl::StrAppend(out, "\"", Scalar(message, field, index), "\"");
  } else {
    *out += Scalar(message, field, index);
  }
}

void AppendJson(const Message& message, int indent, std::string* out) {
  const Reflection* r = message.GetReflection();
  const int inner = indent == 0 ? 0 : indent + 1;
  const char* colon = indent == 0 ? ":" : ": ";
  const char* before = "";
  *out += '{';
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (!field->is_repeated() && field->has_presence() && !r->HasField(message, field)) continue;
    absl::StrAppend(out, before, LineTo(indent), "\"", field->name(), "\"", colon);
    before = ",";
    if (!field->is_repeated()) {
      AppendJsonValue(message, field, -1, inner, out);
      continue;
    }
    const char* next = "";
    *out += field->is_map() ? '{' : '[';
    if (field->is_map()) {
      const FieldDescriptor* key = field->message_type()->FindFieldByNumber(1);
      for (const Message* entry : SortedEntries(message, field)) {
        const std::string name = Scalar(*entry, key, -1);
        absl::StrAppend(out, next, LineTo(inner),
                        key->cpp_type() == FieldDescriptor::CPPTYPE_STRING
                            ? name
                            : absl::StrCat("\"", name, "\""),
                        colon);
        AppendJsonValue(*entry, field->message_type()->FindFieldByNumber(2), -1,
                        inner == 0 ? 0 : inner + 1, out);
        next = ",";
      }
    } else {
      for (int k = 0; k < r->FieldSize(message, field); ++k) {
        absl::StrAppend(out, next, LineTo(inner));
        AppendJsonValue(message, field, k, inner == 0 ? 0 : inner + 1, out);
        next = ",";
      }
    }
    if (*next != '\0') *out += LineTo(indent);
    *out += field->is_map() ? '}' : ']';
  }
  if (*before != '\0' && indent > 0)
    absl::StrAppend(out, "\n", std::string(static_cast<size_t>(indent - 1), ' '));
  *out += '}';
}

}  // namespace

std::string ToJson(const Message& message, bool pretty) {
  std::string out;
  AppendJson(message, pretty ? 1 : 0, &out);
  return out + "\n";
}

std::string ToYaml(const Message& message) {
  std::string out;
  Append(message, 0, false, &out);
  return out.empty() ? "{}\n" : out;
}

std::string ListToJson(const std::vector<const Message*>& messages) {
  std::string out = "[";
  const char* next = "";
  for (const Message* message : messages) {
    absl::StrAppend(&out, next, "\n ");
    AppendJson(*message, 2, &out);
    next = ",";
  }
  return out + (messages.empty() ? "]\n" : "\n]\n");
}

std::string ListToYaml(const std::vector<const Message*>& messages) {
  std::string out;
  for (const Message* message : messages) {
    std::string inner;
    Append(*message, 2, true, &inner);
    absl::StrAppend(&out, "- ", inner.empty() ? "{}\n" : inner);
  }
  return out.empty() ? "[]\n" : out;
}

}  // namespace muster
