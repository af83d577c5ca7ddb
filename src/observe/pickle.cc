// SPDX-License-Identifier: Apache-2.0
#include "observe/pickle.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hbm::observe {
namespace {

using Kind = PickleValue::Kind;

// Records have a dozen keys.
constexpr std::size_t kMaxRecordKeys = 64;
// Python numbers memo entries from 0 upwards; a pickle of n bytes has fewer than n.
constexpr std::uint64_t kUnset = 0;

// The operations that are data. Every other one is refused.
enum Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinUnicode = 'X',
  kAppend = 'a',
  kAppends = 'e',
  kDict = 'd',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyTuple = ')',
  kEmptyList = ']',
  kEmptyDict = '}',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kMemoize = 0x94,
  kFrame = 0x95,
};

}  // namespace

// The stack machine. Step returns an error's words, or null.
class PickleParser {
 public:
  explicit PickleParser(std::string_view data) : data_(data) {}

  absl::StatusOr<Pickle> Run() {
    while (pickle_.root_ == nullptr) {
      const std::size_t at = position_;
      const char* const problem = Step();
      if (problem == nullptr) continue;
      const unsigned opcode = at < data_.size() ? static_cast<unsigned char>(data_[at]) : 0u;
      return absl::InvalidArgumentError(
          absl::StrFormat("pickle: byte %d (operation 0x%02x): %s", at, opcode, problem));
    }
    return std::move(pickle_);
  }

 private:
  static constexpr const char* kEndsEarly = "the data ends too early";
  static constexpr const char* kBadStack = "the operation finds the wrong kind of value";
  static constexpr const char* kBadMemo = "refers to a value that was not stored";

  // Little-endian; false at the end of the data.
  bool ReadNumber(std::size_t width, std::uint64_t* value) {
    if (data_.size() - position_ < width) return false;
    *value = 0;
    for (std::size_t i = 0; i < width; ++i) {
      *value |= std::uint64_t{static_cast<unsigned char>(data_[position_ + i])} << (8 * i);
    }
    position_ += width;
    return true;
  }

  bool ReadText(std::size_t width, std::string_view* text) {
    std::uint64_t length = 0;
    if (!ReadNumber(width, &length) || length > data_.size() - position_) return false;
    *text = data_.substr(position_, static_cast<std::size_t>(length));
    position_ += static_cast<std::size_t>(length);
    return true;
  }

  PickleValue* Push(Kind kind) {
    PickleValue& value = pickle_.values_.emplace_back();
    value.kind = kind;
    stack_.push_back(&value);
    return &value;
  }

  const char* PushText(Kind kind, std::size_t width) {
    std::string_view text;
    if (!ReadText(width, &text)) return kEndsEarly;
    Push(kind)->text = text;
    return nullptr;
  }

  const char* PushUnsigned(std::size_t width) {
    std::uint64_t value = 0;
    if (!ReadNumber(width, &value)) return kEndsEarly;
    Push(Kind::kInt)->magnitude = value;
    return nullptr;
  }

  const char* PushBinInt() {
    std::uint64_t bits = 0;
    if (!ReadNumber(4, &bits)) return kEndsEarly;
    const auto value = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits));
    PickleValue* const number = Push(Kind::kInt);
    number->negative = value < 0;
    number->magnitude = static_cast<std::uint64_t>(value < 0 ? -std::int64_t{value} : value);
    return nullptr;
  }

  // Two's complement of any length.
  const char* PushLong(std::size_t width) {
    std::string_view bytes;
    if (!ReadText(width, &bytes)) return kEndsEarly;
    const auto byte = [&bytes](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
    const bool negative = !bytes.empty() && byte(bytes.size() - 1) >= 0x80;
    PickleValue* const number = Push(Kind::kInt);
    std::uint64_t bits = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (i >= 8) {
        if (byte(i) != (negative ? 0xff : 0)) number->kind = Kind::kBigInt;
        continue;
      }
      bits &= ~(std::uint64_t{0xff} << (8 * i));
      bits |= std::uint64_t{byte(i)} << (8 * i);
    }
    number->negative = negative;
    number->magnitude = negative ? ~bits + 1 : bits;
    // Below -2^64 + 1 the magnitude needs a 65th bit.
    if (negative && number->magnitude == 0) number->kind = Kind::kBigInt;
    return nullptr;
  }

  const char* PushFloat() {
    if (data_.size() - position_ < 8) return kEndsEarly;
    std::uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) {
      bits = bits << 8 | static_cast<unsigned char>(data_[position_++]);
    }
    static_assert(sizeof(bits) == sizeof(double));
    std::memcpy(&Push(Kind::kFloat)->real, &bits, sizeof(bits));
    return nullptr;
  }

  // Takes everything above the last mark off the stack and the mark with it.
  bool PopMark(std::vector<const PickleValue*>* items) {
    if (marks_.empty() || marks_.back() > stack_.size()) return false;
    items->assign(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return true;
  }

  // How many values lie above the last mark, or in all.
  std::size_t Available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  const char* PushFromMark(Kind kind) {
    std::vector<const PickleValue*> items;
    if (!PopMark(&items)) return kBadStack;
    if (kind == Kind::kDict && items.size() % 2 != 0) return kBadStack;
    Push(kind)->items = std::move(items);
    return nullptr;
  }

  const char* PushTuple(std::size_t count) {
    if (Available() < count) return kBadStack;
    std::vector<const PickleValue*> items(stack_.end() - static_cast<std::ptrdiff_t>(count),
                                          stack_.end());
    stack_.resize(stack_.size() - count);
    Push(Kind::kList)->items = std::move(items);
    return nullptr;
  }

  // Adds `count` values from the top of the stack to the container below them.
  const char* AddFromStack(Kind kind, std::size_t count) {
    if (Available() < count + 1) return kBadStack;
    PickleValue* const container = stack_[stack_.size() - count - 1];
    if (container->kind != kind) return kBadStack;
    container->items.insert(container->items.end(),
                            stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return nullptr;
  }

  const char* AddFromMark(Kind kind) {
    std::vector<const PickleValue*> items;
    if (!PopMark(&items) || Available() < 1 || stack_.back()->kind != kind) return kBadStack;
    if (kind == Kind::kDict && items.size() % 2 != 0) return kBadStack;
    std::vector<const PickleValue*>& all = stack_.back()->items;
    all.insert(all.end(), items.begin(), items.end());
    return nullptr;
  }

  const char* Put(std::uint64_t index) {
    if (Available() < 1) return kBadStack;
    // Bounded by the data, or a few bytes could ask for gigabytes.
    if (index > data_.size()) return kBadMemo;
    if (index >= memo_.size()) memo_.resize(static_cast<std::size_t>(index) + 1, nullptr);
    memo_[static_cast<std::size_t>(index)] = stack_.back();
    return nullptr;
  }

  const char* PutNumbered(std::size_t width) {
    std::uint64_t index = kUnset;
    return ReadNumber(width, &index) ? Put(index) : kEndsEarly;
  }

  const char* Get(std::size_t width) {
    std::uint64_t index = kUnset;
    if (!ReadNumber(width, &index)) return kEndsEarly;
    if (index >= memo_.size() || memo_[static_cast<std::size_t>(index)] == nullptr) return kBadMemo;
    stack_.push_back(memo_[static_cast<std::size_t>(index)]);
    return nullptr;
  }

  const char* Stop() {
    if (stack_.size() != 1 || !marks_.empty()) return kBadStack;
    pickle_.root_ = stack_.back();
    return nullptr;
  }

  const char* Step() {
    if (position_ == data_.size()) return kEndsEarly;
    const auto opcode = static_cast<unsigned char>(data_[position_++]);
    std::uint64_t number = 0;
    switch (opcode) {
      case kProto:
        if (!ReadNumber(1, &number)) return kEndsEarly;
        return number >= 2 && number <= 5 ? nullptr : "the protocol must be 2 to 5";
      case kFrame:
        return ReadNumber(8, &number) ? nullptr : kEndsEarly;
      case kStop:
        return Stop();
      case kMark:
        marks_.push_back(stack_.size());
        return nullptr;
      case kPop:
        // Without values above the last mark, Python's pop takes the mark.
        if (Available() > 0) {
          stack_.pop_back();
        } else if (!marks_.empty()) {
          marks_.pop_back();
        } else {
          return kBadStack;
        }
        return nullptr;
      case kPopMark: {
        std::vector<const PickleValue*> unused;
        return PopMark(&unused) ? nullptr : kBadStack;
      }
      case kDup:
        if (Available() < 1) return kBadStack;
        stack_.push_back(stack_.back());
        return nullptr;
      default:
        return opcode == kMemoize || opcode == kBinPut || opcode == kLongBinPut ||
                       opcode == kBinGet || opcode == kLongBinGet
                   ? StepMemo(opcode)
                   : StepValue(opcode);
    }
  }

  const char* StepMemo(unsigned char opcode) {
    switch (opcode) {
      case kMemoize:
        return Put(memo_.size());
      case kBinPut:
        return PutNumbered(1);
      case kLongBinPut:
        return PutNumbered(4);
      case kBinGet:
        return Get(1);
      default:
        return Get(4);
    }
  }

  const char* StepValue(unsigned char opcode) {
    switch (opcode) {
      case kNone:
        Push(Kind::kNone);
        return nullptr;
      case kNewTrue:
      case kNewFalse:
        Push(Kind::kBool)->magnitude = opcode == kNewTrue ? 1 : 0;
        return nullptr;
      case kBinInt:
        return PushBinInt();
      case kBinInt1:
        return PushUnsigned(1);
      case kBinInt2:
        return PushUnsigned(2);
      case kLong1:
        return PushLong(1);
      case kLong4:
        return PushLong(4);
      case kBinFloat:
        return PushFloat();
      case kShortBinUnicode:
        return PushText(Kind::kText, 1);
      case kBinUnicode:
        return PushText(Kind::kText, 4);
      case kBinUnicode8:
        return PushText(Kind::kText, 8);
      case kShortBinBytes:
        return PushText(Kind::kBytes, 1);
      case kBinBytes:
        return PushText(Kind::kBytes, 4);
      case kBinBytes8:
        return PushText(Kind::kBytes, 8);
      default:
        return StepContainer(opcode);
    }
  }

  const char* StepContainer(unsigned char opcode) {
    switch (opcode) {
      case kEmptyList:
      case kEmptyTuple:
      case kEmptySet:
        Push(Kind::kList);
        return nullptr;
      case kEmptyDict:
        Push(Kind::kDict);
        return nullptr;
      case kList:
      case kTuple:
      case kFrozenSet:
        return PushFromMark(Kind::kList);
      case kDict:
        return PushFromMark(Kind::kDict);
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return PushTuple(opcode - kTuple1 + 1u);
      case kAppend:
        return AddFromStack(Kind::kList, 1);
      case kAppends:
      case kAddItems:
        return AddFromMark(Kind::kList);
      case kSetItem:
        return AddFromStack(Kind::kDict, 2);
      case kSetItems:
        return AddFromMark(Kind::kDict);
      default:
        return "not plain data: it could run code, and is refused";
    }
  }

  std::string_view data_;
  std::size_t position_ = 0;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::vector<PickleValue*> memo_;
};

bool Pickle::LooksLikePickle(std::string_view data) {
  return data.size() >= 2 && data[0] == '\x80' && data[1] >= 2 && data[1] <= 5;
}

absl::StatusOr<Pickle> Pickle::Parse(std::string_view data) { return PickleParser(data).Run(); }

const PickleValue* Pickle::Find(const PickleValue& dict, std::string_view key) {
  if (dict.kind != Kind::kDict || dict.items.size() > 2 * kMaxRecordKeys) return nullptr;
  // The last of equal keys counts, as in Python.
  for (std::size_t i = dict.items.size(); i >= 2; i -= 2) {
    const PickleValue& name = *dict.items[i - 2];
    if (name.kind == Kind::kText && name.text == key) return dict.items[i - 1];
  }
  return nullptr;
}

}  // namespace hbm::observe
