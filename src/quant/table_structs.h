#pragma once
#include "rules.h"
#include "shardtune/quant/tables.h"

namespace shardtune::quant {

/// Of nf4 or fp4; lives as long as the program.
const FourBitTable& four_bit_table(Kind kind);
const EightBitTable& eight_bit_table(StateCode code);

}  // namespace shardtune::quant
