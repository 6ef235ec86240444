// Traces for `muster simulate`: muster-sim runs them (docs/simulating.md), here is only told what
// one is.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace muster {

// By the file's name (.csv, .trace, .gz), else by what it begins with: gzip, columns that
// muster-sim's readers know, a Kueue generator's cohorts. A pipe is none: looking would take its
// first bytes.
bool IsTrace(const std::string& path);

// The options of muster-sim that simulate takes with a trace: those given are added to `words` as
// muster-sim reads them.
void AddTraceOptions(CLI::App* simulate, std::vector<std::string>* words);

}  // namespace muster
