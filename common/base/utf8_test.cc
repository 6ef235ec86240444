#include "common/base/utf8.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(Utf8, IsCutBetweenCharacters) {
  const struct {
    const char* text;
    size_t bytes;
    const char* want;
  } cases[] = {{"", 0, ""},
               {"abc", 3, "abc"},
               {"abc", 2, "ab"},
               {"aé", 3, "aé"},
               {"aé", 2, "a"},
               {"日本", 5, "日"},
               {"日本", 3, "日"},
               {"日本", 2, ""},
               {"a😀b", 4, "a"},
               {"a😀b", 5, "a😀"},
               {"\x80\x80\x80\x80\x80", 4, "\x80"}};
  for (const auto& c : cases)
    EXPECT_EQ(CutUtf8(c.text, c.bytes), c.want) << c.text << " in " << c.bytes;
}

TEST(Utf8, WhatIsNoCharacterBecomesAQuestionMark) {
  const struct {
    const char* text;
    const char* want;
  } cases[] = {{"ä, 日, 😀", "ä, 日, 😀"}, {"Ger\xe4t", "Ger?t"},   {"\xa5\xe6\x97", "???"},
               {"\xc0\xaf", "??"},         {"\xed\xb0\x80", "???"}, {"\xf5\x80\x80\x80", "????"}};
  for (const auto& c : cases) EXPECT_EQ(ValidUtf8(c.text), c.want);
}

}  // namespace
}  // namespace muster
