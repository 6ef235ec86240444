// The join door: certificates for whoever has none, by a token of this scheduler's, by an ID token
// of an identity provider's, or by a certificate that has expired.
#pragma once

#include "muster/v1/trust_service.pb.h"
#include "scheduler/api/context.h"
#include "scheduler/api/guarded_service.h"

namespace muster {

class JoinServiceImpl : public GuardedService {
 public:
  static constexpr size_t kMethods = 4;

  JoinServiceImpl(const ApiContext* context, const Door* door);
  grpc::ServerUnaryReactor* Join(const Caller& caller, grpc::CallbackServerContext* call,
                                 const pb::JoinRequest* request, pb::CertificateResponse* response);
  grpc::ServerUnaryReactor* ListProviders(const Caller& caller, grpc::CallbackServerContext* call,
                                          const pb::ListProvidersRequest* request,
                                          pb::ListProvidersResponse* response);
  grpc::ServerUnaryReactor* LogIn(const Caller& caller, grpc::CallbackServerContext* call,
                                  const pb::LogInRequest* request,
                                  pb::CertificateResponse* response);
  grpc::ServerUnaryReactor* RenewExpired(const Caller& caller, grpc::CallbackServerContext* call,
                                         const pb::RenewExpiredRequest* request,
                                         pb::CertificateResponse* response);

 private:
  const ApiContext* const context_;
};

}  // namespace muster
