// How single values read on the screen: times, durations, counts, states, devices. Pure; local time
// by TZ.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// How wide and how plain the screen is. `utf8` is off when piped: bars and dots become ASCII.
struct Screen {
  bool live = false;   // a terminal: bars, redrawing
  bool color = false;  // off with NO_COLOR, TERM=dumb or a pipe
  bool utf8 = false;
  int width = 100;  // columns; of no meaning unless live
};

// Clock time for people: "16:10" today, "Mon 16:10" within six days, else "2026-11-21 16:10".
std::string FormatClock(int64_t unix_ns, int64_t now_ns);
std::string FormatClockSeconds(int64_t unix_ns);  // "14:01:38"
std::string FormatDateTime(int64_t unix_ns);      // "2026-11-21 14:01:38"; "-" for 0
// "0.3 s", "35 s", "12 m", "3 h 04 m", "2 d 3 h": two units at most, never exact.
std::string FormatSpan(int64_t duration_ns);
// When something starts: "now", "~35 s", a clock time; "unknown" for 0, "never" for -1.
std::string FormatStart(int64_t start_ns, int64_t now_ns);
// Times that the server wrote into a sentence ("14:05:00 UTC", "2026-11-21 14:05 UTC") by this
// machine's zone, as all else on the screen is: "16:05:00", and as FormatClock has it. So are those
// of others' texts with date and seconds; what may be less than a whole time stays.
std::string LocalTimes(std::string_view sentence, int64_t now_ns);
std::string FormatCount(double count);  // "950", "15.2k", "106k", "1.3M"

// A flavour as it must always be shown: "cpu-slot (declared)"; nobody may take a stand-in for a
// GPU.
std::string FlavourName(std::string_view flavour, bool declared);
// "2 x 8 h100-80g", "{2..4} x 1 cpu-slot (declared)", "1 x 4 cpus": workers and what each takes.
std::string DemandName(const pb::TaskSpec& task);
// "lab/h1,h2"; "lab, 12 hosts" when they are many. Of the attempt's placements.
std::string PlaceName(const pb::Attempt& attempt);

std::string StateName(pb::JobState state);   // "running"
std::string StateName(pb::TaskState state);  // "preparing"
std::string CauseName(pb::Cause cause);      // "out of memory"; "" for none
bool HasEnded(pb::JobState state);

// Control characters (terminal escapes among them) from names and messages become '?'. Newlines
// become blanks.
std::string Plain(std::string_view text);
int DisplayWidth(std::string_view utf8_text);  // code points, good enough for what we print
std::string Truncated(std::string_view utf8_text, int width, bool utf8);
// Lines wider than `width` are broken at blanks and go on two columns further in; a word is never
// broken. Lines with terminal escapes stay as they are.
std::string Wrapped(std::string_view text, int width);

// The task that stands for the job in one line: one that runs, else the first unfinished one, else
// the last.
const pb::Task* LeadTask(const pb::Job& job);
const pb::Attempt* NewestAttempt(const pb::Task& task);  // nullptr: none yet
const pb::TaskSpec* SpecOf(const pb::Job& job, std::string_view task);

}  // namespace muster
