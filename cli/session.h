// One run of `muster`: global flags, the screen, the server. Commands get it and return their exit code.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/render/format.h"
#include "cli/render/table.h"
#include "cli/settings.h"
#include "google/protobuf/message.h"

namespace CLI {
class App;
}

namespace muster {

enum class Format { kTable, kWide, kJson, kJsonLines, kYaml, kName };

class Session {
 public:
  Session();

  // Flags of every command; filled by the parser.
  std::string server_flag, context_flag, output_flag = "table", columns_flag;
  // What to run once everything is parsed; set by the chosen command.
  std::function<int()> command;

  const Screen& out_screen() const { return out_screen_; }
  const Screen& err_screen() const { return err_screen_; }
  bool asks() const;  // both stdin and stderr are terminals: a question makes sense
  // Asks on stderr; Enter means `enter`. False: no, end of input, or Ctrl+C.
  bool Confirms(const std::string& question, const Interrupt& interrupt, bool enter = true) const;
  Format format() const;
  bool for_people() const { return format() == Format::kTable || format() == Format::kWide; }
  int64_t now_ns() const;

  // UNAVAILABLE if nobody listens. The pointer lives as long as the session.
  absl::StatusOr<Client*> client();
  absl::StatusOr<Settings> settings();

  void Out(const std::string& text) const;  // data: stdout, flushed
  void Err(const std::string& text) const;  // everything else: stderr
  int Fail(const absl::Status& status);     // says it on stderr; its exit code

  // A list in the chosen format. `rows`: the elements, for jsonl, and `name` of each; `whole` for json and yaml.
  int Show(const Table& table, const google::protobuf::Message& whole, const std::vector<const google::protobuf::Message*>& rows,
           const std::vector<std::string>& names);
  // One thing: `text` for people.
  int ShowOne(const std::string& text, const google::protobuf::Message& message, const std::string& name);

 private:
  Screen out_screen_, err_screen_;
  std::unique_ptr<Client> client_;
  std::string server_;
};

}  // namespace muster
