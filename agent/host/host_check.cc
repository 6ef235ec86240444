#include "agent/host/host_check.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/run_program.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr int64_t kLongest = kHour;

// What the driver says of the devices, from a thread that may never come back.
struct Answer {
  std::mutex mutex;
  std::condition_variable changed;
  bool there = false;
  std::vector<Nvml::Device> devices;
};

// False: it did not answer in time.
bool AskDriver(const std::shared_ptr<Nvml>& nvml, int64_t timeout_ns, const std::atomic<bool>& stop,
               std::vector<Nvml::Device>* devices) {
  auto answer = std::make_shared<Answer>();
  std::thread([nvml, answer] {
    std::vector<Nvml::Device> found = nvml->Devices();
    std::lock_guard lock(answer->mutex);
    answer->devices = std::move(found);
    answer->there = true;
    answer->changed.notify_all();
  }).detach();
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
  std::unique_lock lock(answer->mutex);
  while (!answer->there && !stop && std::chrono::steady_clock::now() < until)
    answer->changed.wait_for(lock, std::chrono::milliseconds(100));
  *devices = answer->devices;
  return answer->there;
}

// Why the device (-1: any of the host's) is not fit; empty: it is.
std::string WhyDevicesUnfit(int32_t device, const v1::Inventory& inventory,
                            const std::vector<Nvml::Device>* answers) {
  bool known = false, any_healthy = inventory.devices().empty();
  for (const v1::Device& row : inventory.devices()) {
    if (device >= 0 && row.index() != device) continue;
    known = true;
    if (!row.healthy()) {
      if (device < 0) continue;  // it gets no work anyway
      return absl::StrCat("device ", row.index(), ": ",
                          row.fault().empty() ? "it is not healthy" : row.fault());
    }
    any_healthy = true;
    const auto index = static_cast<size_t>(row.index());
    if (answers != nullptr && (index >= answers->size() || !(*answers)[index].healthy))
      return absl::StrCat("device ", row.index(), " doesn't answer its driver");
  }
  if (device >= 0 && !known) return absl::StrCat("there is no device ", device);
  return any_healthy ? "" : "none of its devices is healthy";
}

std::string WhyUnfit(const v1::CheckHost& check, const v1::Inventory& inventory,
                     const std::shared_ptr<Nvml>& nvml, const std::atomic<bool>& stop) {
  const int64_t timeout_ns = std::clamp<int64_t>(check.timeout_ns(), kSecond, kLongest);
  if (check.command_size() == 0) {
    if (nvml == nullptr) return WhyDevicesUnfit(check.device(), inventory, nullptr);
    std::vector<Nvml::Device> answers;
    if (!AskDriver(nvml, timeout_ns, stop, &answers))
      return absl::StrCat("the driver did not answer within ", FormatDuration(timeout_ns));
    return WhyDevicesUnfit(check.device(), inventory, &answers);
  }
  ProgramOptions options;
  options.argv.assign(check.command().begin(), check.command().end());
  options.time_limit_ns = timeout_ns;
  options.cancel = &stop;
  options.dies_with_us = true;
  const absl::StatusOr<ProgramEnd> end = RunProgram(options);
  return end.ok() ? end->why : std::string(end.status().message());
}

}  // namespace

HostCheck::HostCheck(std::shared_ptr<Nvml> nvml, std::function<void(v1::HostChecked)> done)
    : nvml_(std::move(nvml)), done_(std::move(done)) {}

HostCheck::~HostCheck() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

bool HostCheck::Begin(const v1::CheckHost& check, v1::Inventory inventory) {
  if (busy_.exchange(true)) return false;
  if (thread_.joinable()) thread_.join();
  thread_ = std::thread([this, check, inventory = std::move(inventory)] {
    v1::HostChecked checked;
    checked.set_request(check.request());
    checked.set_detail(WhyUnfit(check, inventory, nvml_, stop_));
    checked.set_passed(checked.detail().empty());
    LogInfo("host checked",
            {{"device", check.device()}, {"passed", checked.passed()}, {"why", checked.detail()}});
    busy_ = false;
    if (!stop_) done_(std::move(checked));
  });
  return true;
}

}  // namespace muster::agent
