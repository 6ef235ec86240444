// What an operator does with the store itself, on its machine: musterd knows it, so it is started
// for that.
#include <CLI/CLI.hpp>

#include "cli/commands/beside.h"
#include "cli/commands/commands.h"

namespace muster {
namespace {

struct AdminOptions {
  std::string config, data_dir, file;
};

int RunMusterd(Session& session, const AdminOptions& options, std::vector<std::string> words) {
  if (!options.config.empty()) words.insert(words.end(), {"--config", options.config});
  if (!options.data_dir.empty()) words.insert(words.end(), {"--data-dir", options.data_dir});
  return BecomeBeside(session, "musterd", std::move(words));
}

}  // namespace

void AddAdmin(CLI::App& root, Session& session) {
  CLI::App* admin = root.add_subcommand(
      "admin", "The store, on musterd's machine: backup, verify, replay, adopt-restored");
  admin->require_subcommand(1);
  auto options = std::make_shared<AdminOptions>();
  const auto add = [&](const char* name, const char* help, const char* file_help,
                       bool file_required) {
    CLI::App* command = admin->add_subcommand(name, help);
    command->add_option("--config", options->config, "musterd.yaml");
    command->add_option("--data-dir", options->data_dir, "Directory of the store");
    if (file_help != nullptr)
      command->add_option("file", options->file, file_help)->required(file_required);
    command->callback([&session, options, name = std::string(name)] {
      session.command = [&session, options, name] {
        std::vector<std::string> words = {name == "adopt-restored" ? "--adopt-restored" : name};
        if (!options->file.empty()) words.push_back(options->file);
        return RunMusterd(session, *options, std::move(words));
      };
    });
  };
  add("backup", "Copy the store into a new file, while musterd runs or not", "The new file", true);
  add("verify", "Check the store, or a backup: checksums, commits, rows against the journal",
      "A backup; else the store of data_dir", false);
  add("replay", "Decide the whole journal again and compare each plan",
      "A backup, or a folder of refused-plans; else the store of data_dir", false);
  add("adopt-restored",
      "Start musterd on a backup or a copy that was put in place, and go on from it", nullptr,
      false);
}

}  // namespace muster
