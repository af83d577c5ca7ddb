// SPDX-License-Identifier: Apache-2.0
#include "sharing/state.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "sharing/ledger.h"
#include "sharing/slot_file.h"

namespace hbm::sharing {
namespace {

constexpr absl::Duration kKeepOddFiles = absl::Hours(24);

std::string Text(const char* text, std::size_t most) {
  return std::string(text, strnlen(text, most));
}

// Names in the directory that begin as this user's files of `kind` do.
absl::StatusOr<std::vector<std::string>> FindFiles(std::string_view kind) {
  const absl::StatusOr<std::string> directory = SharingDirectory();
  if (!directory.ok()) return directory.status();
  const absl::StatusOr<std::string> prefix = SharingFileName(kind, "");
  if (!prefix.ok()) return prefix.status();
  std::vector<std::string> paths;
  DIR* const entries = opendir(directory->c_str());
  if (entries == nullptr) {
    return absl::UnavailableError(absl::StrCat(*directory, ": ", std::strerror(errno)));
  }
  while (const dirent* const entry = readdir(entries)) {
    if (absl::StartsWith(entry->d_name, *prefix)) {
      paths.push_back(absl::StrCat(*directory, "/", entry->d_name));
    }
  }
  closedir(entries);
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool IsOddFile(const std::string& path) {
  return absl::StrContains(path, ".bad.") || absl::StrContains(path, ".new.");
}

SharingProcess ProcessIn(const SlotFile& file, std::uint32_t index) {
  const Slot& slot = file.slot(index);
  SharingProcess process;
  process.pid = slot.pid.load();
  process.alive = file.IsAlive(index);
  process.is_command = slot.kind.load() == static_cast<std::uint32_t>(OwnerKind::kCommand);
  process.name = Text(slot.name, sizeof(slot.name));
  process.strategy = Text(slot.strategy, sizeof(slot.strategy));
  process.sharing = static_cast<Sharing>(std::min<std::uint32_t>(slot.sharing.load(), 2));
  process.limit = slot.limit.load();
  process.charged = slot.charged.load();
  process.held = slot.held.load();
  process.overhead = slot.overhead.load();
  process.in_use = slot.in_use.load();
  process.largest_free = slot.largest_free.load();
  process.wants = slot.wants_until.load() > MonotonicNow() ? slot.wants.load() : 0;
  process.waits = slot.waits.load();
  process.joined = absl::FromUnixNanos(static_cast<std::int64_t>(slot.joined_at.load()));
  if (!process.is_command && process.held > process.in_use) {
    const auto free = static_cast<double>(process.held - process.in_use);
    process.external = std::max(0.0, 1 - static_cast<double>(process.largest_free) / free);
  }
  return process;
}

absl::StatusOr<SharingState> ReadState(SlotFile* file) {
  SharingState state;
  state.uuid = file->key();
  state.file = file->path();
  state.capacity = file->capacity();
  // Under the lock nothing grows, so that sums are of one moment, or less.
  SlotFile::Lock lock(file);
  if (!lock.status().ok()) return lock.status();
  for (std::uint32_t i = 0; i < file->used_slots(); ++i) {
    if (file->slot(i).taken.load(std::memory_order_acquire) == 0) continue;
    SharingProcess process = ProcessIn(*file, i);
    std::size_t place = 0;
    const Books books = ReadBooks(*file, static_cast<int>(i), &place);
    if (place < books.claims.size()) {
      process.part = PartOf(books, place);
      process.share = books.claims[place].share;
    }
    state.reserve = books.reserve;
    if (process.alive) state.held += process.held + process.overhead;
    state.processes.push_back(std::move(process));
  }
  return state;
}

// Whether it was removed.
bool RemoveIfUnused(const std::string& path, int* slots) {
  const absl::StatusOr<std::unique_ptr<SlotFile>> file = SlotFile::OpenPath(path);
  if (!file.ok()) return false;
  SlotFile::Lock lock(file->get());
  if (!lock.status().ok()) return false;
  *slots += (*file)->ReapLocked(absl::ZeroDuration());
  for (std::uint32_t i = 0; i < (*file)->used_slots(); ++i) {
    if ((*file)->slot(i).taken.load(std::memory_order_acquire) != 0) return false;
  }
  // Who opened it meanwhile sees under the lock that it is gone, and opens anew.
  return unlink(path.c_str()) == 0;
}

bool RemoveIfOld(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return false;
  if (absl::Now() - absl::FromTimeT(info.st_mtime) < kKeepOddFiles) return false;
  return (S_ISDIR(info.st_mode) ? rmdir(path.c_str()) : unlink(path.c_str())) == 0;
}

}  // namespace

absl::StatusOr<CleanUp> RemoveDead() {
  CleanUp done;
  for (const char* const kind : {"ledger", "capacity"}) {
    const absl::StatusOr<std::vector<std::string>> paths = FindFiles(kind);
    if (!paths.ok()) return paths.status();
    for (const std::string& path : *paths) {
      int slots = 0;
      const bool removed = IsOddFile(path) ? RemoveIfOld(path) : RemoveIfUnused(path, &slots);
      // A capacity's slots are a simulated driver's matter.
      if (std::strcmp(kind, "ledger") == 0) done.slots += slots;
      if (removed) done.removed.push_back(path);
    }
  }
  return done;
}

}  // namespace hbm::sharing

namespace hbm {

absl::StatusOr<SharingState> GetSharingState(std::string_view uuid) {
  sharing::SlotFile::Options options;
  options.kind = "ledger";
  options.key = std::string(uuid);
  options.create = false;
  const absl::StatusOr<std::unique_ptr<sharing::SlotFile>> file = sharing::SlotFile::Open(options);
  if (!file.ok()) return file.status();
  return sharing::ReadState(file->get());
}

absl::StatusOr<std::vector<SharingState>> ListSharedDevices() {
  const absl::StatusOr<std::vector<std::string>> paths = sharing::FindFiles("ledger");
  if (!paths.ok()) return paths.status();
  std::vector<SharingState> states;
  for (const std::string& path : *paths) {
    if (sharing::IsOddFile(path)) continue;
    const absl::StatusOr<std::unique_ptr<sharing::SlotFile>> file =
        sharing::SlotFile::OpenPath(path);
    if (!file.ok()) continue;  // it went away, or is no file of ours
    absl::StatusOr<SharingState> state = sharing::ReadState(file->get());
    if (!state.ok()) return state.status();
    states.push_back(*std::move(state));
  }
  return states;
}

}  // namespace hbm
