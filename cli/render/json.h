// Messages for programs: the proto's JSON (fields by their proto names, defaults printed, 64-bit numbers as strings), and
// the same tree as YAML. Stable: what a script reads.
#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace muster {

std::string ToJson(const google::protobuf::Message& message, bool pretty);  // with a newline at the end
std::string ToYaml(const google::protobuf::Message& message);               // unset fields left out

}  // namespace muster
