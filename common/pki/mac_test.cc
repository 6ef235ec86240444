#include "common/pki/mac.h"

#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

// RFC 4231, 4.2 to 4.7: keys shorter and longer than a block of the hash.
TEST(HmacSha256, IsThatOfTheStandard) {
  const struct {
    std::string key, text;
    const char* mac;
  } cases[] = {
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
  };
  for (const auto& c : cases)
    EXPECT_EQ(absl::BytesToHexString(HmacSha256(c.key, c.text)), c.mac) << c.text;
}

}  // namespace
}  // namespace muster
