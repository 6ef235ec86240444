// What a check before the end of a quarantine says, and that it comes to an end.
#include "agent/host/host_check.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

#include "common/base/units.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;

class HostCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-host-check-XXXXXX";
    directory_ = ::mkdtemp(name);
    ::setenv("FAKE_NVML", directory_.c_str(), 1);
    for (int d = 0; d < 2; ++d) {
      v1::Device* device = inventory_.add_devices();
      device->set_index(d);
      device->set_healthy(true);
    }
  }
  void TearDown() override {
    ::unsetenv("FAKE_NVML");
    std::filesystem::remove_all(directory_);
  }
  // So many devices answer their driver.
  void Devices(int count) {
    std::ofstream file(directory_ + "/devices");
    for (int d = 0; d < count; ++d) file << "NVIDIA H100|GPU-" << d << "|85520809984\n";
  }
  HostCheck Check(std::shared_ptr<Nvml> nvml) {
    return HostCheck(std::move(nvml), [this](const v1::HostChecked& checked) {
      std::lock_guard lock(mutex_);
      answer_ = checked;
      there_.notify_all();
    });
  }
  v1::HostChecked Answer() {
    std::unique_lock lock(mutex_);
    there_.wait_for(lock, std::chrono::seconds(60), [this] { return answer_.has_value(); });
    v1::HostChecked answer = answer_.value_or(v1::HostChecked());
    answer_.reset();
    return answer;
  }
  // Why the host is not fit by this check; empty: it is.
  std::string Why(const std::shared_ptr<Nvml>& nvml, const v1::CheckHost& ask) {
    HostCheck check = Check(nvml);
    EXPECT_TRUE(check.Begin(ask, inventory_));
    const v1::HostChecked answer = Answer();
    EXPECT_EQ(answer.request(), ask.request());
    EXPECT_EQ(answer.passed(), answer.detail().empty());
    return answer.detail();
  }
  static v1::CheckHost Ask(int32_t device, const std::vector<std::string>& command = {}) {
    v1::CheckHost ask;
    ask.set_request(7);
    ask.set_device(device);
    ask.set_timeout_ns(kMinute);
    for (const std::string& word : command) ask.add_command(word);
    return ask;
  }

  std::string directory_;
  v1::Inventory inventory_;
  std::mutex mutex_;
  std::condition_variable there_;
  std::optional<v1::HostChecked> answer_;
};

TEST_F(HostCheckTest, ByDefaultAsksTheDriverWhetherTheDevicesAnswer) {
  Devices(2);
  const std::shared_ptr<Nvml> nvml = Nvml::Load(MUSTER_FAKE_NVML);
  ASSERT_NE(nvml, nullptr);
  EXPECT_EQ(Why(nvml, Ask(-1)), "");
  EXPECT_EQ(Why(nvml, Ask(1)), "");
  EXPECT_EQ(Why(nullptr, Ask(1)), "") << "stand-ins have no driver";
  EXPECT_EQ(Why(nullptr, Ask(2)), "there is no device 2");
  Devices(1);
  EXPECT_EQ(Why(nvml, Ask(0)), "");
  EXPECT_EQ(Why(nvml, Ask(1)), "device 1 doesn't answer its driver");
  EXPECT_EQ(Why(nvml, Ask(-1)), "device 1 doesn't answer its driver");
  inventory_.mutable_devices(1)->set_healthy(false);
  inventory_.mutable_devices(1)->set_fault("Xid 79 on GPU 1");
  EXPECT_EQ(Why(nvml, Ask(1)), "device 1: Xid 79 on GPU 1");
  EXPECT_EQ(Why(nvml, Ask(-1)), "") << "the host serves with the other";
  inventory_.mutable_devices(0)->set_healthy(false);
  EXPECT_EQ(Why(nvml, Ask(-1)), "none of its devices is healthy");
}

TEST_F(HostCheckTest, RunsTheCommandThatItIsGiven) {
  EXPECT_EQ(Why(nullptr, Ask(-1, {"/bin/true"})), "");
  EXPECT_THAT(Why(nullptr, Ask(-1, {"/bin/sh", "-c", "echo memory test failed >&2; exit 3"})),
              ::testing::AllOf(HasSubstr("3"), HasSubstr("memory test failed")));
  EXPECT_NE(Why(nullptr, Ask(-1, {directory_ + "/no-such-program"})), "");
  v1::CheckHost slow = Ask(-1, {"/bin/sleep", "1000"});
  slow.set_timeout_ns(kSecond);
  EXPECT_NE(Why(nullptr, slow), "");
}

TEST_F(HostCheckTest, EndsWhereTheDriverHangs) {
  Devices(2);
  const std::shared_ptr<Nvml> nvml = Nvml::Load(MUSTER_FAKE_NVML);
  ASSERT_NE(nvml, nullptr);
  std::filesystem::remove(directory_ + "/devices");
  const std::string pipe = directory_ + "/devices";  // whose reader waits for a writer
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  v1::CheckHost ask = Ask(-1);
  ask.set_timeout_ns(kSecond);
  EXPECT_EQ(Why(nvml, ask), "the driver did not answer within 1s");
  const int writer = ::open(pipe.c_str(), O_WRONLY);  // lets it go
  EXPECT_GE(writer, 0);
  ::close(writer);
}

TEST_F(HostCheckTest, RunsOneAtATimeAndEndsWithTheAgent) {
  const auto from = std::chrono::steady_clock::now();
  {
    HostCheck check = Check(nullptr);
    EXPECT_TRUE(check.Begin(Ask(-1, {"/bin/sleep", "1000"}), inventory_));
    EXPECT_FALSE(check.Begin(Ask(-1, {"/bin/true"}), inventory_));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(30));
  EXPECT_FALSE(answer_.has_value());
}

}  // namespace
}  // namespace muster::agent
