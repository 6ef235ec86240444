// Directories and variables that come along with `run` and `submit`.
#include <sys/stat.h>

#include "cli/testing/fixture.h"
#include "common/pack/format.h"
#include "common/pki/sha256.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class AlongTest : public CliTest {
 protected:
  AlongTest() {
    jobs_.submit = [this](const pb::SubmitRequest& request, pb::SubmitResponse*) {
      submitted_.push_back(request.spec());
      return grpc::Status::OK;
    };
    EXPECT_EQ(mkdir((home_ + "/project").c_str(), 0700), 0);
    Write("project/train.py", "print()\n");
    archive_ = std::string(kPackMagic) + PackEntry(kPackFile, "train.py", "print()\n") +
               PackEntry(kPackEnd, "", "");
  }

  std::vector<pb::JobSpec> submitted_;
  std::string archive_;  // of project
};

TEST_F(AlongTest, RunTakesTheDirectoryOfItsFlagAlong) {
  ASSERT_EQ(Shell(absl::StrCat("cd ", home_, "/project; muster run -d -C . -- ./train.py")), 0)
      << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  EXPECT_EQ(submitted_[0].tasks(0).workdir(), ".");
  EXPECT_EQ(submitted_[0].tasks(0).workdir_digest(), Sha256Hex(archive_));
  EXPECT_THAT(packs_.whole, ElementsAre(Pair(Sha256Hex(archive_), archive_)));
  EXPECT_THAT(err_, Not(HasSubstr("come along")));
  ASSERT_EQ(Run({"run", "-d", "-C", home_ + "/project", "--", "python3", "train.py"}), 0) << err_;
  EXPECT_EQ(submitted_[1].tasks(0).workdir_digest(), Sha256Hex(archive_));
  EXPECT_EQ(packs_.pieces, 1) << "the server had it";
}

TEST_F(AlongTest, ALargeOneComesInPiecesWhateverTheServerForgets) {
  Write("project/large", std::string(300'000, 'x'));
  packs_.forget_after = 3;
  ASSERT_EQ(Run({"run", "-d", "-C", home_ + "/project", "--", "true"}), 0) << err_;
  ASSERT_EQ(packs_.whole.size(), 1u);
  EXPECT_EQ(Sha256Hex(packs_.whole.begin()->second), packs_.whole.begin()->first);
  EXPECT_GT(packs_.pieces, 7);
}

TEST_F(AlongTest, AServerThatForgetsItAgainAndAgainIsNotSaidToBeAway) {
  Write("project/large", std::string(300'000, 'x'));
  packs_.forgets_all = true;
  EXPECT_EQ(Run({"run", "-d", "-C", home_ + "/project", "--", "true"}), kExitUnreachable);
  EXPECT_THAT(err_, HasSubstr(home_ + "/project: musterd forgets what it has of this directory"));
  EXPECT_THAT(err_, HasSubstr("See its log, and submit again"));
  EXPECT_THAT(err_, Not(HasSubstr("no answer from")));
  EXPECT_TRUE(submitted_.empty());
}

TEST_F(AlongTest, ARelativeWorkdirIsRelativeToTheJobFileAndComesAlong) {
  Write("project/job.yaml", absl::StrCat(kHello, "workdir: .\n"));
  Write("job.yaml",
        "tasks:\n- {name: a, workdir: project, run: ls}\n- {name: b, workdir: /tmp, run: ls}\n"
        "- {name: c, workdir: ./project, run: ls}\n");
  ASSERT_EQ(Shell(absl::StrCat("cd /; muster submit -d ", home_, "/project/job.yaml ", home_,
                               "/job.yaml")),
            0)
      << err_;
  ASSERT_EQ(submitted_.size(), 2u);
  EXPECT_NE(submitted_[0].tasks(0).workdir_digest(), Sha256Hex(archive_)) << "job.yaml is in it";
  EXPECT_EQ(packs_.whole.count(submitted_[0].tasks(0).workdir_digest()), 1u);
  const std::string& digest = submitted_[1].tasks(0).workdir_digest();
  EXPECT_EQ(digest, submitted_[0].tasks(0).workdir_digest());
  EXPECT_EQ(submitted_[1].tasks(1).workdir_digest(), "");
  EXPECT_EQ(submitted_[1].tasks(2).workdir_digest(), digest);
}

TEST_F(AlongTest, TheFlagOfSubmitGoesOverTheFile) {
  const std::string path = Write("job.yaml", absl::StrCat(kHello, "workdir: /opt\n"));
  ASSERT_EQ(Run({"submit", "-d", "-C", home_ + "/project", path}), 0) << err_;
  EXPECT_EQ(submitted_.at(0).tasks(0).workdir(), ".");
  EXPECT_EQ(submitted_.at(0).tasks(0).workdir_digest(), Sha256Hex(archive_));
}

TEST_F(AlongTest, ADigestInTheFileIsMeantAndNothingIsPacked) {
  const std::string digest(64, 'a');
  const std::string path =
      Write("job.yaml", absl::StrCat(kHello, "workdir: not-here\nworkdir_digest: ", digest, "\n"));
  ASSERT_EQ(Run({"submit", "-d", path}), 0) << err_;
  EXPECT_EQ(submitted_.at(0).tasks(0).workdir_digest(), digest);
  EXPECT_TRUE(packs_.whole.empty());
}

TEST_F(AlongTest, WhatCanNotComeAlongStopsBeforeAnythingIsAskedAndNamesItsPlace) {
  const std::string path = Write("job.yaml", absl::StrCat(kHello, "workdir: not-here\n"));
  for (const char* command : {"submit", "validate"}) {
    EXPECT_EQ(Run({command, path}), 2);
    EXPECT_THAT(err_, HasSubstr(" 4:10  workdir: ")) << command;
    EXPECT_THAT(err_, HasSubstr(home_ + "/not-here: can't be read: No such file or directory"));
  }
  EXPECT_EQ(Run({"run", "-C", home_ + "/nowhere", "--", "ls"}), 2);
  EXPECT_THAT(err_, HasSubstr("-C " + home_ + "/nowhere: can't be read"));
  EXPECT_EQ(Run({"run", "-C", home_, "--workdir", home_, "--", "ls"}), 2) << "one of both";
  EXPECT_TRUE(submitted_.empty());
}

TEST_F(AlongTest, VariablesComeAlongByNameOrAsGiven) {
  environment_ = {"WANDB_MODE=offline", "EMPTY="};
  ASSERT_EQ(
      Run({"run", "-d", "--env", "WANDB_MODE", "--env", "EMPTY", "--env", "A=b=c", "--", "true"}),
      0)
      << err_;
  const std::string path = Write("job.yaml",
                                 "env: {A: file, B: file}\ntasks:\n- {name: main, env: "
                                 "{WANDB_MODE: task, C: task}, run: ls}\n");
  ASSERT_EQ(Run({"submit", "-d", "--env", "WANDB_MODE", "--env", "A=flag", path}), 0) << err_;
  ASSERT_EQ(submitted_.size(), 2u);
  EXPECT_THAT(submitted_[0].env(), UnorderedElementsAre(Pair("WANDB_MODE", "offline"),
                                                        Pair("EMPTY", ""), Pair("A", "b=c")));
  EXPECT_THAT(submitted_[1].env(), UnorderedElementsAre(Pair("WANDB_MODE", "offline"),
                                                        Pair("A", "flag"), Pair("B", "file")));
  EXPECT_THAT(submitted_[1].tasks(0).env(), UnorderedElementsAre(Pair("C", "task")));
}

TEST_F(AlongTest, AVariableThatIsNotSetIsNamed) {
  const std::string path = Write("job.yaml", kHello);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"run", "--env", "NO_SUCH", "--", "true"},
        {"submit", "--env", "NO_SUCH", path}}) {
    EXPECT_EQ(Run(words), 2);
    EXPECT_THAT(err_, HasSubstr("--env NO_SUCH: this shell exports no variable of that name"));
    EXPECT_THAT(err_, HasSubstr("--env NO_SUCH=VALUE"));
  }
  EXPECT_EQ(Run({"run", "--env", "=x", "--", "true"}), 2);
  EXPECT_TRUE(submitted_.empty());
}

TEST_F(AlongTest, ASecretsValueIsReadWithoutItsEndOfLineAndNeverAWordOfTheCommand) {
  EXPECT_EQ(Shell("printf 'sesame\\n' | muster secret set A > /dev/null"), 0) << err_;
  EXPECT_EQ(Shell("printf 'two\\nlines\\r\\n' | muster secret set B > /dev/null"), 0) << err_;
  EXPECT_EQ(Run({"secret", "set", "C", "--file", Write("value", "of a file")}), 0) << err_;
  EXPECT_THAT(secrets_.values, UnorderedElementsAre(Pair("A", "sesame"), Pair("B", "two\nlines"),
                                                    Pair("C", "of a file")));
  EXPECT_EQ(Run({"secret", "set", "D", "sesame"}), 2);
  EXPECT_EQ(Run({"secret", "set", "D", "--file", home_ + "/none"}), 2);
  EXPECT_EQ(secrets_.values.count("D"), 0u);
  EXPECT_EQ(Run({"secret", "list", "-o", "name"}), 0);
  EXPECT_EQ(out_, "A\nB\nC\n");
  EXPECT_EQ(Run({"secret", "delete", "A"}), 0);
  EXPECT_EQ(Run({"secret", "delete", "A"}), 3);
}

TEST_F(AlongTest, WhatIsTypedIsNotShown) {
  Process process(Process::OnTerminal(), {"secret", "set", "A"}, home_, server_name_);
  ASSERT_TRUE(process.ReadUntil("Value of A (it is not shown): "));
  process.Type("sesame\n");
  EXPECT_EQ(process.Wait(), 0) << process.out;
  EXPECT_THAT(process.out, Not(HasSubstr("sesame")));
  EXPECT_EQ(secrets_.values["A"], "sesame");
}

TEST_F(AlongTest, SecretsAreNamedByFlagsBesideTheFiles) {
  const std::string path = Write("job.yaml", absl::StrCat(kHello, "secrets: [A]\n"));
  ASSERT_EQ(Run({"submit", "-d", "--secret", "B=C", path}), 0) << err_;
  ASSERT_EQ(Run({"run", "-d", "--secret", "A", "--secret", "B=C", "--", "true"}), 0) << err_;
  for (const pb::JobSpec& spec : submitted_) EXPECT_THAT(spec.secrets(), ElementsAre("A", "B=C"));
}

TEST_F(AlongTest, AServerThatKnowsNoneIsSaidToBeOlder) {
  StopServing();
  grpc::ServerBuilder builder;
  builder.AddListeningPort(server_name_, grpc::InsecureServerCredentials());
  builder.RegisterService(&jobs_);
  builder.RegisterService(&queues_);
  builder.RegisterService(&clusters_);
  server_ = builder.BuildAndStart();
  EXPECT_NE(Run({"run", "-C", home_ + "/project", "--", "true"}), 0);
  EXPECT_THAT(err_, HasSubstr("older than directories that come along"));
  EXPECT_THAT(err_, HasSubstr("--workdir /PATH"));
}

}  // namespace
}  // namespace muster
