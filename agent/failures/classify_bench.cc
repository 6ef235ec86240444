// bench-classify FILE [--mistakes FILE] [--wrong]: Classify against labelled ends; the row
// `classify` (bench/run.sh). Prints the confusion by class, the macro-averaged F1 and the time; of
// the second file, users' own mistakes, also how many would blame a host or a device. --wrong lists
// what was told wrong.

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "agent/failures/classify.h"
#include "agent/failures/tails.h"

namespace muster {
namespace {

constexpr int kN = kFailureClasses;

std::string Name(int cls) { return std::string(FailureName(static_cast<FailureClass>(cls))); }

struct Tally {
  std::array<std::array<int, kN>, kN> told{};  // [label][class]
  size_t ends = 0, lines = 0;
  std::chrono::nanoseconds took{0};

  int BlamesHostOrDevice() const {
    int blamed = 0;
    for (int label = 0; label < kN; ++label) {
      for (const FailureClass cls : {FailureClass::kHost, FailureClass::kDevice})
        blamed += told[label][static_cast<int>(cls)];
    }
    return blamed;
  }
};

// Throws std::exception where the file is not as described.
Tally Count(const std::string& path, bool wrong) {
  Tally tally;
  for (const LabelledEnd& end : ReadLabelledEnds(path)) {
    int label = 0;
    while (label < kN && Name(label) != end.label) ++label;
    if (label == kN) throw std::invalid_argument(end.id + " has the unknown label " + end.label);
    const EndFacts facts = FactsOf(end);
    const auto from = std::chrono::steady_clock::now();
    const Failure failure = Classify(facts);
    tally.took += std::chrono::steady_clock::now() - from;
    ++tally.ends;
    tally.lines += end.tail.size();
    ++tally.told[label][static_cast<int>(failure.cls)];
    if (wrong && static_cast<int>(failure.cls) != label) {
      std::printf("%s: %s, told %s by: %s\n", end.id.c_str(), end.label.c_str(),
                  Name(static_cast<int>(failure.cls)).c_str(), failure.because.c_str());
    }
  }
  return tally;
}

// Of the classes that are among the labels.
double MacroF1(const Tally& tally) {
  double sum = 0;
  int classes = 0;
  for (int c = 0; c < kN; ++c) {
    int labelled = 0, as_such = 0;
    for (int o = 0; o < kN; ++o) {
      labelled += tally.told[c][o];
      as_such += tally.told[o][c];
    }
    if (labelled == 0) continue;
    ++classes;
    const double f1 = 2.0 * tally.told[c][c] / (labelled + as_such);
    sum += f1;
    std::printf("%-10s %3d labelled, %3d right, %3d others told so: F1 %.3f\n", Name(c).c_str(),
                labelled, tally.told[c][c], as_such - tally.told[c][c], f1);
  }
  return classes > 0 ? sum / classes : 0;
}

bool Figure(const char* name, double value, const char* unit, const char* bar, bool holds) {
  std::printf(
      "{\"figure\":\"classify.%s\",\"value\":%.4g,\"unit\":\"%s\",\"peer\":null,\"bar\":\"%s\","
      "\"holds\":%s}\n",
      name, value, unit, bar, holds ? "true" : "false");
  return holds;
}

int Main(const std::vector<std::string>& files, const std::string& mistakes, bool wrong) {
  bool holds = true;
  for (const std::string& file : files) {
    const Tally tally = Count(file, wrong);
    const double macro = MacroF1(tally);
    holds &= Figure("macro_f1", macro, "", ">= 0.95", macro >= 0.95);
    const double ends = static_cast<double>(tally.ends);
    holds &= Figure("tails", ends, "", ">= 200", tally.ends >= 200);
    const double us = static_cast<double>(tally.took.count()) / 1e3;
    const double lines = tally.lines > 0 ? static_cast<double>(tally.lines) : 1;
    Figure("time", us / lines, "us a line", "-", true);
  }
  if (mistakes.empty()) return holds ? 0 : 1;
  const Tally tally = Count(mistakes, wrong);
  const double macro = MacroF1(tally);
  holds &= Figure("mistakes_macro_f1", macro, "", ">= 0.95", macro >= 0.95);
  const int blamed = tally.BlamesHostOrDevice();
  holds &= Figure("mistakes_that_blame", blamed, "", "0", blamed == 0);
  holds &= Figure("mistakes", static_cast<double>(tally.ends), "", ">= 40", tally.ends >= 40);
  return holds ? 0 : 1;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  std::vector<std::string> files;
  std::string mistakes;
  bool wrong = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--wrong") {
      wrong = true;
    } else if (word == "--mistakes" && i + 1 < argc) {
      mistakes = argv[++i];
    } else {
      files.emplace_back(word);
    }
  }
  if (files.empty()) {
    std::fprintf(stderr, "usage: bench-classify FILE [--mistakes FILE] [--wrong]\n");
    return 2;
  }
  try {
    return muster::Main(files, mistakes, wrong);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
