#include "scheduler/api/find_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <ranges>

#include "absl/strings/str_cat.h"
#include "scheduler/api/submit.h"
#include "scheduler/engine/testing/fixture.h"
#include "scheduler/state/bytes.h"

namespace muster {
namespace {

// Finished jobs, newest first, as the store's.
class ListedHistory : public History {
 public:
  void Add(uint64_t number, const std::string& owner, const std::string& queue, pb::JobState state,
           const std::string& label = "") {
    pb::JobRecord& job = jobs_[number];
    job.set_number(number);
    job.set_uid(absl::StrCat("past", number));
    job.set_owner(owner);
    *job.mutable_spec() = OneSlotSpec();
    job.mutable_spec()->set_queue(queue);
    if (!label.empty()) (*job.mutable_spec()->mutable_labels())["kind"] = label;
    job.set_state(state);
    job.add_tasks()->set_state(pb::TASK_SUCCEEDED);
  }
  // Of three members; the store lists the first one alone, in the state of the whole.
  void AddArray(uint64_t number, const std::string& indices, pb::JobState state) {
    for (uint64_t m = 0; m < 3; ++m) {
      Add(number + m, "ada", "research", m == 0 ? state : pb::JOB_STATE_UNSPECIFIED);
      pb::JobRecord& job = jobs_[number + m];
      job.mutable_spec()->set_array(indices);
      job.set_array(number);
      job.set_member(static_cast<int32_t>(m));
    }
  }
  absl::StatusOr<std::string> Find(std::string_view id) override {
    for (const auto& [number, job] : jobs_) {
      if (absl::StrCat(number) == id || job.uid() == id) return DeterministicBytes(job);
    }
    return "";
  }
  absl::Status Scan(uint64_t before, uint64_t above,
                    const std::function<bool(const Row&)>& each) override {
    for (const auto& [number, record] : std::views::reverse(jobs_)) {
      if (number >= before || number <= above) continue;
      if (record.state() == pb::JOB_STATE_UNSPECIFIED) continue;
      const pb::JobRecord& job = record;
      if (!each({number, job.owner(), job.spec().queue(), job.state(), [&] {
                   ++read;
                   return DeterministicBytes(job);
                 }}))
        break;
    }
    return absl::OkStatus();
  }
  int read = 0;

 private:
  std::map<uint64_t, pb::JobRecord> jobs_;
};

// The job's number is the next one.
void SubmitNext(LabWithOneHost* lab, const pb::JobSpec& spec, const std::string& key) {
  auto request = std::make_shared<pb::SubmitRequest>();
  *request->mutable_spec() = spec;
  request->set_idempotency_key(key);
  Submit(&lab->engine, SpecDefaults(), "ada", request, [](const SubmitOutcome&) {});
  lab->engine.Step();
}

void CancelJob(LabWithOneHost* lab, uint64_t number) {
  pb::Event cancel;
  cancel.mutable_job_cancel()->set_number(number);
  lab->engine.Post(cancel);
  lab->engine.Step();
}

// Of a list that shows everything.
std::vector<uint64_t> NumbersOf(const std::shared_ptr<const View>& view,
                                const pb::ListJobsRequest& request) {
  std::vector<uint64_t> numbers;
  const absl::StatusOr<JobPage> page =
      ListJobs(view, nullptr, request, [](const JobRow&) { return true; });
  for (const std::shared_ptr<const JobRow>& job : page.value().jobs) numbers.push_back(job->number);
  return numbers;
}

TEST(List, GivesTheSameJobsOfAStateWhateverElseIsAskedFor) {
  LabWithOneHost lab;
  for (const char* key : {"a", "b", "c"}) SubmitNext(&lab, OneSlotSpec(), key);
  CancelJob(&lab, 3);  // it waits
  const std::shared_ptr<const View> view = lab.engine.Snapshot();
  const auto listed = [&](const std::vector<pb::JobState>& states) {
    pb::ListJobsRequest request;
    for (const pb::JobState state : states) request.add_states(state);
    return NumbersOf(view, request);
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(listed({}), ElementsAre(3, 2, 1));
  EXPECT_THAT(listed({pb::WAITING, pb::RUNNING}), ElementsAre(2, 1));
  EXPECT_THAT(listed({pb::WAITING, pb::RUNNING, pb::CANCELLED}), ElementsAre(3, 2, 1));
  EXPECT_THAT(listed({pb::CANCELLED}), ElementsAre(3));
}

TEST(List, GivesWhatIsExportedAndWhatEndedLately) {
  LabWithOneHost lab;
  for (const int job : {1, 2, 3}) {
    pb::JobSpec spec = OneSlotSpec();
    if (job != 2) spec.mutable_track()->set_tensorboard("true");
    if (job == 3) spec.mutable_notify()->set_mail("ann@example.org");
    SubmitNext(&lab, spec, absl::StrCat(job));
  }
  CancelJob(&lab, 3);  // it waits
  const std::shared_ptr<const View> view = lab.engine.Snapshot();
  const auto listed = [&](bool exported, int64_t ended_after_ns) {
    pb::ListJobsRequest request;
    request.set_exported(exported);
    request.set_ended_after_ns(ended_after_ns);
    return NumbersOf(view, request);
  };
  const int64_t end_ns = view->state.FindJob(3)->end_ns;
  using ::testing::ElementsAre;
  EXPECT_THAT(listed(false, 0), ElementsAre(3, 2, 1));
  EXPECT_THAT(listed(true, 0), ElementsAre(3, 1));
  EXPECT_THAT(listed(true, end_ns - 1), ElementsAre(3, 1));
  EXPECT_THAT(listed(true, end_ns), ElementsAre(1));
}

TEST(List, ItsPagesTogetherAreAllJobsNewestFirst) {
  LabWithOneHost lab;
  for (int i = 0; i < 7; ++i) {
    pb::SubmitRequest request;
    *request.mutable_spec() = OneSlotSpec();
    request.set_idempotency_key(absl::StrCat(i));
    Submit(&lab.engine, SpecDefaults(), "ada", std::make_shared<pb::SubmitRequest>(request),
           [](const SubmitOutcome&) {});
  }
  for (const uint64_t number : {7, 4, 5}) {  // ended, and in another order; two slots are taken
    lab.engine.Step();
    pb::Event cancel;
    cancel.mutable_job_cancel()->set_number(number);
    lab.engine.Post(cancel);
  }
  lab.engine.Step();
  const std::shared_ptr<const View> view = lab.engine.Snapshot();
  const auto paged = [&](const std::vector<pb::JobState>& states) {
    pb::ListJobsRequest request;
    request.set_page_size(2);
    for (const pb::JobState state : states) request.add_states(state);
    std::string numbers;
    do {
      const absl::StatusOr<JobPage> page =
          ListJobs(view, nullptr, request, [](const JobRow&) { return true; });
      for (const std::shared_ptr<const JobRow>& job : page.value().jobs)
        absl::StrAppend(&numbers, job->number, " ");
      absl::StrAppend(&numbers, "| ");
      request.set_page_token(page.value().next_page_token);
    } while (!request.page_token().empty());
    return numbers;
  };
  EXPECT_EQ(paged({}), "7 6 | 5 4 | 3 2 | 1 | ");
  EXPECT_EQ(paged({pb::WAITING, pb::RUNNING}), "6 3 | 2 1 | ");
  EXPECT_EQ(paged({pb::CANCELLED}), "7 5 | 4 | ");
}

// An array of five members by turns, and a job before and behind it.
TEST(List, AnArrayIsOneRowAndItsMembersAreListedByTheirOrder) {
  LabWithOneHost lab;
  for (const char* array : {"", "1-9:2%3", ""}) {
    pb::SubmitRequest request;
    *request.mutable_spec() = OneSlotSpec();
    request.mutable_spec()->set_array(array);
    request.set_idempotency_key(absl::StrCat("key", lab.engine.Snapshot()->commit));
    uint64_t number = 0;
    Submit(&lab.engine, SpecDefaults(), "ada", std::make_shared<pb::SubmitRequest>(request),
           [&](const SubmitOutcome& outcome) { number = outcome.number; });
    lab.engine.Step();
    EXPECT_EQ(number, lab.engine.Snapshot()->state.next_job_number() - (*array == 0 ? 1 : 5));
  }
  const auto listed = [&](const pb::ListJobsRequest& asked) {
    std::string numbers;
    pb::ListJobsRequest request = asked;
    do {
      const absl::StatusOr<JobPage> page =
          ListJobs(lab.engine.Snapshot(), nullptr, request, [](const JobRow&) { return true; });
      if (!page.ok()) return std::string(page.status().message());
      for (const std::shared_ptr<const JobRow>& job : page->jobs)
        absl::StrAppend(&numbers, job->number, " ");
      absl::StrAppend(&numbers, "| ");
      request.set_page_token(page->next_page_token);
    } while (!request.page_token().empty());
    return numbers;
  };
  pb::ListJobsRequest request;
  EXPECT_EQ(listed(request), "7 2 1 | ");
  request.set_page_size(2);
  EXPECT_EQ(listed(request), "7 2 | 1 | ");
  request.add_states(pb::WAITING);
  request.add_states(pb::RUNNING);
  EXPECT_EQ(listed(request), "7 2 | 1 | ");
  request.clear_states();
  request.set_array("2");
  EXPECT_EQ(listed(request), "2 3 | 4 5 | 6 | ");
  request.add_states(pb::CANCELLED);
  EXPECT_EQ(listed(request), "| ");
  request.set_array("1");
  EXPECT_NE(listed(request).find("is no array's number"), std::string::npos);
  pb::Event cancel;
  cancel.mutable_job_cancel()->set_number(2);
  cancel.mutable_job_cancel()->set_array(true);
  lab.engine.Post(cancel);
  lab.engine.Step();
  request.set_array("2");
  EXPECT_NE(listed(request), "| ");
  const std::shared_ptr<const View> view = lab.engine.Snapshot();
  EXPECT_EQ((*FindJob(view, nullptr, "2_7"))->number, 5u);
  EXPECT_EQ(*FindJob(view, nullptr, "2_8"), nullptr);
}

// State holds neither any more.
TEST(List, AnArrayOfThePastIsOneRowInItsOwnState) {
  ListedHistory history;
  history.Add(4, "ada", "research", pb::FAILED);
  history.AddArray(5, "0-2", pb::FAILED);
  LabWithOneHost lab;
  pb::ListJobsRequest request;
  request.add_states(pb::FAILED);
  View view = *lab.engine.Snapshot();
  pb::Event event;
  event.mutable_job_submitted()->set_number(8);
  event.mutable_job_submitted()->set_uid("next");
  *event.mutable_job_submitted()->mutable_spec() = OneSlotSpec();
  Apply(&view.state, event);
  const auto now = std::make_shared<const View>(view);
  const auto all = [](const JobRow&) { return true; };
  const absl::StatusOr<JobPage> page = ListJobs(now, &history, request, all);
  std::vector<uint64_t> numbers;
  for (const auto& job : page.value().jobs) numbers.push_back(job->number);
  EXPECT_EQ(numbers, (std::vector<uint64_t>{5, 4}));
  request.clear_states();
  request.set_array("5");
  EXPECT_EQ(ListJobs(now, &history, request, all)->jobs.size(), 3u);
  const auto member = FindJob(now, &history, "5_2");
  EXPECT_EQ((*member)->number, 7u);
  EXPECT_EQ(*FindJob(now, &history, "5_3"), nullptr);
}

TEST(List, OfAQueueThatNeverWasIsNotFound) {
  const auto state = std::make_shared<const View>();
  pb::ListJobsRequest request;
  const auto all = [](const JobRow&) { return true; };
  request.set_queue("default");
  EXPECT_TRUE(ListJobs(state, nullptr, request, all).ok()) << "empty, but there";
  request.set_queue("nope");
  const auto page = ListJobs(state, nullptr, request, all);
  EXPECT_EQ(page.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(page.status().message(), "no queue \"nope\"; there are default");
  request.set_page_token("5");
  EXPECT_TRUE(ListJobs(state, nullptr, request, all).ok())
      << "the last page of one that was removed meanwhile";
}

// State holds the even ones of twelve jobs, the history all of them.
TEST(List, GoesOnInTheHistoryOfWhatStateForgot) {
  LabWithOneHost lab;
  ListedHistory history;
  for (uint64_t number = 1; number <= 12; ++number) {
    pb::Event event;
    pb::JobSubmitted* job = event.mutable_job_submitted();
    job->set_number(number);
    job->set_uid(absl::StrCat("held", number));
    job->set_owner("ada");
    *job->mutable_spec() = OneSlotSpec();
    if (number % 2 == 0) lab.engine.Post(event);
    history.Add(number, "ada", "default", number % 3 == 0 ? pb::FAILED : pb::SUCCEEDED,
                number == 7 ? "seven" : "");
  }
  history.Add(40, "ada", "default", pb::SUCCEEDED);  // ended after the view was taken
  lab.engine.Step();
  const std::shared_ptr<const View> view = lab.engine.Snapshot();
  ASSERT_EQ(view->state.AllJobs().size(), 6u);
  struct Case {
    const char* name;
    std::function<void(pb::ListJobsRequest*)> ask;
    std::string pages;
  };
  const Case cases[] = {
      {"all", [](pb::ListJobsRequest*) {}, "12 11 10 9 8 | 7 6 5 4 3 | 2 1 | "},
      {"finished",
       [](pb::ListJobsRequest* r) {
         r->add_states(pb::SUCCEEDED);
         r->add_states(pb::FAILED);
       },
       "11 9 7 5 3 | 1 | "},
      {"failed", [](pb::ListJobsRequest* r) { r->add_states(pb::FAILED); }, "9 3 | "},
      {"unfinished",
       [](pb::ListJobsRequest* r) {
         r->add_states(pb::WAITING);
         r->add_states(pb::RUNNING);
       },
       "12 10 8 6 4 | 2 | "},
      {"by label", [](pb::ListJobsRequest* r) { (*r->mutable_labels())["kind"] = "seven"; },
       "7 | "},
      {"of somebody else", [](pb::ListJobsRequest* r) { r->set_owner("bob"); }, "| "},
      {"of another queue",
       [](pb::ListJobsRequest* r) {
         r->set_queue("default");
         r->add_states(pb::FAILED);
       },
       "9 3 | "},
  };
  for (const Case& c : cases) {
    pb::ListJobsRequest request;
    request.set_page_size(5);
    c.ask(&request);
    std::string numbers;
    do {
      const absl::StatusOr<JobPage> page =
          ListJobs(view, &history, request, [](const JobRow&) { return true; });
      ASSERT_TRUE(page.ok()) << c.name << ": " << page.status();
      for (const std::shared_ptr<const JobRow>& job : page->jobs)
        absl::StrAppend(&numbers, job->number, " ");
      absl::StrAppend(&numbers, "| ");
      request.set_page_token(page->next_page_token);
    } while (!request.page_token().empty());
    EXPECT_EQ(numbers, c.pages) << c.name;
  }
}

// No call reads the whole past of a system that has had millions of jobs; the pages together do.
TEST(List, APageEndsWhereEnoughOfThePastWasLookedAt) {
  ListedHistory history;
  for (uint64_t number = 1; number <= 50'000; ++number)
    history.Add(number, number == 9 ? "bob" : "ada", "default", pb::SUCCEEDED);
  State state;
  pb::Event last;
  last.mutable_job_submitted()->set_number(50'001);
  last.mutable_job_submitted()->set_uid("last");
  *last.mutable_job_submitted()->mutable_spec() = OneSlotSpec();
  Apply(&state, last);
  const auto view = std::make_shared<const View>(View{state});
  pb::ListJobsRequest request;
  request.set_owner("bob");
  std::string pages;
  do {
    const absl::StatusOr<JobPage> page =
        ListJobs(view, &history, request, [](const JobRow&) { return true; });
    absl::StrAppend(&pages, page.value().jobs.size(), " before ", page->next_page_token, "; ");
    request.set_page_token(page->next_page_token);
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, "0 before 30001; 0 before 10001; 1 before ; ");
  EXPECT_EQ(history.read, 1);
}

TEST(FindJob, ByNumberOrUidInStateAndInThePast) {
  LabWithOneHost lab;
  ListedHistory history;
  history.Add(1, "ada", "default", pb::SUCCEEDED);
  pb::Event event;
  event.mutable_job_submitted()->set_number(2);
  event.mutable_job_submitted()->set_uid("held2");
  *event.mutable_job_submitted()->mutable_spec() = OneSlotSpec();
  lab.engine.Post(event);
  lab.engine.Step();
  const std::shared_ptr<const View> view = lab.engine.Snapshot();
  for (const auto& [id, number] : std::map<std::string, uint64_t>{
           {"1", 1}, {"past1", 1}, {"2", 2}, {"held2", 2}, {"3", 0}, {"", 0}}) {
    const auto found = FindJob(view, &history, id);
    ASSERT_TRUE(found.ok()) << id;
    EXPECT_EQ(*found == nullptr ? 0 : (*found)->number, number) << id;
  }
  EXPECT_EQ(*FindJob(view, nullptr, "1"), nullptr);
}

}  // namespace
}  // namespace muster
