// SPDX-License-Identifier: Apache-2.0
#include "observe/gunzip.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#ifdef HBMALLOC_HAVE_ZLIB
#include <zlib.h>
#endif

namespace hbm::observe {

bool LooksLikeGzip(std::string_view data) {
  return data.size() >= 2 && data[0] == '\x1f' && data[1] == '\x8b';
}

#ifdef HBMALLOC_HAVE_ZLIB
namespace {

// Window bits of 15, plus 16 for the gzip wrapper.
constexpr int kGzipWindowBits = 31;

class Inflater {
 public:
  Inflater(std::string_view data, std::size_t max_bytes) : data_(data), max_bytes_(max_bytes) {}
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() {
    if (ready_) inflateEnd(&stream_);
  }

  absl::StatusOr<std::string> Run() {
    if (inflateInit2(&stream_, kGzipWindowBits) != Z_OK) {
      return absl::ResourceExhaustedError("gzip: no memory to unpack");
    }
    ready_ = true;
    for (;;) {
      const int result = Step();
      if (made_ > max_bytes_) {
        return absl::InvalidArgumentError(
            absl::StrCat("gzip: unpacks to more than ", max_bytes_, " bytes"));
      }
      if (result == Z_STREAM_END) {
        // Another member may follow; anything else that does is ignored, as gzip does.
        if (!LooksLikeGzip(data_)) break;
        if (inflateReset(&stream_) != Z_OK) return Damaged();
      } else if (result == Z_BUF_ERROR && data_.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("gzip: the data ends too early, after ", made_, " unpacked bytes"));
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return Damaged();
      }
    }
    out_.resize(made_);
    return std::move(out_);
  }

 private:
  absl::Status Damaged() const {
    return absl::InvalidArgumentError(absl::StrCat(
        "gzip: the data is damaged after ", made_, " unpacked bytes",
        stream_.msg == nullptr ? "" : ": ", stream_.msg == nullptr ? "" : stream_.msg));
  }

  int Step() {
    constexpr std::size_t kMaxPiece = std::numeric_limits<uInt>::max();
    if (made_ == out_.size()) {
      out_.resize(std::max<std::size_t>(out_.size() * 2, data_.size() * 4 + 4096));
    }
    const auto in = static_cast<uInt>(std::min(data_.size(), kMaxPiece));
    const auto room = static_cast<uInt>(std::min(out_.size() - made_, kMaxPiece));
    // zlib's interface predates const; it only reads.
    stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(data_.data()));
    stream_.avail_in = in;
    stream_.next_out = reinterpret_cast<Bytef*>(out_.data() + made_);
    stream_.avail_out = room;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    data_.remove_prefix(in - stream_.avail_in);
    made_ += room - stream_.avail_out;
    return result;
  }

  std::string_view data_;
  std::size_t max_bytes_;
  std::string out_;
  std::size_t made_ = 0;
  z_stream stream_{};
  bool ready_ = false;
};

}  // namespace

absl::StatusOr<std::string> Gunzip(std::string_view data, std::size_t max_bytes) {
  return Inflater(data, max_bytes).Run();
}

#else

absl::StatusOr<std::string> Gunzip(std::string_view, std::size_t) {
  return absl::UnimplementedError(
      "gzip: this library was built without zlib; unpack the file first (gzip -d)");
}

#endif

}  // namespace hbm::observe
