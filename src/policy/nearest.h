// SPDX-License-Identifier: Apache-2.0
//
// File: nearest.h
//
// What was probably meant by a word that is not known.
#ifndef HBMALLOC_POLICY_NEAREST_H_
#define HBMALLOC_POLICY_NEAREST_H_

#include <string_view>
#include <vector>

namespace hbm::policy {

// The known word that the fewest changes of a character make out of `word`, in
// any case; empty if none begins with `word` or shares half of its letters with it.
std::string_view Nearest(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace hbm::policy

#endif  // HBMALLOC_POLICY_NEAREST_H_
