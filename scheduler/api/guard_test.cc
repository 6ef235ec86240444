// Who is admitted to what, and what they are told otherwise.
#include "scheduler/api/guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <google/protobuf/message.h>

#include "common/base/units.h"
#include "muster/v1/cluster_service.pb.h"
#include "muster/v1/job_service.pb.h"
#include "muster/v1/queue_service.pb.h"
#include "muster/v1/secret_service.pb.h"
#include "muster/v1/trust_service.pb.h"
#include "scheduler/api/metrics_server.h"
#include "scheduler/engine/testing/fixture.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using enum absl::StatusCode;

constexpr uint32_t kOwn = 4000, kAnn = 4001, kOli = 4002, kLea = 4003, kBob = 4004, kVic = 4005,
                   kStranger = 4711;

// Job 1 of ann's in research/nlp. oli operates research, lea administers it, vic sees it; bob
// submits to research2.
class GuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    pb::Event queues;
    pb::QueueTree* tree = queues.mutable_queues_applied()->mutable_tree();
    tree->add_queues()->set_name("research");
    tree->mutable_queues(0)->add_queues()->set_name("nlp");
    tree->add_queues()->set_name("research2");
    lab_.engine.Post(queues);
    Bind("ann", "research/nlp", pb::ROLE_SUBMITTER);
    Bind("oli", "research", pb::ROLE_OPERATOR);
    Bind("lea", "research", pb::ROLE_ADMIN);
    Bind("vic", "research", pb::ROLE_VIEWER);
    Bind("bob", "research2", pb::ROLE_SUBMITTER);
    pb::Event job;
    job.mutable_job_submitted()->set_number(1);
    job.mutable_job_submitted()->set_uid("uid1");
    job.mutable_job_submitted()->set_owner("ann");
    *job.mutable_job_submitted()->mutable_spec() = OneSlotSpec();
    job.mutable_job_submitted()->mutable_spec()->set_queue("research/nlp");
    lab_.engine.Post(job);
    lab_.engine.Step();
  }
  void Bind(const std::string& user, const std::string& queue, pb::Role role,
            bool revoked = false) {
    pb::Event event;
    event.mutable_binding_changed()->mutable_binding()->set_user(user);
    event.mutable_binding_changed()->mutable_binding()->set_queue(queue);
    event.mutable_binding_changed()->mutable_binding()->set_role(role);
    event.mutable_binding_changed()->set_revoked(revoked);
    lab_.engine.Post(event);
    lab_.engine.Step();
  }
  absl::Status Admitted(const char* method, uint32_t uid,
                        const google::protobuf::Message& request) {
    return guard_.Admit(PolicyOf(method), uid, request).status();
  }
  static pb::SubmitRequest SubmissionTo(const std::string& queue) {
    pb::SubmitRequest request;
    *request.mutable_spec() = OneSlotSpec();
    request.mutable_spec()->set_queue(queue);
    return request;
  }

  LabWithOneHost lab_;
  Users users_{{{"ann", kAnn, {}},
                {"oli", kOli, {}},
                {"lea", kLea, {}},
                {"vic", kVic, {}},
                {"bob", kBob, {}}},
               kOwn,
               false,
               &lab_.clock};
  Guard guard_{{&lab_.engine, nullptr, &users_, nullptr, &lab_.clock}};
};

TEST_F(GuardTest, OnAJobWhoMaySeeItIsToldWhatTheyLackAndOthersThatItIsNotThere) {
  pb::GetJobRequest get;
  get.set_id("1");
  pb::CancelJobRequest cancel;
  cancel.set_id("uid1");
  pb::LogsRequest logs;
  logs.set_id("1");
  const struct {
    uint32_t uid;
    absl::StatusCode get, cancel, logs;
  } cases[] = {
      {kOwn, kOk, kOk, kOk},
      {kAnn, kOk, kOk, kOk},
      {kOli, kOk, kOk, kOk},
      {kLea, kOk, kOk, kOk},
      {kVic, kOk, kPermissionDenied, kPermissionDenied},
      {kBob, kNotFound, kNotFound, kNotFound},
      {kStranger, kUnauthenticated, kUnauthenticated, kUnauthenticated},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Admitted("JobService/Get", c.uid, get).code(), c.get) << c.uid;
    EXPECT_EQ(Admitted("JobService/Cancel", c.uid, cancel).code(), c.cancel) << c.uid;
    EXPECT_EQ(Admitted("JobService/Logs", c.uid, logs).code(), c.logs) << c.uid;
  }
  EXPECT_EQ(Admitted("JobService/Cancel", kVic, cancel).message(),
            "JobService/Cancel takes operator at queue research/nlp; you, vic, have viewer there. "
            "Who administers it may change that: muster access grant vic operator research/nlp");
}

TEST_F(GuardTest, WhatMayNotBeSeenAnswersAsWhatIsNotThere) {
  pb::GetJobRequest foreign, missing;
  foreign.set_id("1");
  missing.set_id("2");
  const auto text = [&](const google::protobuf::Message& request, const char* method) {
    return std::string(Admitted(method, kBob, request).message());
  };
  std::string of_foreign = text(foreign, "JobService/Get");
  of_foreign.replace(of_foreign.find("\"1\""), 3, "\"2\"");
  EXPECT_EQ(of_foreign, text(missing, "JobService/Get"));
  std::string of_queue = text(SubmissionTo("research/nlp"), "JobService/Submit");
  of_queue.replace(of_queue.find("research/nlp"), 12, "gone");
  EXPECT_EQ(of_queue, text(SubmissionTo("gone"), "JobService/Submit"));
  EXPECT_THAT(of_queue, AllOf(HasSubstr("yours: research2"), Not(HasSubstr("nlp"))));
}

TEST_F(GuardTest, QueuesAreNodesOfTheTreeNotBeginningsOfNames) {
  EXPECT_EQ(Admitted("JobService/Submit", kAnn, SubmissionTo("research/nlp")).code(), kOk);
  EXPECT_EQ(Admitted("JobService/Submit", kOli, SubmissionTo("research/nlp")).code(), kOk);
  EXPECT_EQ(Admitted("JobService/Submit", kOli, SubmissionTo("research2")).code(), kNotFound);
  EXPECT_EQ(Admitted("JobService/Submit", kVic, SubmissionTo("research/nlp")).code(),
            kPermissionDenied);
  EXPECT_EQ(Admitted("JobService/Submit", kBob, SubmissionTo("")).code(), kInvalidArgument);
  EXPECT_EQ(Admitted("JobService/Submit", kOwn, SubmissionTo("gone")).code(), kOk)
      << "the handler says what is wrong";
}

TEST_F(GuardTest, HostsAreTheRootsAndAgentsAreNobodysWhoOnlyHasRoles) {
  Bind("lea", "", pb::ROLE_ADMIN);
  pb::DrainRequest drain;
  drain.set_target("lab/h1");
  EXPECT_EQ(Admitted("ClusterService/Drain", kLea, drain).code(), kOk);
  EXPECT_EQ(Admitted("ClusterService/Drain", kOli, drain).code(), kPermissionDenied);
  EXPECT_THAT(std::string(Admitted("ClusterService/Drain", kOli, drain).message()),
              HasSubstr("grant oli operator /"));
  EXPECT_EQ(Admitted("AgentService/Connect", kLea, pb::AgentMessage()).code(), kPermissionDenied);
  EXPECT_EQ(Admitted("AgentService/Connect", kOwn, pb::AgentMessage()).code(), kOk);
}

TEST_F(GuardTest, OfAQuestionEachJobAndEachChangeCounts) {
  pb::SimulateRequest question;
  question.add_jobs()->set_queue("research/nlp");
  EXPECT_EQ(Admitted("JobService/Simulate", kAnn, question).code(), kOk);
  question.add_jobs()->set_queue("research2");
  EXPECT_EQ(Admitted("JobService/Simulate", kAnn, question).code(), kNotFound);
  question.clear_jobs();
  EXPECT_EQ(Admitted("JobService/Simulate", kAnn, question).code(), kOk);
  EXPECT_EQ(Admitted("JobService/Simulate", kVic, question).code(), kPermissionDenied)
      << "of no job it costs as much";
  question.add_drain("lab");
  EXPECT_EQ(Admitted("JobService/Simulate", kLea, question).code(), kPermissionDenied);
  EXPECT_EQ(Admitted("JobService/Simulate", kOwn, question).code(), kOk);
}

TEST_F(GuardTest, ATreeIsChangedByThoseWhoAdministerTheNodeAbove) {
  pb::ApplyQueuesRequest apply;
  *apply.mutable_tree() = lab_.engine.Snapshot()->state.queue_tree();
  apply.mutable_tree()->mutable_queues(0)->mutable_queues(0)->set_held(true);
  EXPECT_EQ(Admitted("QueueService/Apply", kLea, apply).code(), kPermissionDenied)
      << "a queue that she doesn't see is a new one, for those above";
  pb::ApplyQueuesRequest whole = apply;
  apply.mutable_tree()->mutable_queues()->RemoveLast();
  EXPECT_EQ(Admitted("QueueService/Apply", kLea, apply).code(), kOk);
  EXPECT_EQ(Admitted("QueueService/Apply", kOli, apply).code(), kPermissionDenied);
  apply.mutable_tree()->mutable_queues(0)->set_held(true);
  EXPECT_EQ(Admitted("QueueService/Apply", kLea, apply).code(), kPermissionDenied)
      << "her own queue is for those above";
  EXPECT_EQ(Admitted("QueueService/Apply", kOwn, whole).code(), kOk);
}

TEST_F(GuardTest, WhoCameWithATokenHasItsScopesAndNothingThatIsTheUsersOwn) {
  const auto admitted = [&](const char* method, const std::string& user, pb::Role role,
                            const std::string& queue, const google::protobuf::Message& request) {
    auto who = std::make_shared<Principal>();
    who->user = user;
    who->token = "t1";
    who->scopes.emplace_back().set_role(role);
    who->scopes.back().set_queue(queue);
    return guard_.Admit(PolicyOf(method), std::move(who), request).status();
  };
  pb::GetJobRequest get;
  get.set_id("1");
  pb::CancelJobRequest cancel;
  cancel.set_id("1");
  const pb::SubmitRequest here = SubmissionTo("research/nlp"), there = SubmissionTo("research2");
  const struct {
    const char* method;
    const char* user;
    pb::Role role;
    const char* queue;
    const google::protobuf::Message& request;
    absl::StatusCode code;
  } kCases[] = {
      {"JobService/Submit", "ann", pb::ROLE_SUBMITTER, "research/nlp", here, kOk},
      {"JobService/Submit", "ann", pb::ROLE_SUBMITTER, "", here, kOk},
      {"JobService/Submit", "ann", pb::ROLE_VIEWER, "research/nlp", here, kPermissionDenied},
      {"JobService/Submit", "ann", pb::ROLE_SUBMITTER, "research2", here, kNotFound},
      {"JobService/Submit", "ann", pb::ROLE_SUBMITTER, "", there, kNotFound},
      {"JobService/Get", "ann", pb::ROLE_VIEWER, "research", get, kOk},
      {"JobService/Get", "ann", pb::ROLE_VIEWER, "research2", get, kNotFound},
      {"JobService/Cancel", "ann", pb::ROLE_VIEWER, "research", cancel, kPermissionDenied},
      {"JobService/Cancel", "ann", pb::ROLE_SUBMITTER, "research", cancel, kOk},
      {"JobService/Cancel", "oli", pb::ROLE_SUBMITTER, "research", cancel, kPermissionDenied},
      {"JobService/Cancel", "oli", pb::ROLE_OPERATOR, "research/nlp", cancel, kOk},
      {"JobService/List", "ann", pb::ROLE_VIEWER, "research2", pb::ListJobsRequest(), kOk},
      {"SecretService/Set", "ann", pb::ROLE_SUBMITTER, "", pb::SetSecretRequest(),
       kPermissionDenied},
      {"SecretService/Delete", "ann", pb::ROLE_OPERATOR, "", pb::DeleteSecretRequest(),
       kPermissionDenied},
      {"TrustService/CreateToken", "ann", pb::ROLE_OPERATOR, "", pb::CreateTokenRequest(),
       kPermissionDenied},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(admitted(c.method, c.user, c.role, c.queue, c.request).code(), c.code)
        << c.method << " " << c.user << " " << c.role << " " << c.queue;
  }
  EXPECT_THAT(
      std::string(admitted("JobService/Submit", "ann", pb::ROLE_VIEWER, "", here).message()),
      HasSubstr("your token gives viewer there"));
}

// The right is looked at again where the change is made.
TEST_F(GuardTest, ARightThatIsRevokedBeforeTheStepChangesNothing) {
  pb::CancelJobRequest cancel;
  cancel.set_id("1");
  const absl::StatusOr<Caller> oli = guard_.Admit(PolicyOf("JobService/Cancel"), kOli, cancel);
  ASSERT_TRUE(oli.ok());
  Bind("oli", "research", pb::ROLE_UNSPECIFIED, true);
  absl::Status outcome;
  bool changed = false;
  oli->Change(
      [&](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
        changed = true;
        return std::vector<pb::Event>();
      },
      [&](absl::Status status) { outcome = status; });
  lab_.engine.Step();
  EXPECT_FALSE(changed);
  EXPECT_EQ(outcome.code(), kNotFound);
}

TEST_F(GuardTest, AUserCallsSoOftenAndWhoRunsMusterdAsOftenAsTheyLike) {
  int admitted = 0;
  for (int i = 0; i < 1000; ++i)
    admitted += Admitted("JobService/List", kBob, pb::ListJobsRequest()).ok();
  EXPECT_EQ(admitted, LimitOf(pb::RATE_READ).burst);
  EXPECT_EQ(Admitted("JobService/List", kBob, pb::ListJobsRequest()).code(), kUnavailable);
  for (int i = 0; i < 1000; ++i)
    ASSERT_TRUE(Admitted("JobService/List", kOwn, pb::ListJobsRequest()).ok());
}

TEST_F(GuardTest, AnArrayCountsAsManySubmissions) {
  pb::SubmitRequest request;
  *request.mutable_spec() = OneSlotSpec();
  request.mutable_spec()->set_queue("research/nlp");
  request.mutable_spec()->set_array("0-9999");
  int64_t admitted = 0;
  for (int i = 0; i < 100; ++i) admitted += Admitted("JobService/Submit", kAnn, request).ok();
  EXPECT_EQ(admitted, LimitOf(pb::RATE_SUBMIT).burst / 101);
}

TEST_F(GuardTest, ALongSubmissionCountsAsSeveral) {
  pb::SubmitRequest request;
  *request.mutable_spec() = OneSlotSpec();
  request.mutable_spec()->set_queue("research/nlp");
  (*request.mutable_spec()->mutable_env())["LONG"] = std::string(160 << 10, 'x');
  int64_t admitted = 0;
  for (int i = 0; i < 200; ++i) admitted += Admitted("JobService/Submit", kAnn, request).ok();
  EXPECT_EQ(admitted, LimitOf(pb::RATE_SUBMIT).burst / 11);
}

TEST_F(GuardTest, ChangesAndDenialsAreInTheAuditReadsAreNot) {
  char name[] = "/tmp/muster-guard-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  {
    const absl::StatusOr<std::unique_ptr<Audit>> audit = Audit::Open(folder + "/audit");
    ASSERT_TRUE(audit.ok());
    Guard guard({&lab_.engine, nullptr, &users_, audit->get(), &lab_.clock});
    pb::GetJobRequest get;
    get.set_id("1");
    pb::CancelJobRequest cancel;
    cancel.set_id("1");
    EXPECT_TRUE(guard.Admit(PolicyOf("JobService/Get"), kAnn, get).ok());
    EXPECT_FALSE(guard.Admit(PolicyOf("JobService/Get"), kBob, get).ok());
    EXPECT_FALSE(guard.Admit(PolicyOf("JobService/Cancel"), kVic, cancel).ok());
    EXPECT_FALSE(guard.Admit(PolicyOf("JobService/Get"), kStranger, get).ok());
    get.set_id("99");
    EXPECT_FALSE(guard.Admit(PolicyOf("JobService/Get"), kBob, get).ok());
    const absl::StatusOr<Caller> ann = guard.Admit(PolicyOf("JobService/Cancel"), kAnn, cancel);
    ASSERT_TRUE(ann.ok());
    ann->Change([](const State&) { return std::vector<pb::Event>(); }, [](absl::Status) {});
    lab_.engine.Step();
    const auto records = (*audit)->Newest(10, [](const pb::AuditRecord&) { return true; });
    ASSERT_TRUE(records.ok());
    std::vector<std::string> told;
    for (const pb::AuditRecord& r : *records)
      told.push_back(absl::StrCat(r.user(), " ", r.method(), " ", r.object(), " ", r.outcome()));
    EXPECT_THAT(
        told,
        ElementsAre("bob JobService/Get 1 NOT_FOUND", "vic JobService/Cancel 1 PERMISSION_DENIED",
                    " JobService/Get 1 UNAUTHENTICATED", "ann JobService/Cancel 1 OK"));
  }
  std::filesystem::remove_all(folder);
}

constexpr int64_t kNow = int64_t{1'800'000'000} * kSecond;

// Hosts h1 and h2 and users ann and bob have certificates of authority 1, which is trusted. Those
// of h2 and bob are revoked.
State StateWithCertificates() {
  State state;
  pb::Event step, made;
  step.mutable_step()->set_now_ns(kNow);
  Apply(&state, step);
  made.mutable_authority_changed()->set_step(pb::AuthorityChanged::MADE);
  made.mutable_authority_changed()->set_trust_id("t1");
  made.mutable_authority_changed()->mutable_authority()->set_version(1);
  Apply(&state, made);
  for (const char* const user : {"ann", "bob", "eve"}) {
    pb::Event event;
    event.mutable_network_user()->mutable_user()->set_name(user);
    event.mutable_network_user()->mutable_user()->set_revoked(std::string(user) == "eve");
    Apply(&state, event);
  }
  for (const char* const holder : {"host/lab/h1", "host/lab/h2", "user/ann", "user/bob"}) {
    pb::Event event;
    pb::IssuedCertificate* row = event.mutable_certificate_issued()->mutable_certificate();
    row->set_serial(holder);
    row->set_uri(std::string("muster://t1/") + holder);
    row->set_end_s(kNow / kSecond + 1000);
    row->set_authority(1);
    Apply(&state, event);
  }
  for (const char* const holder : {"host/lab/h2", "user/bob"}) {
    pb::Event event;
    event.mutable_certificates_revoked()->set_uri(std::string("muster://t1/") + holder);
    Apply(&state, event);
  }
  return state;
}

Principal WithCertificate(const std::string& name, const std::string& serial,
                          uint64_t authority = 1) {
  Principal who;
  who.serial = serial;
  who.authority = authority;
  who.user = name;
  if (!serial.starts_with("host/")) return who;
  who.user = "host lab/" + name;
  who.cluster = "lab";
  who.host = name;
  return who;
}

TEST(Authorize, OverTheNetworkEveryMethodAsksForACertificateThatCountsAndIsOfItsKind) {
  const State state = StateWithCertificates();
  Principal stranger;
  stranger.user = "address ipv4:192.0.2.1";
  stranger.stranger = true;
  const auto nothing = [](pb::Right) { return false; };
  const struct {
    const char* name;
    Principal who;
    std::function<bool(pb::Right)> may;
  } cases[] = {
      {"a host", WithCertificate("h1", "host/lab/h1"),
       [](pb::Right right) { return right == pb::RIGHT_AGENT || right == pb::RIGHT_CERTIFICATE; }},
      {"a host that is revoked", WithCertificate("h2", "host/lab/h2"), nothing},
      {"a host of an authority that was dropped", WithCertificate("h1", "host/lab/h1", 9), nothing},
      {"a user whose certificate is revoked", WithCertificate("bob", "user/bob"), nothing},
      {"a user who is revoked", WithCertificate("eve", "of a restored store"), nothing},
      {"a user who isn't there", WithCertificate("zoe", "of a restored store"), nothing},
      {"a user of an authority that was dropped", WithCertificate("ann", "user/ann", 9), nothing},
      {"whoever has none", stranger, [](pb::Right right) { return right == pb::RIGHT_ANYBODY; }},
      {"nobody", Principal(), nothing},
  };
  const auto no_job = [](const std::string&) -> absl::StatusOr<std::shared_ptr<const JobRow>> {
    return std::shared_ptr<const JobRow>();
  };
  for (const auto& test : cases) {
    for (const MethodPolicy& method : MethodPolicies()) {
      const std::unique_ptr<google::protobuf::Message> request(
          google::protobuf::MessageFactory::generated_factory()
              ->GetPrototype(method.method->input_type())
              ->New());
      const absl::Status status = Authorize(state, test.who, method, *request, no_job);
      const bool refused = absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
      EXPECT_EQ(refused, !test.may(method.policy.right()))
          << test.name << " at " << method.name << ": " << status;
      EXPECT_EQ(status.ok(), !refused) << test.name << " at " << method.name << ": " << status;
    }
  }
}

TEST(Authorize, AUsersCertificateIsNoAgentsAndBuysNoOther) {
  State state = StateWithCertificates();
  pb::Event bound;
  bound.mutable_binding_changed()->mutable_binding()->set_user("ann");
  bound.mutable_binding_changed()->mutable_binding()->set_role(pb::ROLE_ADMIN);
  Apply(&state, bound);
  const Principal ann = WithCertificate("ann", "user/ann");
  const auto no_job = [](const std::string&) -> absl::StatusOr<std::shared_ptr<const JobRow>> {
    return std::shared_ptr<const JobRow>();
  };
  for (const MethodPolicy& method : MethodPolicies()) {
    const pb::Right right = method.policy.right();
    const std::unique_ptr<google::protobuf::Message> request(
        google::protobuf::MessageFactory::generated_factory()
            ->GetPrototype(method.method->input_type())
            ->New());
    const absl::Status status = Authorize(state, ann, method, *request, no_job);
    EXPECT_EQ(absl::IsPermissionDenied(status),
              right == pb::RIGHT_AGENT || right == pb::RIGHT_ANYBODY)
        << method.name << ": " << status;
  }
}

TEST(GuardRoutes, EveryRouteOfTheTableIsServedAndNoOther) {
  std::vector<std::string> routes;
  for (const pb::Route& route : Routes()) routes.push_back(route.path());
  EXPECT_THAT(routes, ElementsAre(MetricsServer::kPath));
}

}  // namespace
}  // namespace muster
