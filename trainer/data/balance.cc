#include "trainer/data/balance.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <numeric>
#include <optional>
#include <utility>

namespace muster::trainer {
namespace {

// Outliers: from 1/4 of max_length on, and from 1/2 and 3/4 on in queues of their own.
constexpr int kQueues = 3;
int QueueOf(int64_t length, int64_t max_length) {
  return std::min<int>(kQueues, static_cast<int>(4 * length / max_length)) - 1;
}

struct Row {
  std::vector<int64_t> documents;
  int64_t length = 0, work = 0;
};

class Packing {
 public:
  Packing(const std::vector<int64_t>& lengths, const BalanceOptions& options)
      : lengths_(lengths), options_(options) {}

  // Places the documents, longest first; returns those that found no room.
  std::vector<int64_t> Place(std::vector<int64_t> documents, std::vector<Row>& rows) const {
    std::stable_sort(documents.begin(), documents.end(),
                     [&](int64_t a, int64_t b) { return lengths_[a] > lengths_[b]; });
    std::vector<int64_t> left;
    for (const int64_t document : documents) {
      const auto lightest = std::min_element(
          rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.work < b.work; });
      const auto shortest = std::min_element(
          rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.length < b.length; });
      if (lightest->length + lengths_[document] <= options_.max_row_length)
        Add(document, *lightest);
      else if (shortest->length + lengths_[document] <= options_.max_row_length)
        Add(document, *shortest);
      else
        left.push_back(document);
    }
    return left;
  }

  // Lowers the heaviest row's work by moves and swaps until none helps, or it is within 1/1000 of
  // the mean.
  void Refine(std::vector<Row>& rows) const {
    int64_t total = 0;
    for (const Row& row : rows) total += row.work;
    const int64_t enough = total / static_cast<int64_t>(rows.size()) * 1001 / 1000;
    for (size_t round = 0; round < 8 * rows.size(); ++round) {
      const size_t heavy =
          std::max_element(rows.begin(), rows.end(),
                           [](const Row& a, const Row& b) { return a.work < b.work; }) -
          rows.begin();
      if (rows[heavy].work <= enough || !Lighten(rows, heavy)) return;
    }
  }

 private:
  struct Change {
    size_t row = 0, give = 0;
    std::optional<size_t> take;  // position of what comes back
    int64_t larger = 0;          // of the two works afterwards
  };

  int64_t Work(int64_t document) const {
    return DocumentWork(lengths_[document], options_.linear_work);
  }

  void Add(int64_t document, Row& row) const {
    row.documents.push_back(document);
    row.length += lengths_[document];
    row.work += Work(document);
  }
  void Remove(size_t position, Row& row) const {
    row.length -= lengths_[row.documents[position]];
    row.work -= Work(row.documents[position]);
    row.documents.erase(row.documents.begin() + static_cast<int64_t>(position));
  }

  // The best single move or swap between the heavy row and one of the others; false: none lowers
  // the larger work.
  bool Lighten(std::vector<Row>& rows, size_t heavy) const {
    std::vector<size_t> others(rows.size());
    std::iota(others.begin(), others.end(), size_t{0});
    std::stable_sort(others.begin(), others.end(),
                     [&](size_t a, size_t b) { return rows[a].work < rows[b].work; });
    Change best{.larger = rows[heavy].work};
    for (const size_t other : others) {
      if (other == heavy) continue;
      Consider(rows, heavy, other, best);
      if (best.larger < rows[heavy].work)
        break;  // the lightest row that helps; the next round goes on
    }
    if (best.larger == rows[heavy].work) return false;
    const int64_t given = rows[heavy].documents[best.give];
    Remove(best.give, rows[heavy]);
    if (best.take) {
      const int64_t taken = rows[best.row].documents[*best.take];
      Remove(*best.take, rows[best.row]);
      Add(taken, rows[heavy]);
    }
    Add(given, rows[best.row]);
    return true;
  }

  void Consider(const std::vector<Row>& rows, size_t heavy, size_t other, Change& best) const {
    const Row& from = rows[heavy];
    const Row& to = rows[other];
    std::vector<std::pair<int64_t, size_t>> back;  // what may come back, by work
    for (size_t i = 0; i < to.documents.size(); ++i) back.emplace_back(Work(to.documents[i]), i);
    std::sort(back.begin(), back.end());
    for (size_t give = 0; give < from.documents.size(); ++give) {
      const int64_t work = Work(from.documents[give]), length = lengths_[from.documents[give]];
      const auto offer = [&](int64_t back_work, int64_t back_length, std::optional<size_t> take) {
        if (to.length + length - back_length > options_.max_row_length ||
            from.length - length + back_length > options_.max_row_length)
          return;
        const int64_t larger = std::max(from.work - work + back_work, to.work + work - back_work);
        if (larger < best.larger) best = {other, give, take, larger};
      };
      offer(0, 0, std::nullopt);
      // What makes the two most alike: the documents around work - (difference / 2).
      const int64_t ideal = work - (from.work - to.work) / 2;
      auto near = std::lower_bound(back.begin(), back.end(), std::pair<int64_t, size_t>(ideal, 0));
      if (near != back.begin()) --near;
      for (int tries = 0; tries < 3 && near != back.end(); ++tries, ++near)
        offer(near->first, lengths_[to.documents[near->second]], near->second);
    }
  }

  const std::vector<int64_t>& lengths_;
  const BalanceOptions& options_;
};

}  // namespace

std::vector<Step> BalanceSteps(const std::vector<int64_t>& lengths, const BalanceOptions& options) {
  const Packing packing(lengths, options);
  const int64_t rows_per_step = options.rows_per_step, budget = rows_per_step * options.max_length;
  std::vector<Step> steps;
  std::deque<int64_t> queues[kQueues];
  std::vector<int64_t> waiting;
  size_t next = 0;
  const auto queued = [&] {
    return std::any_of(std::begin(queues), std::end(queues),
                       [](const auto& queue) { return !queue.empty(); });
  };
  while (next < lengths.size() || !waiting.empty() || queued()) {
    std::vector<int64_t> documents = std::exchange(waiting, {});
    int64_t tokens = 0;
    for (; next < lengths.size() && tokens < budget; ++next) {
      tokens += lengths[next];
      const int queue = QueueOf(lengths[next], options.max_length);
      if (queue < 0)
        documents.push_back(static_cast<int64_t>(next));
      else
        queues[queue].push_back(static_cast<int64_t>(next));
    }
    for (std::deque<int64_t>& queue : queues) {
      // At the end of the data what is left goes without waiting for its like.
      const bool all = next == lengths.size() && static_cast<int64_t>(queue.size()) < rows_per_step;
      if (!all && static_cast<int64_t>(queue.size()) < rows_per_step) continue;
      const size_t count = all ? queue.size() : static_cast<size_t>(rows_per_step);
      documents.insert(documents.end(), queue.begin(), queue.begin() + static_cast<int64_t>(count));
      queue.erase(queue.begin(), queue.begin() + static_cast<int64_t>(count));
    }
    if (documents.empty()) continue;
    std::vector<Row> rows(rows_per_step);
    waiting = packing.Place(std::move(documents), rows);
    if (options.refine) packing.Refine(rows);
    Step& step = steps.emplace_back();
    for (Row& row : rows) step.push_back(std::move(row.documents));
  }
  return steps;
}

}  // namespace muster::trainer
