// Exists so that the precompiled header has a target of its own (cmake/shardtune_targets.cmake).
