// Who takes which tokens, and that every pair of attention is computed once.
#include "trainer/parallel/context_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "trainer/data/packing.h"

namespace muster::trainer {
namespace {

using Documents = std::vector<ops::DocumentSpan>;

struct Case {
  std::string name;
  int64_t batch, length;
  Documents documents;
};

// Documents of these lengths, one behind the other, in row `row`.
void Append(Documents& documents, int64_t row, const std::vector<int64_t>& lengths) {
  int64_t at = 0;
  for (const int64_t n : lengths) {
    documents.push_back({row, at, at + n});
    at += n;
  }
}

std::vector<Case> CasesFor(int ranks) {
  const int64_t chunks = 2 * static_cast<int64_t>(ranks);
  std::vector<Case> cases = {{"nothing but padding", 2, 3, {}}};
  const auto add = [&](const std::string& name, const std::vector<std::vector<int64_t>>& rows) {
    Case c{name, static_cast<int64_t>(rows.size()), 3 * chunks + 9, {}};
    for (size_t row = 0; row < rows.size(); ++row)
      Append(c.documents, static_cast<int64_t>(row), rows[row]);
    cases.push_back(std::move(c));
  };
  add("one token", {{1}});
  add("one less than the chunks", {{chunks - 1}});
  add("as many as chunks", {{chunks}});
  add("one more than the chunks", {{chunks + 1}});
  add("one document over all ranks", {{3 * chunks + 5}});
  add("documents of one token", {{1, 1, 1, 1, 1, 1, 1}});
  add("remainders that run on", {{chunks - 1, chunks + 1, 3, 2, 1}});
  add("rows of their own lengths, one of them empty", {{5, 2}, {}, {chunks + 3}, {1}});
  SplitMix64 random{7};
  for (int i = 0; i < 20; ++i) {
    std::vector<std::vector<int64_t>> rows(1 + random.Below(3));
    for (auto& row : rows) {
      int64_t room = 3 * chunks + 9;
      while (room > 0 && random.Below(6) > 0) {
        row.push_back(1 + static_cast<int64_t>(random.Below(static_cast<uint64_t>(room))));
        room -= row.back();
      }
    }
    add("drawn " + std::to_string(i), rows);
  }
  return cases;
}

void ForAll(const std::function<void(const Case&, int, const ContextPlan&)>& body) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const Case& c : CasesFor(ranks)) {
      for (const ContextSharding sharding :
           {ContextSharding::kSequence, ContextSharding::kDocument, ContextSharding::kAuto}) {
        SCOPED_TRACE(c.name + ", " + std::to_string(ranks) + " ranks, sharding " +
                     std::to_string(static_cast<int>(sharding)));
        body(c, ranks, PlanContext(c.documents, c.batch, c.length, ranks, sharding));
      }
    }
  }
}

TEST(ContextPlan, EveryTokenOfADocumentIsTakenOnce) {
  ForAll([](const Case& c, int ranks, const ContextPlan& plan) {
    std::map<int64_t, int> taken;
    ASSERT_EQ(plan.parts.size(), static_cast<size_t>(ranks));
    for (const ContextPart& part : plan.parts) {
      EXPECT_EQ(part.tokens.size(), static_cast<size_t>(c.batch * plan.length));
      for (size_t i = 0; i < part.tokens.size(); ++i) {
        const int64_t token = part.tokens[i];
        if (token < 0) continue;
        EXPECT_EQ(token / c.length, static_cast<int64_t>(i) / plan.length) << "in another row";
        ++taken[token];
      }
    }
    size_t wanted = 0;
    for (const ops::DocumentSpan& span : c.documents) {
      wanted += static_cast<size_t>(span.end - span.begin);
      for (int64_t at = span.begin; at < span.end; ++at)
        EXPECT_EQ(taken[span.row * c.length + at], 1) << at;
    }
    EXPECT_EQ(taken.size(), wanted);
  });
}

TEST(ContextPlan, EveryPairIsComputedOnceByWhoHasTheQuery) {
  ForAll([](const Case& c, int, const ContextPlan& plan) {
    std::set<std::pair<int64_t, int64_t>> pairs;
    for (const ContextPart& part : plan.parts) {
      const std::set<int64_t> own(part.tokens.begin(), part.tokens.end());
      for (const auto& call : part.calls) {
        std::set<int64_t> keys;
        for (const ContextSequence& one : call) {
          ASSERT_LT(one.begin, one.end);
          int64_t counted = 0;
          const int64_t row = one.row * c.length;
          for (int64_t key = one.document_begin; key < one.end; ++key)
            EXPECT_TRUE(keys.insert(row + key).second) << "a key twice in a call";
          for (int64_t query = one.begin; query < one.end; ++query) {
            EXPECT_TRUE(own.count(row + query));
            for (int64_t key = one.document_begin; key <= query; ++key, ++counted)
              EXPECT_TRUE(pairs.insert({row + query, row + key}).second);
          }
          EXPECT_EQ(counted, one.pairs());
        }
      }
    }
    size_t wanted = 0;
    for (const ops::DocumentSpan& span : c.documents) {
      const auto n = static_cast<size_t>(span.end - span.begin);
      wanted += n * (n + 1) / 2;
      for (int64_t query = span.begin; query < span.end; ++query)
        EXPECT_TRUE(pairs.count({span.row * c.length + query, span.row * c.length + span.begin}));
    }
    EXPECT_EQ(pairs.size(), wanted);
  });
}

TEST(ContextPlan, RanksHaveAsManyTokensOfARowToWithinOne) {
  ForAll([](const Case& c, int ranks, const ContextPlan& plan) {
    int64_t longest = 1;
    for (int64_t row = 0; row < c.batch; ++row) {
      int64_t least = c.length, most = 0, all = 0;
      for (const ContextPart& part : plan.parts) {
        const auto begin = part.tokens.begin() + row * plan.length;
        const int64_t count =
            std::count_if(begin, begin + plan.length, [](int64_t token) { return token >= 0; });
        least = std::min(least, count), most = std::max(most, count), all += count;
      }
      EXPECT_LE(most - least, 1);
      longest = std::max(longest, (all + ranks - 1) / ranks);
    }
    EXPECT_EQ(plan.length, longest) << "rows are padded by more than they need";
  });
}

int64_t PairsOf(const ContextPart& part) {
  int64_t sum = 0;
  for (const auto& call : part.calls) {
    for (const ContextSequence& one : call) sum += one.pairs();
  }
  return sum;
}

// An early and a late chunk together see as many keys as those of any other rank; a token more or
// less, and the longest document's keys, are what they may differ by.
TEST(ContextPlan, DocumentsHaveTheSamePairsOnAllRanksButForRemainders) {
  for (const int ranks : {2, 4, 8}) {
    for (const Case& c : CasesFor(ranks)) {
      const ContextPlan plan =
          PlanContext(c.documents, c.batch, c.length, ranks, ContextSharding::kDocument);
      int64_t least = INT64_MAX, most = 0, bound = 0;
      for (const ContextPart& part : plan.parts)
        least = std::min(least, PairsOf(part)), most = std::max(most, PairsOf(part));
      for (const ops::DocumentSpan& span : c.documents) bound += 2 * (span.end - span.begin);
      EXPECT_LE(most - least, bound) << c.name << ", " << ranks << " ranks";
    }
  }
}

TEST(ContextPlan, ByDocumentWhereOneIsLongAndByRowWhereAllAreShort) {
  Documents one_long, all_short;
  Append(one_long, 0, {60000, 300, 200, 400, 350, 250, 300, 3700});
  Append(all_short, 0, std::vector<int64_t>(512, 128));
  EXPECT_EQ(PlanContext(one_long, 1, 65536, 8, ContextSharding::kAuto).sharding,
            ContextSharding::kDocument);
  EXPECT_EQ(PlanContext(all_short, 1, 65536, 8, ContextSharding::kAuto).sharding,
            ContextSharding::kSequence);
}

// By rows, the rank with the long document's end has more to do than others; by documents none has.
TEST(ContextPlan, DocumentsAreEvenWhereRowsAreNot) {
  Documents documents;
  Append(documents, 0, {8192, 57344});
  double most[2] = {}, all = 0;
  for (const ContextSharding sharding : {ContextSharding::kSequence, ContextSharding::kDocument}) {
    const ContextPlan plan = PlanContext(documents, 1, 65536, 8, sharding);
    all = 0;
    for (const ContextPart& part : plan.parts) {
      const auto pairs = static_cast<double>(PairsOf(part));
      double& slot = most[sharding == ContextSharding::kDocument ? 1 : 0];
      slot = std::max(slot, pairs), all += pairs;
    }
  }
  EXPECT_LE(most[1] / (all / 8), 1.001);
  EXPECT_GE(most[0] / (all / 8), 1.1);
}

}  // namespace
}  // namespace muster::trainer
