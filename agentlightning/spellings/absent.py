"""What people look for and this version does not have, each with a sentence of what to do today.

One table, for every door at which a name can be said: a flag, a keyword, a setting, an import, a command.

A name that gets a part behind it leaves the table, and a test holds that. This file imports nothing of the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Absent:
    """One thing that is looked for under several names. ``today`` is a whole sentence, shown behind the name and a
    colon.

    ``synonym``: it is here, and is called otherwise.
    """

    what: str
    today: str
    names: str
    synonym: bool = False


def why(name: str) -> str | None:
    """What to do today without ``name``, a sentence; None where the table does not know it.

    Case, ``-`` and ``_``, leading dashes, a value behind ``=`` and sections in front (``learner.lora_rank``) make no
    difference.
    """
    entry = find(name)
    return None if entry is None else entry.today


def why_chosen(name: str, value: object) -> str | None:
    """As `why`, for a name that only says what kind of thing is chosen (``backend``) and the value that says which
    (``vllm``).
    """
    chooses = plain(name.rpartition(".")[2]) in _CHOOSES
    return why(value) if chooses and isinstance(value, str) else None


def find(name: str) -> Absent | None:
    """The table's entry for ``name``: for the whole of it, else its last parts, else its first ones (``lora.rank``)."""
    parts = name.strip().lstrip("-").partition("=")[0].split(".")
    tries = [parts[i:] for i in range(len(parts))] + [parts[:i] for i in range(len(parts) - 1, 0, -1)]
    return next((entry for part in tries if (entry := _table().get(plain(".".join(part)))) is not None), None)


def plain(name: str) -> str:
    """A name as the table has it: letters and digits alone, in lower case."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


_CHOOSES = {
    "algo",
    "algorithm",
    "backend",
    "engine",
    "kind",
    "launcher",
    "logger",
    "method",
    "mode",
    "name",
    "platform",
    "provider",
    "type",
}


@cache
def _table() -> dict[str, Absent]:
    return {plain(name): entry for entry in ABSENT for name in entry.names.split()}


ABSENT: tuple[Absent, ...] = (
    # ------------------------------------------------------------------ weights and machines
    Absent(
        "LoRA and other adapters",
        "there are no adapters in this version, all weights are trained: where that does not fit, take a smaller "
        "model, or set learner.gradient_checkpointing=true",
        "lora qlora dora ia3 peft adapters lora_r lora_rank lora_alpha lora_dropout lora_config "
        "lora_target_modules lora_modules_to_save target_modules "
        "peft_config use_lora use_peft rslora unsloth freeze frozen_layers",
    ),
    Absent(
        "Quantised models",
        "quantised weights are neither sampled nor trained in this version: give the model's folder in float32 or "
        "bfloat16 (model.dtype)",
        "quantization quantisation quantize quantized quantization_config load_in_4bit load_in_8bit bitsandbytes "
        "bnb bnb_4bit awq gptq fp8 int8 int4 nf4 mxfp4 "
        "compressed_tensors BitsAndBytesConfig",
    ),
    Absent(
        "GGUF files",
        "a GGUF file is neither loaded nor written: to load one, convert it once (transformers' from_pretrained "
        "with gguf_file=, dequantised, then "
        "save_pretrained) and give the folder; to get one, run llama.cpp's convert_hf_to_gguf.py on a checkpoint, "
        "which is a Hugging Face folder",
        "gguf gguf_file export_gguf gguf_export to_gguf save_gguf convert_to_gguf llama_cpp",
    ),
    Absent(
        "vLLM, SGLang and other engines",
        "sampling is by the engine inside the process, which shares its weights with the learner (docs/engine.md): "
        "leave it out; when training is done, `vllm serve "
        "CHECKPOINT` and its like take a checkpoint as it is",
        "vllm use_vllm sglang tgi lmdeploy ollama tensorrt tensorrt_llm vllm_mode vllm_server_host "
        "vllm_server_port vllm_server_base_url rollout_engine "
        "inference_engine inference_backend enforce_eager engine_kwargs vllm_kwargs",
    ),
    Absent(
        "The share of GPU memory for sampling",
        "the memory for keys and values is engine.kv_budget_gb here, in GB",
        "gpu_memory_utilization vllm_gpu_memory_utilization mem_fraction_static kv_cache_memory kv_cache_gb",
        synonym=True,
    ),
    Absent(
        "Several GPUs, several machines",
        "one run uses one device, which model.device names (cuda:1): start several runs side by side for several "
        "GPUs, or take a GPU that holds the model",
        "fsdp fsdp2 fsdp_config deepspeed zero2 zero3 zero_stage megatron ddp distributed multi_gpu multi_node "
        "tensor_parallel tensor_parallel_size "
        "tensor_model_parallel_size vllm_tensor_parallel_size tp tp_size data_parallel data_parallel_size dp_size "
        "pipeline_parallel pipeline_parallel_size "
        "sequence_parallel sequence_parallel_size ulysses_sequence_parallel_size context_parallel expert_parallel "
        "ray ray_address gpus num_gpus n_gpus "
        "n_gpus_per_node num_gpus_per_node gpu_ids nnodes num_nodes accelerate accelerate_config nproc_per_node "
        "world_size local_rank torchrun devices device_map "
        "param_offload optimizer_offload cpu_offload offload",
    ),
    Absent(
        "Apple's GPU and other accelerators",
        "this version computes on a CPU or one CUDA device: leave model.device at auto, or set cpu",
        "mps metal mlx tpu xla npu xpu neuron ipu hpu",
    ),
    Absent(
        "Windows",
        "this version runs on Linux and macOS: on Windows use WSL 2, where it is Linux",
        "windows win32 cygwin",
    ),
    Absent(
        "Mixed precision of other trainers",
        'model.dtype sets the precision ("float32" or "bfloat16"; the learner keeps float32 masters); float16 is not '
        "trained",
        "fp16 bf16 float16 half amp autocast mixed_precision precision torch_dtype fp16_full_eval bf16_full_eval tf32",
        synonym=True,
    ),
    Absent(
        "Recurrent and hybrid models (Mamba, RWKV, LFM2, ...)",
        "models whose past is a state instead of keys and values (recurrent, hybrid) are not sampled in this "
        "version: take one with attention in every layer, such "
        "as Qwen3, Llama or SmolLM2",
        "recurrent hybrid mamba mamba2 rwkv jamba lfm2 state_space ssm",
    ),
    Absent(
        "Losses of a mixture of experts",
        "a mixture of experts is sampled and trained as any other model, with no loss that balances its experts: leave "
        "it out",
        "moe mixture_of_experts router_aux_loss router_aux_loss_coef aux_loss_coef load_balancing_loss "
        "output_router_logits router_replay moe_config",
    ),
    Absent(
        "Vision and audio models",
        "models are trained on text alone: take a causal language model; images belong to an external model (an "
        "LLM resource with an endpoint)",
        "vision vlm vision_language multimodal mllm image_processor processor pixel_values freeze_vision_tower "
        "limit_mm_per_prompt",
    ),
    Absent(
        "Encoder-decoder models (T5, BART, ...)",
        "encoder-decoder models are not trained here: take a causal (decoder-only) language model with a chat template",
        "encoder_decoder seq2seq t5 bart",
    ),
    # ------------------------------------------------------------------ algorithms and losses
    Absent(
        "PPO with a critic, GAE",
        "there is no critic in this version: GRPO has the clipped loss of PPO, and the mean of a task's rollouts "
        "is its baseline (docs/training.md)",
        "ppo PPOConfig PPOTrainer critic critic_model critic_warmup value_model value_function value_head vf_coef "
        "value_loss_coef cliprange_value gae gae_lambda lam "
        "gamma a2c actor_critic",
    ),
    Absent(
        "RLOO, REINFORCE, Dr. GRPO",
        "GRPO(std='none') has these advantages: a reward less its group's mean (RLOO's times (G-1)/G); Dr. GRPO is "
        "that with aggregation='dr_grpo' and fixed_length",
        "rloo reinforce reinforce_plus_plus drgrpo remax policy_gradient RLOOConfig RLOOTrainer reinforce_baseline",
    ),
    Absent(
        "DAPO",
        "DAPO is GRPO(clip_high=0.28, dynamic_filtering=True) here, with aggregation='token_mean', the default; "
        "there is no length penalty but what the reward says",
        "dapo dynamic_sampling filter_groups overlong_buffer overlong_reward_shaping",
        synonym=True,
    ),
    Absent(
        "GSPO, CISPO and other ratios",
        "the ratio is per token and clipped as PPO does it: use GRPO, with aggregation='sequence_mean' where each "
        "rollout is to weigh the same",
        "gspo cispo gmpo sapo importance_sampling_level",
    ),
    Absent(
        "SFT, DPO, distillation",
        "this version learns from rewards alone: do that with another trainer first (TRL, say) and give the folder it "
        "saves as the model",
        "sft supervised fine_tune dpo kto orpo ipo simpo distill distillation gkd rejection_sampling raft "
        "best_of_n expert_iteration behavior_cloning "
        "warm_start sft_loss SFTTrainer SFTConfig DPOTrainer DPOConfig",
    ),
    Absent(
        "KL and a reference model",
        "the loss has no KL term and no reference model: the clip (algorithm.clip_low, clip_high) and learner.lr "
        "keep steps small; leave it out",
        "kl kl_coef kl_coeff kl_beta beta kl_loss kl_loss_coef kl_loss_type use_kl_loss use_kl_in_reward "
        "kl_penalty kl_ctrl init_kl_coef target_kl adaptive_kl "
        "reference_model ref_model ref_policy reference_policy sync_ref_model ref_model_sync_steps",
    ),
    Absent(
        "An entropy bonus",
        "the loss has no entropy bonus: sampling.temperature and a clip_high above clip_low (0.28 over 0.2, the "
        "default) keep samples apart; leave it out",
        "entropy entropy_coef entropy_coeff ent_coef entropy_bonus entropy_loss top_entropy_quantile",
    ),
    Absent(
        "Prompt optimisation (APO, GEPA, ...)",
        "prompts are not optimised in this version: compare them by hand, trainer.evaluate(agent, tasks) once for "
        "each resources={'prompt_template': PromptTemplate(...)}",
        "apo gepa mipro textgrad prompt_optimization prompt_optimisation prompt_optimizer prompt_tuning "
        "optimize_prompt optimize optimise beam_rounds beam_width "
        "branch_factor gradient_model apply_edit_model gradient_batch_size diversity_temperature",
    ),
    Absent(
        "Training while sampling goes on",
        "a step samples, then learns, with the same weights: nothing runs ahead in this version; leave it out",
        "async_training async_rollout async_rollouts off_policy one_step_off_policy max_staleness staleness "
        "replay_buffer pipeline_rl",
    ),
    Absent(
        "A curriculum, the order of tasks",
        "tasks come in an order that seed fixes: for a curriculum train on one file after another, each from the "
        "last checkpoint; algorithm.dynamic_filtering leaves "
        "out groups that teach nothing",
        "curriculum curriculum_learning sampler data_sampler task_sampler shuffle shuffle_dataset difficulty "
        "prioritized_sampling weighted_sampling",
    ),
    Absent(
        "Several models in one run",
        "one run trains one model: the calls of every agent it serves; other models are resources with an endpoint "
        "(LLM(endpoint=...)), recorded and not trained",
        "policies multi_policy multi_model models teacher teacher_model",
    ),
    # ------------------------------------------------------------------ what a program hangs in
    Absent(
        "W&B, MLflow and other trackers",
        "no tracker is called: each step is a line of metrics.jsonl in the run's folder, with TensorBoard files "
        "beside it where tensorboard is installed",
        "wandb weights_and_biases wandb_project wandb_entity mlflow trackio comet comet_ml neptune clearml swanlab "
        "aim logger loggers tracker trackers report_to log_with "
        "tensorboard tensorboard_dir logging_dir",
    ),
    Absent(
        "Callbacks of a run",
        "there are none: Trainer(hooks=...) are told of each attempt, and Trainer(progress=...) takes an object with "
        "the methods of agentlightning.records.progress.Progress, which is told of each step; stop_at ends a run by "
        "its reward",
        "callback callbacks TrainerCallback on_step on_step_end on_epoch_end on_train_begin on_train_end "
        "on_evaluate on_rollout_start on_rollout_end "
        "early_stopping early_stopping_patience",
    ),
    Absent(
        "Reward functions and reward models",
        "a reward is what the agent returns or emits; what scores from outside is grader=, a function (task, "
        "output, attempt) -> number (--grader FILE.py:fn), and may call any model",
        "reward_fn reward_func reward_funcs reward_function reward_functions reward_model reward_models "
        "reward_weights reward_processing_classes rm rm_path "
        "verifier verifiers rubric judge scorer score_fn scoring_function compute_score compute_reward "
        "custom_reward_function metric compute_metrics evaluator",
        synonym=True,
    ),
    Absent(
        "Exporting, merging, pushing to a hub",
        "a checkpoint is a Hugging Face folder already (runs/RUN/checkpoints/step-N), with nothing to export or "
        "merge: `agl serve latest` answers clients with it, `hf upload NAME FOLDER` puts it on a hub",
        "export merge merge_lora merge_and_unload push push_to_hub hub_model_id hub_token hub_strategy upload "
        "publish save_pretrained save_model onnx to_onnx deploy",
    ),
    Absent(
        "Containers",
        "agents run in threads or processes of this machine (runner.isolation): an agent function may start its "
        "container itself and hand it llm.endpoint, with the host's "
        "network or gateway.host set to an address that the container reaches",
        "container containers docker docker_image podman kubernetes k8s sandbox e2b modal apptainer singularity",
    ),
    Absent(
        "A server and workers on other machines",
        "agents, model and record are in one command on one machine: `agl train`, or Trainer(...).fit(agent, "
        "tasks) with the tasks themselves; `agl serve latest` serves a trained model",
        "server client worker workers remote remote_workers server_url endpoint_url join AgentLightningServer "
        "AgentLightningClient LightningStoreServer "
        "LightningStoreClient login cluster submit launch",
    ),
    Absent(
        "Other tracers",
        "the endpoint records every call, whichever tracer there is: Tracer().get_last_trace() has the spans of an "
        "attempt, `agl trace` draws it",
        "HttpTracer DummyTracer WeaveTracer TraceTree agentops opentelemetry otel get_last_trace set_active_tracer "
        "get_active_tracer",
    ),
    Absent(
        "Settings of adapters",
        "which agents are trained is the setting trained_agents; tokens come from the record",
        "adapter_class trace_aggregator agent_match",
    ),
    Absent(
        "Lists of triplets and spans",
        "they are plain lists: return [Triplet(...), ...] from the agent; spans are read with tracer.get_last_trace()",
        "Triplets Spans SpanNames SpanLike",
    ),
    Absent(
        "Other emitters",
        "emit_reward takes several rewards by name; what was emitted is read from the spans' attributes",
        "emit_rewards get_message_value get_object_value",
    ),
    Absent(
        "Other trainers' settings and algorithms",
        "verl's keys go into VERL(config) (docs/verl.md); else use GRPO(...) for the algorithm's settings and "
        "Trainer's sections (learner=, sampling=, ...) for the others: docs/config.md lists them",
        "VERLConfig AgentLightningTrainer AgentModeDaemon "
        "MockAlgorithm actor_rollout_ref GRPOConfig GRPOTrainer "
        "TrainingArguments",
    ),
    Absent(
        "Settings of one rollout",
        "deadlines and attempts are settings of the run: runner.deadline, runner.max_attempts",
        "timeout_seconds unresponsive_seconds retry_condition",
        synonym=True,
    ),
    Absent(
        "A store or a runner of one's own",
        "the record is a SQLite file that the run opens (store={'url': 'sqlite:///...'}), and Trainer runs the agents: "
        "leave it out",
        "LightningStoreThreaded MongoLightningStore SqliteLightningStore "
        "AgentRunnerV2 AgentRunner Runner LegacyAgentRunner "
        "BaseRunner SharedMemoryExecutionStrategy ClientServerExecutionStrategy ExecutionStrategy LLMProxy "
        "postgres postgresql mongo mongodb redis",
    ),
    Absent(
        "Types of other versions of this package",
        "tasks are plain JSON values and resources plain objects (LLM, PromptTemplate, or JSON): leave it out",
        "RolloutV2 RolloutLegacy Task TaskIfAny GenericResponse Resource ResourceUnion "
        "ResourcesUpdate ParallelWorkerBase FilterOptions PaginatedResult",
    ),
    Absent(
        "A program's own command line of settings",
        "settings come from a file, the environment and flags: `agl train --config FILE --set KEY=VALUE`, or "
        "Trainer(config=FILE)",
        "HfArgumentParser TrlParser",
        synonym=True,
    ),
    Absent(
        "Setting up logging",
        "it is called setup_logging, or configure_logger: from agentlightning import setup_logging",
        "setup_logger",
        synonym=True,
    ),
    # ------------------------------------------------------------------ what an endpoint is asked
    Absent(
        "Images, audio and files in requests",
        "this model reads text: leave the part out, or send such calls to an external model (an LLM resource with an "
        "endpoint)",
        "image images image_url input_image inline_data audio input_audio speech transcription file_input input_file "
        "video pdf document",
    ),
    Absent(
        "Embeddings",
        "a policy makes no embeddings; point your embedding client at a provider of its own",
        "embeddings embedding embed embedding_model embed_content",
    ),
    Absent(
        "Moderation, batches, realtime, assistants",
        "the endpoint serves Chat Completions, Responses, Completions, Messages and Gemini's generateContent: send "
        "each request to one of them, and anything else to a provider "
        "of its own",
        "moderation moderations batch_api batches realtime assistants fine_tuning vector_stores files rerank "
        "images_generations",
    ),
    Absent(
        "Penalties, logit_bias, top_logprobs",
        "samples are trained with the probabilities they were drawn with, which these would change: leave it out; "
        "sampling.temperature, top_p and top_k are what there is",
        "logit_bias frequency_penalty presence_penalty repetition_penalty repeat_penalty min_p top_a typical_p "
        "top_logprobs mirostat beam_search num_beams do_sample",
    ),
    # ------------------------------------------------------------------ the same under another name
    Absent(
        "Batch sizes",
        "a step's batch is algorithm.tasks_per_step tasks of algorithm.group_size rollouts each",
        "batch_size train_batch_size per_device_train_batch_size rollout_batch_size generation_batch_size "
        "prompts_per_step tasks_per_batch num_prompts_per_step",
        synonym=True,
    ),
    Absent(
        "Micro-batches and gradient accumulation",
        "a step's gradient is always summed over its rows: learner.max_row_tokens bounds what is held at once, "
        "learner.minibatches sets the optimizer steps per pass",
        "gradient_accumulation gradient_accumulation_steps grad_accum accumulate_grad_batches mini_batch_size "
        "num_mini_batches ppo_mini_batch_size micro_batch_size "
        "micro_batch_size_per_gpu ppo_micro_batch_size ppo_micro_batch_size_per_gpu log_prob_micro_batch_size "
        "log_prob_micro_batch_size_per_gpu steps_per_generation use_dynamic_bsz",
        synonym=True,
    ),
    Absent(
        "Batch sizes of validation",
        "validation tasks run runner.n_runners at a time, all of them",
        "per_device_eval_batch_size eval_batch_size val_batch_size",
        synonym=True,
    ),
    Absent(
        "Samples per prompt",
        "the rollouts per task are algorithm.group_size here: GRPO(group_size=8), --group-size 8",
        "num_generations num_return_sequences n_samples num_samples n_samples_per_prompt samples_per_prompt "
        "generations_per_prompt num_rollouts rollout_n n_rollouts rollouts_per_prompt",
        synonym=True,
    ),
    Absent(
        "The length of a sample",
        "a sample's ceiling is sampling.max_tokens in training and evaluation.max_tokens in validation",
        "max_completion_length max_new_tokens max_response_length max_completion_tokens max_output_tokens "
        "max_gen_len response_length generate_max_len",
        synonym=True,
    ),
    Absent(
        "The length of a prompt",
        "prompt and sample together hold engine.context_length tokens: a longer prompt is refused, and its rollout "
        "fails as context_length",
        "max_prompt_length max_seq_length max_seq_len max_length max_model_len max_context_length prompt_max_len "
        "truncation truncate_prompt_tokens",
        synonym=True,
    ),
    Absent(
        "The learning rate and its schedule",
        "these are learner.lr, learner.schedule and learner.warmup_steps",
        "learning_rate actor_lr actor_learning_rate optim_lr lr_scheduler lr_scheduler_type lr_schedule scheduler "
        "warmup warmup_ratio lr_warmup_steps",
        synonym=True,
    ),
    Absent(
        "The optimizer",
        "AdamW is the optimizer: learner.lr, betas, eps and weight_decay are its settings",
        "optim optimizer optimiser optimizers adam adamw adam_beta1 adam_beta2 adam_epsilon muon sgd adafactor "
        "paged_adamw adamw_8bit",
        synonym=True,
    ),
    Absent(
        "Clipping the gradient",
        "the gradient's norm is clipped at learner.max_grad_norm",
        "grad_clip gradient_clip gradient_clip_val gradient_clipping clip_grad clip_grad_norm grad_norm_clip",
        synonym=True,
    ),
    Absent(
        "Clipping the ratio",
        "the ratio is clipped at 1 - algorithm.clip_low and 1 + algorithm.clip_high",
        "epsilon epsilon_low epsilon_high cliprange cliprange_low cliprange_high clip_ratio clip_ratio_low "
        "clip_ratio_high clip_eps clip_epsilon eps_clip",
        synonym=True,
    ),
    Absent(
        "How token losses become one number",
        "it is algorithm.aggregation: token_mean, sequence_mean or dr_grpo",
        "loss_type loss_agg_mode loss_aggregation",
        synonym=True,
    ),
    Absent(
        "What an advantage is divided by",
        "it is algorithm.std: sample, population or none",
        "scale_rewards norm_adv_by_std_in_grpo normalize_advantages norm_adv whiten_rewards whiten_advantages",
        synonym=True,
    ),
    Absent(
        "Advantage estimators",
        "GRPO is the algorithm of this version, and its group's mean the baseline: leave it out",
        "adv_estimator advantage_estimator advantage",
    ),
    Absent(
        "Epochs",
        "the passes over the tasks are epochs (Trainer also takes num_epochs); those over one step's batch are "
        "learner.epochs",
        "num_train_epochs n_epochs total_epochs max_epochs num_iterations ppo_epochs num_ppo_epochs inner_epochs",
        synonym=True,
    ),
    Absent(
        "Steps",
        "the training steps are steps: Trainer(steps=20), --steps 20",
        "max_steps num_steps n_steps total_steps train_steps total_training_steps num_train_steps iterations",
        synonym=True,
    ),
    Absent(
        "Saving",
        "checkpoints are set in [checkpoint]: save_every, keep and best",
        "save_steps save_freq save_interval save_strategy save_total_limit checkpoint_every checkpoint_interval "
        "checkpoint_freq max_ckpt_to_keep load_best_model_at_end",
        synonym=True,
    ),
    Absent(
        "Where runs are kept",
        "it is output_dir: Trainer(output_dir=...), --output-dir",
        "default_local_dir checkpoint_dir ckpt_dir save_dir log_dir out_dir results_dir",
        synonym=True,
    ),
    Absent(
        "When to validate",
        "validation is set in [evaluation]: every (steps), before, rollouts_per_task",
        "eval_steps eval_strategy evaluation_strategy eval_freq eval_interval eval_every test_freq val_every "
        "val_freq val_check_interval val_before_train eval_on_start",
        synonym=True,
    ),
    Absent(
        "What is logged",
        "every step is written to metrics.jsonl and shown; the run's folder has its logs, and Trainer(progress=False) "
        "shows nothing",
        "logging_steps log_every log_interval log_completions logging_strategy verbose quiet disable_tqdm log_level",
        synonym=True,
    ),
    Absent(
        "What a run is called",
        "it is name: Trainer(name=...), --name",
        "run_name experiment_name experiment project project_name exp_name run_id",
        synonym=True,
    ),
    Absent(
        "The model",
        "it is model: Trainer(model=...), --model, model.path in a file",
        "model_name model_name_or_path model_path model_id base_model pretrained pretrained_model policy_model "
        "actor_model checkpoint_path",
        synonym=True,
    ),
    Absent(
        "A tokenizer or a chat template of one's own",
        "the tokenizer and its chat template come from the model's folder: save yours there (save_pretrained, "
        "chat_template.jinja)",
        "tokenizer tokenizer_path tokenizer_name tokenizer_only processing_class chat_template chat_template_path",
    ),
    Absent(
        "Loading options of transformers",
        "a model is loaded by transformers' AutoModelForCausalLM without code of its own: save it into a folder as "
        "you want it, and give that",
        "trust_remote_code revision cache_dir attn_implementation flash_attention flash_attention_2 flash_attn "
        "use_flash_attention model_kwargs model_init_kwargs use_cache "
        "use_remove_padding torch_compile compile liger use_liger_kernel cuda_graphs",
    ),
    Absent(
        "Gradient checkpointing",
        "it is learner.gradient_checkpointing",
        "enable_gradient_checkpointing use_gradient_checkpointing activation_checkpointing "
        "gradient_checkpointing_kwargs",
        synonym=True,
    ),
    Absent(
        "Attempts at once",
        "it is runner.n_runners: Trainer(n_runners=16), --n-runners 16",
        "num_workers num_runners max_workers max_concurrency concurrency parallelism n_parallel dataloader_num_workers",
        synonym=True,
    ),
    Absent(
        "Deadlines and retries",
        "these are runner.deadline (seconds of an attempt) and runner.max_attempts",
        "timeout rollout_timeout task_timeout rollout_batch_timeout retries max_retries num_retries",
        synonym=True,
    ),
    Absent(
        "Going on with a run",
        "it is fit(..., resume=True), --resume; to begin anew from a checkpoint, give its folder as the model",
        "resume_run resume_from_checkpoint resume_mode resume_from resume_path auto_resume continue_from",
        synonym=True,
    ),
    Absent(
        "The tasks",
        "tasks are train_dataset and val_dataset in Python, --tasks and --val of `agl train`: lists of JSON "
        "values, or files of them (docs/tasks.md)",
        "load_dataset dataset dataset_name dataset_path train_data train_tasks train_files val_files val_tasks "
        "eval_dataset "
        "eval_data eval_tasks test_dataset test_data valid_dataset data_path",
        synonym=True,
    ),
    Absent(
        "Commands of other names: training",
        "`agl train FILE.py:AGENT --model MODEL --tasks FILE` trains, and `agl dev` tries a few rollouts first",
        "fit run start rl check try_agent init quickstart",
        synonym=True,
    ),
    Absent(
        "Commands of other names: scoring",
        "`agl eval FILE.py:AGENT --model MODEL --tasks FILE` scores an agent; in Python it is trainer.evaluate(agent, "
        "tasks)",
        "evaluate validate test benchmark bench",
        synonym=True,
    ),
    Absent(
        "Commands of other names: looking",
        "`agl runs` lists runs, `agl show RUN` shows one, and `agl trace RUN ROLLOUT` what was called",
        "list ls logs status info inspect history ps dashboard ui web",
        synonym=True,
    ),
    Absent(
        "Prompts and tools in the settings",
        "prompts, tools and turns are the agent's own code: write them there",
        "system_prompt prompt prompts tools tool_config multi_turn max_turns environment_factory env env_name env_fn",
    ),
)
"""Everything that is looked for, whichever door a name is said at."""
