// muster-trainer: trains Llama-like models. Subcommands train, estimate, prepare, export and convert; --schema, --schema-hash, --version.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "trainer/checkpoint/checksum.h"
#include "trainer/checkpoint/objects.h"
#include "trainer/loop/config.h"
#include "trainer/loop/convert.h"
#include "trainer/loop/estimate.h"
#include "trainer/loop/train.h"

namespace muster::trainer {
namespace {

constexpr char kUsage[] =
    "usage: muster-trainer train --config FILE.json [--profile STEPS]\n"
    "       muster-trainer prepare --input PATH... --tokenizer DIR|FILE|NAME|bytes --output DIR\n"
    "       muster-trainer export --checkpoint DIR --output DIR [--tokenizer DIR] [--init DIR]\n"
    "       muster-trainer convert --input DIR --output DIR [--dtype fp32|bf16|fp16] [--tokenizer DIR] [--init DIR]\n"
    "       muster-trainer estimate --config FILE.json [--ranks N] [--device GPU [--device-memory BYTES]] [--json true]\n"
    "       muster-trainer --schema | --schema-hash | --version\n"
    "\n"
    "train    trains what FILE.json (the trainer: map of a job, as JSON) says; rank and world come from torchrun's\n"
    "         environment, without RANK it is a single process. --dump-tokens FILE: rank 0 writes every step's token ids\n"
    "         (int32) there. --profile STEPS: after the first two steps, every rank writes a Chrome trace of that many to\n"
    "         profile/ in the job's directory.\n"
    "estimate says what that would need of each of N ranks: memory by class, bytes sent and products a step; with a GPU's name\n"
    "         (\"H100\"), as if each rank had one, and how long a step would take;\n"
    "         with its memory, also which fields would make a rank that needs more fit.\n"
    "prepare  turns text, JSON lines and Parquet into token shards (prepare --help).\n"
    "export   writes a checkpoint as a Hugging Face directory; that of a LoRA run merged with the weights it started from (--init\n"
    "         where they have moved), and the adapter beside it.\n"
    "convert  turns a checkpoint into a Hugging Face directory, as export does, or a Hugging Face directory into a checkpoint that\n"
    "         training resumes from at step 0; in little memory, whatever the model's size.\n";

int Usage(const std::string& what) {
  std::fprintf(stderr, "muster-trainer: %s\n\n%s", what.c_str(), kUsage);
  return 2;
}

// Reads `--name value` and `--name=value`. Returns a complaint, or "".
std::string ReadFlags(int argc, char** argv, int from, std::map<std::string, std::string*> flags) {
  for (int i = from; i < argc; ++i) {
    std::string name = argv[i], value;
    const size_t equals = name.find('=');
    const bool inline_value = name.starts_with("--") && equals != std::string::npos;
    if (inline_value) value = name.substr(equals + 1), name.resize(equals);
    const auto flag = flags.find(name);
    if (flag == flags.end()) return "no such argument: " + name;
    if (!inline_value) {
      if (i + 1 >= argc) return name + " needs a value";
      value = argv[++i];
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
  std::string folder = std::string(library != nullptr && *library != '\0' ? library : MUSTER_DEFAULT_LIB) + "/prepare";
  std::vector<char*> arguments = {program.data(), folder.data()};
  for (int i = 2; i < argc; ++i) arguments.push_back(argv[i]);
  arguments.push_back(nullptr);
  ::execvp(program.c_str(), arguments.data());
  std::fprintf(stderr, "muster-trainer: cannot run %s: %s; set MUSTER_PYTHON to the Python environment's python\n", program.c_str(), std::strerror(errno));
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
  AllowManyFiles();
  if (command == "train") {
    TrainOptions options;
    const std::string wrong = ReadFlags(argc, argv, 2, {{"--config", &options.config_path}, {"--dump-tokens", &options.dump_tokens}, {"--profile", &options.profile}});
    if (!wrong.empty()) return Usage(wrong);
    if (options.config_path.empty()) return Usage("train needs --config FILE.json");
    return Train(options);
  }
  if (command == "estimate") {
    EstimateOptions options;
    const std::string wrong =
        ReadFlags(argc, argv, 2, {{"--config", &options.config_path}, {"--ranks", &options.ranks}, {"--device", &options.device}, {"--json", &options.json}, {"--device-memory", &options.device_memory}});
    if (!wrong.empty()) return Usage(wrong);
    if (options.config_path.empty()) return Usage("estimate needs --config FILE.json");
    return RunEstimate(options);
  }
  if (command == "export" || command == "convert") {
    const bool exports = command == "export";
    ConvertOptions options;
    std::map<std::string, std::string*> flags = {{exports ? "--checkpoint" : "--input", &options.input}, {"--output", &options.output},
                                                 {"--tokenizer", &options.tokenizer}, {"--init", &options.init}};
    if (!exports) flags["--dtype"] = &options.dtype;
    if (const std::string wrong = ReadFlags(argc, argv, 2, flags); !wrong.empty()) return Usage(wrong);
    if (options.input.empty() || options.output.empty()) return Usage(command + " needs " + (exports ? "--checkpoint" : "--input") + " DIR and --output DIR");
    return exports ? Export(options) : Convert(options);
  }
  return Usage("no such command: " + command);
}

}  // namespace
}  // namespace muster::trainer

int main(int argc, char** argv) {
  // Activations come and go every step: keep their memory instead of giving it back and faulting it in again.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  // Threads that copy for collectives take what activations left, instead of keeping heaps of their own.
  mallopt(M_ARENA_MAX, 1);
  const int code = muster::trainer::Main(argc, argv);
  muster::trainer::CloseObjects();
  return code;
}
