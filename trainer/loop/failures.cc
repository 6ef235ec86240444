#include "trainer/loop/failures.h"

#include <cstdio>

#include <c10/util/Exception.h>

namespace muster::trainer {

int Refuse(const std::string& what, const Problems& problems) {
  std::fprintf(stderr, "%s: %zu problem%s, nothing was started\n%s", what.c_str(), problems.size(),
               problems.size() == 1 ? "" : "s", ToText(problems).c_str());
  return 2;
}

std::string Message(const std::exception& e) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&e);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : e.what();
  if (const size_t stack = text.find("\nException raised from"); stack != std::string::npos)
    text.resize(stack);
  const bool lost_peer = dynamic_cast<const c10::DistBackendError*>(&e) != nullptr ||
                         text.find("gloo/") != std::string::npos;
  return lost_peer ? "another rank is gone or can't be reached: " + text : text;
}

}  // namespace muster::trainer
