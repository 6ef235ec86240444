// sched-fuzz FIRST_SEED LAST_SEED [--steps=N] [--events=N] [--seconds=N] [--violations=N]
// [--no-arrays] | sched-fuzz --replay=SEED
//
// Runs the cases of scheduler/decide/testing/fuzz.h until the seeds, steps, events or seconds are
// used up; ends with one JSON line of totals. A violation prints its seed; after more than
// --violations (0) it stops; exit code 1. --replay tells every event.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "scheduler/decide/testing/fuzz.h"

int main(int argc, char** argv) {
  uint64_t first = 1, last = 1000, replay = 0;
  int64_t steps = std::numeric_limits<int64_t>::max(), events = steps,
          seconds = std::numeric_limits<int64_t>::max(), keep_going = 0;
  int position = 0;
  bool arrays = true;
  for (int i = 1; i < argc; ++i) {
    const auto value = [&](const char* name) -> const char* {
      const size_t length = std::strlen(name);
      return std::strncmp(argv[i], name, length) == 0 ? argv[i] + length : nullptr;
    };
    if (const char* v = value("--steps=")) {
      steps = std::atoll(v);
    } else if (const char* v = value("--events=")) {
      events = std::atoll(v);
    } else if (const char* v = value("--seconds=")) {
      seconds = std::atoll(v);
    } else if (const char* v = value("--replay=")) {
      replay = std::strtoull(v, nullptr, 10);
    } else if (const char* v = value("--violations=")) {
      keep_going = std::atoll(v);
    } else if (std::strcmp(argv[i], "--no-arrays") == 0) {
      arrays = false;
    } else if (argv[i][0] != '-' && position < 2) {
      (position++ == 0 ? first : last) = std::strtoull(argv[i], nullptr, 10);
    } else {
      std::fprintf(stderr,
                   "sched-fuzz: %s: usage: sched-fuzz FIRST LAST [--steps=N] [--events=N] "
                   "[--seconds=N] [--violations=N] [--no-arrays] | --replay=SEED\n",
                   argv[i]);
      return 2;
    }
  }
  muster::FuzzTotals totals;
  if (replay != 0) {
    const std::string error = muster::RunFuzzCase(replay, &totals, /*trace=*/true);
    std::printf("seed %" PRIu64 ": %s\n", replay, error.empty() ? "no rule broken" : error.c_str());
    return error.empty() ? 0 : 1;
  }
  const auto began = std::chrono::steady_clock::now();
  int64_t violations = 0;
  for (uint64_t seed = first; seed <= last && totals.steps < steps && totals.events < events;
       ++seed) {
    const std::string error = muster::RunFuzzCase(seed, &totals, /*trace=*/false, arrays);
    if (!error.empty()) {
      ++violations;
      std::printf("seed %" PRIu64 ": %s (sched-fuzz --replay=%" PRIu64 ")\n", seed, error.c_str(),
                  seed);
      if (violations > keep_going) break;
    }
    if (seed % 64 == 0 && std::chrono::steady_clock::now() - began >
                              std::chrono::duration<double>(static_cast<double>(seconds)))
      break;
  }
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf(
      "{\"trees\":%" PRId64 ",\"steps\":%" PRId64 ",\"events\":%" PRId64 ",\"violations\":%" PRId64
      ",\"starts\":%" PRId64 ",\"backfills\":%" PRId64 ",\"evictions\":%" PRId64
      ",\"shrinks\":%" PRId64 ",\"moves\":%" PRId64 ",\"growths\":%" PRId64 ",\"spills\":%" PRId64
      ",\"lost\":%" PRId64 ",\"reservations\":%" PRId64 ",\"lent\":%" PRId64 ",\"judged\":%" PRId64
      ",\"beside\":%" PRId64 ",\"overtaken\":%" PRId64 ",\"spared\":%" PRId64
      ",\"spared_of_several\":%" PRId64 ",\"spared_steps\":%" PRId64 ",\"by_later_ones\":%" PRId64
      ",\"stopping\":%" PRId64 ",\"members\":%" PRId64 ",\"together\":%" PRId64
      ",\"hosted\":%" PRId64 ",\"in_multiples\":%" PRId64 ",\"grown_by_several\":%" PRId64
      ",\"shrunk_by_several\":%" PRId64 ",\"in_blocks\":%" PRId64 ",\"blocks_spread\":%" PRId64
      ",\"blocks_in_islands\":%" PRId64 ",\"blocks_resized\":%" PRId64 ",\"one_way\":%" PRId64
      ",\"evicted_milli\":%" PRId64 ",\"requested_milli\":%" PRId64
      ",\"steps_to_settle_max\":%" PRId64 ",\"settled\":%" PRId64 ",\"entitled\":%" PRId64
      ",\"entitled_waiting\":%" PRId64 ",\"digest\":\"%016" PRIx64 "\",\"seconds\":%.1f}\n",
      totals.trees, totals.steps, totals.events, violations, totals.starts, totals.backfills,
      totals.evictions, totals.shrinks, totals.moves, totals.growths, totals.spills, totals.lost,
      totals.reservations, totals.lent, totals.judged, totals.beside, totals.overtaken,
      totals.spared.victims, totals.spared.of_several, totals.spared.steps,
      totals.spared.by_later_ones, totals.stopping, totals.members, totals.together, totals.hosted,
      totals.multiples.tasks, totals.multiples.growths, totals.multiples.shrinks,
      totals.blocks.tasks, totals.blocks.spread, totals.blocks.in_islands, totals.blocks.resizes,
      totals.one_way, totals.evicted_milli, totals.requested_milli, totals.steps_to_settle_max,
      totals.settled, totals.entitled, totals.entitled_waiting, totals.digest, took);
  return violations == 0 ? 0 : 1;
}
