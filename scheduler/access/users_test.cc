// Users of a machine whose database the test gives: it takes the C library's place.
#include "scheduler/access/users.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <pwd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "common/base/units.h"

namespace {

struct FakeAccount {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string name;
  std::vector<gid_t> groups;
};

struct FakeDatabase {
  std::vector<FakeAccount> accounts;
  std::map<gid_t, std::string> groups;
  size_t members_bytes = 100;  // of each group's list of members
  int error = 0;               // of each question for an account
};
FakeDatabase database;

int Answer(const FakeAccount* account, passwd* entry, char* buffer, size_t bytes, passwd** found) {
  *found = nullptr;
  if (database.error != 0) return database.error;
  if (account == nullptr) return 0;
  if (bytes <= account->name.size()) return ERANGE;
  std::memcpy(buffer, account->name.c_str(), account->name.size() + 1);
  entry->pw_name = buffer;
  entry->pw_uid = account->uid;
  entry->pw_gid = account->gid;
  *found = entry;
  return 0;
}

const FakeAccount* Find(const std::function<bool(const FakeAccount&)>& is) {
  const auto it = std::find_if(database.accounts.begin(), database.accounts.end(), is);
  return it == database.accounts.end() ? nullptr : &*it;
}

}  // namespace

extern "C" {
int getpwuid_r(uid_t uid, passwd* entry, char* buffer, size_t bytes, passwd** found) noexcept {
  return Answer(Find([&](const FakeAccount& account) { return account.uid == uid; }), entry, buffer,
                bytes, found);
}
int getpwnam_r(const char* name, passwd* entry, char* buffer, size_t bytes,
               passwd** found) noexcept {
  return Answer(Find([&](const FakeAccount& account) { return account.name == name; }), entry,
                buffer, bytes, found);
}
int getgrgid_r(gid_t gid, group* entry, char* buffer, size_t bytes, group** found) noexcept {
  *found = nullptr;
  const auto it = database.groups.find(gid);
  if (it == database.groups.end()) return ENOENT;
  if (bytes < it->second.size() + 1 + database.members_bytes) return ERANGE;
  std::memcpy(buffer, it->second.c_str(), it->second.size() + 1);
  entry->gr_name = buffer;
  *found = entry;
  return 0;
}
int getgrouplist(const char* name, gid_t gid, gid_t* ids, int* count) noexcept {
  const FakeAccount* account = Find([&](const FakeAccount& one) { return one.name == name; });
  const std::vector<gid_t> groups = account == nullptr ? std::vector<gid_t>{gid} : account->groups;
  const int room = std::exchange(*count, static_cast<int>(groups.size()));
  std::copy_n(groups.begin(), std::min(room, *count), ids);
  return room < *count ? -1 : *count;
}
}

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kOwn = 900, kAnn = 1'001;

class SetClock : public Clock {
 public:
  int64_t WallNs() override { return now_ns; }
  int64_t MonotonicNs() override { return now_ns; }
  int64_t BootNs() override { return now_ns; }
  int64_t now_ns = kSecond;
};

class UsersTest : public ::testing::Test {
 protected:
  UsersTest() {
    database = FakeDatabase();
    database.accounts = {{0, 0, "root", {0}},
                         {kOwn, kOwn, "scheduler", {kOwn}},
                         {kAnn, 100, "ann", {100, 200}},
                         {1'002, 100, "lea", {100}}};
    database.groups = {{100, "staff"}, {200, "nlp"}};
  }

  SetClock clock_;
  Users users_{{{"lea", 2'000, {"vision"}}}, kOwn, /*single_user=*/false, &clock_};
};

TEST_F(UsersTest, WhoIsWho) {
  struct Case {
    uint32_t uid;
    std::string user;
    std::vector<std::string> groups;
    bool trusted;
  };
  const std::vector<Case> cases = {
      {kAnn, "ann", {"nlp", "staff"}, false},
      {2'000, "lea", {"vision"}, false},  // as musterd.yaml lists her
      {1'002, "", {}, false},             // the account of a name that is listed is nobody's
      {1'003, "", {}, false},
      {500, "", {}, false},  // an account of the system
      {kOverflowUid, "", {}, false},
      {0, "root", {}, true},
      {kOwn, "scheduler", {}, true},
  };
  for (const Case& c : cases) {
    const auto who = users_.Of(c.uid);
    EXPECT_EQ(who->user, c.user) << c.uid;
    EXPECT_EQ(who->groups, c.groups) << c.uid;
    EXPECT_EQ(who->trusted, c.trusted) << c.uid;
  }
  EXPECT_EQ(users_.Named("ann")->uid, kAnn);
  EXPECT_EQ(users_.Named("lea")->uid, 2'000u);
  EXPECT_EQ(users_.Named("bob"), nullptr);
}

// A group of a directory service has thousands of members, whose names the answer carries.
TEST_F(UsersTest, AGroupHasItsNameHoweverManyAreInIt) {
  database.members_bytes = 1 << 20;
  EXPECT_THAT(users_.Of(kAnn)->groups, ElementsAre("nlp", "staff"));
}

TEST_F(UsersTest, WhoIsInThousandsOfGroupsIsInAllOfThem) {
  FakeAccount& ann = database.accounts[2];
  for (gid_t gid = 10'000; gid < 15'000; ++gid) {
    ann.groups.push_back(gid);
    database.groups[gid] = "g" + std::to_string(gid);
  }
  EXPECT_EQ(users_.Of(kAnn)->groups.size(), 5'002u);
}

TEST_F(UsersTest, WhoCannotBeLookedUpStaysWhoTheyWere) {
  EXPECT_EQ(users_.Of(kAnn)->user, "ann");
  database.error = EIO;
  clock_.now_ns += 2 * kUserKeptNs;
  EXPECT_EQ(users_.Of(kAnn)->user, "ann");
  EXPECT_EQ(users_.Of(1'002)->user, "") << "nothing was known";
  EXPECT_EQ(users_.HowKnown("bob"), KnownAs::kReserved) << "it may be anybody's";
  database.error = 0;
  database.accounts.erase(database.accounts.begin() + 2);
  EXPECT_EQ(users_.Of(kAnn)->user, "ann") << "asked a moment ago";
  clock_.now_ns += 2 * kUserKeptNs;
  EXPECT_EQ(users_.Of(kAnn)->user, "") << "it is known that there is no such account now";
}

TEST_F(UsersTest, HowANameIsKnown) {
  EXPECT_EQ(users_.HowKnown("ann"), KnownAs::kSomebody);
  EXPECT_EQ(users_.HowKnown("lea"), KnownAs::kSomebody);
  EXPECT_EQ(users_.HowKnown("bob"), KnownAs::kNobody);
  EXPECT_EQ(users_.HowKnown("root"), KnownAs::kReserved);
  EXPECT_EQ(users_.HowKnown("scheduler"), KnownAs::kReserved);
}

TEST_F(UsersTest, ASingleUsersSchedulerKnowsNobodyElse) {
  Users single({}, kAnn, /*single_user=*/true, &clock_);
  EXPECT_EQ(single.Of(kAnn)->user, "ann");
  EXPECT_EQ(single.Of(0)->user, "");
  EXPECT_THAT(single.Of(0)->groups, IsEmpty());
}

}  // namespace
}  // namespace muster
