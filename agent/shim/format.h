// The files that agent and shim share: text lines `kind key=value key=value`, values
// percent-escaped, so that any byte survives.
//
// A versioned format of our own instead of protobuf: the shim is a small static binary that
// outlives upgrades of the agent. Files written at once begin with `<name> version=1` and finish
// with the line `end`; a file without `end` is refused whole. Append-only files (events) have no
// `end`; their reader takes complete lines only. No dependencies beyond the standard library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/shim/image.h"

namespace muster::shim {

struct Line {
  std::string kind;
  std::vector<std::pair<std::string, std::string>> fields;

  const std::string* Find(std::string_view key) const;
  std::string Get(std::string_view key) const;  // "" if missing
  bool GetInt(std::string_view key,
              int64_t* value) const;  // false if missing or not a whole decimal number
  Line& Add(std::string_view key, std::string_view value);
  Line& Add(std::string_view key, int64_t value);
};

std::string FormatLine(const Line& line);              // with its newline
std::optional<Line> ParseLine(std::string_view text);  // without its newline; nullopt if malformed

// All lines of a whole file between its header and `end`. `error` says what is wrong.
bool ParseFile(std::string_view content, std::string_view name, std::vector<Line>* lines,
               std::string* error);
std::string FormatFile(std::string_view name, const std::vector<Line>& lines);

// ---- what the agent tells the shim: its standard input ----

struct EnvironmentVariable {
  std::string name;
  std::string value;
};

struct ProcessSpec {
  int32_t rank = 0;
  std::vector<EnvironmentVariable> env;  // on top of the common ones; setup can't change these
};

struct WorkerSpec {
  int32_t group_rank = 0;
  std::vector<ProcessSpec> processes;
};

// As whom an attempt's programs run (identity.h). Numbers: names are the agent's matter.
struct User {
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;  // all of them
  uint32_t minimum = 1000;       // no uid below it runs a job here
};
Line UserLine(const User& user);  // of kind "user"
bool ReadUser(const Line& line, User* user);

struct Spec {
  std::string job_uid;
  std::string task;
  int32_t attempt = 0;
  std::string boot_id;  // started in another boot: the shim starts nothing
  std::string
      token;  // MUSTER_SHIM_TOKEN in every process: finds strays where there is no PID namespace
  std::string workdir;
  Image image;  // whose path is empty: programs see the host; its workdir is the one above
  uint32_t umask = 022;
  std::string setup;  // for bash, once a worker; empty: none
  std::vector<std::string> argv;
  std::vector<EnvironmentVariable> env;
  std::vector<WorkerSpec> workers;
  int64_t grace_ns = 0;  // if the shim itself gets SIGTERM
  int64_t log_file_bytes = int64_t{64} << 20;
  int64_t log_files = 4;
  int64_t log_line_bytes = 64 << 10;
  int64_t failure_kill_ns =
      1'000'000'000;  // after a process failed, the others live at most so long without a stop
  std::string progress_socket;  // at most 107 bytes; empty: none
  // Of a job on another one's devices: a name that this machine knows as long as the shim lives, at
  // most 107 bytes (HolderMark in shim.cc); empty: none.
  std::string holder_mark;
  bool keep_reports = false;   // each of rank 0's, beside its log (log_writer.h)
  int64_t fence_after_ns = 0;  // 0: no fence
  int64_t renewed_ns = 0;      // CLOCK_BOOTTIME: when the fence was put off last, before the start
  // Directories of its own control groups (cgroup.h); empty: none.
  std::string cgroup, memory_cgroup, pids_cgroup;
  bool pid_namespace = true;  // try one; without the right to, process groups and the token do
  // One of these, where the shim is root's: a line of its own each, which a shim that doesn't know
  // it refuses.
  std::optional<User> user;  // whose programs they are: everything of them is done as this user
  bool as_itself = false;    // whoever started the shim is the one user there is
  std::vector<std::string> devices;  // nodes that are granted, with `user`
  int64_t most_processes = 0;  // RLIMIT_NPROC, where no control group counts them; 0: no limit
};

std::string FormatSpec(const Spec& spec);
bool ParseSpec(std::string_view content, Spec* spec, std::string* error);

// ---- stop: DIR/stop, written by the agent before it signals the shim ----

struct StopOrder {
  int32_t cause = 0;  // muster.v1.Cause; opaque to the shim
  int64_t grace_ns = 0;
};

std::string FormatStop(const StopOrder& stop);
bool ParseStop(std::string_view content, StopOrder* stop, std::string* error);

// ---- renewal: DIR/renewed, written by the agent for each acknowledged heartbeat of an attempt
// with a fence ----

std::string FormatRenewal(int64_t renewed_ns);
bool ParseRenewal(std::string_view content, int64_t* renewed_ns, std::string* error);

// ---- what the shim tells: DIR/events (appended, synced; not made for what ends at once) and
// DIR/exits (final) ----

struct Exit {
  int32_t rank = 0;
  int32_t exit_code = 0;
  int32_t signal = 0;
  int64_t at_ns = 0;  // Unix time
  std::string detail;
  bool own = false;  // the program ended by itself: no failed launch, no setup, no stop
  bool oom =
      false;  // since the end before it the kernel killed a process of the attempt for memory
};

// What the processes of this host used. -1: it can't be told here, or it is of a shim that doesn't.
struct Used {
  int64_t ran_ns = 0;  // since the start, when this was measured; 0: nothing was
  int64_t memory_peak_bytes = -1;
  int64_t cpu_us = -1;
  int64_t cpus_most_milli = -1;  // cores, in their busiest stretch of some seconds
};

struct Exits {
  int64_t start_ns = 0;  // Unix times
  int64_t end_ns = 0;
  bool stop_sent = false;  // SIGTERM or SIGKILL had been sent before the processes ended
  bool fenced = false;     // the fence stopped them
  Used used;
  std::vector<Exit> exits;  // every rank of this host
};

Line ExitLine(const Exit& exit);
bool ReadExitLine(const Line& line, Exit* exit);
std::string FormatExits(const Exits& exits);
bool ParseExits(std::string_view content, Exits* exits, std::string* error);

// DIR/usage, from time to time while it runs; the last word is in DIR/exits.
std::string FormatUsage(const Used& used);
bool ParseUsage(std::string_view content, Used* used, std::string* error);

// Names inside an attempt's directory.
inline constexpr char kPreparedFile[] =
    "prepared";  // the agent's; never replaced while a shim lives, which holds a lock of it
inline constexpr char kSpecFile[] =
    "spec";  // until release 0.1 the agent wrote the shim's spec there
inline constexpr char kStopFile[] = "stop";
inline constexpr char kRenewedFile[] = "renewed";
inline constexpr char kClaimFile[] = "claim";
inline constexpr char kEventsFile[] = "events";
inline constexpr char kProgressFile[] = "progress";
inline constexpr char kUsageFile[] = "usage";
inline constexpr char kTimesFile[] = "times";  // of steps, by rank (progress.h)
inline constexpr char kExitsFile[] = "exits";
inline constexpr char kLockFile[] = "shim.lock";  // until release 0.1 the shim held a lock of this
inline constexpr char kLogsDirectory[] = "logs";

}  // namespace muster::shim
