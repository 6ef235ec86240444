// One run of `muster`: global flags, the screen, the server. Commands get it and return their exit
// code.
#pragma once

#include <atomic>
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

  std::vector<std::string> arguments;  // as given, behind the program's name
  // Flags of every command; filled by the parser.
  std::string server_flag, context_flag, output_flag = "table", columns_flag;
  // What to run once everything is parsed; set by the chosen command.
  std::function<int()> command;

  const Screen& out_screen() const { return out_screen_; }
  const Screen& err_screen() const { return err_screen_; }
  bool is_terminal(bool err) const { return err ? err_is_terminal_ : out_is_terminal_; }
  bool asks() const;  // both stdin and stderr are terminals: a question makes sense
  // Asks on stderr; Enter means `enter`. False: no, end of input, or Ctrl+C.
  bool Confirms(const std::string& question, const Interrupt& interrupt, bool enter = true) const;
  Format format() const;
  bool for_people() const { return format() == Format::kTable || format() == Format::kWide; }
  int64_t now_ns() const;

  // UNAVAILABLE if nobody listens. The pointer lives as long as the session.
  absl::StatusOr<Client*> client();
  absl::StatusOr<Settings> settings();

  // Data: stdout, flushed. A write that fails is told, and nothing is written after it; where
  // nobody reads any more, the process ends as by SIGPIPE.
  void Out(const std::string& text) const;
  // The same for sentences: on a terminal they are broken between words.
  void Say(const std::string& text) const;
  bool out_failed() const { return out_failed_; }  // what only writes may end
  // Everything else: stderr; on a terminal broken between words.
  void Err(const std::string& text) const;
  void ErrAsItIs(const std::string& text) const;  // what a job's program wrote there
  int Fail(const absl::Status& status);           // says it on stderr; its exit code
  // The process's exit code, once all is written: that of the command, unless that is 0 and its
  // output is not all there.
  int Finish(int code) const;

  // A list in the chosen format. `rows`: the elements, for jsonl, and `name` of each; `whole` for
  // json and yaml.
  int Show(const Table& table, const google::protobuf::Message& whole,
           const std::vector<const google::protobuf::Message*>& rows,
           const std::vector<std::string>& names);
  // One thing: `text` for people.
  int ShowOne(const std::string& text, const google::protobuf::Message& message,
              const std::string& name);

 private:
  void OutFailed(int error) const;

  Screen out_screen_, err_screen_;
  const bool out_is_terminal_, err_is_terminal_;  // even one that is not live: TERM=dumb
  mutable std::atomic<bool> wrote_{false}, out_failed_{false};
  std::unique_ptr<Client> client_;
  std::string server_;
};

}  // namespace muster
