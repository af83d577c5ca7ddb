// SPDX-License-Identifier: Apache-2.0
//
// File: tag.h
//
// Tags say what a block is for, so that statistics, snapshots and out-of-memory
// reports can say it too.
//
//   static const hbm::TagId kActivations = hbm::RegisterTag("activations");
//   hbm::ScopedTag scope(kActivations);     // for every allocation of this thread
#ifndef HBMALLOC_TAG_H_
#define HBMALLOC_TAG_H_

#include <cstdint>
#include <string_view>

namespace hbm {

// A small number that stands for a name. Default-constructed: the thread's
// current tag (see ScopedTag), or no tag.
struct TagId {
  std::uint32_t value = 0;
  friend bool operator==(TagId a, TagId b) { return a.value == b.value; }
  friend bool operator!=(TagId a, TagId b) { return a.value != b.value; }
};

// The id of a name: the same name always gives the same id. Names live as long as
// the process; at most 65,535 are kept, after which every new name gets the id
// of "other". Thread-safe; takes a lock, so register once and keep the id.
TagId RegisterTag(std::string_view name);

// The name of an id, or "" for no tag. Thread-safe.
std::string_view TagName(TagId tag);

namespace internal {
// The thread's current tag, where an allocation reads it without a call. The
// initial-exec model takes four bytes of the room that loaders keep for libraries
// that are opened late.
extern __thread std::uint32_t current_tag __attribute__((tls_model("initial-exec")));
}  // namespace internal

// The calling thread's current tag: that of the innermost ScopedTag, else none.
inline TagId CurrentTag() { return TagId{internal::current_tag}; }

// Sets the calling thread's tag for as long as it lives. Scopes nest; they must
// end in the reverse of the order they began in, on the same thread.
class ScopedTag {
 public:
  explicit ScopedTag(TagId tag);
  ~ScopedTag();
  ScopedTag(const ScopedTag&) = delete;
  ScopedTag& operator=(const ScopedTag&) = delete;

 private:
  TagId previous_;
};

}  // namespace hbm

#endif  // HBMALLOC_TAG_H_
