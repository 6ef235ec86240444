// Arrays whose copies are cheap: 64 rows a page, pages shared until one side writes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

// True if nobody else shares *p, so that it may be written. The temporary's release orders our
// writes behind the reads of whoever dropped the last other reference: use_count alone is a relaxed
// load.
template <typename T>
bool OnlyOwner(const std::shared_ptr<T>& p) {
  if (p.use_count() != 1) return false;
  std::shared_ptr<T> touch = p;
  touch.reset();
  return true;
}

// What *p points to, for writing: a copy of its own if others share it.
template <typename T>
T* Own(std::shared_ptr<T>* p) {
  if (!OnlyOwner(*p)) *p = std::make_shared<T>(**p);
  return p->get();
}

// Rows by dense index. A copy shares all pages; Mutable() clones a page that is shared. Reading
// copies from several threads is safe; one object is written by one thread.
template <typename Row>
class PagedArray {
 public:
  static constexpr size_t kRows = 64;

  // nullptr if there is no such row.
  const Row* Find(size_t index) const {
    const size_t page = index / kRows;
    if (page >= pages_.size() || pages_[page] == nullptr) return nullptr;
    return pages_[page]->rows[index % kRows].get();
  }

  // The row, made with its defaults if it isn't there. Valid until the next call of a non-const
  // function.
  Row* Mutable(size_t index) {
    Page* page = OwnPage(index / kRows);
    std::shared_ptr<Row>& row = page->rows[index % kRows];
    if (row == nullptr) {
      row = std::make_shared<Row>();
    } else if (!OnlyOwner(row)) {
      row = std::make_shared<Row>(*row);
    }
    return row.get();
  }

  void Erase(size_t index) {
    if (Find(index) == nullptr) return;
    Page* page = OwnPage(index / kRows);
    page->rows[index % kRows] = nullptr;
    for (const auto& row : page->rows) {
      if (row != nullptr) return;
    }
    pages_[index / kRows] = nullptr;
  }

  // Calls f(index) for every index where the two don't share the row, by rising index: all that was
  // written, made or erased in either since they were copies of each other, and everything if they
  // never were. Skips shared pages: cheap for copies.
  template <typename F>
  void ForEachDifferent(const PagedArray& other, F f) const {
    for (size_t p = 0; p < std::max(pages_.size(), other.pages_.size()); ++p) {
      const Page* mine = p < pages_.size() ? pages_[p].get() : nullptr;
      const Page* theirs = p < other.pages_.size() ? other.pages_[p].get() : nullptr;
      if (mine == theirs) continue;
      for (size_t r = 0; r < kRows; ++r) {
        if ((mine == nullptr ? nullptr : mine->rows[r].get()) !=
            (theirs == nullptr ? nullptr : theirs->rows[r].get()))
          f(p * kRows + r);
      }
    }
  }

  // One more than the highest index ever used.
  size_t size_bound() const { return pages_.size() * kRows; }

  // Calls f(row) for the rows below `end`, by falling index, until it returns false.
  template <typename F>
  void ForEachBelow(size_t end, F f) const {
    for (size_t index = std::min(end, size_bound()); index > 0; --index) {
      if (pages_[(index - 1) / kRows] == nullptr) {
        index -= (index - 1) % kRows;
        continue;
      }
      if (const Row* row = Find(index - 1); row != nullptr && !f(*row)) return;
    }
  }

  // Calls f(index, row) for every row, by rising index.
  template <typename F>
  void ForEach(F f) const {
    for (size_t p = 0; p < pages_.size(); ++p) {
      if (pages_[p] == nullptr) continue;
      for (size_t r = 0; r < kRows; ++r) {
        if (pages_[p]->rows[r] != nullptr)
          f(p * kRows + r, static_cast<const Row&>(*pages_[p]->rows[r]));
      }
    }
  }

 private:
  struct Page {
    std::array<std::shared_ptr<Row>, kRows> rows;
  };

  Page* OwnPage(size_t index) {
    if (index >= pages_.size()) pages_.resize(index + 1);
    std::shared_ptr<Page>& page = pages_[index];
    if (page == nullptr) {
      page = std::make_shared<Page>();
    } else if (!OnlyOwner(page)) {
      page = std::make_shared<Page>(*page);
    }
    return page.get();
  }

  std::vector<std::shared_ptr<Page>> pages_;
};

// Text to number: a hash table whose buckets split one at a time as it grows (linear hashing,
// Litwin 1980), in pages that copies share until one side writes. A change clones a page of
// pointers and one bucket of a few entries, however many there are.
class PagedIndex {
 public:
  // 0 if absent.
  uint64_t Find(std::string_view key) const {
    const Bucket* bucket = buckets_.Find(BucketOf(key));
    if (bucket == nullptr) return 0;
    for (const Entry& entry : *bucket) {
      if (entry.key == key) return entry.value;
    }
    return 0;
  }
  void Set(std::string_view key, uint64_t value) {
    Bucket* bucket = buckets_.Mutable(BucketOf(key));
    for (Entry& entry : *bucket) {
      if (entry.key != key) continue;
      entry.value = value;
      return;
    }
    bucket->push_back({std::string(key), value});
    if (++size_ > kEntries * count_) Split();
  }
  void Erase(std::string_view key) {
    if (Find(key) == 0) return;
    Bucket* bucket = buckets_.Mutable(BucketOf(key));
    size_ -= std::erase_if(*bucket, [&](const Entry& entry) { return entry.key == key; });
  }
  // All entries by key, for comparing an index with a rebuilt one.
  std::map<std::string, uint64_t> Entries() const {
    std::map<std::string, uint64_t> all;
    buckets_.ForEach([&](size_t, const Bucket& bucket) {
      for (const Entry& entry : bucket) all.emplace(entry.key, entry.value);
    });
    return all;
  }

 private:
  struct Entry {
    std::string key;
    uint64_t value;
  };
  using Bucket = std::vector<Entry>;
  static constexpr size_t kEntries =
      4;  // of a bucket, on the average, from which on there is one more

  // Those below count_ - bit_floor(count_) have been split at this size and take one more bit of
  // the hash.
  size_t BucketOf(std::string_view key) const {
    uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
    for (const char c : key) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
    hash ^= hash >> 32;
    const size_t mask = std::bit_ceil(count_) - 1;
    const size_t bucket = hash & mask;
    return bucket < count_ ? bucket : bucket & (mask >> 1);
  }
  void Split() {
    const size_t from = count_ - std::bit_floor(count_);
    ++count_;
    if (buckets_.Find(from) == nullptr) return;
    const Bucket all = std::move(*buckets_.Mutable(from));
    buckets_.Mutable(from)->clear();
    for (const Entry& entry : all) buckets_.Mutable(BucketOf(entry.key))->push_back(entry);
  }

  PagedArray<Bucket> buckets_;
  size_t count_ = 1;  // buckets
  size_t size_ = 0;   // entries
};

}  // namespace muster
