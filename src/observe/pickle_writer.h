// SPDX-License-Identifier: Apache-2.0
//
// File: pickle_writer.h
//
// Writes a Python pickle of plain data: dictionaries, lists, pairs, whole numbers,
// texts, truth values. It uses only opcodes of protocol 2, which every reader since
// knows.
//
//   PickleWriter out(/*protocol=*/2);
//   out.BeginDict();
//   out.Text("address"), out.Int(4096);
//   out.EndDict();
//   std::string bytes = std::move(out).Finish();
#ifndef HBMALLOC_OBSERVE_PICKLE_WRITER_H_
#define HBMALLOC_OBSERVE_PICKLE_WRITER_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "observe/json.h"

namespace hbm::observe {

class PickleWriter {
 public:
  explicit PickleWriter(int protocol) {
    bytes_ = {'\x80', static_cast<char>(std::clamp(protocol, 2, 4))};
  }

  // Keys and values in turn between the two.
  void BeginDict() { bytes_ += "}("; }
  void EndDict() { bytes_ += 'u'; }
  void BeginList() { bytes_ += "]("; }
  void EndList() { bytes_ += 'e'; }
  // After two values: they become a pair.
  void Pair() { bytes_ += '\x86'; }

  void Bool(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void Int(std::int64_t value) {
    if (value >= INT32_MIN && value <= INT32_MAX) {
      bytes_ += 'J';
      Little(static_cast<std::uint64_t>(value), 4);
    } else {
      bytes_ += {'\x8a', '\x08'};
      Little(static_cast<std::uint64_t>(value), 8);
    }
  }
  void Unsigned(std::uint64_t value) {
    if (value <= INT64_MAX) return Int(static_cast<std::int64_t>(value));
    bytes_ += {'\x8a', '\x09'};
    Little(value, 8);
    bytes_ += '\0';
  }
  void Text(std::string_view text) {
    const std::string valid = ValidUtf8(text);
    bytes_ += 'X';
    Little(valid.size(), 4);
    bytes_ += valid;
  }

  std::string Finish() && {
    bytes_ += '.';
    return std::move(bytes_);
  }

 private:
  void Little(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  std::string bytes_;
};

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_PICKLE_WRITER_H_
