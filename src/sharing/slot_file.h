// SPDX-License-Identifier: Apache-2.0
//
// File: slot_file.h
//
// A file in shared memory in which every process has a slot of its own: the one
// mechanism under the ledger of a shared device (ledger.h) and under the capacity of
// a simulated one that several processes open (shared_capacity.h).
//
//   absl::StatusOr<std::unique_ptr<SlotFile>> file = SlotFile::Open(options);
//   absl::Status claimed = (*file)->Claim(slot);
//   {
//     SlotFile::Lock lock(file->get());          // short; ends with its process
//     if (!lock.status().ok()) return lock.status();
//     if (file->Sum() + bytes <= capacity) file->own().held += bytes;
//   }
//
// What makes it safe when a process is killed at any instruction:
//
// - There is no total that could go wrong. A total is added up from the slots when it
//   is needed, and a slot is written by its owner alone: whatever its owner leaves
//   half done goes away with the slot.
// - Locks are locks on open files (F_OFD_SETLK), which the kernel lets go when their
//   holder ends. The file's lock guards every growth of a figure that others add up,
//   and the coming and going of slots. What makes a figure smaller needs no lock.
// - A slot is alive while its owner holds the lock on the slot's own byte, and while
//   the owner's pid with its start time is there. Both are needed: a child may have
//   inherited the lock, a pid may be in use again.
// - The kind of a file that is found is checked, never believed: one that is not as it
//   should be is renamed, with a warning, and a new one made.
#ifndef HBMALLOC_SHARING_SLOT_FILE_H_
#define HBMALLOC_SHARING_SLOT_FILE_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "sharing/process.h"

namespace hbm::sharing {

inline constexpr std::uint32_t kSlots = 1024;

// How a slot's owner is known to be alive.
enum class OwnerKind : std::uint32_t {
  kProgram = 1,  // by the lock on its slot, and by its pid
  kCommand = 2,  // a command that knows nothing of the slot: by its pid, where it can be seen
};

// One process's record. Everything that others read is atomic: hbm-top reads without
// the lock. Sizes are bytes, times nanoseconds.
struct alignas(64) Slot {
  std::atomic<std::uint32_t> taken;  // 0: nothing else here means anything
  std::atomic<std::uint32_t> kind;   // OwnerKind
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> sharing;  // hbm::Sharing
  std::atomic<std::uint64_t> start_time;
  std::atomic<std::uint64_t> pid_namespace;
  std::atomic<std::uint64_t> joined_at;  // since 1970
  std::atomic<std::uint64_t> ticket;     // the order in which owners came

  // What counts. `charged` is the part of `held` whose allocation is not done yet.
  std::atomic<std::uint64_t> held;
  std::atomic<std::uint64_t> charged;
  std::atomic<std::uint64_t> overhead;     // its context and libraries
  std::atomic<std::uint64_t> share_parts;  // of 2^32; 0: an equal part
  std::atomic<std::uint64_t> reserve;      // that it leaves to everybody
  std::atomic<std::uint64_t> limit;

  // What it lacks, and until when that holds (CLOCK_MONOTONIC).
  std::atomic<std::uint64_t> wants;
  std::atomic<std::uint64_t> wants_until;
  std::atomic<std::uint64_t> waits;

  // For people only.
  std::atomic<std::uint64_t> in_use;
  std::atomic<std::uint64_t> largest_free;
  std::atomic<std::uint64_t> published_at;  // CLOCK_MONOTONIC
  char strategy[16];
  char name[48];
};
static_assert(sizeof(Slot) == 256);

// What a new owner writes.
struct SlotIdentity {
  ProcessId process;
  OwnerKind kind = OwnerKind::kProgram;
  std::uint32_t sharing = 0;
  std::uint64_t overhead = 0;
  std::uint64_t share_parts = 0;
  std::uint64_t reserve = 0;
  std::uint64_t limit = 0;
  std::string strategy;
  std::string name;
};

// Nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
std::uint64_t MonotonicNow();

// Where the files are: HBMALLOC_SHARING_DIR, or /dev/shm, or XDG_RUNTIME_DIR.
absl::StatusOr<std::string> SharingDirectory();
// "hbmalloc1-KIND-UID-KEY", or with the group's id for the user's, if
// HBMALLOC_SHARING_GROUP names a group whose members share.
absl::StatusOr<std::string> SharingFileName(std::string_view kind, std::string_view key);

class SlotFile {
 public:
  struct Options {
    std::string kind;  // "ledger" or "capacity"
    std::string key;   // of the device: its UUID
    std::uint64_t capacity = 0;
    bool create = true;
  };

  // FailedPrecondition: the file is there with another capacity. NotFound: it is not
  // there and is not to be made. Unavailable: no place for it.
  static absl::StatusOr<std::unique_ptr<SlotFile>> Open(const Options& options);
  // A file by its path, as hbm-top finds it. Never makes or renames one.
  static absl::StatusOr<std::unique_ptr<SlotFile>> OpenPath(const std::string& path);

  ~SlotFile();
  SlotFile(const SlotFile&) = delete;
  SlotFile& operator=(const SlotFile&) = delete;

  // The file's lock, for as long as it lives. Not had within a few seconds (its holder
  // is stopped): DeadlineExceeded, that names the holder. In a child of fork:
  // FailedPrecondition.
  class HBM_SCOPED_CAPABILITY Lock {
   public:
    explicit Lock(SlotFile* file) HBM_ACQUIRE(file->mutex_);
    ~Lock() HBM_RELEASE();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    const absl::Status& status() const { return status_; }

   private:
    SlotFile* const file_;
    absl::Status status_;
  };

  // Takes a slot for this process, freeing those of the dead if there is none. Once.
  absl::Status Claim(const SlotIdentity& identity);
  // Gives it back. Also done by the destructor.
  void Leave();
  // The lock on the slot goes on to what this process turns into by exec.
  absl::Status KeepOverExec();

  // Frees the slots whose owners are dead; how many. Takes the lock.
  int Reap();
  // The same under the lock, at most once in `at_most_every` by all processes together.
  // Looks at the locks of all slots and at most pids alone; at some of them closely, so
  // that each has its turn. With zero, at all of them closely.
  int ReapLocked(absl::Duration at_most_every);

  bool has_slot() const { return own_ != nullptr; }
  // Requires a slot, and that this is no child of fork.
  Slot& own() { return *own_; }
  int own_index() const { return own_index_; }
  // Slots from 0 to here may be taken.
  std::uint32_t used_slots() const;
  const Slot& slot(std::uint32_t index) const { return slots_[index]; }
  bool IsAlive(std::uint32_t index, bool closely = true) const;

  // Bytes that all slots hold, overheads included if they are asked for.
  std::uint64_t Sum(bool with_overheads) const;

  std::uint64_t capacity() const;
  std::string key() const;
  const std::string& path() const { return path_; }
  std::uint64_t NextTicket();
  // Wakes all who are in WaitForWanted.
  void AnnounceWanted();
  std::uint32_t wanted_sequence() const;
  // Until somebody announces a wish after `seen` was read, at most `timeout`.
  void WaitForWanted(std::uint32_t seen, absl::Duration timeout) const;
  // FailedPrecondition in a child of fork.
  absl::Status CheckProcess() const;

 private:
  struct Header;
  friend class Lock;

  SlotFile(int file, void* mapping, std::string path);
  static absl::StatusOr<std::unique_ptr<SlotFile>> MapChecked(int file, const std::string& path,
                                                              const Options& options);
  absl::Status LockFile();
  void UnlockFile();
  bool IsStillAtPath() const;
  absl::Status ClaimLocked(const SlotIdentity& identity);

  const int file_;
  const std::string path_;
  const std::uint32_t made_in_;  // fork generation
  Header* const header_;
  Slot* const slots_;
  Slot* own_ = nullptr;
  int own_index_ = -1;
  core::Mutex mutex_;  // the file's lock keeps out other processes, not other threads
};

// For tests: called before every store that other processes can see.
extern std::atomic<void (*)()> step_hook;
inline void Step() {
  if (auto* const hook = step_hook.load(std::memory_order_relaxed); hook != nullptr) hook();
}

}  // namespace hbm::sharing

#endif  // HBMALLOC_SHARING_SLOT_FILE_H_
