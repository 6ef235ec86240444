// NVIDIA's management library, by name: it comes with the driver, and only where there is one. Its
// C interface is stable; what is used of it is named in nvml.cc. Devices and Uses may be called
// from any thread; the others from one, Watch before Next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::agent {

class Nvml {
 public:
  struct Device {
    bool healthy = false;  // it answers
    std::string name, uuid;
    int64_t memory_bytes = 0;
  };
  struct Use {
    bool known = false;  // the others count
    int32_t busy_percent =
        0;  // of the driver's last sampling period, a sixth of a second to a second
    int64_t memory_used_bytes = 0, memory_bytes = 0;
  };
  struct Event {
    int32_t device = 0;  // index
    int32_t xid =
        0;  // an uncorrectable ECC error that came without one counts as Xid 48, which is the same
  };

  // nullptr: there is no such library here, or it finds no driver.
  static std::unique_ptr<Nvml> Load(const char* library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::vector<Device> Devices() const;
  // Of each device, by index. Older drivers, and devices that are shared out, don't tell.
  std::vector<Use> Uses() const;
  // From now on Next tells of critical errors of these devices. False: none of them can tell.
  bool Watch();
  // The next critical error, of those since Watch; waits for it for so long at most.
  std::optional<Event> Next(int64_t timeout_ns);

 private:
  struct Calls;
  explicit Nvml(std::unique_ptr<Calls> calls);
  std::vector<Device> Ask(std::vector<void*>* handles) const;

  std::unique_ptr<Calls> calls_;
  std::vector<void*> handles_;  // by index, of Watch; nullptr: it doesn't answer
  void* set_ = nullptr;         // of events
  bool failed_ = false;         // that was said
};

}  // namespace muster::agent
