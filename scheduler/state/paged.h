// Arrays whose copies are cheap: 64 rows a page, pages shared until one side writes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

// True if nobody else shares *p, so that it may be written. The temporary's release orders our writes behind the reads of
// whoever dropped the last other reference: use_count alone is a relaxed load.
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

// Rows by dense index. A copy shares all pages; Mutable() clones a page that is shared. Reading copies from several threads is
// safe; one object is written by one thread.
template <typename Row>
class PagedArray {
 public:
  static constexpr size_t kRows = 64;

  // nullptr if there is no such row.
  const Row* Find(size_t index) const {
    const size_t page = index / kRows;
    if (page >= pages_.size() || pages_[page] == nullptr) return nullptr;
    const std::shared_ptr<const Row>& row = pages_[page]->rows[index % kRows];
    return row.get();
  }

  // The row, made with its defaults if it isn't there. Valid until the next call of a non-const function.
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

  // Calls f(index) for every index where the two don't share the row, by rising index: all that was written, made or erased in
  // either since they were copies of each other, and everything if they never were. Skips shared pages: cheap for copies.
  template <typename F>
  void ForEachDifferent(const PagedArray& other, F f) const {
    for (size_t p = 0; p < std::max(pages_.size(), other.pages_.size()); ++p) {
      const Page* mine = p < pages_.size() ? pages_[p].get() : nullptr;
      const Page* theirs = p < other.pages_.size() ? other.pages_[p].get() : nullptr;
      if (mine == theirs) continue;
      for (size_t r = 0; r < kRows; ++r) {
        if ((mine == nullptr ? nullptr : mine->rows[r].get()) != (theirs == nullptr ? nullptr : theirs->rows[r].get())) f(p * kRows + r);
      }
    }
  }

  // One more than the highest index ever used.
  size_t size_bound() const { return pages_.size() * kRows; }

  // Calls f(index, row) for every row, by rising index.
  template <typename F>
  void ForEach(F f) const {
    for (size_t p = 0; p < pages_.size(); ++p) {
      if (pages_[p] == nullptr) continue;
      for (size_t r = 0; r < kRows; ++r) {
        if (pages_[p]->rows[r] != nullptr) f(p * kRows + r, static_cast<const Row&>(*pages_[p]->rows[r]));
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

// Text to number, in 256 buckets that copies share until one side writes.
class PagedIndex {
 public:
  // 0 if absent.
  uint64_t Find(std::string_view key) const {
    const auto& bucket = buckets_[Bucket(key)];
    if (bucket == nullptr) return 0;
    const auto it = bucket->find(key);
    return it == bucket->end() ? 0 : it->second;
  }
  void Set(std::string_view key, uint64_t value) { (*Own(key))[std::string(key)] = value; }
  void Erase(std::string_view key) {
    if (Find(key) != 0) Own(key)->erase(std::string(key));
  }
  // All entries by key, for comparing an index with a rebuilt one.
  std::map<std::string, uint64_t> Entries() const {
    std::map<std::string, uint64_t> all;
    for (const auto& bucket : buckets_) {
      if (bucket != nullptr) all.insert(bucket->begin(), bucket->end());
    }
    return all;
  }

 private:
  using Map = std::map<std::string, uint64_t, std::less<>>;

  static size_t Bucket(std::string_view key) {
    uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
    for (const char c : key) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
    return (hash ^ (hash >> 32)) % 256;
  }
  Map* Own(std::string_view key) {
    std::shared_ptr<Map>& bucket = buckets_[Bucket(key)];
    if (bucket == nullptr) {
      bucket = std::make_shared<Map>();
    } else if (!OnlyOwner(bucket)) {
      bucket = std::make_shared<Map>(*bucket);
    }
    return bucket.get();
  }

  std::array<std::shared_ptr<Map>, 256> buckets_;
};

}  // namespace muster
