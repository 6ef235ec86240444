#include <set>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/completion.h"
#include "cli/commands/local_trainer.h"
#include "common/base/clock.h"
#include "common/spec/fields.h"

namespace muster {
namespace {

int Fields(Session& session, const std::string& path) {
  std::string schema;
  const bool trainers = IsTrainersField(path);
  if (trainers) {  // what the trainer takes: the server's, or that of the one here
    absl::StatusOr<Client*> client = session.client();
    if (client.ok()) {
      if (auto response = (*client)->TrainerSchema(); response.ok()) schema = response->json();
    }
    if (schema.empty()) schema = LocalTrainerSchema();
  }
  std::string text = session.for_people() ? FieldsText(path, schema)
                                          : FieldsJson(path, schema);  // JSON is YAML, too
  if (trainers && schema.empty()) {
    session.Err(absl::StrCat(
        "muster: what trainer takes isn't known here: no server that knows it answers, and ",
        LocalTrainer().empty()
            ? "no muster-trainer lies beside muster"
            : "the muster-trainer beside muster doesn't say it (muster-trainer --schema)",
        ". All of it is in docs/trainer.md\n"));
    if (text.empty()) return kExitUnreachable;
  }
  if (text.empty()) {
    session.Err(absl::StrCat("muster: no field ", Plain(path), ".", FieldSuggestion(path, schema),
                             "  All: muster fields", trainers ? " trainer" : "", "\n"));
    return kExitNotFound;
  }
  session.Out(text);
  return kExitOk;
}

int Ping(Session& session) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  int64_t begin_ns = RealClock()->MonotonicNs();
  absl::StatusOr<pb::PingResponse> response = (*client)->Ping();
  if (!response.ok()) return session.Fail(response.status());
  std::string text = absl::StrCat(
      (*client)->server(), ": musterd ", response->version(), ", epoch ", response->epoch(),
      ", you are ", Plain(response->user()), response->single_user() ? " (single user)" : "",
      ", answered in ", (RealClock()->MonotonicNs() - begin_ns) / 1000, " us\n");
  if (const pb::StepStats& steps = response->steps(); steps.steps() > 0) {
    absl::StrAppend(&text, steps.steps(), " steps with ", steps.events(),
                    " events since its start; 99 of 100 took at most ", steps.step_ns_p99() / 1000,
                    " us, their commits ", steps.commit_ns_p99() / 1000, " us\n");
  }
  if (response->steps().refused_plans() > 0) {
    absl::StrAppend(&text, response->steps().refused_plans(),
                    " times a plan was wrong, and it, or the one job's part that was, wasn't "
                    "carried out. Please report that with what lies in "
                    "refused-plans/ of its data_dir.\n");
  }
  if (!response->accepts_submissions())
    absl::StrAppend(&text, "It takes no submissions: ", Plain(response->why_not()), "\n");
  return session.ShowOne(text, *response, response->version());
}

}  // namespace

void AddAbout(CLI::App& root, Session& session) {
  auto path = std::make_shared<std::string>();
  CLI::App* fields =
      root.add_subcommand("fields", "What a job file may say: fields, types, defaults, limits");
  fields->add_option("path", *path, "A field such as resources or trainer.max_steps");
  fields->callback(
      [&session, path] { session.command = [&session, path] { return Fields(session, *path); }; });

  CLI::App* ping = root.add_subcommand("ping", "Who serves, and as whom it knows you");
  ping->callback([&session] { session.command = [&session] { return Ping(session); }; });

  CLI::App* version = root.add_subcommand("version", "Version of this program");
  version->callback([&session] {
    session.command = [&session] {
      session.Out(session.for_people() ? absl::StrCat("muster ", MUSTER_VERSION, "\n")
                  : session.format() == Format::kName ? absl::StrCat(MUSTER_VERSION, "\n")
                  : session.format() == Format::kYaml
                      ? absl::StrCat("version: \"", MUSTER_VERSION, "\"\n")
                      : absl::StrCat("{\"version\": \"", MUSTER_VERSION, "\"}\n"));
      return static_cast<int>(kExitOk);
    };
  });

  auto shell = std::make_shared<std::string>("bash");
  CLI::App* completion = root.add_subcommand(
      "completion", "Shell completion:  source <(muster completion bash), or zsh, or fish");
  completion->add_option("shell", *shell, "bash, zsh or fish")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->capture_default_str();
  completion->callback([&session, shell] {
    session.command = [&session, shell] {
      session.Out(CompletionScript(*shell));
      return static_cast<int>(kExitOk);
    };
  });
}

std::vector<std::string> ServerNames(Session& session, NameOf what) {
  std::vector<std::string> names;
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return names;  // nobody serves: nothing to name
  if (what == NameOf::kJob || what == NameOf::kUnfinishedJob) {
    pb::ListJobsRequest request;
    if (what == NameOf::kUnfinishedJob) {
      for (const pb::JobState state : {pb::WAITING, pb::RUNNING}) request.add_states(state);
    }
    request.set_page_size(100);
    if (const auto jobs = (*client)->List(request); jobs.ok()) {
      for (const pb::Job& job : jobs->jobs()) names.push_back(absl::StrCat(job.number()));
    }
  }
  if (what == NameOf::kQueue) {
    if (const auto queues = (*client)->ListQueues(); queues.ok()) {
      for (const pb::Queue& queue : queues->queues()) names.push_back(queue.path());
    }
  }
  if (what == NameOf::kCluster || what == NameOf::kHostOrCluster || what == NameOf::kFlavour) {
    if (const auto clusters = (*client)->ListClusters(); clusters.ok()) {
      std::set<std::string> flavours;
      for (const pb::Cluster& cluster : clusters->clusters()) {
        if (what != NameOf::kFlavour) names.push_back(cluster.name());
        for (const pb::Capacity& capacity : cluster.capacity()) flavours.insert(capacity.flavour());
      }
      if (what == NameOf::kFlavour) names.assign(flavours.begin(), flavours.end());
    }
  }
  if (what == NameOf::kHost || what == NameOf::kHostOrCluster) {
    if (const auto hosts = (*client)->ListHosts(""); hosts.ok()) {
      for (const pb::Host& host : hosts->hosts()) names.push_back(host.name());
    }
  }
  return names;
}

}  // namespace muster
