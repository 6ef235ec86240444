// Certificates of who has one, the tokens that buy others, and the authority that signs them.
#pragma once

#include "muster/v1/trust_service.pb.h"
#include "scheduler/api/context.h"
#include "scheduler/api/guarded_service.h"

namespace muster {

class TrustServiceImpl : public GuardedService {
 public:
  TrustServiceImpl(const ApiContext* context, const Door* door);
  grpc::ServerUnaryReactor* Renew(const Caller& caller, grpc::CallbackServerContext* call,
                                  const pb::RenewRequest* request,
                                  pb::CertificateResponse* response);
  grpc::ServerUnaryReactor* GetNews(const Caller& caller, grpc::CallbackServerContext* call,
                                    const pb::GetNewsRequest* request,
                                    pb::GetNewsResponse* response);
  grpc::ServerUnaryReactor* GetAuthority(const Caller& caller, grpc::CallbackServerContext* call,
                                         const pb::GetAuthorityRequest* request,
                                         pb::GetAuthorityResponse* response);
  grpc::ServerUnaryReactor* Rotate(const Caller& caller, grpc::CallbackServerContext* call,
                                   const pb::RotateRequest* request, pb::RotateResponse* response);
  grpc::ServerUnaryReactor* NewToken(const Caller& caller, grpc::CallbackServerContext* call,
                                     const pb::NewTokenRequest* request,
                                     pb::NewTokenResponse* response);
  grpc::ServerUnaryReactor* CreateToken(const Caller& caller, grpc::CallbackServerContext* call,
                                        const pb::CreateTokenRequest* request,
                                        pb::NewTokenResponse* response);
  grpc::ServerUnaryReactor* ListTokens(const Caller& caller, grpc::CallbackServerContext* call,
                                       const pb::ListTokensRequest* request,
                                       pb::ListTokensResponse* response);
  grpc::ServerUnaryReactor* RevokeToken(const Caller& caller, grpc::CallbackServerContext* call,
                                        const pb::RevokeTokenRequest* request,
                                        pb::RevokeTokenResponse* response);
  grpc::ServerUnaryReactor* ListHolders(const Caller& caller, grpc::CallbackServerContext* call,
                                        const pb::ListHoldersRequest* request,
                                        pb::ListHoldersResponse* response);
  grpc::ServerUnaryReactor* RevokeHolder(const Caller& caller, grpc::CallbackServerContext* call,
                                         const pb::RevokeHolderRequest* request,
                                         pb::RevokeHolderResponse* response);

 private:
  const ApiContext* const context_;
};

}  // namespace muster
