// Sessions: output of programs, and tunnels to them, asked of their hosts.
#include <utility>

#include "scheduler/agents/sessions.h"

namespace muster {

uint64_t Sessions::RequestLogs(const std::string& cluster, const std::string& host,
                               pb::LogRequest request, LogSink sink, int64_t wait_ns) {
  std::lock_guard lock(mutex_);
  const auto it = hosts_.find(Name(cluster, host));
  const bool there =
      it != hosts_.end() && it->second.session != nullptr && it->second.session->welcomed;
  const uint64_t number = next_log_++;
  LogStream& log = logs_[number] = {cluster, host, std::move(sink), pb::LogRequest(), 0};
  request.set_request(number);
  if (!there) {
    log.waiting.Swap(&request);
    log.until_ns = clock_->BootNs() + wait_ns;
    return number;
  }
  pb::SchedulerMessage message;
  *message.mutable_log_request() = request;
  SendOn(it->second.session.get(), std::move(message));
  return number;
}

bool Sessions::OpenTunnel(const std::string& cluster, const std::string& host,
                          pb::OpenTunnel open) {
  std::lock_guard lock(mutex_);
  const auto it = hosts_.find(Name(cluster, host));
  if (it == hosts_.end() || it->second.session == nullptr || !it->second.session->welcomed)
    return false;
  pb::SchedulerMessage message;
  *message.mutable_open_tunnel() = std::move(open);
  SendOn(it->second.session.get(), std::move(message));
  return true;
}

void Sessions::CancelLogs(uint64_t request) {
  std::lock_guard lock(mutex_);
  const auto it = logs_.find(request);
  if (it == logs_.end()) return;
  const auto host = hosts_.find(Name(it->second.cluster, it->second.host));
  const bool sent = it->second.waiting.request() == 0;
  logs_.erase(it);
  if (!sent || host == hosts_.end() || host->second.session == nullptr) return;
  pb::SchedulerMessage message;
  message.mutable_log_cancel()->set_request(request);
  SendOn(host->second.session.get(), std::move(message));
}

void Sessions::Deliver(const Session& session, const pb::LogChunk& chunk) {
  LogSink sink;
  {
    std::lock_guard lock(mutex_);
    const auto it = logs_.find(chunk.request());
    if (it == logs_.end() || it->second.cluster != session.cluster ||
        it->second.host != session.host)
      return;
    sink = it->second.sink;
    if (chunk.end()) logs_.erase(it);
  }
  sink(chunk);
}

std::vector<std::pair<uint64_t, Sessions::LogSink>> Sessions::TakeLogsOf(const Session& session) {
  return TakeLogs([&](const LogStream& log) {
    return log.waiting.request() == 0 && log.cluster == session.cluster && log.host == session.host;
  });
}

std::vector<std::pair<uint64_t, Sessions::LogSink>> Sessions::TakeLogs(
    const std::function<bool(const LogStream&)>& over) {
  std::vector<std::pair<uint64_t, LogSink>> taken;
  for (auto log = logs_.begin(); log != logs_.end();) {
    if (over(log->second)) {
      taken.emplace_back(log->first, std::move(log->second.sink));
      log = logs_.erase(log);
    } else {
      ++log;
    }
  }
  return taken;
}

void Sessions::EndLogs(const std::vector<std::pair<uint64_t, LogSink>>& ended,
                       const std::string& why) {
  for (const auto& [request, sink] : ended) {
    pb::LogChunk chunk;
    chunk.set_request(request);
    chunk.set_end(true);
    chunk.set_error(why);
    chunk.set_more(true);
    sink(chunk);
  }
}

}  // namespace muster
