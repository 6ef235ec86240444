// muster-trainer: trains Llama-like models. Subcommands train, estimate, prepare, export and
// convert; --schema, --schema-hash, --version.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "trainer/checkpoint/checksum.h"
#include "trainer/checkpoint/objects.h"
#include "trainer/loop/config.h"
#include "trainer/loop/convert.h"
#include "trainer/loop/estimate.h"
#include "trainer/loop/train.h"
#include "trainer/model/config.h"

namespace muster::trainer {
namespace {

constexpr char kUsage[] =
    "usage: muster-trainer train --config FILE.json\n"
    "       muster-trainer prepare --input PATH... --tokenizer DIR|FILE|NAME|bytes --output DIR\n"
    "       muster-trainer export --checkpoint DIR --output DIR\n"
    "       muster-trainer convert --input DIR --output DIR\n"
    "       muster-trainer estimate --config FILE.json\n"
    "       muster-trainer --schema | --schema-hash | --version\n"
    "\n"
    "Each of them has more: muster-trainer COMMAND --help. What FILE.json takes: --schema, `muster "
    "fields trainer`, docs/trainer.md.\n";

struct CommandHelp {
  const char *name, *text;
};
constexpr CommandHelp kHelp[] = {
    {"train",
     "usage: muster-trainer train --config FILE.json [--metrics FILE] [--dump-tokens FILE] "
     "[--profile STEPS]\n"
     "\n"
     "Trains what FILE.json (the trainer: map of a job, as JSON) says. Rank and world come from "
     "torchrun's environment (RANK, WORLD_SIZE,\n"
     "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT); without RANK it is a single "
     "process. Checkpoints go to and come from the\n"
     "directory MUSTER_CHECKPOINT_DIR. SIGTERM and Ctrl+C end it after a checkpoint.\n"
     "\n"
     "  --config FILE        the configuration\n"
     "  --metrics FILE       append every progress line to FILE, as JSON\n"
     "  --dump-tokens FILE   append every step's token ids (int32) to FILE\n"
     "  --profile STEPS      after the first two steps, every rank writes a Chrome trace of so "
     "many to profile/ in the job's directory\n"
     "\n"
     "Exit codes: 0 done, or stopped after a checkpoint; 1 failed; 2 the configuration is wrong, "
     "and nothing was started.\n"},
    {"estimate",
     "usage: muster-trainer estimate --config FILE.json [--ranks N] [--device GPU [--device-memory "
     "SIZE]] [--search N] [--json]\n"
     "\n"
     "Says what a run would need of each rank: memory by class, bytes sent by link and products a "
     "step.\n"
     "\n"
     "  --config FILE          the configuration, as train takes it\n"
     "  --ranks N              how many ranks (default 1)\n"
     "  --device GPU           as if each rank had one, \"H100\" or a flavour such as h100-80g: "
     "also how long a step would take (default: ranks on CPUs)\n"
     "  --device-memory SIZE   what such a GPU has, 80GiB (default: what a flavour's name ends "
     "with): also whether a rank fits, and if not,\n"
     "                         which fields would make it fit\n"
     "  --search N             instead, the N ways to share the run out among the ranks that fit "
     "and take the least time, by estimate\n"
     "  --ranks-per-host N     how many of the ranks share a host (default 8)\n"
     "  --within-host GB/s     with --device: what a GPU sends others of its host, one way "
     "(default: by its data sheet)\n"
     "  --between-hosts GB/s   with --device: and others (default: a port of 400 Gb/s for each "
     "H100 and newer, 200 for an A100)\n"
     "  --json                 for programs; also which ranks belong together (placement), and by "
     "how many a run may grow (ranks_multiple)\n"
     "\n"
     "Exit codes: 0; 3 a rank doesn't fit, or no layout does; 2 the configuration is wrong.\n"},
    {"export",
     "usage: muster-trainer export --checkpoint DIR --output DIR [--tokenizer DIR] [--init DIR]\n"
     "\n"
     "Writes a checkpoint as a Hugging Face directory, with the tokenizer that the run had; that "
     "of a LoRA run merged with the weights it\n"
     "started from, and the adapter beside it.\n"
     "\n"
     "  --checkpoint DIR   one checkpoint, step-NNNNNNNN, or s3://BUCKET/…/step-NNNNNNNN\n"
     "  --output DIR       new, or an earlier export, which it replaces\n"
     "  --tokenizer DIR    take the tokenizer's files from there\n"
     "  --init DIR         where the weights are that a LoRA run started from, if they have "
     "moved\n"},
    {"convert",
     "usage: muster-trainer convert --input DIR --output DIR [--dtype fp32|bf16|fp16] [--tokenizer "
     "DIR] [--init DIR] [--quantize nf4 [--double false]]\n"
     "\n"
     "Turns a checkpoint into a Hugging Face directory, as export does, or a Hugging Face "
     "directory into a checkpoint that training resumes\n"
     "from at step 0, or into one that is quantised; in little memory, whatever the model's size.\n"
     "\n"
     "  --input DIR       a checkpoint (step-NNNNNNNN, also s3://…), or a Hugging Face directory\n"
     "  --output DIR      becomes the other; new, or an earlier result, which it replaces\n"
     "  --dtype TYPE      of the Hugging Face directory's weights (default: that of the run)\n"
     "  --tokenizer DIR   take the tokenizer's files from there (default: from where the "
     "checkpoint says they were)\n"
     "  --init DIR        where the weights are that a LoRA run started from, if they have "
     "moved\n"
     "  --quantize nf4    of a Hugging Face directory: the output is one, too, with the layers' "
     "linears in 4 bits, as bitsandbytes saves them\n"
     "  --double false    with --quantize: their scales stay in fp32 (default: true, they are "
     "quantised, too)\n"},
};

int Usage(const std::string& what, const std::string& command = "") {
  std::string usage = kUsage;
  for (const CommandHelp& help : kHelp) {
    if (command == help.name)
      usage = std::string(help.text, std::strchr(help.text, '\n') + 1) +
              "       More: muster-trainer " + command + " --help\n";
  }
  std::fprintf(stderr, "muster-trainer: %s\n\n%s", what.c_str(), usage.c_str());
  return 2;
}

// Reads `--name value` and `--name=value`; of those in `alone` also `--name`, which is true.
// Returns a complaint, or "".
std::string ReadFlags(int argc, char** argv, int from, std::map<std::string, std::string*> flags,
                      const std::set<std::string>& alone = {}) {
  for (int i = from; i < argc; ++i) {
    std::string name = argv[i], value;
    const size_t equals = name.find('=');
    const bool inline_value = name.starts_with("--") && equals != std::string::npos;
    if (inline_value) value = name.substr(equals + 1), name.resize(equals);
    const auto flag = flags.find(name);
    if (flag == flags.end()) {
      std::vector<std::string> names;
      for (const auto& [known, unused] : flags) names.push_back(known);
      const std::string like = DidYouMean(name, names);
      return "no such argument: " + name + (like.empty() ? "" : "." + like);
    }
    if (!inline_value) {
      const bool given = i + 1 < argc && std::strncmp(argv[i + 1], "--", 2) != 0;
      if (!given && !alone.contains(name)) return name + " needs a value";
      value = given ? argv[++i] : "true";
    }
    *flag->second = value;
  }
  return "";
}

// Becomes `python trainer/prepare ARGS`.
int Prepare(int argc, char** argv) {
  const char* python = std::getenv("MUSTER_PYTHON");
  const char* library = std::getenv("MUSTER_TRAINER_LIB");
  std::string program = python != nullptr && *python != '\0' ? python : MUSTER_DEFAULT_PYTHON;
  std::string folder =
      std::string(library != nullptr && *library != '\0' ? library : MUSTER_DEFAULT_LIB) +
      "/prepare";
  std::vector<char*> arguments = {program.data(), folder.data()};
  for (int i = 2; i < argc; ++i) arguments.push_back(argv[i]);
  arguments.push_back(nullptr);
  ::execvp(program.c_str(), arguments.data());
  std::fprintf(
      stderr,
      "muster-trainer: cannot run %s: %s; export MUSTER_PYTHON, the Python environment's python, "
      "before this command (in a job in `run:` itself, as `env:` can't set MUSTER_*)\n",
      program.c_str(), std::strerror(errno));
  return 1;
}

// A checkpoint of many ranks is read from as many files, and ranks have a connection each.
void AllowManyFiles() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int Main(int argc, char** argv) {
  if (argc < 2) return Usage("say what to do");
  const std::string command = argv[1];
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  if (command == "--version") {
    std::puts("muster-trainer " MUSTER_VERSION);
    return 0;
  }
  if (command == "--schema" || command == "--schema-hash") {
    const std::string schema = TrainConfigSchema().dump(2);
    std::puts(command == "--schema" ? schema.c_str() : Sha256Hex(schema).c_str());
    return 0;
  }
  if (command == "prepare") return Prepare(argc, argv);
  for (const CommandHelp& help : kHelp) {
    if (command != help.name) continue;
    for (int i = 2; i < argc; ++i) {
      if (std::strcmp(argv[i], "--help") != 0 && std::strcmp(argv[i], "-h") != 0) continue;
      std::fputs(help.text, stdout);
      return 0;
    }
  }
  AllowManyFiles();
  if (command == "train") {
    TrainOptions options;
    const std::string wrong = ReadFlags(argc, argv, 2,
                                        {{"--config", &options.config_path},
                                         {"--dump-tokens", &options.dump_tokens},
                                         {"--metrics", &options.metrics},
                                         {"--profile", &options.profile}});
    if (!wrong.empty()) return Usage(wrong, command);
    if (options.config_path.empty()) return Usage("train needs --config FILE.json", command);
    return Train(options);
  }
  if (command == "estimate") {
    EstimateOptions options;
    const std::string wrong = ReadFlags(argc, argv, 2,
                                        {{"--config", &options.config_path},
                                         {"--ranks", &options.ranks},
                                         {"--device", &options.device},
                                         {"--json", &options.json},
                                         {"--device-memory", &options.device_memory},
                                         {"--search", &options.search},
                                         {"--ranks-per-host", &options.ranks_per_host},
                                         {"--within-host", &options.within_host},
                                         {"--between-hosts", &options.between_hosts}},
                                        {"--json"});
    if (!wrong.empty()) return Usage(wrong, command);
    if (options.config_path.empty())
      return Usage("estimate needs --config FILE.json: what a job has below trainer:, as JSON",
                   command);
    return RunEstimate(options);
  }
  if (command == "export" || command == "convert") {
    const bool exports = command == "export";
    ConvertOptions options;
    if (exports) options.flag = "--checkpoint";
    std::map<std::string, std::string*> flags = {
        {exports ? "--checkpoint" : "--input", &options.input},
        {"--output", &options.output},
        {"--tokenizer", &options.tokenizer},
        {"--init", &options.init}};
    if (!exports) {
      flags["--dtype"] = &options.dtype;
      flags["--quantize"] = &options.quantize;
      flags["--double"] = &options.quantize_double;
    }
    if (const std::string wrong = ReadFlags(argc, argv, 2, flags); !wrong.empty())
      return Usage(wrong, command);
    if (options.input.empty() || options.output.empty())
      return Usage(
          command + " needs " + (exports ? "--checkpoint" : "--input") + " DIR and --output DIR",
          command);
    return exports ? Export(options) : Convert(options);
  }
  std::vector<std::string> commands = {"prepare"};
  for (const CommandHelp& help : kHelp) commands.emplace_back(help.name);
  const std::string like = DidYouMean(command, commands);
  return Usage("no such command: " + command + (like.empty() ? "" : "." + like));
}

}  // namespace
}  // namespace muster::trainer

int main(int argc, char** argv) {
  // Activations come and go every step: keep their memory instead of giving it back and faulting it
  // in again.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  // Threads that copy for collectives take what activations left, instead of keeping heaps of their
  // own.
  mallopt(M_ARENA_MAX, 1);
  const int code = muster::trainer::Main(argc, argv);
  muster::trainer::CloseObjects();
  return code;
}
