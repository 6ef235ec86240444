// The files between agent and shim, which outlive releases of both: what is read is written alike.
#include <cstdint>
#include <string>
#include <vector>

#include "agent/shim/act.h"
#include "agent/shim/format.h"
#include "agent/shim/image.h"
#include "agent/shim/progress.h"
#include "common/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster::shim;
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::string error;
  Spec spec;
  if (ParseSpec(text, &spec, &error)) MUSTER_CHECK(ParseSpec(FormatSpec(spec), &spec, &error));
  StopOrder stop;
  if (ParseStop(text, &stop, &error)) MUSTER_CHECK(ParseStop(FormatStop(stop), &stop, &error));
  Exits exits;
  if (ParseExits(text, &exits, &error))
    MUSTER_CHECK(ParseExits(FormatExits(exits), &exits, &error));
  Used used;
  if (ParseUsage(text, &used, &error)) MUSTER_CHECK(ParseUsage(FormatUsage(used), &used, &error));
  int64_t renewed_ns = 0;
  if (ParseRenewal(text, &renewed_ns, &error))
    MUSTER_CHECK(ParseRenewal(FormatRenewal(renewed_ns), &renewed_ns, &error));
  std::vector<StepTimes::Row> times;
  if (ParseTimes(text, &times, &error))
    MUSTER_CHECK(ParseTimes(FormatTimes(times), &times, &error));
  Image image;
  if (ParseImage(text, &image, &error))
    MUSTER_CHECK(ParseImage(FormatImage(image), &image, &error));
  ActRequest request;
  if (ParseActRequest(text, &request, &error))
    MUSTER_CHECK(ParseActRequest(FormatActRequest(request), &request, &error));
  ActResult result;
  if (ParseActResult(text, &result, &error))
    MUSTER_CHECK(ParseActResult(FormatActResult(result), &result, &error));
  return 0;
}
