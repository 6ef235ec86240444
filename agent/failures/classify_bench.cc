// bench-classify FILE [--wrong]: Classify against labelled ends; the row `classify` (bench/run.sh).
// Prints the confusion by class, the macro-averaged F1 and the time; --wrong lists what was told
// wrong.

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>

#include "agent/failures/classify.h"
#include "agent/failures/tails.h"

int main(int argc, char** argv) {
  using muster::FailureClass;
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench-classify FILE [--wrong]\n");
    return 2;
  }
  const bool wrong = argc > 2 && std::string_view(argv[2]) == "--wrong";
  std::vector<muster::LabelledEnd> ends;
  try {
    ends = muster::ReadLabelledEnds(argv[1]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", argv[1], e.what());
    return 2;
  }
  constexpr int kN = muster::kFailureClasses;
  std::array<std::array<int, kN>, kN> told{};  // [label][class]
  const auto name = [](int i) {
    return std::string(muster::FailureName(static_cast<FailureClass>(i)));
  };
  size_t lines = 0;
  std::chrono::nanoseconds took{0};
  for (const muster::LabelledEnd& end : ends) {
    int label = 0;
    while (label < kN && name(label) != end.label) ++label;
    if (label == kN) {
      std::fprintf(stderr, "%s: %s has the unknown label %s\n", argv[1], end.id.c_str(),
                   end.label.c_str());
      return 2;
    }
    const muster::EndFacts facts = muster::FactsOf(end);
    const auto from = std::chrono::steady_clock::now();
    const muster::Failure failure = muster::Classify(facts);
    took += std::chrono::steady_clock::now() - from;
    lines += end.tail.size();
    ++told[label][static_cast<int>(failure.cls)];
    if (wrong && static_cast<int>(failure.cls) != label) {
      std::printf("%s: %s, told %s by: %s\n", end.id.c_str(), end.label.c_str(),
                  name(static_cast<int>(failure.cls)).c_str(), failure.because.c_str());
    }
  }
  double sum = 0;
  int classes = 0;
  for (int c = 0; c < kN; ++c) {
    int labelled = 0, as_such = 0;
    for (int o = 0; o < kN; ++o) {
      labelled += told[c][o];
      as_such += told[o][c];
    }
    if (labelled == 0) continue;
    ++classes;
    const double f1 = 2.0 * told[c][c] / (labelled + as_such);
    sum += f1;
    std::printf("%-10s %3d labelled, %3d right, %3d others told so: F1 %.3f\n", name(c).c_str(),
                labelled, told[c][c], as_such - told[c][c], f1);
  }
  const double macro = classes > 0 ? sum / classes : 0;
  const double us_line =
      lines > 0 ? static_cast<double>(took.count()) / 1e3 / static_cast<double>(lines) : 0;
  std::printf(
      "{\"figure\":\"classify.macro_f1\",\"value\":%.4f,\"unit\":\"\",\"peer\":null,\"bar\":\">= "
      "0.95\",\"holds\":%s}\n",
      macro, macro >= 0.95 ? "true" : "false");
  std::printf(
      "{\"figure\":\"classify.tails\",\"value\":%zu,\"unit\":\"\",\"peer\":null,\"bar\":\">= "
      "200\",\"holds\":%s}\n",
      ends.size(), ends.size() >= 200 ? "true" : "false");
  std::printf(
      "{\"figure\":\"classify.time\",\"value\":%.1f,\"unit\":\"us a "
      "line\",\"peer\":null,\"bar\":\"-\",\"holds\":true}\n",
      us_line);
  return macro >= 0.95 && ends.size() >= 200 ? 0 : 1;
}
