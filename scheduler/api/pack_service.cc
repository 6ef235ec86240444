#include "scheduler/api/pack_service.h"

#include "absl/strings/str_cat.h"
#include "scheduler/api/services.h"
#include "scheduler/store/packs.h"

namespace muster {

// On the network a call's bytes are explained once it is there (docs/decisions/088): what comes in
// smaller pieces than this is never too much.
constexpr size_t kMaxPieceBytes = 48 << 10;

PackServiceImpl::PackServiceImpl(const ApiContext* context, const Door* door)
    : GuardedService(context->guard, door), context_(context) {
  Unary("PackService/Put", &PackServiceImpl::Put);
}

grpc::ServerUnaryReactor* PackServiceImpl::Put(const Caller& caller,
                                               grpc::CallbackServerContext* call,
                                               const pb::PutPackRequest* request,
                                               pb::PutPackResponse* response) {
  if (request->data().size() > kMaxPieceBytes) {
    return Reply(call,
                 grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                              absl::StrCat("a piece has at most ", kMaxPieceBytes, " bytes")));
  }
  if (context_->packs == nullptr) {
    response->set_next_offset(request->size_bytes());
    return Reply(call, grpc::Status::OK);
  }
  if (const std::string why = WhyNoSubmissions(*context_); !why.empty())
    return Reply(call, NotNow(why, "STORE_FULL"));
  const bool was_there = context_->packs->Use(caller.user(), request->digest());
  const absl::StatusOr<int64_t> next = context_->packs->Put(
      caller.user(), request->digest(), request->size_bytes(), request->offset(), request->data());
  if (next.ok()) response->set_next_offset(*next);
  if (!next.ok() || was_there || *next != request->size_bytes())
    return Reply(call, ToGrpc(next.status()));
  // By this piece the whole is there: one record of it, through the engine as of any change.
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Note(absl::StrCat(request->digest(), ", ", request->size_bytes(), " bytes"));
  caller.Change(
      [](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
        return std::vector<pb::Event>();
      },
      [reactor](absl::Status recorded) { reactor->Finish(ToGrpc(recorded)); });
  return reactor;
}

std::vector<FieldProblem> CheckPacks(const ApiContext& context, const std::string& owner,
                                     const pb::JobSpec& spec) {
  std::vector<FieldProblem> problems;
  for (int t = 0; t < spec.tasks_size(); ++t) {
    const pb::TaskSpec& task = spec.tasks(t);
    const bool relative = !task.workdir().empty() && task.workdir()[0] != '/';
    std::string what;
    if (relative && task.workdir_digest().empty()) {
      what =
          "is relative, and no directory came along; muster submit packs it. Else give an "
          "absolute one that is there on the hosts";
    } else if (relative && context.packs != nullptr &&
               !context.packs->Use(owner, task.workdir_digest())) {
      what = absl::StrCat(
          "no packed directory of yours is here with digest ", task.workdir_digest().substr(0, 12),
          "…: it was never sent, or has gone with the jobs that it came with. "
          "Leave workdir_digest out (muster rerun: -C DIR), and the directory comes along "
          "again");
    }
    if (what.empty()) continue;
    problems.push_back({TaskFieldPath(spec, t, "workdir"), what});
  }
  return problems;
}

}  // namespace muster
