// Bash completion, made from the parser itself, so that it can't fall behind.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace muster {

std::string BashCompletion(const CLI::App& root);

}  // namespace muster
