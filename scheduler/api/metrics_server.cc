#include "scheduler/api/metrics_server.h"

#include <string_view>
#include <utility>

#include <civetweb.h>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int64_t kTextAgeNs = kSecond;

std::string Response(const char* status, const char* more, const char* type,
                     const std::string& body, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\n", more, "Content-Type: ", type,
                      "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n",
                      with_body ? body : std::string());
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& address, std::function<std::string()> render, Clock* clock) {
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::move(render), clock));
  if (absl::Status status = server->Listen(address); !status.ok()) return status;
  return server;
}

absl::Status MetricsServer::Listen(const std::string& address) {
  mg_init_library(MG_FEATURES_DEFAULT);
  mg_callbacks callbacks{};
  callbacks.begin_request = &MetricsServer::Answer;
  callbacks.log_message = &MetricsServer::TakeMessage;
  const char* options[] = {"listening_ports",
                           address.c_str(),
                           "num_threads",
                           "2",
                           "connection_queue",
                           "16",
                           "listen_backlog",
                           "16",
                           "max_request_size",
                           "8192",
                           "request_timeout_ms",
                           "5000",
                           nullptr};
  context_ = mg_start(&callbacks, this, options);
  if (context_ == nullptr) {
    std::lock_guard lock(mutex_);
    return absl::UnavailableError(absl::StrCat(
        address, ": ", complaint_.empty() ? "the HTTP server doesn't start" : complaint_));
  }
  mg_server_port port{};
  if (mg_get_server_ports(context_, 1, &port) == 1) port_ = port.port;
  return absl::OkStatus();
}

MetricsServer::~MetricsServer() {
  if (context_ != nullptr) mg_stop(context_);
  mg_exit_library();
}

// Called for every request that could be read, before the library looks for files. Nothing is left
// to it: what it does with files can overflow (CVE-2025-55763).
int MetricsServer::Answer(mg_connection* connection) {
  mg_disable_connection_keep_alive(connection);  // so that a body isn't read either
  const mg_request_info* request = mg_get_request_info(connection);
  auto* const server = static_cast<MetricsServer*>(request->user_data);
  const std::string_view method = request->request_method;
  const bool head = method == "HEAD";
  std::string response;
  int code = 200;
  if (!head && method != "GET") {
    code = 405;
    response = Response("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "text/plain",
                        "GET only\n", true);
  } else if (std::string_view(request->local_uri) != kPath) {
    code = 404;
    response = Response("404 Not Found", "", "text/plain", "there is /metrics only\n", !head);
  } else {
    response =
        Response("200 OK", "", "text/plain; version=0.0.4; charset=utf-8", *server->Text(), !head);
  }
  mg_write(connection, response.data(), response.size());
  return code;
}

int MetricsServer::TakeMessage(const mg_connection* connection, const char* message) {
  auto* const server = static_cast<MetricsServer*>(mg_get_user_data(mg_get_context(connection)));
  if (server != nullptr) {
    std::lock_guard lock(server->mutex_);
    if (server->complaint_.empty()) server->complaint_ = message;
  }
  return 1;  // nothing goes to a file or to stderr
}

std::shared_ptr<const std::string> MetricsServer::Text() {
  std::lock_guard lock(mutex_);
  const int64_t now_ns = clock_->MonotonicNs();
  if (text_ == nullptr || now_ns - rendered_ns_ >= kTextAgeNs) {
    text_ = std::make_shared<const std::string>(render_());
    rendered_ns_ = now_ns;
  }
  return text_;
}

}  // namespace muster
