#include "scheduler/ask/words/failure_text.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(FailureText, NamesTheFieldThatAnEndIsAbout) {
  pb::TaskSpec plain, with_limit, with_path;
  with_limit.mutable_resources()->set_memory_bytes(int64_t{4} << 30);
  (*with_path.mutable_env())["PATH"] = "/opt/venv/bin";
  const std::string killed =
      "rank 0: killed by SIGKILL: the kernel killed it: its memory limit was reached";
  const std::string no_program = "rank 0: program: exec python: No such file or directory";
  const struct {
    const pb::TaskSpec* task;
    pb::Cause cause;
    std::string detail, added;
  } kCases[] = {
      {&with_limit, pb::OUT_OF_MEMORY, killed,
       " (resources.memory: 4GiB for all processes of a worker)"},
      {&plain, pb::OUT_OF_MEMORY, killed,
       " (resources.memory isn't stated: the limit is the host's)"},
      {&with_limit, pb::OUT_OF_MEMORY, "rank 0: exit 1: CUDA out of memory", ""},
      {&plain, pb::PROGRAM_ERROR, no_program,
       " (a job has its host's PATH, not the submitter's: give the whole path, or env.PATH)"},
      {&with_path, pb::PROGRAM_ERROR, no_program, " (not in env.PATH on that host)"},
      {&plain, pb::PROGRAM_ERROR,
       "rank 0: program: exec /venv/bin/python: No such file or directory",
       " (it has to be there on every host)"},
      {&plain, pb::PROGRAM_ERROR, "rank 0: exit 1: /usr/bin/python3: No module named muster_dev",
       " (the Python on that host lacks Muster's own package: pip install Muster's python/ folder "
       "there, or run a Python that has it; muster score, tune and dev take it as --python; or "
       "name "
       "a copy of that folder that the hosts see, with --set env.PYTHONPATH=…, which "
       "muster dev takes as --env PYTHONPATH=…)"},
      {&plain, pb::PROGRAM_ERROR,
       "rank 0: exit 1: ModuleNotFoundError: No module named 'muster_runtime'",
       " (the Python on that host lacks Muster's own package: pip install Muster's python/ folder "
       "there, or run a Python that has it; muster score, tune and dev take it as --python; or "
       "name "
       "a copy of that folder that the hosts see, with --set env.PYTHONPATH=…, which "
       "muster dev takes as --env PYTHONPATH=…)"},
      {&plain, pb::PROGRAM_ERROR, "rank 0: exit 1: ModuleNotFoundError: No module named 'torch'",
       ""},
      {&plain, pb::PROGRAM_ERROR,
       "rank 0: exit 1: ModuleNotFoundError: No module named 'muster_runtime.x'", ""},
      {&plain, pb::PROGRAM_ERROR, "rank 0: exit 1: No module named 'torch' (muster_ray is there)",
       ""},
      {&plain, pb::PROGRAM_ERROR, "workdir /opt/muster/examples: No such file or directory",
       " (it has to be there on every host)"},
      {&plain, pb::IMAGE_FAILED, "rank 0: image /x: a user namespace: Operation not permitted",
       " (the host has to let users make namespaces and mounts in them: docs/install.md, Images, "
       "names the settings)"},
      {&plain, pb::IMAGE_FAILED, "rank 0: image /x: its mounts: overlay: Invalid argument",
       " (an overlay wants Linux 5.11, and a file system that can be a layer of it: put the image "
       "on another one, such as a disk of the host's)"},
      {&plain, pb::PROGRAM_ERROR, "rank 0: exec bash: Argument list too long",
       " (its variables, secrets among them, and the words of run are more than a quarter of the "
       "host's stack limit: keep what is large in a file)"},
      {&plain, pb::PROGRAM_ERROR, "rank 0: exit 1: KeyError: 'labels'", ""},
  };
  for (const auto& c : kCases)
    EXPECT_EQ(FailureText(*c.task, c.cause, c.detail), c.detail + c.added);
}

}  // namespace
}  // namespace muster
