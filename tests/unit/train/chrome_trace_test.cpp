// The trace file: JSON that a viewer reads, named threads, spans that do not overlap, and a note that it is an estimate.
#include "../../../src/train/plan/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "plan_support.h"
#include "shardtune/core/error.h"
#include "shardtune/io/files.h"
#include "shardtune/io/json.h"
#include "support/scratch.h"

namespace shardtune::train::plan::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class ChromeTrace : public ::testing::Test {
 protected:
  json written(const Trace& trace) {
    write_chrome_trace(path_, trace, "a \"quick\" device");
    return io::read_json_file(path_, ErrorClass::kBadData);
  }

  shardtune::testing::Scratch scratch_;
  const std::filesystem::path path_ = scratch_ / "trace.json";
};

TEST_F(ChromeTrace, SpansAreCompleteEventsInMicroseconds) {
  Timeline timeline(simple_hardware(), /*keep_spans=*/true);
  timeline.compute(product(1));
  timeline.phase("backward \"layer\" \\ 3\n");
  timeline.await(timeline.start(gather(2.5)));
  timeline.totals();
  const json file = written(timeline.trace());
  std::vector<json> spans;
  for (const json& event : file.at("traceEvents"))
    if (event.at("ph") == "X") spans.push_back(event);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "matmul");
  EXPECT_EQ(spans[0].at("ts"), 0);
  EXPECT_EQ(spans[0].at("dur"), 1e6);
  EXPECT_EQ(spans[0].at("args").at("flops"), 100);
  EXPECT_EQ(spans[1].at("name"), "backward \"layer\" \\ 3\n: all-gather");
  EXPECT_EQ(spans[1].at("cat"), "all-gather");
  EXPECT_EQ(spans[1].at("args").at("phase"), "backward \"layer\" \\ 3\n");
  EXPECT_EQ(spans[1].at("args").at("bytes"), 10);
  EXPECT_EQ(spans[1].at("ts"), 1e6);
  EXPECT_EQ(spans[1].at("dur"), 2.5e6);
  EXPECT_EQ(spans[0].at("pid"), spans[1].at("pid"));
  EXPECT_NE(spans[0].at("tid"), spans[1].at("tid"));
}

TEST_F(ChromeTrace, NamesAndTheNoteThatItIsAnEstimate) {
  const json file = written({});
  EXPECT_THAT(file.at("otherData").at("estimate").get<std::string>(), HasSubstr("not measured"));
  EXPECT_EQ(file.at("otherData").at("device"), "a \"quick\" device");
  std::string process;
  std::map<int, std::string> threads;
  for (const json& event : file.at("traceEvents")) {
    EXPECT_EQ(event.at("ph"), "M");
    if (event.at("name") == "thread_name") threads[event.at("tid")] = event.at("args").at("name");
    if (event.at("name") == "process_name") process = event.at("args").at("name");
  }
  EXPECT_THAT(process, HasSubstr("estimate"));
  EXPECT_EQ(threads, (std::map<int, std::string>{{0, "compute"}, {1, "all-gather"}, {2, "exchange"}, {3, "control"}}));
}

TEST_F(ChromeTrace, SpansOfAThreadDoNotOverlapAfterRounding) {
  Hardware hardware = simple_hardware();
  hardware.kernel_launch_seconds = 2e-6 / 3;  // 666.7 ns, which alone is rounded up
  hardware.collective_launch_seconds = 1e-6 / 7;
  Timeline timeline(hardware, /*keep_spans=*/true);
  for (int i = 0; i < 1000; ++i) {
    const auto handle = timeline.start(gather(0));
    timeline.start(exchange(0));
    timeline.compute({});
    timeline.await(handle);
  }
  timeline.totals();
  std::map<int, std::int64_t> free;  // nanoseconds
  int spans = 0;
  const json file = written(timeline.trace());
  for (const json& event : file.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts").get<double>() * 1e3, length = event.at("dur").get<double>() * 1e3;
    EXPECT_NEAR(begin, std::round(begin), 1e-4);
    EXPECT_GE(std::llround(begin), free[event.at("tid")]);
    free[event.at("tid")] = std::llround(begin) + std::llround(length);
    ++spans;
  }
  EXPECT_EQ(spans, 3000);
}

TEST_F(ChromeTrace, AnOlderFileIsReplacedAndAFolderThatIsNotThereRefused) {
  io::write_file_atomic(path_, "old");
  EXPECT_TRUE(written({}).is_object());
  try {
    write_chrome_trace(scratch_ / "no/such/trace.json", {}, "device");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadStorage);
  }
}

}  // namespace
}  // namespace shardtune::train::plan::test
