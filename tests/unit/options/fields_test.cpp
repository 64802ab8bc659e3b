#include "support.h"

// Every option reaches its own field: all of them at once, each with a value of its own that is not the default.
namespace shardtune::options::test {
namespace {

RunOptions all_changed() {
  return run({"train",
              "--model_name_or_path=model",
              "--dtype=bfloat16",
              "--blas=openblas",
              "--adapter_dtype=bfloat16",
              "--gradient_checkpointing=False",
              "--mixed_precision=fp16",
              "--reduce_dtype=bfloat16",
              "--ffn_chunk_tokens=125",
              "--table_pieces=7",
              "--use_reentrant=True",
              "--activation_policy=last_3",
              "--memory_budget_gib=12.2",
              "--fsdp_version=2",
              "--fsdp_sharding_strategy=HYBRID_SHARD",
              "--shard_group_size=123",
              "--fsdp_reshard_after_forward=4",
              "--fsdp_backward_prefetch=BACKWARD_POST",
              "--fsdp_forward_prefetch=False",
              "--fsdp_auto_wrap_policy=SIZE_BASED_WRAP",
              "--fsdp_min_num_params=124",
              "--fsdp_transformer_layer_cls_to_wrap=LlamaDecoderLayer",
              "--share_base_on_node=false",
              "--accumulation_order=layer_first",
              "--dataset_name=set",
              "--dataset_train_split=split1",
              "--dataset_test_split=split2",
              "--dataset_text_field=column",
              "--chat_template_format=chatml",
              "--max_length=101",
              "--packing=True",
              "--packing_strategy=wrapped",
              "--wrapped_attention=documents",
              "--shuffle=False",
              "--seed=102",
              "--use_peft_lora=True",
              "--lora_r=103",
              "--lora_alpha=10.4",
              "--lora_dropout=0.105",
              "--lora_target_modules=q_proj",
              "--use_rslora=True",
              "--adapter_name_or_path=adapter",
              "--optim=paged_adamw_8bit",
              "--learning_rate=0.106",
              "--lr_scheduler_type=cosine",
              "--warmup_steps=107",
              "--weight_decay=0.108",
              "--max_grad_norm=10.9",
              "--adam_beta1=0.110",
              "--adam_beta2=0.111",
              "--adam_epsilon=0.112",
              "--loraplus_lr_ratio=16.5",
              "--loraplus_lr_embedding=0.0113",
              "--num_train_epochs=11.3",
              "--max_steps=114",
              "--per_device_train_batch_size=115",
              "--per_device_eval_batch_size=116",
              "--gradient_accumulation_steps=117",
              "--logging_steps=118",
              "--eval_strategy=steps",
              "--eval_steps=119",
              "--eval_on_start=True",
              "--save_strategy=steps",
              "--save_steps=120",
              "--save_total_limit=121",
              "--output_dir=out",
              "--overwrite_output_dir=False",
              "--resume_from_checkpoint=checkpoint"})
      .options;
}

TEST(Fields, ModelAndData) {
  const RunOptions options = all_changed();
  EXPECT_EQ(options.model.model_name_or_path, "model");
  EXPECT_EQ(options.model.dtype, "bfloat16");
  EXPECT_EQ(options.model.blas, "openblas");
  EXPECT_EQ(options.adapter.adapter_dtype, "bfloat16");
  EXPECT_FALSE(options.model.gradient_checkpointing);
  EXPECT_EQ(options.data.dataset_name, "set");
  EXPECT_EQ(options.data.dataset_train_split, "split1");
  EXPECT_EQ(options.data.dataset_test_split, "split2");
  EXPECT_EQ(options.data.dataset_text_field, "column");
  EXPECT_EQ(options.data.chat_template_format, "chatml");
  EXPECT_EQ(options.data.max_length, 101);
  EXPECT_TRUE(options.data.packing);
  EXPECT_EQ(options.data.packing_strategy, "wrapped");
  EXPECT_EQ(options.data.wrapped_attention, "documents");
  EXPECT_FALSE(options.data.shuffle);
  EXPECT_EQ(options.data.seed, 102u);
}

TEST(Fields, AdapterAndOptimizer) {
  const RunOptions options = all_changed();
  EXPECT_TRUE(options.adapter.use_peft_lora);
  EXPECT_EQ(options.adapter.lora_r, 103);
  EXPECT_EQ(options.adapter.lora_alpha, 10.4);
  EXPECT_EQ(options.adapter.lora_dropout, 0.105);
  EXPECT_EQ(options.adapter.lora_target_modules, "q_proj");
  EXPECT_TRUE(options.adapter.use_rslora);
  EXPECT_EQ(options.adapter.adapter_name_or_path, "adapter");
  EXPECT_EQ(options.optim.optim, "paged_adamw_8bit");
  EXPECT_EQ(options.optim.learning_rate, 0.106);
  EXPECT_EQ(options.optim.lr_scheduler_type, "cosine");
  EXPECT_EQ(options.optim.warmup_steps, 107.0);
  EXPECT_EQ(options.optim.weight_decay, 0.108);
  EXPECT_EQ(options.optim.max_grad_norm, 10.9);
  EXPECT_EQ(options.optim.adam_beta1, 0.110);
  EXPECT_EQ(options.optim.adam_beta2, 0.111);
  EXPECT_EQ(options.optim.adam_epsilon, 0.112);
  EXPECT_EQ(options.optim.loraplus_lr_ratio, 16.5);
  EXPECT_EQ(options.optim.loraplus_lr_embedding, 0.0113);
}

TEST(Fields, ShardingAndMemory) {
  const RunOptions options = all_changed();
  EXPECT_EQ(options.model.mixed_precision, "fp16");
  EXPECT_EQ(options.fsdp.reduce_dtype, "bfloat16");
  EXPECT_EQ(options.model.ffn_chunk_tokens, 125);
  EXPECT_EQ(options.model.table_pieces, 7);
  EXPECT_TRUE(options.model.use_reentrant);
  EXPECT_EQ(options.model.activation_policy, "last_3");
  EXPECT_EQ(options.model.memory_budget_gib, 12.2);
  EXPECT_EQ(options.fsdp.version, 2);
  EXPECT_EQ(options.fsdp.sharding_strategy, "HYBRID_SHARD");
  EXPECT_EQ(options.fsdp.shard_group_size, 123);
  EXPECT_EQ(options.fsdp.reshard_after_forward, "4");
  EXPECT_EQ(options.fsdp.backward_prefetch, "BACKWARD_POST");
  EXPECT_FALSE(options.fsdp.forward_prefetch);
  EXPECT_EQ(options.fsdp.auto_wrap_policy, "SIZE_BASED_WRAP");
  EXPECT_EQ(options.fsdp.min_num_params, 124);
  EXPECT_EQ(options.fsdp.transformer_layer_cls_to_wrap, "LlamaDecoderLayer");
  EXPECT_EQ(options.fsdp.share_base_on_node, "false");
  EXPECT_EQ(options.train.accumulation_order, "layer_first");
}

TEST(Fields, Training) {
  const train::TrainOptions options = all_changed().train;
  EXPECT_EQ(options.num_train_epochs, 11.3);
  EXPECT_EQ(options.max_steps, 114);
  EXPECT_EQ(options.per_device_train_batch_size, 115);
  EXPECT_EQ(options.per_device_eval_batch_size, 116);
  EXPECT_EQ(options.gradient_accumulation_steps, 117);
  EXPECT_EQ(options.logging_steps, 118);
  EXPECT_EQ(options.eval_strategy, "steps");
  EXPECT_EQ(options.eval_steps, 119);
  EXPECT_TRUE(options.eval_on_start);
  EXPECT_EQ(options.save_strategy, "steps");
  EXPECT_EQ(options.save_steps, 120);
  EXPECT_EQ(options.save_total_limit, 121);
  EXPECT_EQ(options.output_dir, "out");
  EXPECT_FALSE(options.overwrite_output_dir);
  EXPECT_EQ(options.resume_from_checkpoint, "checkpoint");
  EXPECT_TRUE(run(train({"--overwrite_output_dir"})).options.train.overwrite_output_dir);
}

}  // namespace
}  // namespace shardtune::options::test
