#include "cli/follow.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/render/array.h"
#include "cli/render/bar.h"
#include "cli/render/job.h"
#include "cli/render/json.h"
#include "common/base/clock.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int64_t kPlainEvery = 5 * kSecond;  // piped: a progress line at most so often
constexpr int kFirstBackoffMs = 200, kLongestBackoffMs = 2000;

// The lines below the events that are drawn over and over. Nothing on a screen that isn't live.
class LiveArea {
 public:
  LiveArea(const Session& session, bool enabled) : session_(session), enabled_(enabled) {}
  ~LiveArea() { Erase(); }
  void Erase() {
    if (shown_ == 0) return;
    session_.Err(absl::StrCat("\x1b[", shown_, "A\r\x1b[J"));
    shown_ = 0;
  }
  void Draw(const std::vector<std::string>& lines) {
    if (!enabled_) return;
    Erase();
    std::string text;
    for (const std::string& line : lines) absl::StrAppend(&text, line, "\n");
    session_.Err(text);
    shown_ = lines.size();
  }
  bool enabled() const { return enabled_; }

 private:
  const Session& session_;
  bool enabled_;
  size_t shown_ = 0;
};

class Follower {
 public:
  Follower(Session& session, const FollowOptions& options)
      : session_(session),
        options_(options),
        as_json_(!options.quiet && !options.events_to_stderr && !session.for_people()),
        area_(session, !options.quiet && !as_json_ && session.out_screen().live &&
                           session.err_screen().live && !options.events_to_stderr) {}

  void On(const pb::WatchJobResponse& response) {
    const pb::Job& job = response.job();
    int64_t now_ns = session_.now_ns();
    if (options_.on_job) options_.on_job(job);
    if (as_json_) {
      session_.Out(ToJson(response, false));
    } else if (!options_.quiet) {
      std::vector<std::string> lines;
      if (seen_ && response.events_size() > 0) {
        for (const std::string& event : response.events())
          lines.push_back(absl::StrCat(FormatClockSeconds(now_ns), "  ", Plain(event)));
      } else {
        lines = EventLines(seen_ ? &job_ : nullptr, job, now_ns);
      }
      if (!lines.empty()) area_.Erase();
      for (const std::string& line : lines) Line(line);
      if (area_.enabled()) {
        area_.Draw(LiveLines(job, session_.err_screen(), now_ns));
      } else {
        PlainLines(job, now_ns);
      }
    }
    job_ = job;
    seen_ = true;
  }

  void Line(const std::string& line) {
    if (options_.events_to_stderr) {
      session_.Err(line + "\n");
    } else {
      session_.Say(line + "\n");
    }
  }

  void Notice(const std::string& text) {  // never data
    if (options_.quiet) return;
    area_.Erase();
    session_.Err(absl::StrCat(FormatClockSeconds(session_.now_ns()), "  ", text, "\n"));
  }

  void End() { area_.Erase(); }
  bool seen() const { return seen_; }
  bool as_json() const { return as_json_; }
  const pb::Job& job() const { return job_; }

 private:
  void PlainLines(const pb::Job& job, int64_t now_ns) {
    if (options_.events_to_stderr || now_ns - last_plain_ns_ < kPlainEvery) return;
    if (job.has_array()) {
      session_.Out(absl::StrCat(FormatClockSeconds(now_ns), "  ", ArrayCounts(job.array()), "\n"));
      const pb::Task* lead = LeadTask(job);
      if (lead != nullptr && PausesAfterFailure(*lead))
        session_.Out(absl::StrCat(FormatClockSeconds(now_ns), "  ", Plain(lead->name()),
                                  "  waits: ", LocalTimes(Plain(lead->verdict().text()), now_ns),
                                  "\n"));
      last_plain_ns_ = now_ns;
      return;
    }
    for (const pb::Task& task : job.tasks()) {
      if (task.state() != pb::TASK_RUNNING) continue;
      std::string line = PlainProgress(task, now_ns);
      if (line.empty()) continue;
      session_.Out(line + "\n");
      last_plain_ns_ = now_ns;
    }
  }

  Session& session_;
  const FollowOptions& options_;
  bool as_json_;
  LiveArea area_;
  pb::Job job_;
  bool seen_ = false;
  int64_t last_plain_ns_ = 0;
};

// `shown`: its output was on the screen.
std::string WhereItsOutputIs(const pb::Job& job, bool shown) {
  if (job.has_array()) return absl::StrCat("  Its members: muster jobs ", job.number(), " --tasks");
  const bool ran = HasRun(job);
  const bool failed = job.state() == pb::FAILED;
  if (!ran || (shown && !failed)) return "";
  return absl::StrCat("  Its output: muster logs ", JobId(job),
                      failed ? absl::StrCat("   Its attempts: muster show ", JobId(job)) : "");
}

}  // namespace

int Follow(Session& session, Client& client, const std::string& id, const Interrupt& interrupt,
           const FollowOptions& options) {
  Follower follower(session, options);
  const int64_t since_ns = options.since_ns > 0 ? options.since_ns : RealClock()->MonotonicNs();
  int64_t deadline_ns = options.timeout_ns > 0 ? since_ns + options.timeout_ns : 0;
  int64_t lost_ns = 0;
  int backoff_ms = kFirstBackoffMs;
  for (;;) {
    int64_t left_ns = 0;
    if (deadline_ns > 0) left_ns = std::max<int64_t>(1, deadline_ns - RealClock()->MonotonicNs());
    absl::Status status =
        client.Watch(id, left_ns, &interrupt, [&](const pb::WatchJobResponse& response) {
          if (lost_ns > 0) follower.Notice("The server is back.");
          lost_ns = 0;
          backoff_ms = kFirstBackoffMs;
          follower.On(response);
          return !HasEnded(response.job().state()) && !session.out_failed();
        });
    if (interrupt.pending()) break;
    if (follower.seen() && HasEnded(follower.job().state())) {
      follower.End();
      if (!options.quiet && !follower.as_json()) {
        follower.Line(OutcomeLine(follower.job()));
        const std::string where = WhereItsOutputIs(follower.job(), options.events_to_stderr);
        if (!where.empty()) follower.Line(where);
      }
      return ExitCodeFor(follower.job().state());
    }
    if (session.out_failed() && !options.quiet && !options.events_to_stderr) {
      follower.End();
      return kExitUnreachable;
    }
    if (deadline_ns > 0 && RealClock()->MonotonicNs() >= deadline_ns) {
      follower.End();
      session.Err(absl::StrCat("Job ", id, " has not ended within ", FormatSpan(options.timeout_ns),
                               ". It goes on.\n"));
      return kExitTimeout;
    }
    // A stream that ends before the job does: the server stops, which cancels what hasn't ended.
    const bool gone = status.ok() || absl::IsUnavailable(status) || absl::IsCancelled(status);
    if (!gone || !follower.seen()) {
      follower.End();
      return session.Fail(status.ok() ? absl::UnavailableError("the server ended the stream")
                                      : status);
    }
    int64_t now_ns = RealClock()->MonotonicNs();
    if (lost_ns == 0) {
      lost_ns = now_ns;
      follower.Notice(
          "No contact with the server; the job goes on without it. Trying again; Ctrl+C stops "
          "following.");
    }
    if (now_ns - lost_ns > kGiveUpAfterNs) {
      follower.End();
      return session.Fail(status);
    }
    if (interrupt.WaitFor(backoff_ms)) break;
    backoff_ms = std::min(kLongestBackoffMs, 2 * backoff_ms);
  }
  follower.End();
  std::string number = follower.seen() ? JobId(follower.job()) : id;
  session.Err(absl::StrCat(
      session.err_screen().live ? "\n" : "", "Job ", number, " is still ",
      follower.seen() && follower.job().state() == pb::WAITING ? "waiting" : "running",
      ".  Follow: muster attach ", number, "   Stop it: muster cancel ", number, "\n"));
  return kExitInterrupted;
}

absl::Status WatchThrough(Session& session, Client& client, const std::string& id,
                          const Interrupt& interrupt, const std::string& meanwhile,
                          const std::function<bool(const pb::WatchJobResponse&)>& on) {
  bool enough = false;
  int64_t lost_ns = 0;
  for (int backoff_ms = kFirstBackoffMs;;) {
    const absl::Status status =
        client.Watch(id, 0, &interrupt, [&](const pb::WatchJobResponse& response) {
          if (lost_ns > 0) session.Err("muster: the server is back\n");
          lost_ns = 0;
          backoff_ms = kFirstBackoffMs;
          enough = !on(response);
          return !enough;
        });
    if (enough || interrupt.pending()) return absl::OkStatus();
    // A server that ends cancels its calls; an interrupt of ours is seen above.
    if (!status.ok() && !absl::IsUnavailable(status) && !absl::IsCancelled(status)) return status;
    const int64_t now_ns = RealClock()->MonotonicNs();
    if (lost_ns == 0) {
      lost_ns = now_ns;
      session.Err(absl::StrCat("muster: no contact with the server; ", meanwhile, "\n"));
    }
    if (now_ns - lost_ns > kGiveUpAfterNs)
      return status.ok() ? absl::UnavailableError("its server ended the call") : status;
    if (interrupt.WaitFor(backoff_ms)) return absl::OkStatus();
    backoff_ms = std::min(kLongestBackoffMs, 2 * backoff_ms);
  }
}

}  // namespace muster
