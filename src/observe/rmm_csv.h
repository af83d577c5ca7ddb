// SPDX-License-Identifier: Apache-2.0
//
// File: rmm_csv.h
//
// The comma-separated log of RMM's logging adaptor, which is also what this
// library records:
//
//   Thread,Time,Action,Pointer,Size,Stream
//   140,10:02:03.000417,allocate,0x7f0000000000,1048576,0x0
//   140,417,free,0x7f0000000000,1048576,0
//
// Columns are found by the header's names; more may follow (an Alignment column, in
// bytes, and a Tag column are honoured; of several devices in a Device column, the
// one with the most events is read, which a note says). Time is whole microseconds or
// RMM's time of day, which may pass midnight. `allocate failure` rows are counted and not replayed.
// Lines end in LF or CRLF, the last one perhaps in nothing; empty lines are passed over.
#ifndef HBMALLOC_OBSERVE_RMM_CSV_H_
#define HBMALLOC_OBSERVE_RMM_CSV_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "observe/trace.h"

namespace hbm::observe {

// Whether the text looks like such a log: its first line names the columns.
bool LooksLikeRmmCsv(std::string_view text);

// InvalidArgument, with `file` and the line: a column that is missing, a row with
// too few or too many fields, a field that cannot be read, or a pointer that is
// allocated twice. Safe for any bytes; linear in their number.
absl::StatusOr<Trace> ParseRmmCsv(std::string_view text, std::string_view file);

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_RMM_CSV_H_
