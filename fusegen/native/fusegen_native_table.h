// fusegen's native call path: what has been remembered, by key. It knows neither torch nor Python, so that it can be tried
// by itself, with threads under ThreadSanitizer (tests/calls/native_tables.cpp).

#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace fusegen {

// Values by key, at most `most`: beyond that the oldest goes. A Key has hash(), same(), and own() and disown() for what it
// holds while it is here.
template <class Key, class Value>
class Table {
 public:
  explicit Table(size_t most) : most_(most) {}
  Table(const Table&) = delete;
  ~Table() { clear(); }

  std::shared_ptr<Value> find(const Key& key) const {
    const auto range = places_.equal_range(key.hash());
    for (auto at = range.first; at != range.second; ++at)
      if (at->second->key.same(key)) return at->second->value;
    return nullptr;
  }

  // Returns the value that had to go, for the caller to let go of where it holds no lock.
  std::shared_ptr<Value> put(const Key& key, std::shared_ptr<Value> value) {
    std::shared_ptr<Value> oldest;
    if (!entries_.empty() && entries_.size() >= most_) oldest = drop_oldest();
    key.own();
    entries_.push_back({key, std::move(value)});
    places_.emplace(key.hash(), std::prev(entries_.end()));
    return oldest;
  }

  void clear() {
    while (!entries_.empty()) drop_oldest();
  }

  void swap(Table& other) {
    entries_.swap(other.entries_);
    places_.swap(other.places_);
  }

  size_t size() const { return entries_.size(); }

  // Calls `visit` with each key and value, the oldest first, until it returns other than 0; returns that.
  template <class Visit>
  int each(const Visit& visit) const {
    for (const Entry& entry : entries_)
      if (const int code = visit(entry.key, entry.value)) return code;
    return 0;
  }

 private:
  struct Entry {
    Key key;
    std::shared_ptr<Value> value;
  };

  std::shared_ptr<Value> drop_oldest() {
    const auto range = places_.equal_range(entries_.front().key.hash());
    for (auto at = range.first; at != range.second; ++at) {
      if (at->second == entries_.begin()) {
        places_.erase(at);
        break;
      }
    }
    Entry oldest = std::move(entries_.front());  // what it holds may run Python code when it goes: after the table is done
    entries_.pop_front();
    oldest.key.disown();
    return std::move(oldest.value);
  }

  size_t most_;
  std::list<Entry> entries_;
  std::unordered_multimap<uint64_t, typename std::list<Entry>::iterator> places_;
};

// A table for threads that have no other lock in common. Nothing goes while its lock is held: values may hold Python
// objects, whose end takes the GIL.
template <class Key, class Value>
class SharedTable {
 public:
  explicit SharedTable(size_t most) : most_(most), table_(most) {}

  std::shared_ptr<Value> find(const Key& key) const {
    const std::lock_guard<std::mutex> guard(lock_);
    return table_.find(key);
  }

  // Of threads that remember one key at a time, the first one's value stays.
  void put(const Key& key, std::shared_ptr<Value> value) {
    std::shared_ptr<Value> oldest;  // goes after the lock
    const std::lock_guard<std::mutex> guard(lock_);
    if (!table_.find(key)) oldest = table_.put(key, std::move(value));
  }

  void clear() {
    Table<Key, Value> held(most_);  // goes after the lock
    const std::lock_guard<std::mutex> guard(lock_);
    held.swap(table_);
  }

  size_t size() const {
    const std::lock_guard<std::mutex> guard(lock_);
    return table_.size();
  }

  template <class Visit>
  int each(const Visit& visit) const {
    const std::lock_guard<std::mutex> guard(lock_);
    return table_.each(visit);
  }

 private:
  const size_t most_;
  mutable std::mutex lock_;
  Table<Key, Value> table_;
};

}  // namespace fusegen
