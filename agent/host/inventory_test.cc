#include "agent/host/inventory.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace muster::agent {
namespace {

TEST(FindAbilities, ImagesAreAnnouncedOnlyWhereTheShimCouldEnterOne) {
  char name[] = "/tmp/muster-abilities-XXXXXX";
  const std::string directory = ::mkdtemp(name), shim = directory + "/muster-shim";
  const auto said = [&](const std::string& does) {
    std::ofstream(shim) << "#!/bin/sh\n" << does;
    EXPECT_EQ(::chmod(shim.c_str(), 0755), 0);
    v1::Inventory inventory;
    FindAbilities(directory, /*as_owners=*/true, &inventory);
    EXPECT_TRUE(inventory.gives_secrets());
    EXPECT_TRUE(inventory.unpacks());
    return inventory.enters_images();
  };
  EXPECT_TRUE(said("test \"$*\" = '--can-enter nobody'\n"));
  EXPECT_FALSE(said("echo 'a user namespace: Operation not permitted' >&2; exit 1\n"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace muster::agent
