// A part of musterd.yaml.
#pragma once

#include "common/spec/config_files.h"
#include "common/spec/reader.h"

namespace muster {

// `oidc:`, once `tls:` is read.
void ReadOidc(Document& document, Fields& fields, MusterdConfig* out);

}  // namespace muster
