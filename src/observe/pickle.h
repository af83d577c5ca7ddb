// SPDX-License-Identifier: Apache-2.0
//
// File: pickle.h
//
// Python's pickle format, reduced to data: None, booleans, whole numbers, floats,
// text, bytes, lists, tuples, sets and dicts, in protocols 2 to 5. Whatever would
// import a name or call something is refused, so that no code can run.
//
//   absl::StatusOr<Pickle> pickle = Pickle::Parse(bytes);
//   const PickleValue* segments = pickle->Find(pickle->root(), "segments");
//
// Values may be shared and may even contain themselves, as in Python: a reader
// follows the shape it expects and never walks blindly.
#ifndef HBMALLOC_OBSERVE_PICKLE_H_
#define HBMALLOC_OBSERVE_PICKLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hbm::observe {

struct PickleValue {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInt,
    kBigInt,
    kFloat,
    kText,
    kBytes,
    kList,
    kDict
  };

  Kind kind = Kind::kNone;
  bool negative = false;        // kInt: whether below zero
  std::uint64_t magnitude = 0;  // kInt, kBool
  double real = 0;              // kFloat
  std::string_view text;        // kText, kBytes: into the parsed data
  // kList (lists, tuples and sets): the elements. kDict: keys and values in turn.
  std::vector<const PickleValue*> items;
};

class Pickle {
 public:
  static bool LooksLikePickle(std::string_view data);

  // `data` must outlive the result. InvalidArgument says at which byte the data is
  // damaged, ends early, or holds more than plain data. Safe for any bytes; time and
  // memory are linear in their number.
  static absl::StatusOr<Pickle> Parse(std::string_view data);

  const PickleValue& root() const { return *root_; }
  // How many values there are: no walk that meets more of them is about data.
  std::size_t size() const { return values_.size(); }

  // The value of a text key, or null: no dict, no such key, or a dict of more
  // entries than the small records this is for.
  static const PickleValue* Find(const PickleValue& dict, std::string_view key);

 private:
  friend class PickleParser;

  std::deque<PickleValue> values_;  // stay where they are
  const PickleValue* root_ = nullptr;
};

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_PICKLE_H_
