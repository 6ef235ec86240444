// What each RPC and each HTTP route asks of its caller, as the protos' options say
// (proto/muster/v1/access.proto). Read once, from the descriptors that are linked in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/descriptor.h>

#include "muster/v1/access.pb.h"

namespace muster {

namespace pb = ::muster::v1;

struct MethodPolicy {
  std::string path;  // /muster.v1.JobService/Get
  std::string name;  // JobService/Get
  const google::protobuf::MethodDescriptor* method = nullptr;
  pb::Policy policy;
};

// Of every method of every service in muster.v1, by service and then in file order. The process
// ends at the first call if one has no policy, or one that makes no sense: a field that the request
// hasn't, a right that its object can't give.
const std::vector<MethodPolicy>& MethodPolicies();
// The process ends if there is no such method: nothing may be served without a policy.
const MethodPolicy& PolicyOf(std::string_view name);  // JobService/Get
// Of GET on this path; the same.
const pb::Route& RouteOf(std::string_view path);
const std::vector<pb::Route>& Routes();

// Empty if `policy` can be kept for a request of this type; else what is wrong with it.
std::string WhyNoPolicy(const pb::Policy& policy, const google::protobuf::Descriptor& request);

// docs/access.md's table of all this, in Markdown.
std::string PolicyTable();

}  // namespace muster
