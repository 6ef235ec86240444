#include "common/spec/ray.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/spec/members.h"
#include "common/spec/spec.h"

namespace muster {
namespace {

pb::JobSpec Parsed(const std::string& text) {
  pb::JobSpec spec;
  std::vector<Problem> problems;
  EXPECT_TRUE(ParseJobFile(text, "job.yaml", {}, &spec, &problems))
      << FormatProblems(problems, text);
  return spec;
}

std::vector<std::string> Words(const pb::TaskSpec& task) {
  return {task.run().exec().begin(), task.run().exec().end()};
}

TEST(Ray, EachWorkerRunsTheLauncherWithTheProgramBehindIt) {
  struct Case {
    const char* fields;
    std::vector<std::string> words;  // behind python3 -m muster_ray
  };
  for (const Case& c : std::vector<Case>{
           {"ray: {}\nrun: [python, a.py]\n", {"--cpus", "1", "--", "python", "a.py"}},
           {"ray: {dashboard: false}\nresources: {cpus: 2.5, memory: 1GiB}\nrun: [a]\n",
            {"--cpus", "2", "--memory-bytes", "1073741824", "--", "a"}},
           {"ray: {dashboard: true}\nresources: {cpus: 0.5}\nrun: a {{index}}\n",
            {"--dashboard", "--cpus", "1", "--", "bash", "-euo", "pipefail", "-c", "a 1"}}}) {
    pb::JobSpec spec = Parsed(std::string("independent_workers: 2\n") + c.fields);
    ApplyDefaults(&spec, {});
    std::vector<std::string> words = {"python3", "-m", "muster_ray"};
    words.insert(words.end(), c.words.begin(), c.words.end());
    const pb::TaskSpec own = TaskOfMember(spec, 0, 1);
    EXPECT_EQ(Words(own), words) << c.fields;
    EXPECT_FALSE(own.has_ray()) << "an agent knows commands only";
    EXPECT_TRUE(spec.tasks(0).has_ray()) << "what is shown is what was submitted";
  }
}

TEST(Ray, OfEightGpusAWorkerIsOneNode) {
  pb::JobSpec spec =
      Parsed("independent_workers: 2\nray: {}\nresources: {gpus: 8, gpu_types: [h100]}\nrun: a\n");
  ApplyDefaults(&spec, {});
  EXPECT_EQ(spec.tasks(0).processes_per_worker(), 1);
}

TEST(Ray, AHeadIsNotStartedAgainAfterAFailureAndTheOthersAre) {
  for (const auto& [fields, others] :
       std::vector<std::pair<std::string, int32_t>>{{"", 3}, {"max_restarts: 7\n", 7}}) {
    const pb::JobSpec spec = Parsed("independent_workers: 2\nray: {}\nrun: a\n" + fields);
    EXPECT_EQ(MaxRestartsOf(spec, 0, 0), 0) << fields;
    EXPECT_EQ(MaxRestartsOf(spec, 0, 1), others) << fields;
    EXPECT_EQ(TaskOfMember(spec, 0, 0).max_restarts(), 0) << fields;
  }
  const pb::JobSpec plain = Parsed("independent_workers: 2\nrun: a\nmax_restarts: 7\n");
  EXPECT_EQ(MaxRestartsOf(plain, 0, 0), 7) << "without ray all are alike";
}

TEST(Ray, AFileOfItComesBackAsItWas) {
  for (const char* ray : {"ray: {}\n", "ray: {dashboard: true}\n"}) {
    const pb::JobSpec spec =
        Parsed(std::string("independent_workers: {min: 1, max: 4}\nrun: a\n") + ray);
    EXPECT_EQ(Parsed(SpecToYaml(spec)).tasks(0).DebugString(), spec.tasks(0).DebugString())
        << SpecToYaml(spec);
  }
}

TEST(Ray, WhatDoesNotGoWithItIsRefusedAtItsPlace) {
  struct Case {
    const char* file;
    const char* path;
    const char* message;
  };
  for (const Case& c : std::vector<Case>{
           {"ray: {}\nrun: a\n", "ray", "needs independent_workers"},
           {"ray: {}\nworkers: 2\nrun: a\n", "ray", "needs independent_workers"},
           {"ray: {}\nindependent_workers: 2\ntrainer: {}\n", "ray", "goes with run"},
           {"ray: {}\nindependent_workers: 2\n", "run", "is missing"},
           {"ray: true\nindependent_workers: 2\nrun: a\n", "ray", "must be a map"},
           {"ray: {dashbord: true}\nindependent_workers: 2\nrun: a\n", "ray.dashbord", "dashboard"},
           {"ray: {}\nindependent_workers: 2\nprocesses_per_worker: 4\nrun: a\n",
            "processes_per_worker", "leave it out"},
           {"ray: {}\nindependent_workers: 2\nclusters: [a, b]\nrun: a\n", "clusters",
            "name one"}}) {
    pb::JobSpec spec;
    std::vector<Problem> problems;
    EXPECT_FALSE(ParseJobFile(c.file, "job.yaml", {}, &spec, &problems)) << c.file;
    const auto said = [&](const Problem& problem) {
      return problem.path == c.path && problem.message.find(c.message) != std::string::npos;
    };
    EXPECT_TRUE(std::any_of(problems.begin(), problems.end(), said))
        << FormatProblems(problems, c.file);
  }
}

}  // namespace
}  // namespace muster
