#pragma once
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fit.h"
#include "shardtune/options/run_options.h"

namespace shardtune::train::plan {

/// Between the options of a job and the settings of the search: what may be chosen, and what a choice means as options.
class Choices {
 public:
  /// `layers` of the model.
  Choices(const options::RunOptions& options, const std::set<std::string>& given, std::int64_t layers);

  Space space() const;
  /// The job's options with the choice, without trace.
  options::RunOptions apply(const Setting& setting) const;
  /// Name and value of each option that the search sets.
  std::vector<std::pair<std::string, std::string>> named(const Setting& setting) const;

 private:
  std::vector<std::string> strategies() const;

  const options::RunOptions& options_;
  std::vector<std::string> policies_;
  bool strategy_, order_, split_, chunk_, policy_;  ///< true: the search sets it
};

}  // namespace shardtune::train::plan
