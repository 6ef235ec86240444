// What the tests of a host share: a directory, and an attempt of two workers of a gang.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "agent/host/environment.h"
#include "agent/host/processes.h"
#include "agent/host/state_dir.h"
#include "agent/shim/format.h"

namespace muster::agent {

class HostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-host-test-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ + "/" + name) << text;
  }

  std::string directory_;
};

inline AttemptRecord Record() {
  AttemptRecord record;
  record.id = {std::string(32, 'c'), "train", 2};
  record.prepared = true;
  record.boot_id = "b";
  record.master_address = "10.0.0.1";
  record.master_port = 20007;
  v1::Prepare& prepare = record.prepare;
  *prepare.mutable_key() = KeyOf(record.id);
  prepare.set_job_number(42);
  prepare.mutable_task()->mutable_run()->set_shell("echo");
  prepare.mutable_here()->set_first_group_rank(1);
  prepare.mutable_here()->set_workers(2);
  for (const int device : {4, 5, 6, 7}) prepare.mutable_here()->add_devices(device);
  prepare.set_processes_per_worker(2);
  prepare.set_gang_workers(4);
  prepare.set_job_directory("/j");
  prepare.set_attempt_directory("/j/train/attempt-2");
  prepare.set_checkpoint_directory("/c");
  prepare.add_resume_from("/c/9");
  prepare.add_resume_from("/c/5");
  prepare.set_restarts_used(1);
  return record;
}
inline LaunchHost Host() {
  LaunchHost host;
  host.bin_directory = "/opt/muster/bin";
  host.home = "/home/u";
  host.user = "u";
  host.boot_id = "b";
  return host;
}
inline std::map<std::string, std::string> EnvironmentOf(const shim::Spec& spec, size_t worker,
                                                        size_t process) {
  std::map<std::string, std::string> all;
  for (const auto& variable : spec.env) all[variable.name] = variable.value;
  for (const auto& variable : spec.workers[worker].processes[process].env)
    all[variable.name] = variable.value;
  return all;
}

}  // namespace muster::agent
