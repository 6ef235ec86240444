// Specs that arrive as protos: checked in bounded work, whatever is in them.
#include <cstdint>

#include <google/protobuf/stubs/logging.h>

#include "common/spec/spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;
  static const bool quiet =
      (google::protobuf::SetLogHandler(nullptr), true);  // it tells of each text that isn't UTF-8
  (void)quiet;
  pb::JobSpec spec;
  if (!spec.ParseFromArray(data, static_cast<int>(size))) return 0;
  CheckSpec(spec);
  ApplyDefaults(&spec);
  CheckSpec(spec);
  SpecToYaml(spec);
  return 0;
}
