// SPDX-License-Identifier: Apache-2.0
#include "sharing/slot_file.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/forked.h"
#include "observe/log.h"
#include "policy/text.h"

namespace hbm::sharing {

std::atomic<void (*)()> step_hook{nullptr};

namespace {

using policy::View;

constexpr char kMagic[8] = {'h', 'b', 'm', 's', 'l', 'o', 't', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 4096;
constexpr std::size_t kFileBytes = kHeaderBytes + kSlots * sizeof(Slot);
constexpr std::size_t kMaxKey = 127;

// Bytes of the file that stand for its lock and for the slots' lives. Locks need no
// byte to be there, so they are where nobody reads or writes.
constexpr off_t kFileLockByte = off_t{1} << 40;
constexpr off_t kSlotLockByte = kFileLockByte + 1;

// A holder does microseconds of work; one that takes longer than this is stopped.
constexpr absl::Duration kLongestWaitForLock = absl::Seconds(10);
constexpr int kYieldsBeforeNaps = 4;
constexpr long kFirstNapNanoseconds = 20'000;
constexpr long kLongestNapNanoseconds = 2'000'000;

constexpr int kOpenTries = 16;
// One in this many slots is looked at closely when the dead are looked for in passing.
constexpr std::uint32_t kClosely = 16;

std::uint64_t Fingerprint(const void* data, std::size_t bytes) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (std::size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3U;
  }
  return hash;
}

// Some kernels' stand-ins (gVisor) have no locks on bytes of open files. There the whole
// file's lock, of the same kind, guards it, and slots are known by their pids alone.
bool HasByteLocks(int file) {
  static const bool has = [file] {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = kFileLockByte;
    lock.l_len = 1;
    return fcntl(file, F_OFD_GETLK, &lock) == 0 || errno != EINVAL;
  }();
  return has;
}

// Locks on bytes of open files, which end with the last descriptor of the open file.
bool TryLockByte(int file, off_t byte) {
  if (!HasByteLocks(file)) return byte != kFileLockByte || flock(file, LOCK_EX | LOCK_NB) == 0;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

void UnlockByte(int file, off_t byte) {
  if (!HasByteLocks(file)) {
    if (byte == kFileLockByte) flock(file, LOCK_UN);
    return;
  }
  struct flock lock = {};
  lock.l_type = F_UNLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  fcntl(file, F_OFD_SETLK, &lock);
}

// Whether another open file holds the byte. An error counts as held: nobody is
// declared dead by mistake.
bool IsLockedByOther(int file, off_t byte) {
  if (!HasByteLocks(file)) return true;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

// Descriptors that a child of fork must not keep: with them it would hold its
// parent's locks after the parent's death. A plain array, so that the child's handler
// needs no lock that a thread of the parent may hold.
constexpr std::size_t kMaxOpen = 4096;
std::atomic<int> open_files[kMaxOpen];  // descriptor + 1; 0: none

void CloseAllInChild() {
  for (std::atomic<int>& entry : open_files) {
    const int file = entry.exchange(0, std::memory_order_relaxed) - 1;
    if (file >= 0) close(file);
  }
}

bool Remember(int file) {
  static const int registered = pthread_atfork(nullptr, nullptr, &CloseAllInChild);
  if (registered != 0) return false;
  for (std::atomic<int>& entry : open_files) {
    int none = 0;
    if (entry.compare_exchange_strong(none, file + 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

void ForgetAndClose(int file) {
  for (std::atomic<int>& entry : open_files) {
    int expected = file + 1;
    if (entry.compare_exchange_strong(expected, 0, std::memory_order_relaxed)) break;
  }
  close(file);
}

absl::StatusOr<gid_t> SharingGroup() {
  const char* const text = std::getenv("HBMALLOC_SHARING_GROUP");
  if (text == nullptr || *text == '\0') return static_cast<gid_t>(-1);
  unsigned id = 0;
  if (absl::SimpleAtoi(text, &id)) return static_cast<gid_t>(id);
  group entry;
  group* found = nullptr;
  std::vector<char> buffer(std::size_t{1} << 14);
  if (getgrnam_r(text, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) {
    return found->gr_gid;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("HBMALLOC_SHARING_GROUP: no group is called \"", text, "\""));
}

bool IsDirectoryToWriteIn(const char* path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode) && access(path, W_OK | X_OK) == 0;
}

std::uint64_t Saturated(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b
             ? std::numeric_limits<std::uint64_t>::max()
             : a + b;
}

void CopyName(const std::string& from, char* to, std::size_t bytes) {
  std::memset(to, 0, bytes);
  std::memcpy(to, from.data(), std::min(from.size(), bytes - 1));
}

}  // namespace

// Written once, before anybody else can see the file, down to `checksum`.
struct SlotFile::Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint32_t slot_bytes;
  std::uint32_t slots;
  std::uint64_t capacity;
  char key[kMaxKey + 1];
  std::uint64_t checksum;
  // What changes.
  alignas(64) std::atomic<std::uint32_t> used_slots;
  std::atomic<std::int32_t> lock_holder;  // for a message only
  std::atomic<std::uint64_t> tickets;
  std::atomic<std::uint64_t> reaped_at;  // CLOCK_MONOTONIC
  std::atomic<std::uint32_t> reaps;
  alignas(64) std::atomic<std::uint32_t> wanted_sequence;

  std::uint64_t ComputeChecksum() const {
    return Fingerprint(this, offsetof(SlotFile::Header, checksum));
  }
};

std::uint64_t MonotonicNow() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

absl::StatusOr<std::string> SharingDirectory() {
  const char* const given = std::getenv("HBMALLOC_SHARING_DIR");
  if (given != nullptr && *given != '\0') {
    if (IsDirectoryToWriteIn(given)) return std::string(given);
    return absl::UnavailableError(absl::StrCat("HBMALLOC_SHARING_DIR: \"", given,
                                               "\" is no directory that this user may write in"));
  }
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  for (const char* const path : {"/dev/shm", runtime}) {
    if (path != nullptr && IsDirectoryToWriteIn(path)) return std::string(path);
  }
  return absl::UnavailableError(
      "sharing: neither /dev/shm nor XDG_RUNTIME_DIR is a directory that this user may write in; "
      "HBMALLOC_SHARING_DIR names another one that all processes on the device see");
}

absl::StatusOr<std::string> SharingFileName(std::string_view kind, std::string_view key) {
  const absl::StatusOr<gid_t> group = SharingGroup();
  if (!group.ok()) return group.status();
  std::string safe(key);
  for (char& c : safe) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '_';
  }
  const std::string owner =
      *group == static_cast<gid_t>(-1) ? absl::StrCat("u", geteuid()) : absl::StrCat("g", *group);
  return absl::StrCat("hbmalloc", kVersion, "-", View(kind), "-", owner, "-", safe);
}

namespace {

absl::Status SystemError(const std::string& path, const char* what) {
  return absl::UnavailableError(
      absl::StrCat("sharing: ", path, ": ", what, ": ", std::strerror(errno)));
}

// A whole file with its header, under a name of its own, then linked to `path` unless
// one is there already: nobody ever sees a half-made file.
template <typename FillHeader>
absl::Status MakeFile(const std::string& path, const FillHeader& fill_header) {
  const absl::StatusOr<gid_t> group = SharingGroup();
  if (!group.ok()) return group.status();
  const bool grouped = *group != static_cast<gid_t>(-1);
  const std::string fresh = absl::StrCat(path, ".new.", getpid(), ".", MonotonicNow());
  const int file = open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return SystemError(fresh, "cannot be made");
  std::vector<char> header(kHeaderBytes, 0);
  fill_header(header.data());
  absl::Status made;
  if (ftruncate(file, static_cast<off_t>(kFileBytes)) != 0 ||
      pwrite(file, header.data(), kHeaderBytes, 0) != static_cast<ssize_t>(kHeaderBytes)) {
    made = SystemError(fresh, "cannot be written");
  } else if (grouped &&
             (fchown(file, static_cast<uid_t>(-1), *group) != 0 || fchmod(file, 0660) != 0)) {
    made = SystemError(fresh, "cannot be given to the group in HBMALLOC_SHARING_GROUP");
  } else if (link(fresh.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    made = SystemError(path, "cannot be made");
  }
  unlink(fresh.c_str());
  close(file);
  return made;
}

void SetAside(const std::string& path, std::string_view why) {
  const std::string aside =
      absl::StrCat(path, ".bad.", absl::ToUnixSeconds(absl::Now()), ".", getpid());
  const bool moved = rename(path.c_str(), aside.c_str()) == 0;
  observe::LogWarning(policy::View(absl::UnknownError(
      absl::StrCat("sharing: ", path, " is not a usable file (", View(why), "); ",
                   moved ? "it is set aside as " : "it cannot be renamed to ", aside))));
}

}  // namespace

SlotFile::SlotFile(int file, void* mapping, std::string path)
    : file_(file),
      path_(std::move(path)),
      made_in_(core::ForkGeneration()),
      header_(static_cast<Header*>(mapping)),
      slots_(reinterpret_cast<Slot*>(static_cast<char*>(mapping) + kHeaderBytes)) {
  static_assert(sizeof(Header) <= kHeaderBytes);
}

SlotFile::~SlotFile() {
  // A child of fork has neither the mapping nor the descriptor.
  if (made_in_ != core::ForkGeneration()) return;
  Leave();
  munmap(header_, kFileBytes);
  ForgetAndClose(file_);
}

absl::Status SlotFile::CheckProcess() const {
  if (made_in_ == core::ForkGeneration()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process is the child of a fork: its parent's share of the device is not its own, and a "
      "driver does not work in it; use the device in processes that are started afresh (spawn or "
      "forkserver in Python's multiprocessing), or make the allocator after the fork");
}

// InvalidArgument: the file is not one of ours, and says why.
absl::StatusOr<std::unique_ptr<SlotFile>> SlotFile::MapChecked(int file, const std::string& path,
                                                               const Options& options) {
  const auto bad = [](std::string_view why) { return absl::InvalidArgumentError(View(why)); };
  struct stat info;
  if (fstat(file, &info) != 0) return SystemError(path, "cannot be looked at");
  if (!S_ISREG(info.st_mode)) return bad("not a plain file");
  if (info.st_size != static_cast<off_t>(kFileBytes)) return bad("its size is wrong");
  if ((info.st_mode & 0007) != 0) return bad("everybody may open it");
  void* const mapping = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapping == MAP_FAILED) return SystemError(path, "cannot be mapped");
  const auto fail = [&](const absl::Status& status) {
    munmap(mapping, kFileBytes);
    return status;
  };
  const Header& header = *static_cast<const Header*>(mapping);
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return fail(bad("no mark of ours"));
  if (header.version != kVersion || header.header_bytes != kHeaderBytes ||
      header.slot_bytes != sizeof(Slot) || header.slots != kSlots) {
    return fail(bad("another version"));
  }
  if (header.checksum != header.ComputeChecksum() || header.key[kMaxKey] != '\0') {
    return fail(bad("its checksum is wrong"));
  }
  if (!options.key.empty() && options.key != header.key) return fail(bad("another device's"));
  if (header.used_slots.load() > kSlots) return fail(bad("its count of slots is wrong"));
  const auto* const slots =
      reinterpret_cast<const Slot*>(static_cast<const char*>(mapping) + kHeaderBytes);
  for (std::uint32_t i = 0; i < header.used_slots.load(); ++i) {
    const Slot& slot = slots[i];
    if (slot.taken.load(std::memory_order_acquire) == 0) continue;
    if (slot.taken.load() != 1 || slot.held.load() > (std::uint64_t{1} << 60) ||
        slot.name[sizeof(slot.name) - 1] != '\0' ||
        slot.strategy[sizeof(slot.strategy) - 1] != '\0') {
      return fail(bad(absl::StrCat("slot ", i, " cannot be right")));
    }
  }
  if (options.capacity != 0 && options.capacity != header.capacity) {
    return fail(absl::FailedPreconditionError(
        absl::StrCat("sharing: ", path, ": other processes know this device with ",
                     policy::FormatBytesExact(header.capacity), " in total, here it has ",
                     policy::FormatBytesExact(options.capacity),
                     "; if nobody uses it any more, `hbm-top --gc` removes the file")));
  }
  // A child of fork gets no mapping; it would be no use to it.
  madvise(mapping, kFileBytes, MADV_DONTFORK);
  return std::unique_ptr<SlotFile>(new SlotFile(file, mapping, path));
}

absl::StatusOr<std::unique_ptr<SlotFile>> SlotFile::Open(const Options& options) {
  const absl::StatusOr<std::string> directory = SharingDirectory();
  if (!directory.ok()) return directory.status();
  const absl::StatusOr<std::string> name = SharingFileName(options.kind, options.key);
  if (!name.ok()) return name.status();
  if (options.key.empty() || options.key.size() > kMaxKey) {
    return absl::InvalidArgumentError(absl::StrCat("sharing: a device's name must have 1 to ",
                                                   kMaxKey, " characters: \"", options.key, "\""));
  }
  const std::string path = absl::StrCat(*directory, "/", *name);
  for (int tries = 0; tries < kOpenTries; ++tries) {
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file >= 0) {
      absl::StatusOr<std::unique_ptr<SlotFile>> mapped = MapChecked(file, path, options);
      if (mapped.ok()) {
        if (Remember(file)) return mapped;
        return absl::ResourceExhaustedError(
            absl::StrCat("sharing: more than ", kMaxOpen, " shared devices are open"));
      }
      close(file);
      if (!absl::IsInvalidArgument(mapped.status())) return mapped.status();
      SetAside(path, View(mapped.status()));
    } else if (errno == ENOENT) {
      if (!options.create) return absl::NotFoundError(absl::StrCat("sharing: no file ", path));
      const absl::Status made = MakeFile(path, [&](char* bytes) {
        auto* const header = reinterpret_cast<Header*>(bytes);
        std::memcpy(header->magic, kMagic, sizeof(kMagic));
        header->version = kVersion;
        header->header_bytes = kHeaderBytes;
        header->slot_bytes = sizeof(Slot);
        header->slots = kSlots;
        header->capacity = options.capacity;
        std::memcpy(header->key, options.key.data(), options.key.size());
        header->checksum = header->ComputeChecksum();
      });
      if (!made.ok()) return made;
    } else if (errno == ELOOP || errno == EISDIR || errno == ENXIO) {
      SetAside(path, "not a plain file");
    } else {
      return SystemError(path, "cannot be opened");
    }
  }
  return absl::UnavailableError(
      absl::StrCat("sharing: ", path, " can be neither used, nor set aside and made anew"));
}

absl::StatusOr<std::unique_ptr<SlotFile>> SlotFile::OpenPath(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return SystemError(path, "cannot be opened");
  absl::StatusOr<std::unique_ptr<SlotFile>> mapped = MapChecked(file, path, {});
  if (mapped.ok() && Remember(file)) return mapped;
  if (!mapped.ok()) close(file);
  return mapped;
}

bool SlotFile::IsStillAtPath() const {
  struct stat opened;
  struct stat there;
  return fstat(file_, &opened) == 0 && stat(path_.c_str(), &there) == 0 &&
         opened.st_ino == there.st_ino && opened.st_dev == there.st_dev;
}

absl::Status SlotFile::LockFile() {
  const std::uint64_t deadline =
      MonotonicNow() + static_cast<std::uint64_t>(absl::ToInt64Nanoseconds(kLongestWaitForLock));
  long nap = kFirstNapNanoseconds;
  for (int tries = 0; !TryLockByte(file_, kFileLockByte); ++tries) {
    if (tries < kYieldsBeforeNaps) {
      sched_yield();
      continue;
    }
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "sharing: ", path_, " is locked for more than ",
          absl::FormatDuration(kLongestWaitForLock), " by process ", header_->lock_holder.load(),
          "; if that one is stopped (state T), continue or end it"));
    }
    // A length that differs from process to process keeps them apart.
    const timespec duration{0, nap + static_cast<long>(MonotonicNow() % 97) * nap / 97};
    nanosleep(&duration, nullptr);
    nap = std::min(nap * 2, kLongestNapNanoseconds);
  }
  header_->lock_holder.store(getpid(), std::memory_order_relaxed);
  struct stat info;
  if (fstat(file_, &info) != 0 || info.st_size != static_cast<off_t>(kFileBytes)) {
    UnlockByte(file_, kFileLockByte);
    return absl::DataLossError(absl::StrCat(
        "sharing: ", path_, " was cut short while in use; it is not trusted any more"));
  }
  return absl::OkStatus();
}

void SlotFile::UnlockFile() { UnlockByte(file_, kFileLockByte); }

SlotFile::Lock::Lock(SlotFile* file) HBM_NO_THREAD_SAFETY_ANALYSIS : file_(file),
                                                                     status_(file->CheckProcess()) {
  // In a child of fork another thread may have held the mutex, and will for ever.
  if (!status_.ok()) return;
  file_->mutex_.Lock();
  status_ = file_->LockFile();
  if (!status_.ok()) file_->mutex_.Unlock();
}

SlotFile::Lock::~Lock() HBM_NO_THREAD_SAFETY_ANALYSIS {
  if (!status_.ok()) return;
  file_->UnlockFile();
  file_->mutex_.Unlock();
}

absl::Status SlotFile::Claim(const SlotIdentity& identity) {
  Lock lock(this);
  if (!lock.status().ok()) return lock.status();
  if (own_ != nullptr) return absl::FailedPreconditionError("sharing: the slot is taken already");
  // Renamed or removed since it was opened: others are elsewhere.
  if (!IsStillAtPath()) return absl::AbortedError("sharing: the file was replaced");
  absl::Status claimed = ClaimLocked(identity);
  if (!absl::IsResourceExhausted(claimed)) return claimed;
  ReapLocked(absl::ZeroDuration());
  return ClaimLocked(identity);
}

absl::Status SlotFile::ClaimLocked(const SlotIdentity& identity) {
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots_[i];
    if (slot.taken.load(std::memory_order_acquire) != 0) continue;
    // Held although the slot is free: a child of its last owner is still there.
    if (!TryLockByte(file_, kSlotLockByte + i)) continue;
    Step();
    slot.kind.store(static_cast<std::uint32_t>(identity.kind), std::memory_order_relaxed);
    slot.pid.store(identity.process.pid, std::memory_order_relaxed);
    slot.start_time.store(identity.process.start_time, std::memory_order_relaxed);
    slot.pid_namespace.store(identity.process.pid_namespace, std::memory_order_relaxed);
    slot.sharing.store(identity.sharing, std::memory_order_relaxed);
    slot.joined_at.store(static_cast<std::uint64_t>(absl::GetCurrentTimeNanos()),
                         std::memory_order_relaxed);
    slot.ticket.store(header_->tickets.fetch_add(1, std::memory_order_relaxed),
                      std::memory_order_relaxed);
    for (std::atomic<std::uint64_t>* figure :
         {&slot.held, &slot.charged, &slot.wants, &slot.wants_until, &slot.waits, &slot.in_use,
          &slot.largest_free, &slot.published_at}) {
      figure->store(0, std::memory_order_relaxed);
    }
    Step();
    slot.overhead.store(identity.overhead, std::memory_order_relaxed);
    slot.share_parts.store(identity.share_parts, std::memory_order_relaxed);
    slot.reserve.store(identity.reserve, std::memory_order_relaxed);
    slot.limit.store(identity.limit, std::memory_order_relaxed);
    CopyName(identity.strategy, slot.strategy, sizeof(slot.strategy));
    CopyName(identity.name, slot.name, sizeof(slot.name));
    if (i >= header_->used_slots.load(std::memory_order_relaxed)) {
      header_->used_slots.store(i + 1, std::memory_order_relaxed);
    }
    Step();
    slot.taken.store(1, std::memory_order_release);
    Step();
    own_ = &slot;
    own_index_ = static_cast<int>(i);
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("sharing: ", path_, ": all ", kSlots, " slots are taken by living processes"));
}

void SlotFile::Leave() {
  if (own_ == nullptr || made_in_ != core::ForkGeneration()) return;
  own_->taken.store(0, std::memory_order_release);
  Step();
  UnlockByte(file_, kSlotLockByte + own_index_);
  own_ = nullptr;
  own_index_ = -1;
}

absl::Status SlotFile::KeepOverExec() {
  const int flags = fcntl(file_, F_GETFD);
  if (flags >= 0 && fcntl(file_, F_SETFD, flags & ~FD_CLOEXEC) == 0) return absl::OkStatus();
  return SystemError(path_, "cannot be kept open");
}

bool SlotFile::IsAlive(std::uint32_t index, bool closely) const {
  if (static_cast<int>(index) == own_index_) return true;
  const Slot& slot = slots_[index];
  const bool is_locked = IsLockedByOther(file_, kSlotLockByte + index);
  const bool is_command =
      slot.kind.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(OwnerKind::kCommand);
  // A command may have closed what it did not know.
  if (!is_locked && !is_command) return false;
  const ProcessId owner{slot.pid.load(std::memory_order_relaxed),
                        slot.start_time.load(std::memory_order_relaxed),
                        slot.pid_namespace.load(std::memory_order_relaxed)};
  // Without a lock the pid is all that there is.
  const Presence presence = closely || !is_locked ? LookUp(owner) : LookUpQuickly(owner);
  return presence == Presence::kRunning || (presence == Presence::kUnknown && is_locked);
}

int SlotFile::Reap() {
  Lock lock(this);
  return lock.status().ok() ? ReapLocked(absl::ZeroDuration()) : 0;
}

int SlotFile::ReapLocked(absl::Duration at_most_every) {
  const std::uint64_t now = MonotonicNow();
  const auto least = static_cast<std::uint64_t>(absl::ToInt64Nanoseconds(at_most_every));
  if (now - header_->reaped_at.load(std::memory_order_relaxed) < least) return 0;
  header_->reaped_at.store(now, std::memory_order_relaxed);
  const std::uint32_t turn = header_->reaps.fetch_add(1, std::memory_order_relaxed) % kClosely;
  int reaped = 0;
  for (std::uint32_t i = 0; i < used_slots(); ++i) {
    if (slots_[i].taken.load(std::memory_order_acquire) == 0) continue;
    if (IsAlive(i, least == 0 || i % kClosely == turn)) continue;
    slots_[i].taken.store(0, std::memory_order_release);
    Step();
    ++reaped;
  }
  return reaped;
}

std::uint32_t SlotFile::used_slots() const {
  return std::min(header_->used_slots.load(std::memory_order_relaxed), kSlots);
}

std::uint64_t SlotFile::Sum(bool with_overheads) const {
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < used_slots(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.taken.load(std::memory_order_acquire) == 0) continue;
    sum = Saturated(sum, slot.held.load(std::memory_order_relaxed));
    if (with_overheads) sum = Saturated(sum, slot.overhead.load(std::memory_order_relaxed));
  }
  return sum;
}

std::uint64_t SlotFile::capacity() const { return header_->capacity; }
std::string SlotFile::key() const { return header_->key; }
std::uint64_t SlotFile::NextTicket() { return header_->tickets.fetch_add(1); }

void SlotFile::AnnounceWanted() {
  header_->wanted_sequence.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &header_->wanted_sequence, FUTEX_WAKE, std::numeric_limits<int>::max(),
          nullptr, nullptr, 0);
}

std::uint32_t SlotFile::wanted_sequence() const {
  return header_->wanted_sequence.load(std::memory_order_seq_cst);
}

void SlotFile::WaitForWanted(std::uint32_t seen, absl::Duration timeout) const {
  const timespec limit = absl::ToTimespec(timeout);
  syscall(SYS_futex, &header_->wanted_sequence, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

}  // namespace hbm::sharing
