#include "agent/host/nvml.h"

#include <dlfcn.h>
#include <time.h>

#include <algorithm>

#include "common/base/log.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

using Handle = void*;
constexpr unsigned long long kDoubleBitEcc = 2, kXidCritical = 8;  // nvmlEventType…
constexpr int32_t kXidDoubleBit = 48;
constexpr int kTimeout = 10;  // NVML_ERROR_TIMEOUT

}  // namespace

struct Nvml::Calls {
  struct Memory {  // nvmlMemory_t
    unsigned long long total, free, used;
  };
  struct Utilization {  // nvmlUtilization_t
    unsigned gpu, memory;
  };
  struct EventData {  // nvmlEventData_t
    Handle device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
  };

  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Handle*) = nullptr;
  int (*name)(Handle, char*, unsigned) = nullptr;
  int (*uuid)(Handle, char*, unsigned) = nullptr;
  int (*memory)(Handle, Memory*) = nullptr;
  // Older drivers lack some of these.
  int (*utilization)(Handle, Utilization*) = nullptr;
  int (*event_types)(Handle, unsigned long long*) = nullptr;
  int (*event_set)(void**) = nullptr;
  int (*register_events)(Handle, unsigned long long, void*) = nullptr;
  int (*event_wait)(void*, EventData*, unsigned) = nullptr;
  int (*event_free)(void*) = nullptr;

  template <typename F>
  bool Find(F* function, const char* name) {
    *function = reinterpret_cast<F>(::dlsym(library, name));
    return *function != nullptr;
  }
};

Nvml::Nvml(std::unique_ptr<Calls> calls) : calls_(std::move(calls)) {}

std::unique_ptr<Nvml> Nvml::Load(const char* library) {
  auto calls = std::make_unique<Calls>();
  calls->library = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (calls->library == nullptr) return nullptr;
  const bool complete = calls->Find(&calls->init, "nvmlInit_v2") &&
                        calls->Find(&calls->shutdown, "nvmlShutdown") &&
                        calls->Find(&calls->count, "nvmlDeviceGetCount_v2") &&
                        calls->Find(&calls->handle, "nvmlDeviceGetHandleByIndex_v2") &&
                        calls->Find(&calls->name, "nvmlDeviceGetName") &&
                        calls->Find(&calls->uuid, "nvmlDeviceGetUUID") &&
                        calls->Find(&calls->memory, "nvmlDeviceGetMemoryInfo");
  if (!complete || calls->init() != 0) {
    ::dlclose(calls->library);
    return nullptr;
  }
  calls->Find(&calls->utilization, "nvmlDeviceGetUtilizationRates");
  calls->Find(&calls->event_types, "nvmlDeviceGetSupportedEventTypes");
  calls->Find(&calls->event_set, "nvmlEventSetCreate");
  calls->Find(&calls->register_events, "nvmlDeviceRegisterEvents");
  calls->Find(&calls->event_wait, "nvmlEventSetWait_v2");
  calls->Find(&calls->event_free, "nvmlEventSetFree");
  return std::unique_ptr<Nvml>(new Nvml(std::move(calls)));
}

Nvml::~Nvml() {
  if (set_ != nullptr) calls_->event_free(set_);
  calls_->shutdown();
  ::dlclose(calls_->library);
}

std::vector<Nvml::Device> Nvml::Devices() const {
  std::vector<Handle> handles;
  return Ask(&handles);
}

std::vector<Nvml::Device> Nvml::Ask(std::vector<void*>* handles) const {
  unsigned count = 0;
  if (calls_->count(&count) != 0) return {};
  std::vector<Device> devices(count);
  handles->assign(count, nullptr);
  for (unsigned i = 0; i < count; ++i) {
    char name[96] = "", uuid[96] = "";
    Calls::Memory memory{};
    devices[i].healthy = calls_->handle(i, &(*handles)[i]) == 0 &&
                         calls_->name((*handles)[i], name, sizeof name) == 0 &&
                         calls_->uuid((*handles)[i], uuid, sizeof uuid) == 0 &&
                         calls_->memory((*handles)[i], &memory) == 0;
    if (!devices[i].healthy) continue;
    devices[i].name = name;
    devices[i].uuid = uuid;
    devices[i].memory_bytes = static_cast<int64_t>(memory.total);
  }
  return devices;
}

std::vector<Nvml::Use> Nvml::Uses() const {
  unsigned count = 0;
  if (calls_->utilization == nullptr || calls_->count(&count) != 0) return {};
  std::vector<Use> uses(count);
  for (unsigned i = 0; i < count; ++i) {
    Handle handle = nullptr;
    Calls::Memory memory{};
    Calls::Utilization utilization{};
    uses[i].known = calls_->handle(i, &handle) == 0 && calls_->memory(handle, &memory) == 0 &&
                    calls_->utilization(handle, &utilization) == 0;
    if (!uses[i].known) continue;
    uses[i].busy_percent = static_cast<int32_t>(std::min(utilization.gpu, 100u));
    uses[i].memory_used_bytes = static_cast<int64_t>(memory.used);
    uses[i].memory_bytes = static_cast<int64_t>(memory.total);
  }
  return uses;
}

bool Nvml::Watch() {
  Ask(&handles_);
  if (calls_->event_types == nullptr || calls_->event_set == nullptr ||
      calls_->register_events == nullptr || calls_->event_wait == nullptr ||
      calls_->event_free == nullptr || calls_->event_set(&set_) != 0) {
    set_ = nullptr;
    return false;
  }
  bool any = false;
  for (const Handle handle : handles_) {
    unsigned long long types = 0;
    if (handle == nullptr || calls_->event_types(handle, &types) != 0) continue;
    types &= kXidCritical | kDoubleBitEcc;
    any = (types != 0 && calls_->register_events(handle, types, set_) == 0) || any;
  }
  return any;
}

std::optional<Nvml::Event> Nvml::Next(int64_t timeout_ns) {
  Calls::EventData data{};
  if (set_ == nullptr) return std::nullopt;
  if (const int error =
          calls_->event_wait(set_, &data, static_cast<unsigned>(timeout_ns / kMillisecond));
      error != 0) {
    if (error == kTimeout) return std::nullopt;
    // It returns at once: a device was lost, or the driver is gone.
    if (!failed_) LogWarn("the driver can't tell of errors", {{"nvml", error}});
    failed_ = true;
    const timespec pause{timeout_ns / kSecond, timeout_ns % kSecond};
    ::nanosleep(&pause, nullptr);
    return std::nullopt;
  }
  for (size_t i = 0; i < handles_.size(); ++i) {
    if (handles_[i] != data.device) continue;
    return Event{static_cast<int32_t>(i),
                 data.type == kXidCritical ? static_cast<int32_t>(data.data) : kXidDoubleBit};
  }
  return std::nullopt;
}

}  // namespace muster::agent
