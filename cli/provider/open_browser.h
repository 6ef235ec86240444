#pragma once

#include <string>

namespace muster {

// Where there is one: what $BROWSER names, else the desktop's. The address is on its command line,
// which others of this machine can read.
void OpenBrowser(const std::string& url);

}  // namespace muster
