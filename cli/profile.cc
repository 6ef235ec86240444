#include "cli/profile.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/render/format.h"

namespace muster {
namespace {

using ::nlohmann::json;

std::string TextIn(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t NumberIn(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

bool IsMain(const json& thread) {
  return NumberIn(thread, "os_thread_id") == NumberIn(thread, "pid");
}

bool IsStack(const json& thread) {
  const auto frames = thread.find("frames");
  return thread.is_object() && frames != thread.end() && frames->is_array() &&
         std::all_of(frames->begin(), frames->end(),
                     [](const json& one) { return one.is_object(); });
}

// Its names are the job's own choice.
std::string RenderThread(const json& thread) {
  const auto active = thread.find("active");
  const bool runs = active != thread.end() && active->is_boolean() && active->get<bool>();
  const std::string name = TextIn(thread, "thread_name");
  std::string text =
      absl::StrCat("  ", name.empty() ? "thread" : Plain(name), " (",
                   NumberIn(thread, "os_thread_id"), "), ", runs ? "runs" : "waits", "\n");
  for (const json& frame : thread["frames"]) {
    const std::string file = TextIn(frame, "short_filename");
    absl::StrAppend(&text, "    ", Plain(TextIn(frame, "name")), "  ",
                    Plain(file.empty() ? TextIn(frame, "filename") : file), ":",
                    NumberIn(frame, "line"), "\n");
  }
  return text;
}

// Nanoseconds of the clock at which a trace's times begin; 0: it doesn't say.
int64_t BaseNs(const json& trace) {
  return trace.is_object() ? NumberIn(trace, "baseTimeNanoseconds") : 0;
}

const json* EventsOf(const json& trace) {
  if (trace.is_array()) return &trace;
  const auto events = trace.is_object() ? trace.find("traceEvents") : trace.end();
  return trace.is_object() && events != trace.end() && events->is_array() ? &*events : nullptr;
}

class Merger {
 public:
  explicit Merger(int64_t first_ns) : first_ns_(first_ns) {}

  void Add(int rank, const json& trace) {
    numbers_.clear();
    const double shift_us =
        BaseNs(trace) == 0 ? 0 : static_cast<double>(BaseNs(trace) - first_ns_) / 1000;
    for (const json& told : *EventsOf(trace)) {
      if (!told.is_object()) continue;
      json event = told;
      const auto pid = event.find("pid");
      if (pid != event.end()) *pid = NumberOf(rank, *pid);
      if (const auto ts = event.find("ts"); ts != event.end() && ts->is_number())
        *ts = ts->get<double>() + shift_us;
      if (IsName(event)) continue;  // ours says it
      Append(event);
    }
  }
  std::string Finish() && { return std::move(text_) + "\n]}\n"; }

 private:
  static bool IsName(const json& event) {
    return TextIn(event, "ph") == "M" && TextIn(event, "name") == "process_name";
  }
  int64_t NumberOf(int rank, const json& pid) {
    const std::string told = pid.is_string() ? pid.get<std::string>() : pid.dump();
    const auto [found, fresh] = numbers_.try_emplace(told, next_);
    if (!fresh) return found->second;
    Append({{"ph", "M"},
            {"name", "process_name"},
            {"pid", next_},
            {"args", {{"name", absl::StrCat("rank ", rank, ", process ", told)}}}});
    return next_++;
  }
  void Append(const json& event) {
    absl::StrAppend(&text_, std::exchange(first_, false) ? "\n" : ",\n",
                    event.dump(-1, ' ', false, json::error_handler_t::replace));
  }

  const int64_t first_ns_;
  std::string text_ = "{\"traceEvents\": [";
  bool first_ = true;
  int64_t next_ = 1;
  std::map<std::string, int64_t> numbers_;  // of one rank's processes, as it calls them
};

}  // namespace

std::vector<std::string> SplitDocuments(const std::string& output) {
  std::vector<std::string> documents = absl::StrSplit(output, kBetweenDocuments);
  std::erase_if(documents, [](const std::string& one) {
    return one.find_first_not_of(" \t\r\n") == std::string::npos;
  });
  return documents;
}

absl::StatusOr<std::string> RenderStacks(const std::string& dump) {
  const json threads = json::parse(dump, nullptr, /*allow_exceptions=*/false);
  if (!threads.is_array() || threads.empty() ||
      !std::all_of(threads.begin(), threads.end(), IsStack))
    return absl::InternalError("py-spy's stacks are not as expected; is it of version 0.4?");
  std::string text = absl::StrCat("  process ", NumberIn(threads[0], "pid"), "\n"), others;
  for (const json& thread : threads) (IsMain(thread) ? text : others) += RenderThread(thread);
  return text + others;
}

absl::StatusOr<std::string> MergeTraces(const std::vector<RankTrace>& traces) {
  int64_t first_ns = 0;
  for (const RankTrace& one : traces) {
    // Only the head of it is needed here: one whole trace at a time is parsed.
    const size_t at = one.json.find("\"baseTimeNanoseconds\"");
    const size_t digit =
        at == std::string::npos ? at : one.json.find_first_of("0123456789", at + 21);
    if (digit == std::string::npos) continue;
    const int64_t base_ns = std::strtoll(one.json.c_str() + digit, nullptr, 10);
    first_ns = first_ns == 0 ? base_ns : std::min(first_ns, base_ns);
  }
  Merger merger(first_ns);
  for (const RankTrace& one : traces) {
    const json trace = json::parse(one.json, nullptr, /*allow_exceptions=*/false);
    if (EventsOf(trace) == nullptr)
      return absl::InternalError(
          absl::StrCat("the trace of rank ", one.rank, " is no Chrome trace"));
    merger.Add(one.rank, trace);
  }
  return std::move(merger).Finish();
}

}  // namespace muster
