"""verl's keys, one table: what each one sets here, or that it changes nothing about the result here, or what would be
needed for it.

The names, types and defaults are those of verl 0.2 to 0.9.1 and of the ``agentlightning`` section that programs of this
package's name add to them. ``reading`` (verl_reading.py) turns a config into settings by it; docs/verl.md is made of it
(verl_page.py). Pure data, with one check of a value for each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

Json = Any
"""Whatever may stand in a config."""


# --------------------------------------------------------------------------- what a value may be


@dataclass(frozen=True, slots=True)
class Takes:
    """A kind of value: in ``words``, and what of it is ``read``. ``read`` raises ValueError for what it is not; its
    text, where there is one, says what to do about it."""

    words: str
    read: Callable[[Json], Json]


def whole(least: int | None = None, *also: int) -> Takes:
    """A whole number of at least ``least``, or one of ``also``, which are ways to say that it is off."""

    def read(value: Json) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError
        if least is not None and value < least and value not in also:
            raise ValueError
        return value

    bound = "" if least is None else f" of at least {least}"
    return Takes(f"a whole number{bound}" + "".join(f", or {each}" for each in also), read)


def number(above: float | None = None, least: float | None = None, most: float | None = None) -> Takes:
    """A number within bounds. ``1e-6`` in a YAML file is text, and is read as the number it means."""

    def read(value: Json) -> float:
        if isinstance(value, str):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise ValueError
        if (above is not None and value <= above) or (least is not None and value < least):
            raise ValueError
        if most is not None and value > most:
            raise ValueError
        return value

    bounds = " and ".join(
        f"{sign} {bound:g}" for sign, bound in ((">", above), (">=", least), ("<=", most)) if bound is not None
    )
    return Takes(f"a number {bounds}".strip(), read)


def one_of(*values: str, or_else: Callable[[str], str | None] = lambda value: None) -> Takes:
    """One of some texts. ``or_else`` has a sentence for some of the others."""

    def read(value: Json) -> str:
        if not isinstance(value, str):
            raise ValueError
        if value.lower() not in values:
            raise ValueError(or_else(value.lower()) or "")
        return value.lower()

    return Takes(("one of " if len(values) > 1 else "") + ", ".join(values), read)


def _flag(value: Json) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError


def _text(value: Json) -> str:
    if isinstance(value, str):
        return value
    raise ValueError


def _texts(value: Json) -> list[str]:
    items = [value] if isinstance(value, str) else value
    if isinstance(items, list | tuple):
        texts = list(cast("list[Json]", items))
        if all(isinstance(text, str) for text in texts):
            return texts
    raise ValueError


def _table(value: Json) -> Mapping[str, Json]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Json]", value)
    raise ValueError


def _pair(value: Json) -> list[float]:
    items = list(cast("list[Json]", value)) if isinstance(value, list | tuple) else []
    if len(items) != 2:
        raise ValueError
    return [number(least=0, most=1).read(item) for item in items]


WHOLE, NUMBER = whole(), number()
FLAG = Takes("true or false", _flag)
TEXT = Takes("text", _text)
TEXTS = Takes("text, or a list of texts", _texts)
TABLE = Takes("a table", _table)
ANY = Takes("anything", lambda value: value)


# --------------------------------------------------------------------------- what a key is


@dataclass(frozen=True, slots=True)
class Honoured:
    """A key that sets something. ``default`` is what a verl config means that does not say it, where that is more than
    what is the default here anyway; ``ours`` are the settings, or in parentheses what else."""

    key: str
    takes: Takes
    ours: str
    how: str = ""
    default: Json = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """Keys whose value changes nothing about the result here, by the kind of value they take, and why; one line says
    which were said. A name ending in ``.**`` stands for everything below it."""

    what: str
    why: str
    keys: Mapping[Takes, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """A key that is off here: ``off`` are the values that mean so, and those alone pass. ``today`` is what to do
    instead of another. With ``unless``, another value passes too where that key is 0."""

    key: str
    takes: Takes
    off: tuple[Json, ...]
    today: str
    unless: str = ""


_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"

_NO_CRITIC = "there is no critic in this version, and so no GAE: set algorithm.adv_estimator=grpo"
_NO_KL = (
    "the loss has no KL term and no reference model: the clip and optim.lr keep steps small; leave it out, or set 0"
)
_NO_LORA = (
    "there are no adapters in this version, all weights are trained: set 0, and a smaller model where that is too much"
)
_OTHER_WEIGHTS = "weights come from the folder that actor_rollout_ref.model.path names: leave it out"
_NO_REWARD_MODEL = (
    "a reward is what the agent returns or emits, and Trainer(grader=...) scores from outside: leave it out"
)
_NO_OVERLONG = "a reward is the agent's own number: take off there what a long sample is to lose, and leave it out"
_OWN_LOOP = "turns and tools are the agent's own code here: leave it out"


def _estimator(value: str) -> str | None:
    if value == "gae":
        return _NO_CRITIC
    if value in ("rloo", "rloo_vectorized", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "opo"):
        return (
            "GRPO is the estimator of this version: set grpo, with algorithm.norm_adv_by_std_in_grpo=false for "
            "a reward "
            "less its group's mean (RLOO's times (n-1)/n)"
        )
    return "GRPO is the estimator of this version: set grpo" if value else None


def _tool_format(value: str) -> str | None:
    return "call formats of other names are not read; leave it out, and the chat template's own is found by probing it"


_FORMATS = one_of(
    "hermes", "llama3_json", "mistral", "mistral_v11", "qwen3_coder", "glm", "deepseek_v3", "deepseek_v31", "harmony",
    "gemma4", "function_gemma", "phi4", "text", or_else=_tool_format,
)  # fmt: skip


TRACKERS = ("console", "file", "tensorboard")
"""What a step is told to here, whatever `trainer.logger` says: TensorBoard where it is installed."""


def _logger(value: str) -> list[str]:
    texts = _texts(value)
    known = (*TRACKERS, "wandb", "swanlab", "mlflow", "clearml", "vemlp_wandb", "trackio", "rl_insight", "rl_logger")
    if any(text not in known for text in texts):
        raise ValueError
    return texts


HONOURED: tuple[Honoured, ...] = (
    # ------------------------------------------------------------------ tasks
    Honoured("data.train_files", TEXTS, "(the training tasks)",
             "Read where `fit` is handed none. A list of files is one data set."),
    Honoured("data.val_files", TEXTS, "(the validation tasks)", "As `data.train_files`."),
    Honoured("data.train_max_samples", whole(1, -1, 0), "(the training tasks)", "Only so many of the files' tasks."),
    Honoured("data.val_max_samples", whole(1, -1, 0), "(the validation tasks)", "Only so many of the files' tasks."),
    Honoured("data.seed", WHOLE, "seed"),
    Honoured("data.train_batch_size", whole(1), "algorithm.tasks_per_step learner.minibatches",
             "Need not divide the number of tasks, and may be smaller than a mini-batch. Not said: the default here."),
    Honoured("data.max_prompt_length", whole(1), "algorithm.credit.max_row_length",
             "With `data.max_response_length`: a call whose prompt and sample are longer than both together is "
             "masked as `row_length`, and counted. Nothing is ever cut, whatever `data.truncation` says.", 512),
    Honoured("data.max_response_length", whole(1),
             "sampling.max_tokens evaluation.max_tokens algorithm.credit.max_row_length", "The ceiling of "
             "one sample; an agent may ask for less.", 512),
    # ------------------------------------------------------------------ what is compared
    Honoured("algorithm.adv_estimator", one_of("grpo", "grpo_vectorized", or_else=_estimator), "algorithm.name",
             "Not said: grpo."),
    Honoured("algorithm.norm_adv_by_std_in_grpo", FLAG, "algorithm.std", "`sample`, or `none`.", True),
    Honoured("algorithm.filter_groups.enable", FLAG, "algorithm.dynamic_filtering"),
    Honoured("algorithm.filter_groups.max_num_gen_batches", whole(1, 0), "algorithm.filtering_rounds",
             "0, without end, is the default here. Read where `algorithm.filter_groups.enable` is true."),
    Honoured("algorithm.rollout_correction.rollout_is", one_of("token", or_else=lambda value: (
        "a weight per sequence is not computed: set token, or leave it out")),
             "learner.old_logprobs learner.importance_cap", "`token`: `recompute`, with a truncated weight per token."),
    Honoured("algorithm.rollout_correction.rollout_is_threshold", number(above=0), "learner.importance_cap",
             "Read where `rollout_is` is said.", 2.0),
    Honoured("algorithm.rollout_correction.bypass_mode", FLAG, "learner.old_logprobs", "True: `sampler`."),
    # ------------------------------------------------------------------ sampling
    Honoured(f"{_ROLLOUT}.n", whole(1), "algorithm.group_size",
             "1: the rewards of all of the batch are compared, or those of all calls of a task where calls have "
             "rewards of their own.", 1),
    Honoured(f"{_ROLLOUT}.temperature", number(least=0), "sampling.temperature", "", 1.0),
    Honoured(f"{_ROLLOUT}.top_p", number(above=0, most=1), "sampling.top_p", "", 1.0),
    Honoured(f"{_ROLLOUT}.top_k", whole(0, -1), "sampling.top_k", "-1: 0, the whole vocabulary.", -1),
    Honoured(f"{_ROLLOUT}.max_model_len", whole(2), "engine.context_length", "Not said: the model's own limit."),
    Honoured(f"{_ROLLOUT}.prompt_length", whole(1), "algorithm.credit.max_row_length",
             "Another spelling of `data.max_prompt_length`."),
    Honoured(f"{_ROLLOUT}.response_length", whole(1),
             "sampling.max_tokens evaluation.max_tokens algorithm.credit.max_row_length",
             "Another spelling of `data.max_response_length`."),
    Honoured(f"{_ROLLOUT}.enable_prefix_caching", FLAG, "engine.prefix_cache"),
    Honoured(f"{_ROLLOUT}.dtype", one_of("auto", "bfloat16", "float32", or_else=lambda value: (
        "float16 is neither sampled nor trained: set bfloat16" if value in ("float16", "half") else None)),
             "model.dtype", "Not said: `auto`."),
    Honoured(f"{_ROLLOUT}.multi_turn.format", _FORMATS, "model.tool_format",
             "Not said: found by probing the chat template."),
    Honoured(f"{_ROLLOUT}.engine_kwargs.vllm.tool_call_parser", _FORMATS, "model.tool_format",
             "Another spelling of `multi_turn.format`."),
    Honoured(f"{_ROLLOUT}.val_kwargs.n", whole(1), "evaluation.rollouts_per_task", "", 1),
    Honoured(f"{_ROLLOUT}.val_kwargs.temperature", number(least=0), "evaluation.temperature", "", 0.0),
    Honoured(f"{_ROLLOUT}.val_kwargs.top_p", number(above=0, most=1), "evaluation.top_p", "", 1.0),
    Honoured(f"{_ROLLOUT}.val_kwargs.top_k", whole(0, -1), "evaluation.top_k", "", -1),
    Honoured(f"{_ROLLOUT}.val_kwargs.do_sample", FLAG, "evaluation.temperature", "False: 0."),
    # ------------------------------------------------------------------ learning
    Honoured(f"{_ACTOR}.ppo_mini_batch_size", whole(1), "learner.minibatches",
             "As many optimizer steps as mini-batches of so many tasks are in a batch, rounded up; 1 where a batch is "
             "smaller. A mini-batch never cuts a task's group.", 256),
    Honoured(f"{_ACTOR}.ppo_epochs", whole(1), "learner.epochs", "", 1),
    Honoured(f"{_ACTOR}.optim.lr", number(above=0), "learner.lr", "", 1e-6),
    Honoured(f"{_ACTOR}.optim.weight_decay", number(least=0), "learner.weight_decay", "", 0.01),
    Honoured(f"{_ACTOR}.optim.betas", Takes("two numbers from 0 to 1", _pair), "learner.betas", "", [0.9, 0.999]),
    Honoured(f"{_ACTOR}.optim.lr_warmup_steps", whole(0, -1), "learner.warmup_steps", "-1: by the ratio.", -1),
    Honoured(f"{_ACTOR}.optim.lr_warmup_steps_ratio", number(least=0, most=1), "learner.warmup_steps",
             "Above 0 it needs `trainer.total_training_steps`: it is that share of them.", 0.0),
    Honoured(f"{_ACTOR}.optim.lr_scheduler_type", one_of("constant", "cosine"), "learner.schedule", "", "constant"),
    Honoured(f"{_ACTOR}.optim.warmup_style", one_of("constant", "cosine"), "learner.schedule",
             "An earlier spelling of `lr_scheduler_type`."),
    Honoured(f"{_ACTOR}.grad_clip", number(above=0), "learner.max_grad_norm", "", 1.0),
    Honoured(f"{_ACTOR}.optim.clip_grad", number(above=0), "learner.max_grad_norm", "Another spelling of `grad_clip`."),
    Honoured(f"{_ACTOR}.clip_ratio", number(above=0), "algorithm.clip_low algorithm.clip_high",
             "Where `clip_ratio_low` or `clip_ratio_high` is not said.", 0.2),
    Honoured(f"{_ACTOR}.clip_ratio_low", number(above=0), "algorithm.clip_low"),
    Honoured(f"{_ACTOR}.clip_ratio_high", number(above=0), "algorithm.clip_high"),
    Honoured(f"{_ACTOR}.loss_agg_mode", one_of(
        "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"),
             "algorithm.aggregation algorithm.fixed_length",
             "`token_mean`; `sequence_mean`; `dr_grpo` over a length of 1; `dr_grpo` over `loss_scale_factor`. "
             "A sequence "
             "is a rollout here, in however many rows it is.", "token-mean"),
    Honoured(f"{_ACTOR}.loss_scale_factor", whole(1), "algorithm.fixed_length",
             "With `seq-mean-token-sum-norm`. Not said: `data.max_response_length`."),
    Honoured(f"{_MODEL}.path", TEXT, "model.path",
             "Not said: `AGL_MODEL__PATH`, else the model that an `LLM` of the resources names."),
    Honoured(f"{_MODEL}.enable_gradient_checkpointing", FLAG, "learner.gradient_checkpointing",
             "Not said: the default here; the result is the same."),
    # ------------------------------------------------------------------ the run
    Honoured("trainer.total_epochs", whole(1), "epochs", "", 30),
    Honoured("trainer.total_training_steps", whole(1), "steps", "Holds over `trainer.total_epochs`."),
    Honoured("trainer.project_name", TEXT, "name", "A run is called by its project and experiment."),
    Honoured("trainer.experiment_name", TEXT, "name", "See `trainer.project_name`."),
    Honoured("trainer.default_local_dir", TEXT, "output_dir", "Not said: `runs`."),
    Honoured("trainer.save_freq", whole(1, 0, -1), "checkpoint.save_every", "0 and -1: the last one alone.", -1),
    Honoured("trainer.max_actor_ckpt_to_keep", whole(1), "checkpoint.keep", "Not said: the default here."),
    Honoured("trainer.test_freq", whole(1, 0, -1), "evaluation.every evaluation.after",
             "0 and -1: no validation after any step, not after the last either. Without validation tasks there "
             "is none, "
             "whatever this says.", -1),
    Honoured("trainer.val_before_train", FLAG, "evaluation.before", "", True),
    Honoured("trainer.resume_mode", one_of("auto", "disable", "resume_path"), "(resume)",
             "`auto`: goes on with the newest unfinished run of this name in this place, where there is one. "
             "Not said: a "
             "new run begins."),
    Honoured("trainer.resume_from_path", TEXT, "(resume)", "A run's id or folder, with `resume_mode=resume_path`."),
    Honoured("trainer.logger", Takes("one or a list of console, file, tensorboard, wandb, swanlab, mlflow, clearml, "
             "trackio", _logger), "(what is written)",
             "`console`, `file` and `tensorboard` are always on, the last where it is installed. Nothing is sent "
             "elsewhere, and one line says so: each step is a line of `metrics.jsonl`."),
    Honoured("agentlightning.trace_aggregator.level", one_of("transition", "trajectory"),
             "algorithm.credit.max_row_length",
             "A loss does not depend on how calls are cut into rows. With `trajectory` the two lengths below are the "
             "limit of a row, in place of those of `data`.", "transition"),
    Honoured("agentlightning.trace_aggregator.trajectory_max_prompt_length", whole(1),
             "algorithm.credit.max_row_length", "With `level=trajectory`.", 2048),
    Honoured("agentlightning.trace_aggregator.trajectory_max_response_length", whole(1),
             "algorithm.credit.max_row_length", "With `level=trajectory`.", 8192),
    Honoured("agentlightning.port", whole(0), "gateway.port", "Not said: a free one."),
)  # fmt: skip


ACCEPTED: tuple[Accepted, ...] = (
    Accepted(
        "where it runs",
        "one process on one device computes the same; docs/engine.md",
        {
            TEXT: f"{_ROLLOUT}.name {_ROLLOUT}.mode {_ACTOR}.strategy {_ROLLOUT}.load_format "
            "actor_rollout_ref.ref.strategy trainer.device",
            WHOLE: f"trainer.n_gpus_per_node trainer.nnodes {_ROLLOUT}.tensor_model_parallel_size "
            f"{_ROLLOUT}.data_parallel_size {_ROLLOUT}.expert_parallel_size {_ROLLOUT}.pipeline_model_parallel_size "
            f"{_ROLLOUT}.n_gpus_per_node {_ROLLOUT}.nnodes {_ACTOR}.ulysses_sequence_parallel_size "
            "actor_rollout_ref.ref.ulysses_sequence_parallel_size actor_rollout_ref.nccl_timeout "
            f"{_ROLLOUT}.agent.num_workers trainer.ray_wait_register_center_timeout data.dataloader_num_workers "
            "data.filter_overlong_prompts_workers trainer.esi_redundant_time",
            FLAG: "actor_rollout_ref.hybrid_engine trainer.balance_batch data.use_shm "
            f"{_MODEL}.use_shm {_MODEL}.trust_remote_code trainer.use_v1 transfer_queue.enable",
            ANY: "ray_init.** ray_kwargs.** transfer_queue.backend.** transfer_queue.metrics.** "
            "trainer.use_legacy_worker_impl trainer.v1.** hydra.** "
            f"{_ROLLOUT}.agent.custom_async_server.** {_ROLLOUT}.checkpoint_engine.** {_ROLLOUT}.disaggregation.**",
        },
    ),
    Accepted(
        "memory and offload",
        "the engine's memory is engine.kv_budget_gb, and nothing is moved off the device",
        {
            NUMBER: f"{_ROLLOUT}.gpu_memory_utilization",
            WHOLE: f"{_ROLLOUT}.max_num_seqs {_ROLLOUT}.max_num_batched_tokens "
            f"{_ROLLOUT}.update_weights_bucket_megabytes",
            FLAG: f"{_ACTOR}.fsdp_config.param_offload {_ACTOR}.fsdp_config.optimizer_offload "
            "actor_rollout_ref.ref.fsdp_config.param_offload actor_rollout_ref.ref.fsdp_config.optimizer_offload "
            f"{_ROLLOUT}.enforce_eager {_ROLLOUT}.free_cache_engine {_ROLLOUT}.enable_chunked_prefill "
            f"{_ROLLOUT}.layered_summon {_ROLLOUT}.multi_stage_wake_up {_MODEL}.enable_activation_offload "
            f"{_ROLLOUT}.disable_log_stats {_ROLLOUT}.skip_tokenizer_init",
            ANY: f"{_ACTOR}.fsdp_config.** actor_rollout_ref.ref.fsdp_config.** {_ROLLOUT}.cudagraph_capture_sizes "
            f"{_ROLLOUT}.scheduling_policy {_ROLLOUT}.engine_kwargs.vllm.swap_space "
            f"{_ROLLOUT}.engine_kwargs.vllm.enable_auto_tool_choice "
            f"{_ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache "
            f"{_ROLLOUT}.engine_kwargs.vllm.attention_backend {_ROLLOUT}.engine_kwargs.vllm.enforce_eager "
            f"{_ROLLOUT}.engine_kwargs.sglang.attention_backend {_ACTOR}.megatron.** actor_rollout_ref.ref.megatron.** "
            f"{_ACTOR}.torchtitan.** {_ACTOR}.veomni.**",
        },
    ),
    Accepted(
        "micro-batches and padding",
        "a loss does not change with how a batch is cut into rows and blocks; rows are packed (learner.layout)",
        {
            WHOLE: f"{_ACTOR}.ppo_micro_batch_size {_ACTOR}.ppo_micro_batch_size_per_gpu "
            f"{_ACTOR}.ppo_max_token_len_per_gpu {_ROLLOUT}.log_prob_micro_batch_size "
            f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu {_ROLLOUT}.log_prob_max_token_len_per_gpu "
            "actor_rollout_ref.ref.log_prob_micro_batch_size actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu "
            "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu "
            f"{_ACTOR}.entropy_from_logits_chunk_size actor_rollout_ref.ref.entropy_from_logits_chunk_size",
            FLAG: f"{_ACTOR}.use_dynamic_bsz {_ROLLOUT}.log_prob_use_dynamic_bsz "
            "actor_rollout_ref.ref.log_prob_use_dynamic_bsz "
            f"{_MODEL}.use_remove_padding {_ACTOR}.use_remove_padding {_MODEL}.use_liger {_MODEL}.use_fused_kernels "
            f"{_ACTOR}.use_fused_kernels {_ACTOR}.use_torch_compile actor_rollout_ref.ref.use_torch_compile "
            f"{_ACTOR}.entropy_from_logits_with_chunking {_ACTOR}.entropy_checkpointing "
            f"{_ACTOR}.use_prefix_grouper {_ACTOR}.pad_to_length actor_rollout_ref.ref.pad_to_length "
            "actor_rollout_ref.ref.entropy_from_logits_with_chunking actor_rollout_ref.ref.entropy_checkpointing",
            ANY: f"{_MODEL}.fused_kernel_options.** {_MODEL}.tiled_mlp.** actor_rollout_ref.ref.model.**",
        },
    ),
    Accepted(
        "what its data set reads",
        "a task is handed to the agent whole, whatever its fields are called, and nothing is cut",
        {
            WHOLE: "data.val_batch_size",
            FLAG: "data.filter_overlong_prompts data.return_raw_input_ids data.return_raw_chat data.return_full_prompt "
            "data.return_multi_modal_inputs data.validation_shuffle data.trust_remote_code",
            TEXT: "data.truncation data.prompt_key data.reward_fn_key data.image_key data.video_key data.audio_key",
            ANY: "data.image_patch_size data.tokenizer data.mm_processor_kwargs data.image_base_dir",
        },
    ),
    Accepted(
        "what is read only beside something that is off",
        "there is no critic, no KL term, no adapter, no reward model and no teacher, and their own switch says so",
        {
            NUMBER: f"algorithm.gamma algorithm.lam {_ACTOR}.kl_loss_coef {_MODEL}.lora_alpha {_ACTOR}.tau_pos "
            f"{_ACTOR}.tau_neg {_ACTOR}.policy_loss.clip_cov_ratio {_ACTOR}.policy_loss.clip_cov_lb "
            f"{_ACTOR}.policy_loss.clip_cov_ub {_ACTOR}.policy_loss.kl_cov_ratio {_ACTOR}.policy_loss.ppo_kl_coef "
            f"{_ACTOR}.policy_loss.dro_beta algorithm.kl_ctrl.kl_coef algorithm.kl_ctrl.horizon "
            "algorithm.kl_ctrl.target_kl",
            TEXT: f"{_ACTOR}.kl_loss_type algorithm.kl_penalty algorithm.kl_ctrl.type reward_model.reward_manager "
            f"{_ROLLOUT}.multi_turn.tool_response_truncate_side {_ROLLOUT}.multi_turn.tokenization_sanity_check_mode",
            ANY: f"critic.** reward_model.** reward.** reward_manager.** sandbox_fusion.** custom_reward_function.name "
            f"distillation.** algorithm.pf_ppo.** {_MODEL}.target_modules {_MODEL}.exclude_modules {_MODEL}.lora.** "
            f"{_MODEL}.mtp.** {_ACTOR}.qat.** {_ROLLOUT}.qat {_ROLLOUT}.mtp data.sampler.class_name "
            f"data.custom_cls.name "
            f"data.datagen.name algorithm.filter_groups.max_inflight_gen_batches {_ACTOR}.router_replay.** "
            "actor_rollout_ref.ref.router_replay.** "
            f"{_ROLLOUT}.multi_turn.max_tool_response_length {_ROLLOUT}.multi_turn.max_parallel_calls "
            f"{_ROLLOUT}.multi_turn.enable {_ROLLOUT}.multi_turn.use_inference_chat_template skip.** "
            f"{_ROLLOUT}.skip.** "
            f"{_ROLLOUT}.skip_dump_dir",
        },
    ),
    Accepted(
        "what is written and measured besides",
        "every rollout and step is in the record (docs/store.md), and nothing is profiled",
        {
            WHOLE: "trainer.log_val_generations trainer.val_generations_to_log_to_wandb "
            "trainer.max_critic_ckpt_to_keep",
            FLAG: f"trainer.del_local_ckpt_after_load trainer.remove_previous_ckpt_in_save "
            f"{_ROLLOUT}.calculate_log_probs "
            f"{_ACTOR}.calculate_entropy {_ACTOR}.calculate_sum_pi_squared",
            ANY: "trainer.rollout_data_dir trainer.validation_data_dir trainer.controller_nsight_options.** "
            "trainer.worker_nsight_options.** trainer.npu_profile.** trainer.profile_steps global_profiler.** "
            f"actor_rollout_ref.profiler.** {_ACTOR}.profiler.** {_ROLLOUT}.profiler.** "
            f"actor_rollout_ref.ref.profiler.** "
            "agentlightning.trace_aggregator.debug agentlightning.trace_aggregator.mismatch_log_dir "
            f"{_ACTOR}.checkpoint.** {_ROLLOUT}.trace.** {_ROLLOUT}.prometheus.** {_ROLLOUT}.logprobs_mode "
            f"{_ROLLOUT}.moe_load_balance_metrics_interval {_ACTOR}.sum_pi_squared_checkpointing",
        },
    ),
    Accepted(
        "what follows from other keys",
        "verl fills it in itself",
        {
            WHOLE: f"{_ACTOR}.rollout_n actor_rollout_ref.ref.rollout_n {_ACTOR}.data_loader_seed {_ROLLOUT}.seed",
            FLAG: f"{_ACTOR}.shuffle {_ACTOR}.optim.zero_indexed_step {_ROLLOUT}.full_determinism",
            ANY: f"{_ACTOR}.optim.total_training_steps",
        },
    ),
)


REFUSED: tuple[Refused, ...] = (
    # ------------------------------------------------------------------ other algorithms
    Refused("critic.enable", FLAG, (False,), _NO_CRITIC),
    Refused("trainer.critic_warmup", WHOLE, (0,), _NO_CRITIC),
    Refused(f"{_ACTOR}.use_kl_loss", FLAG, (False,), _NO_KL, unless=f"{_ACTOR}.kl_loss_coef"),
    Refused("algorithm.use_kl_in_reward", FLAG, (False,), _NO_KL, unless="algorithm.kl_ctrl.kl_coef"),
    Refused(f"{_ACTOR}.entropy_coeff", NUMBER, (0,),
            "the loss has no entropy bonus: a clip_ratio_high above clip_ratio_low keeps samples apart; set 0"),
    Refused(f"{_ACTOR}.policy_loss.loss_mode", TEXT, ("vanilla",),
            "the ratio is per token and clipped as PPO does it: leave it out"),
    Refused(f"{_ACTOR}.clip_ratio_c", NUMBER, (),
            "the ratio has one clip on each side and no second one for negative advantages: leave it out"),
    Refused("algorithm.use_pf_ppo", FLAG, (False,), "every sample of a batch is learned from once: leave it out"),
    Refused("algorithm.rollout_correction.rollout_rs", TEXT, (), "samples are weighted, not rejected: leave it out"),
    Refused("algorithm.rollout_correction.rollout_rs_threshold", NUMBER, (), "samples are weighted, not rejected"),
    Refused("algorithm.rollout_correction.rollout_rs_threshold_lower", NUMBER, (), "samples are weighted, not "
             "rejected"),
    Refused("algorithm.rollout_correction.rollout_token_veto_threshold", NUMBER, (), "samples are weighted, not "
             "rejected"),
    Refused("algorithm.rollout_correction.rollout_is_batch_normalize", FLAG, (False,),
            "weights are truncated and used as they are: leave it out"),
    Refused("algorithm.rollout_correction.use_policy_gradient", FLAG, (False,), "the ratio is clipped as PPO does it"),
    Refused("algorithm.rollout_correction.loss_type", TEXT, ("ppo_clip",), "the ratio is clipped as PPO does it"),
    Refused("algorithm.filter_groups.metric", TEXT, ("reward", "score", "seq_reward", "seq_final_reward"),
            "groups are filtered by their rewards: set seq_reward"),
    Refused("distillation.enabled", FLAG, (False,), "this version learns from rewards alone: leave it out"),
    Refused(f"{_ACTOR}.router_replay.mode", TEXT, ("disabled",), "routing is not replayed: leave it out"),
    Refused(f"{_ROLLOUT}.enable_rollout_routing_replay", FLAG, (False,), "routing is not replayed: leave it out"),
    # ------------------------------------------------------------------ weights
    Refused(f"{_MODEL}.lora_rank", WHOLE, (0,), _NO_LORA),
    Refused(f"{_MODEL}.lora.rank", WHOLE, (0,), _NO_LORA),
    Refused(f"{_MODEL}.lora_adapter_path", TEXT, (), _NO_LORA),
    Refused(f"{_MODEL}.lora.adapter_path", TEXT, (), _NO_LORA),
    Refused(f"{_ACTOR}.megatron.use_dist_checkpointing", FLAG, (False,), _OTHER_WEIGHTS),
    Refused(f"{_ACTOR}.veomni.load_checkpoint_path", TEXT, (), _OTHER_WEIGHTS),
    Refused(f"{_ACTOR}.qat.enable", FLAG, (False,), "weights are trained in float32: leave it out"),
    Refused(f"{_ACTOR}.fsdp_config.qat.enable", FLAG, (False,), "weights are trained in float32: leave it out"),
    Refused(f"{_ACTOR}.fsdp_config.model_dtype", TEXT, ("fp32", "float32"),
            "the learner keeps its weights in float32: leave it out"),
    Refused(f"{_ROLLOUT}.quantization", TEXT, (), "quantised weights are not sampled: leave it out"),
    Refused(f"{_ROLLOUT}.quantization_config_file", TEXT, (), "quantised weights are not sampled: leave it out"),
    Refused(f"{_MODEL}.mtp.enable", FLAG, (False,), "tokens are sampled one by one: leave it out"),
    Refused(f"{_ACTOR}.freeze_vision_tower", FLAG, (False,), "models are trained on text alone: leave it out"),
    Refused(f"{_MODEL}.override_config", TABLE, ({},), "save the model with that config, and give its folder"),
    Refused(f"{_MODEL}.tokenizer_path", TEXT, (), "the tokenizer comes from the model's folder: save yours there"),
    Refused(f"{_MODEL}.hf_config_path", TEXT, (), "the config comes from the model's folder: save yours there"),
    Refused(f"{_MODEL}.custom_chat_template", TEXT, (),
            "the chat template comes from the model's folder: save yours there (chat_template.jinja)"),
    Refused(f"{_MODEL}.external_lib", TEXT, (), "a model is loaded without code of its own: leave it out"),
    # ------------------------------------------------------------------ the optimizer
    Refused(f"{_ACTOR}.optim.optimizer", TEXT, ("AdamW", "adam"), "the optimizer is AdamW: leave it out"),
    Refused(f"{_ACTOR}.optim.optimizer_impl", TEXT, ("torch.optim",), "the optimizer is AdamW: leave it out"),
    Refused(f"{_ACTOR}.optim.override_optimizer_config", TABLE, ({},), "the optimizer is AdamW: leave it out"),
    Refused(f"{_ACTOR}.optim.min_lr_ratio", NUMBER, (0,), "the cosine falls to 0: leave it out"),
    Refused(f"{_ACTOR}.optim.num_cycles", NUMBER, (0.5,), "the cosine falls once: leave it out"),
    # ------------------------------------------------------------------ sampling
    Refused(f"{_ROLLOUT}.do_sample", FLAG, (True,),
            "greedy samples of a task are all the same, and there is nothing to learn from: leave it out"),
    Refused(f"{_ROLLOUT}.ignore_eos", FLAG, (False,), "a sample ends where the model ends it: leave it out"),
    Refused(f"{_ROLLOUT}.use_fire_sampling", FLAG, (False,), "the first token is sampled like the others: leave "
             "it out"),
    Refused(f"{_ROLLOUT}.over_sample_rate", NUMBER, (0,), "quorum lets a group go on without its slowest: leave "
             "it out"),
    Refused(f"{_ROLLOUT}.engine_kwargs.vllm.**", ANY, (),
            "sampling is by the engine inside the process, and this argument of vLLM's means nothing to it: "
            "leave it out"),
    Refused(f"{_ROLLOUT}.engine_kwargs.sglang.**", ANY, (), "sampling is by the engine inside the process: "
             "leave it out"),
    Refused(f"{_ROLLOUT}.engine_kwargs.trtllm.**", ANY, (), "sampling is by the engine inside the process: "
             "leave it out"),
    Refused(f"{_ROLLOUT}.multi_turn.max_assistant_turns", WHOLE, (), _OWN_LOOP),
    Refused(f"{_ROLLOUT}.multi_turn.max_user_turns", WHOLE, (), _OWN_LOOP),
    Refused(f"{_ROLLOUT}.multi_turn.tool_config_path", TEXT, (), _OWN_LOOP),
    Refused(f"{_ROLLOUT}.multi_turn.function_tool_path", TEXT, (), _OWN_LOOP),
    Refused(f"{_ROLLOUT}.multi_turn.interaction_config_path", TEXT, (), _OWN_LOOP),
    Refused(f"{_ROLLOUT}.multi_turn.completion_callback", TEXT, (), _OWN_LOOP),
    Refused("data.tool_config_path", TEXT, (), _OWN_LOOP),
    Refused("data.function_tool_path", TEXT, (), _OWN_LOOP),
    Refused(f"{_ROLLOUT}.agent.agent_loop_config_path", TEXT, (), _OWN_LOOP),
    Refused(f"{_ROLLOUT}.agent.default_agent_loop", TEXT, ("single_turn_agent",), _OWN_LOOP),
    Refused(f"{_ROLLOUT}.multi_turn.num_repeat_rollouts", WHOLE, (), f"it is {_ROLLOUT}.n"),
    Refused(f"{_ROLLOUT}.skip_rollout", FLAG, (False,), "samples are never taken from a file: leave it out"),
    Refused(f"{_ROLLOUT}.skip.enable", FLAG, (False,), "samples are never taken from a file: leave it out"),
    Refused("skip.rollout.enable", FLAG, (False,), "samples are never taken from a file: leave it out"),
    Refused("skip.rollout_tq.enable", FLAG, (False,), "samples are never taken from a file: leave it out"),
    Refused("skip.async_rollout.enable", FLAG, (False,), "samples are never taken from a file: leave it out"),
    Refused(f"{_ROLLOUT}.router_config_path", TEXT, (), "there is one engine: leave it out"),
    # ------------------------------------------------------------------ rewards and tasks
    Refused("reward_model.enable", FLAG, (False,), _NO_REWARD_MODEL),
    Refused("reward.reward_model.enable", FLAG, (False,), _NO_REWARD_MODEL),
    Refused("custom_reward_function.path", TEXT, (), _NO_REWARD_MODEL),
    Refused("reward.custom_reward_function.path", TEXT, (), _NO_REWARD_MODEL),
    Refused("reward_model.sandbox_fusion.url", TEXT, (), _NO_REWARD_MODEL),
    Refused("reward.sandbox_fusion.url", TEXT, (), _NO_REWARD_MODEL),
    Refused("reward_model.overlong_buffer.enable", FLAG, (False,), _NO_OVERLONG),
    Refused("reward_model.reward_kwargs.overlong_buffer_cfg.enable", FLAG, (False,), _NO_OVERLONG),
    Refused("reward.reward_kwargs.overlong_buffer_cfg.enable", FLAG, (False,), _NO_OVERLONG),
    Refused("data.shuffle", FLAG, (True,), "tasks come in an order that data.seed fixes, each pass anew: leave it out"),
    Refused("data.sampler.class_path", TEXT, (), "tasks come in an order that data.seed fixes: leave it out"),
    Refused("data.custom_cls.path", TEXT, (), "hand fit() the tasks themselves, any sequence of JSON values"),
    Refused("data.datagen.path", TEXT, (), "hand fit() the tasks themselves, any sequence of JSON values"),
    Refused("data.gen_batch_size", WHOLE, (), "algorithm.filter_groups samples further tasks until there are enough"),
    Refused("data.apply_chat_template_kwargs", TABLE, ({},),
            "an agent's request says that: extra_body={'chat_template_kwargs': {...}}"),
    # ------------------------------------------------------------------ the run
    Refused("trainer.v1.trainer_mode", TEXT, ("sync",), "a step learns from samples of its own version: set sync"),
    Refused("trainer.v1.sampler.custom_sampler.path", TEXT, (), "tasks come in an order that data.seed fixes"),
    Refused("trainer.val_only", FLAG, (False,), "call trainer.evaluate(agent, tasks), or `agl eval`"),
    Refused("trainer.default_hdfs_dir", TEXT, (), "checkpoints are kept in trainer.default_local_dir: leave it out"),
    Refused("trainer.checkpoint_callback_class", TEXT, (), "nothing is called with a checkpoint: leave it out"),
)  # fmt: skip
