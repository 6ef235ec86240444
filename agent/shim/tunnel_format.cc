#include "agent/shim/tunnel_format.h"

#include <stdlib.h>

#include <sstream>

#include "agent/shim/format.h"

namespace muster::shim {
namespace {

constexpr char kName[] = "muster-shim-tunnel";
constexpr int kMostPort = 65'535, kMostCells = 10'000;
constexpr char kListens[] = "0A";

bool Int32At(const Line& line, const char* key, int64_t most, int32_t* value) {
  int64_t read = 0;
  if (!line.GetInt(key, &read) || read < 0 || read > most) return false;
  *value = static_cast<int32_t>(read);
  return true;
}

}  // namespace

std::string FormatTunnelRequest(const TunnelRequest& request) {
  std::vector<Line> lines = {Line{"tunnel"}
                                 .Add("rank", request.rank)
                                 .Add("terminal", int64_t{request.terminal})
                                 .Add("rows", request.rows)
                                 .Add("columns", request.columns)
                                 .Add("term", request.term)
                                 .Add("port", request.port)};
  for (const std::string& word : request.argv) lines.push_back(Line{"word"}.Add("text", word));
  return FormatFile(kName, lines);
}

bool ParseTunnelRequest(std::string_view content, TunnelRequest* request, std::string* error) {
  std::vector<Line> lines;
  *request = TunnelRequest();
  if (!ParseFile(content, kName, &lines, error)) return false;
  bool head = false;
  for (const Line& line : lines) {
    bool known = false;
    if (line.kind == "tunnel" && !head) {
      int32_t terminal = 0;
      head = known = Int32At(line, "rank", INT32_MAX, &request->rank) &&
                     Int32At(line, "terminal", 1, &terminal) &&
                     Int32At(line, "rows", kMostCells, &request->rows) &&
                     Int32At(line, "columns", kMostCells, &request->columns) &&
                     Int32At(line, "port", kMostPort, &request->port);
      request->terminal = terminal == 1;
      request->term = line.Get("term");
    } else if (line.kind == "word") {
      known = line.Find("text") != nullptr;
      request->argv.push_back(line.Get("text"));
    }
    if (known) continue;
    *error = std::string(kName) + ": bad line " + line.kind;
    return false;
  }
  // A word or a name with a NUL inside would be another one to the kernel.
  bool whole = head && request->term.find('\0') == std::string::npos &&
               request->term.find('=') == std::string::npos;
  for (const std::string& word : request->argv)
    whole = whole && word.find('\0') == std::string::npos;
  if (whole && request->argv.empty() != (request->port == 0)) return true;
  *error = std::string(kName) + ": neither a command nor a port";
  return false;
}

std::string FormatTunnelReply(const TunnelReply& reply) {
  switch (reply.kind) {
    case TunnelReply::Kind::kBegun:
      return FormatLine(Line{"begun"});
    case TunnelReply::Kind::kEnded:
      return FormatLine(
          Line{"ended"}.Add("exit_code", reply.exit_code).Add("signal", reply.signal));
    case TunnelReply::Kind::kFailed:
      break;
  }
  return FormatLine(Line{"failed"}.Add("why", reply.why));
}

bool ParseTunnelReply(std::string_view content, TunnelReply* reply) {
  *reply = TunnelReply();
  if (content.empty() || content.back() != '\n') return false;
  const std::optional<Line> line = ParseLine(content.substr(0, content.size() - 1));
  if (!line.has_value()) return false;
  if (line->kind == "begun") return true;
  reply->why = line->Get("why");
  reply->kind = line->kind == "ended" ? TunnelReply::Kind::kEnded : TunnelReply::Kind::kFailed;
  return line->kind == "failed" ||
         (line->kind == "ended" && Int32At(*line, "exit_code", 255, &reply->exit_code) &&
          Int32At(*line, "signal", 64, &reply->signal));
}

bool ListensOn(std::string_view line, int32_t port, uint64_t* inode) {
  // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …; addresses are the
  // machine's words in hex, so these three are the same on any machine but for the second.
  std::istringstream words{std::string(line)};
  std::string number, local, remote, state, word;
  if (!(words >> number >> local >> remote >> state) || state != kListens) return false;
  for (int skipped = 0; skipped < 5; ++skipped) {
    if (!(words >> word)) return false;
  }
  std::string text;
  if (!(words >> text)) return false;
  const size_t colon = local.rfind(':');
  if (colon == std::string::npos || local.size() - colon != 5) return false;
  const std::string address = local.substr(0, colon);
  const bool reached = address == "00000000" || address == "0100007F" ||
                       address == std::string(32, '0') ||
                       address == "0000000000000000FFFF00000100007F" ||
                       address == "0000000000000000FFFF000000000000";
  char* end = nullptr;
  if (!reached || ::strtol(local.c_str() + colon + 1, &end, 16) != port || *end != '\0')
    return false;
  *inode = ::strtoull(text.c_str(), &end, 10);
  return *end == '\0' && *inode != 0;
}

}  // namespace muster::shim
