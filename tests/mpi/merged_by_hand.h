#pragma once
#include <filesystem>
#include <vector>

namespace shardtune::testing {

/// Writes to `to` the model of folder `base` with adapters of PEFT folders merged in, one after the other, as their definitions have
/// it and in fp64: LoRA adds scale B A to what is there; DoRA multiplies row by row what is there, with that added, by
/// magnitude / norm of the model's own row with it; a module of modules_to_save takes the weight's place. The head of a tied model
/// gets a weight of its own, which stays as it was unless an adapter says otherwise.
void merge_by_hand(const std::filesystem::path& base, const std::vector<std::filesystem::path>& adapters,
                   const std::filesystem::path& to);

}  // namespace shardtune::testing
