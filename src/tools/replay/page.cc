// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/page.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "observe/json.h"
#include "tools/replay/page_data.h"
#include "tools/replay/page_files.h"
#include "tools/replay/report.h"

namespace hbm::replay {
namespace {

using observe::JsonString;

// Inside a <script> element nothing may look like its end.
std::string ForScript(const std::string& json) {
  return absl::StrReplaceAll(json, {{"<", "\\u003c"}});
}

// Puts text in the place of {{name}}. The text is not searched again.
void Fill(std::string* page, std::string_view name, const std::string& text) {
  const std::string place = "{{" + std::string(name) + "}}";
  if (const std::size_t at = page->find(place); at != std::string::npos) {
    page->replace(at, place.size(), text);
  }
}

// JSON strings. A handle reads better in the base that programs print it in.
std::vector<std::string> StreamLabels(const observe::Trace& trace) {
  std::vector<std::string> labels;
  for (const std::uint64_t stream : trace.streams) {
    labels.push_back(stream > 0xffff ? absl::StrCat("\"0x", absl::Hex(stream), "\"")
                                     : absl::StrCat("\"", stream, "\""));
  }
  return labels;
}

std::vector<std::string> TagLabels(const observe::Trace& trace) {
  std::vector<std::string> labels;
  for (const std::string& tag : trace.tags) {
    labels.push_back(JsonString(tag.empty() ? "none" : tag));
  }
  return labels;
}

}  // namespace

void Page::AddPart(const std::string& id, const std::string& base64) {
  absl::StrAppend(&parts_, "<script type=\"application/octet-stream\" id=\"", id, "\">", base64,
                  "</script>\n");
}

void Page::AddTrace(const observe::Trace& trace) {
  AddPart(absl::StrCat("trace-", traces_.size()), EncodeTrace(trace));
  const bool tagged = !trace.block_tags.empty();
  traces_.push_back(
      {absl::StrCat("\"name\": ", JsonString(trace.name), ", \"events\": ", trace.events.size(),
                    ", \"blocks\": ", trace.block_count, ", \"labelled\": \"",
                    tagged ? "tag" : "stream", "\", \"labels\": [",
                    absl::StrJoin(tagged ? TagLabels(trace) : StreamLabels(trace), ", "), "]"),
       {}});
}

void Page::AddResult(const Result& result, const Timeline& timeline) {
  if (traces_.empty()) return;
  Traced& traced = traces_.back();
  const std::string which = absl::StrCat(traces_.size() - 1, "-", traced.strategies.size());
  const std::uint64_t step = OffsetStep(result.memory.offsets);
  AddPart("placed-" + which, EncodePlacements(result.memory.offsets, step));
  AddPart("samples-" + which, EncodeTimeline(timeline));
  traced.strategies.push_back(absl::StrCat("{\"result\": ", results_.size(),
                                           ", \"granule\": ", step,
                                           ", \"samples\": ", timeline.samples().size(), "}"));
  results_.push_back(result);
  results_.back().memory.offsets.clear();
}

std::string Page::Render() const {
  std::vector<std::string> traces;
  traces.reserve(traces_.size());
  for (const Traced& traced : traces_) {
    traces.push_back(absl::StrCat("{", traced.about, ", \"strategies\": [",
                                  absl::StrJoin(traced.strategies, ", "), "]}"));
  }
  const std::string about =
      absl::StrCat("{\"traces\": [", absl::StrJoin(traces, ",\n"),
                   "],\n\"results\": ", hbm::replay::Render(results_, Format::kJson), "}");
  std::string page(PageFile("page.html"));
  // The data come last: they may hold anything.
  Fill(&page, "style", std::string(PageFile("page.css")));
  Fill(&page, "script", PageScripts());
  Fill(&page, "data",
       absl::StrCat("<script type=\"application/json\" id=\"about-data\">", ForScript(about),
                    "</script>\n", parts_));
  return page;
}

}  // namespace hbm::replay
