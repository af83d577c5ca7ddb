// SPDX-License-Identifier: Apache-2.0
//
// File: page.h
//
// The results as one HTML page that needs nothing else: what --html writes. Its
// text, style and scripts are the files in page/, put into the program when it is
// built; the data are added here.
//
//   Page page;
//   page.AddTrace(trace);
//   page.AddResult(result, timeline);  // of the trace added last
//   WriteText(file, page.Render());
#ifndef HBMALLOC_TOOLS_REPLAY_PAGE_H_
#define HBMALLOC_TOOLS_REPLAY_PAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "observe/trace.h"
#include "tools/replay/runner.h"
#include "tools/replay/timeline.h"

namespace hbm::replay {

class Page {
 public:
  void AddTrace(const observe::Trace& trace);
  void AddResult(const Result& result, const Timeline& timeline);

  std::string Render() const;

 private:
  struct Traced {
    std::string about;                    // members of a JSON object, without strategies
    std::vector<std::string> strategies;  // JSON objects
  };

  void AddPart(const std::string& id, const std::string& base64);

  std::vector<Traced> traces_;
  std::vector<Result> results_;
  std::string parts_;  // <script> elements that hold binary data
};

}  // namespace hbm::replay

#endif  // HBMALLOC_TOOLS_REPLAY_PAGE_H_
