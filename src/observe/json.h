// SPDX-License-Identifier: Apache-2.0
//
// File: json.h
//
// Strings and numbers as JSON has them.
//
//   absl::StrAppend(&text, "{\"name\": ", JsonString(name), "}");
#ifndef HBMALLOC_OBSERVE_JSON_H_
#define HBMALLOC_OBSERVE_JSON_H_

#include <string>
#include <string_view>

namespace hbm::observe {

// With quotes. Bytes that are not UTF-8 become U+FFFD, so that any text is safe.
std::string JsonString(std::string_view text);
// The shortest text that reads back as the same number; null if it is not finite.
std::string JsonNumber(double value);
// The same text without bytes that are not UTF-8.
std::string ValidUtf8(std::string_view text);

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_JSON_H_
