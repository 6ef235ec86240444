#include "agent/failures/classify.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "agent/failures/rules.h"
#include "agent/failures/tails.h"

namespace muster {
namespace {

using enum FailureClass;

struct Case {
  const char* what;
  EndFacts facts;
  FailureClass cls;
  const char* because;  // a part of it
};

TEST(Classify, LetsWhatMusterAndTheKernelKnowComeBeforeTheLog) {
  const std::vector<std::string_view> error = {"Traceback (most recent call last):",
                                               "ValueError: too many values"};
  const std::vector<std::string_view> oom = {
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."};
  const std::vector<std::string_view> reset = {"[rank3] RuntimeError: Connection reset by peer"};
  const Case cases[] = {
      {"nothing is known, an exit", {.exit_code = 1}, kUserError, ""},
      {"nothing is known, killed", {.signal = 9}, kKilled, ""},
      {"killed, told by a shell", {.exit_code = 137}, kKilled, ""},
      {"a crash of its own", {.signal = 11}, kUserError, ""},
      {"the cgroup", {.signal = 9, .cgroup_oom = true, .tail = error}, kOom, "memory limit"},
      {"its place was taken",
       {.signal = 15, .preempted = true, .tail = error},
       kPreempted,
       "taken"},
      {"its host was lost", {.signal = 9, .host_lost = true, .tail = oom}, kHost, "host"},
      {"stood still", {.signal = 9, .silent = true}, kHang, "no progress"},
      {"stood still because of what its log names",
       {.signal = 9, .silent = true, .tail = oom},
       kOom,
       "OutOfMemory"},
      {"stood still, and its peers left when it was stopped",
       {.signal = 9, .silent = true, .tail = reset},
       kHang,
       "no progress"},
      {"the driver said more",
       {.exit_code = 1,
        .events = {"NVRM: Xid (PCI:0000:4e:00): 79, pid=1, GPU has fallen off the bus."},
        .tail = error},
       kDevice,
       "Xid"},
      {"an Xid of the program's own",
       {.exit_code = 1,
        .events = {"NVRM: Xid (PCI:0000:4e:00): 31, pid=1, name=python, MMU Fault"},
        .tail = error},
       kUserError,
       "ValueError"},
      {"an Xid in few words", {.signal = 6, .events = {"XID 48 on GPU 3"}}, kDevice, "XID 48"},
  };
  for (const Case& c : cases) {
    const Failure failure = Classify(c.facts);
    EXPECT_EQ(FailureName(failure.cls), FailureName(c.cls)) << c.what;
    EXPECT_NE(failure.because.find(c.because), std::string::npos)
        << c.what << ": " << failure.because;
  }
}

TEST(Classify, WhatAScriptHeardOfMusterBeforeItWentOnIsNoCause) {
  EXPECT_EQ(Classify({.exit_code = 1, .tail = {"muster: job 7 has ended", "it went on"}}).because,
            "");
}

TEST(Classify, BelievesCausesBeforeConsequencesAndTheFirstOfTheSameWeight) {
  const Case cases[] = {
      {"a peer's way out behind the cause",
       {.exit_code = 1,
        .tail = {"RuntimeError: CUDA error: uncorrectable ECC error encountered",
                 "Exception: NCCL error: remote process exited or there was a network error"}},
       kDevice,
       "ECC"},
      {"only the consequence is known",
       {.exit_code = 1,
        .tail = {"Exception: NCCL error: remote process exited or there was a network error"}},
       kNetwork,
       "remote process"},
      {"an error in writing a checkpoint, then what that led to",
       {.exit_code = 1,
        .tail = {"OSError: [Errno 28] No space left on device",
                 "During handling of the above exception, another exception occurred:",
                 "ValueError: no checkpoint"}},
       kStorage,
       "Errno 28"},
      {"an error that training went on after",
       {.exit_code = 1,
        .tail = {"warning: CUDA out of memory, trying again with half the batch",
                 "step 120 loss 2.31", "step 130 loss 2.30", "KeyError: 'labels'"}},
       kUserError,
       "KeyError"},
      {"another rank's step behind the cause",
       {.exit_code = 1,
        .tail = {"torch.OutOfMemoryError: CUDA out of memory.", "[rank1] step 12 loss 2.3"}},
       kOom,
       "out of memory"},
      {"a Ray head's end behind what its program said of it",
       {.exit_code = 1,
        .tail = {"ConnectionRefusedError: [Errno 111] Connection refused",
                 "muster_ray: the head has ended: `ray start` ended with 1: gcs_server"}},
       kUserError,
       "muster_ray"},
      {"a trainer's refusal, whose first problem no rule knows",
       {.exit_code = 2,
        .tail = {"/etc/config.json: 3 problems, nothing was started",
                 "  trainer.lora.rank: is larger than the model is wide",
                 "  trainer.data: /nowhere: no such file or directory",
                 "  trainer.tokenizer: must be a directory"}},
       kUserError,
       "trainer.lora.rank: is larger than the model is wide (the first of 3 problems; its log has "
       "all)"},
      {"a trainer's refusal of one problem",
       {.exit_code = 2,
        .tail = {"config.json: 1 problem, nothing was started",
                 "  trainer.lora.rank: is larger than the model is wide"}},
       kUserError,
       "trainer.lora.rank: is larger"},
      {"what a program of ours says of its input, before it was told to end",
       {.exit_code = 2,
        .tail = {"loading", "muster_score: --input /in/b.csv: is of no known kind", "bye"}},
       kUserError,
       "muster_score: --input /in/b.csv: is of no known kind"},
      {"a terminal that hung up",
       {.exit_code = 129, .tail = {"muster: the terminal has gone away"}},
       kUserError,
       "muster: the terminal has gone away"},
      {"a command of a terminal that isn't there",
       {.exit_code = 127, .tail = {"muster: nosuch: no such program on h01, where PATH is /bin"}},
       kUserError,
       "muster: nosuch: no such program on h01"},
      {"a program of ours whose error has its rule",
       {.exit_code = 1,
        .tail = {"muster_score: begins", "torch.OutOfMemoryError: CUDA out of memory"}},
       kOom,
       "OutOfMemoryError"},
      {"the same words of a program that ended otherwise",
       {.exit_code = 1,
        .tail = {"x: 2 problems, nothing was started", "  a: is odd", "KeyError: 'labels'"}},
       kUserError,
       "KeyError"},
      {"part of a word is no word",
       {.exit_code = 1, .tail = {"MyTypeErrorCounter = 3 KeyErrors", "RuntimeError: x"}},
       kUserError,
       "RuntimeError"},
  };
  for (const Case& c : cases) {
    const Failure failure = Classify(c.facts);
    EXPECT_EQ(FailureName(failure.cls), FailureName(c.cls)) << c.what;
    EXPECT_NE(failure.because.find(c.because), std::string::npos)
        << c.what << ": " << failure.because;
  }
}

TEST(Classify, WhatAProgramWithoutDevicesSaysOfDevicesIsItsOwnMistake) {
  for (const char* line :
       {"RuntimeError: Found no NVIDIA driver on your system. Please check that you have a GPU",
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
        "Failed to initialize NVML: Driver/library version mismatch",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:4e:00): 79, pid=1, GPU has fallen off the bus."}) {
    EndFacts facts{.exit_code = 1, .tail = {line}};
    EXPECT_NE(Classify(facts).cls, kUserError) << line;
    facts.devices = false;
    EXPECT_EQ(Classify(facts).cls, kUserError) << line;
    EXPECT_NE(Classify(facts).because, "") << line;
  }
  const EndFacts disk{
      .exit_code = 1, .devices = false, .tail = {"blk_update_request: I/O error, dev nvme0n1"}};
  EXPECT_EQ(Classify(disk).cls, kHost) << "its host's disk is its host's all the same";
}

TEST(Classify, FramesOfATracebackAndSettingsSayNothing) {
  const std::vector<std::string_view> frame = {
      "[rank3]: Traceback (most recent call last):",
      "[rank3]:   File \"/srv/health/nvlink_error.py\", line 12, in reboot",
      "[rank3]:     raise DeviceError('uncorrectable ECC error')", "[rank3]: DeviceError: 7"};
  EXPECT_EQ(Classify({.exit_code = 1, .tail = frame}).cls, kUserError);
  const std::vector<std::string_view> said = {
      "Traceback (most recent call last):", "  File \"/srv/x.py\", line 12, in <module>",
      "    check()", "DeviceError: uncorrectable ECC error"};
  EXPECT_EQ(Classify({.exit_code = 1, .tail = said}).cls, kDevice) << "the exception speaks";
  for (const char* setting :
       {"  spot: true", "walltime ........ 86400", "preemption = null", "walltime: 24h",
        "labels: ['kernel panic', 'gpu is lost']", "reason_to_stop: 'preempted by hand'"}) {
    EXPECT_EQ(Classify({.exit_code = 1, .tail = {setting, "RuntimeError: x"}}).cls,
              std::string_view(setting).starts_with("reason") ? kPreempted : kUserError)
        << setting;
  }
  EXPECT_EQ(Classify({.tail = {"exitcode  : -9"}}).cls, kKilled) << "of an end";
}

// Users' own mistakes, many of them with the words of devices and hosts.
TEST(Classify, TellsUsersOwnMistakesAndBlamesNoHostForThem) {
  const std::vector<LabelledEnd> ends = ReadLabelledEnds("bench/failures/mistakes.jsonl");
  ASSERT_GE(ends.size(), 60u);
  size_t wrong = 0;
  std::string which;
  for (const LabelledEnd& end : ends) {
    const Failure failure = Classify(FactsOf(end));
    EXPECT_TRUE(failure.cls != kHost && failure.cls != kDevice)
        << end.id << " by: " << failure.because;
    if (FailureName(failure.cls) == end.label) continue;
    ++wrong;
    which += end.id + " by: " + failure.because + "\n";
  }
  EXPECT_LE(wrong, 1u) << which;
}

TEST(Classify, SaysLinesInPrintableCharactersCutAtOne) {
  const std::pair<std::string, std::string> cases[] = {
      {"KeyError: " + std::string(189, 'x') + "ä and much more",
       "KeyError: " + std::string(189, 'x') + "…"},
      {"\x1b[31mKeyError: 'a'\x1b[0m\r", "KeyError: 'a'"},
      {"\t KeyError: \xff\xc3(\xed\xa0\x80 ä €", "KeyError: ?\?(?\?? ä €"},
      {std::string("KeyError\0: x", 12), "KeyError: x"},
  };
  for (const auto& [line, said] : cases)
    EXPECT_EQ(Classify({.exit_code = 1, .tail = {line}}).because, said);
}

// Those that the rules were written on. What they do on others is the row `classify`
// (bench/run.sh).
TEST(Classify, TellsTheCollectedEnds) {
  const std::vector<LabelledEnd> ends = ReadLabelledEnds("agent/failures/testdata/develop.jsonl");
  ASSERT_GE(ends.size(), 600u);
  size_t wrong = 0;
  std::string which;
  for (const LabelledEnd& end : ends) {
    const Failure failure = Classify(FactsOf(end));
    if (FailureName(failure.cls) == end.label) continue;
    ++wrong;
    which += end.id + ": " + end.label + ", told " + std::string(FailureName(failure.cls)) +
             " by: " + failure.because + "\n";
  }
  EXPECT_LE(wrong * 100, ends.size()) << which;
}

TEST(FailureRules, AreLowerCaseAndReachable) {
  for (const Rule& rule : FailureRules()) {
    EXPECT_FALSE(rule.pattern.empty());
    for (const char c : rule.pattern) EXPECT_FALSE(c >= 'A' && c <= 'Z') << rule.pattern;
  }
}

}  // namespace
}  // namespace muster
