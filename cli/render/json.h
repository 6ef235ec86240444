// Messages for programs: the proto's JSON (fields by their proto names, defaults printed), but
// every number is a number, the 64-bit ones, too (decision 027); and the same tree as YAML. Stable:
// what a script reads. Any proto JSON parser reads it back.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace muster {

std::string ToJson(const google::protobuf::Message& message,
                   bool pretty);                               // with a newline at the end
std::string ToYaml(const google::protobuf::Message& message);  // unset fields left out
// Several that no message holds, as one list.
std::string ListToJson(const std::vector<const google::protobuf::Message*>& messages);
std::string ListToYaml(const std::vector<const google::protobuf::Message*>& messages);

}  // namespace muster
