#include "trainer/loop/requests.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "gtest/gtest.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

class RequestsTest : public testing::Test {
 protected:
  RequestsTest() : directory_(testing::TempDir() + "/requests") {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  ~RequestsTest() override { fs::remove_all(directory_); }

  void Ask(const std::string& name, const std::string& text = "") {
    std::ofstream(directory_ + "/" + name + ".new") << text;
    fs::rename(directory_ + "/" + name + ".new", directory_ + "/" + name);
  }
  bool Asked(const std::string& name) const { return fs::exists(directory_ + "/" + name); }
  static bool Becomes(const std::function<bool()>& true_) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < until) {
      if (true_()) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }

  const std::string directory_;
};

TEST_F(RequestsTest, ACheckpointIsAskedForUntilItBegins) {
  Requests requests(directory_, milliseconds(1));
  EXPECT_FALSE(requests.save());
  Ask("save");
  EXPECT_TRUE(Becomes([&] { return requests.save(); }));
  EXPECT_FALSE(Asked("save")) << "who asked sees that it was taken";
  EXPECT_TRUE(requests.save()) << "until it begins";
  requests.SaveBegins();
  EXPECT_FALSE(requests.save());
  Ask("save");
  EXPECT_TRUE(Becomes([&] { return requests.save(); })) << "each request counts";
}

TEST_F(RequestsTest, AProfileIsToldOnceAndWantsANumberOfSteps) {
  Requests requests(directory_, milliseconds(1));
  for (const char* bad : {"", "all", "0", "-3", "101"}) {
    Ask("profile", bad);
    EXPECT_TRUE(Becomes([&] { return !Asked("profile"); })) << bad;
    EXPECT_EQ(requests.TakeProfile(), 0) << bad;
  }
  Ask("profile", "5\n");
  int steps = 0;
  EXPECT_TRUE(Becomes([&] { return (steps = requests.TakeProfile()) > 0; }));
  EXPECT_EQ(steps, 5);
  EXPECT_EQ(requests.TakeProfile(), 0);
}

TEST_F(RequestsTest, WithoutADirectoryNobodyAsks) {
  Requests nowhere("");
  Requests missing(directory_ + "/missing", milliseconds(1));
  nowhere.SaveBegins();
  EXPECT_FALSE(nowhere.save());
  EXPECT_FALSE(missing.save());
  fs::create_directories(directory_ + "/missing");
  std::ofstream(directory_ + "/missing/save") << "";
  EXPECT_TRUE(Becomes([&] { return missing.save(); })) << "it is made by the first request";
}

}  // namespace
}  // namespace muster::trainer
