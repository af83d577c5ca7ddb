// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as the file in which processes share a device: trusted only if it is as it
// should be, else set aside; and whatever its figures say, nobody is given more than
// there is, and nobody waits.
//
// Input: a byte that says how to spoil a real file (or not to use one), then bytes that
// are the file, or that are laid over the real one at places that they name.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hbmalloc/log.h"
#include "sharing/ledger.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/sharing_dir.h"

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kCapacity = 80 * kGiB;

hbm::sharing::Terms FirstCome() {
  hbm::sharing::Terms terms;
  terms.sharing = hbm::Sharing::kFirstCome;
  terms.name = "fuzz";
  return terms;
}

std::string ReadAll(const std::string& path) {
  std::string bytes;
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return bytes;
  char buffer[65536];
  for (std::size_t got; (got = std::fread(buffer, 1, sizeof(buffer), file)) != 0;) {
    bytes.append(buffer, got);
  }
  std::fclose(file);
  return bytes;
}

void WriteAll(const std::string& path, const std::string& bytes) {
  const int file = open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  Require(file >= 0);
  const ssize_t written = write(file, bytes.data(), bytes.size());
  Require(written == static_cast<ssize_t>(bytes.size()));
  close(file);
}

// Bytes of the input at places of the file: four bytes of place, one of length.
void LayOver(std::string* file, std::string_view input) {
  while (input.size() > 5 && !file->empty()) {
    std::uint32_t place = 0;
    std::memcpy(&place, input.data(), sizeof(place));
    const std::size_t length =
        std::min<std::size_t>(1 + static_cast<unsigned char>(input[4]) % 16, input.size() - 5);
    place %= static_cast<std::uint32_t>(file->size());
    // Most of what matters lies at the front.
    if ((input[4] & 0x80) != 0)
      place %= std::min<std::uint32_t>(2048, static_cast<std::uint32_t>(file->size()));
    for (std::size_t i = 0; i < length && place + i < file->size(); ++i) {
      (*file)[place + i] = input[5 + i];
    }
    input.remove_prefix(5 + length);
  }
}

// A file as the library makes it, and what it is called.
struct Real {
  std::string name;
  std::string bytes;
};
const Real& RealFile() {
  static const Real* const real = [] {
    hbm::testing::SharingDir dir;
    const auto ledger = hbm::sharing::Ledger::Join("GPU-1", kCapacity, FirstCome());
    Require(ledger.ok());
    Require((*ledger)->Charge(kGiB, [] { return kCapacity; }).ok());
    for (const std::string& name : dir.Files()) {
      if (name.find("ledger") != std::string::npos) {
        return new Real{name, ReadAll(dir.path() + "/" + name)};
      }
    }
    std::abort();
  }();
  return *real;
}

void Use(hbm::sharing::Ledger& ledger) {
  const auto free = [] { return absl::StatusOr<std::uint64_t>(kCapacity); };
  std::uint64_t could = 0;
  const absl::Status charged = ledger.Charge(2 * kGiB, free, &could);
  if (charged.ok()) {
    ledger.Commit(kGiB);
    ledger.Refund(kGiB);
    Require(ledger.held() >= kGiB && ledger.held() <= kCapacity);
    ledger.Release(kGiB);
  }
  Require(!ledger.Charge(kCapacity + 1, free).ok());
  Require(could <= kCapacity);
  const absl::StatusOr<std::uint64_t> room = ledger.Room(free);
  Require(!room.ok() || *room <= kCapacity);
  ledger.Publish(1, 1);
  ledger.Want(kGiB);
  ledger.WantedByOthers();
  ledger.StopWanting();
  ledger.DescribeHolders();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool silent = [] {
    hbm::SetLogSink([](hbm::LogSeverity, std::string_view) {});
    return true;
  }();
  static_cast<void>(silent);
  if (size == 0) return 0;
  const Real& real = RealFile();
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string file(rest);
  if (data[0] % 4 != 0) {
    file = real.bytes;
    LayOver(&file, rest);
    if (data[0] % 4 == 3) file.resize(file.size() * data[0] / 256);
  }
  hbm::testing::SharingDir dir;
  WriteAll(dir.path() + "/" + real.name, file);
  for (int i = 0; i < 2; ++i) {
    const auto ledger = hbm::sharing::Ledger::Join("GPU-1", kCapacity, FirstCome());
    if (ledger.ok()) Use(**ledger);
  }
  return 0;
}
