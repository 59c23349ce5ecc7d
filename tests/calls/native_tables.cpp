// The native call path's tables (fusegen/native/fusegen_native_table.h) by themselves: what each operation does, and threads
// that look up, remember, forget and count at once. ThreadSanitizer and AddressSanitizer watch (tests/calls/test_native.py).

#include "fusegen_native_table.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

#define CHECK(condition)                                               \
  do {                                                                 \
    if (!(condition)) {                                                \
      std::fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
      std::exit(1);                                                    \
    }                                                                  \
  } while (false)

std::atomic<int> owned{0};

// Keys of which many have one hash.
struct Key {
  uint64_t word;

  uint64_t hash() const { return word % 8; }
  bool same(const Key& other) const { return word == other.word; }
  void own() const { ++owned; }
  void disown() const { --owned; }
};

struct Value {
  static std::atomic<int> alive;
  uint64_t word;

  explicit Value(uint64_t given) : word(given) { ++alive; }
  Value(const Value&) = delete;
  ~Value() { --alive; }
};

std::atomic<int> Value::alive{0};

using Table = fusegen::Table<Key, Value>;
using Shared = fusegen::SharedTable<Key, Value>;

std::shared_ptr<Value> made(uint64_t word) { return std::make_shared<Value>(word); }

void the_oldest_goes() {
  Table table(4);
  for (uint64_t word = 0; word < 4; ++word) CHECK(table.put({word}, made(word)) == nullptr);
  for (uint64_t word = 4; word < 40; ++word) {
    const auto gone = table.put({word}, made(word));
    CHECK(gone && gone->word == word - 4);
    CHECK(table.size() == 4 && !table.find({word - 4}) && table.find({word})->word == word);
    CHECK(owned == 4 && Value::alive == 5);
  }
  uint64_t next = 36;
  CHECK(table.each([&](const Key& key, const auto& value) { return key.word == next++ && value->word == key.word ? 0 : 1; }) == 0);
  CHECK(table.each([&](const Key& key, const auto&) { return key.word == 37 ? 7 : 0; }) == 7);
  table.clear();
  CHECK(table.size() == 0 && !table.find({39}) && owned == 0 && Value::alive == 0);
  table.put({1}, made(1));
}

void the_first_of_two_stays() {
  Shared table(4);
  table.put({1}, made(10));
  table.put({1}, made(11));
  CHECK(table.size() == 1 && table.find({1})->word == 10 && Value::alive == 1);
}

// A value that puts and clears when it goes, as the end of a Python object may.
void values_go_where_no_lock_is_held() {
  struct Busy {
    fusegen::SharedTable<Key, Busy>* table;
    bool is_first;
    ~Busy() {
      if (is_first) {
        table->clear();
        table->put({99}, std::make_shared<Busy>(Busy{table, false}));
      }
    }
  };
  fusegen::SharedTable<Key, Busy> table(2);
  auto first = std::make_shared<Busy>();
  first->table = &table, first->is_first = true;
  table.put({1}, std::move(first));
  table.put({2}, std::make_shared<Busy>(Busy{&table, false}));
  table.put({3}, std::make_shared<Busy>(Busy{&table, false}));  // the first one goes
  CHECK(table.size() == 1 && table.find({99}));
  table.clear();
}

void threads() {
  Shared table(32);
  std::atomic<bool> wrong{false};
  const auto work = [&](uint64_t seed) {
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 4000; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const Key key{(state >> 33) % 64};
      if (const auto found = table.find(key)) {
        if (found->word != key.word) wrong = true;
      } else {
        table.put(key, made(key.word));
      }
      if (i % 512 == 511 && seed == 1) table.clear();
      if (i % 64 == 63 && table.size() > 32) wrong = true;
      if (i % 128 == 127)
        table.each([&](const Key& one, const auto& value) { return one.word == value->word ? 0 : (wrong = true, 1); });
    }
  };
  std::vector<std::thread> all;
  for (uint64_t seed = 1; seed <= 4; ++seed) all.emplace_back(work, seed);
  for (std::thread& one : all) one.join();
  CHECK(!wrong && table.size() <= 32);
}

}  // namespace

int main() {
  the_oldest_goes();
  CHECK(owned == 0 && Value::alive == 0);
  the_first_of_two_stays();
  values_go_where_no_lock_is_held();
  threads();
  CHECK(owned == 0 && Value::alive == 0);
  std::puts("all as it should be");
}
