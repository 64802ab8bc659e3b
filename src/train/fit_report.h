#pragma once
#include <string>

#include "plan/fit_plans.h"

namespace shardtune::train {

/// What was found, as a table, and below it the fastest as an INI file between two lines that begin with "#----".
std::string fit_report(const plan::Fit& fit, const PlanOptions& job);

}  // namespace shardtune::train
