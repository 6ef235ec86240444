#include "common/spec/yaml_writer.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

// Ours reads `True` as text, PyYAML, Go's yaml.v2 and yaml-cpp as a boolean.
TEST(YamlScalar, QuotesWhatOtherReadersTakeForABooleanOrNull) {
  for (const char* text : {"true", "True", "TRUE", "yes", "Yes", "YES", "no", "No", "on", "On",
                           "off", "Off", "OFF", "y", "N", "null", "Null", "NULL", "~"})
    EXPECT_EQ(YamlScalar(text), std::string("\"") + text + "\"");
}

TEST(YamlScalar, LeavesPlainTextPlain) {
  for (const char* text : {"truth", "research/nlp", "one", "office", "a-b.c", "/bin/true"})
    EXPECT_EQ(YamlScalar(text), text);
}

}  // namespace
}  // namespace muster
