// Messages as bytes, the same bytes for the same message whatever the order of its maps in memory.
#pragma once

#include <string>

#include "google/protobuf/message_lite.h"

namespace muster {

std::string DeterministicBytes(const google::protobuf::MessageLite& message);
// Appends them as field `number` of an enclosing message: parsing takes it as if it had stood among
// its other fields.
void AppendField(int number, const std::string& message_bytes, std::string* bytes);

}  // namespace muster
