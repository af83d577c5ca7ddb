// SPDX-License-Identifier: Apache-2.0
#include "hbmalloc/tag.h"

#include <deque>
#include <map>
#include <string>

#include "core/mutex.h"

namespace hbm {
namespace {

constexpr std::uint32_t kMaxTags = 65535;

struct Names {
  core::Mutex mutex;
  // A deque's elements stay where they are, so views of them stay valid.
  std::deque<std::string> names HBM_GUARDED_BY(mutex) = {""};
  std::map<std::string, std::uint32_t, std::less<>> ids HBM_GUARDED_BY(mutex);
};

Names& TheNames() {
  static Names* const names = new Names;
  return *names;
}

}  // namespace

__thread std::uint32_t internal::current_tag;

TagId RegisterTag(std::string_view name) {
  if (name.empty()) return TagId{};
  Names& all = TheNames();
  core::MutexLock lock(all.mutex);
  auto found = all.ids.find(name);
  if (found != all.ids.end()) return TagId{found->second};
  if (all.names.size() >= kMaxTags) {
    name = "other";
    found = all.ids.find(name);
    if (found != all.ids.end()) return TagId{found->second};
  }
  const auto id = static_cast<std::uint32_t>(all.names.size());
  all.names.emplace_back(name);
  all.ids.emplace(std::string(name), id);
  return TagId{id};
}

std::string_view TagName(TagId tag) {
  Names& all = TheNames();
  core::MutexLock lock(all.mutex);
  return tag.value < all.names.size() ? std::string_view(all.names[tag.value]) : std::string_view();
}

ScopedTag::ScopedTag(TagId tag) : previous_(CurrentTag()) { internal::current_tag = tag.value; }
ScopedTag::~ScopedTag() { internal::current_tag = previous_.value; }

}  // namespace hbm
