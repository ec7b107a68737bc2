"""Configurations that cannot be run without a GPU: TRL, transformers and accelerate take them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accelerate import FullyShardedDataParallelPlugin
from trl.experimental.async_grpo import AsyncGRPOConfig

from recipes.arguments import arguments
from recipes.asynchronous import SHARED, asynchronous_arguments
from recipes.config import (
    Advantage,
    Aggregation,
    ConfigError,
    Execution,
    Filtering,
    Length,
    Loss,
    Model,
    Precision,
    Staleness,
)
from recipes.train import train
from tests.recipes.conftest import TINY, Recorder, tiny

HF = Model("org/name")


def test_nothing_is_sharded_or_served_unless_asked_for(tmp_path: Path) -> None:
    plain = arguments(tiny(), tmp_path)
    assert (plain.use_vllm, plain.fsdp, plain.deepspeed) == (False, None, None)
    assert not plain.activation_checkpointing
    assert arguments(tiny(model=HF), tmp_path).activation_checkpointing
    without = tiny(model=HF, execution=Execution(gradient_checkpointing=False))
    assert not arguments(without, tmp_path).activation_checkpointing


@pytest.mark.parametrize(
    ("rollouts", "given", "expected"),
    [
        (
            "vllm_colocate",
            {"gpu_memory_utilization": 0.4, "tensor_parallel_size": 2, "enable_sleep_mode": True},
            {"vllm_mode": "colocate", "vllm_max_model_length": 3 + 4},
        ),
        (
            "vllm_server",
            {"server_host": "node7", "server_port": 8123, "max_model_length": 128},
            {"vllm_mode": "server"},
        ),
    ],
)
def test_vllm_generates(
    rollouts: str, given: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    execution = Execution(rollouts=rollouts, vllm=given)
    told = arguments(tiny(model=HF, execution=execution), tmp_path)
    expected = {"use_vllm": True, **expected, **{f"vllm_{key}": given[key] for key in given}}
    assert {name: getattr(told, name) for name in expected} == expected


def test_accelerate_takes_the_sharding(tmp_path: Path) -> None:
    given = {"reshard_after_forward": False, "state_dict_type": "SHARDED_STATE_DICT"}
    told = arguments(tiny(model=HF, execution=Execution(fsdp=True, fsdp_config=given)), tmp_path)
    assert not told.gradient_checkpointing  # FSDP has its own
    plugin = FullyShardedDataParallelPlugin(**told.fsdp_plugin_args)
    assert plugin.fsdp_version == 2
    assert plugin.activation_checkpointing
    assert plugin.reshard_after_forward is False
    assert plugin.state_dict_type.name == "SHARDED_STATE_DICT"
    assert (
        FullyShardedDataParallelPlugin(
            **arguments(tiny(execution=Execution(fsdp=True)), tmp_path).fsdp_plugin_args
        ).activation_checkpointing
        is False
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"rollouts": "sglang"},
            r"execution.rollouts: got 'sglang', allowed: transformers \| vllm_",
        ),
        ({"rollouts": "vllm_server", "vllm": {"host": "a"}}, r"execution.vllm's key: got 'host'"),
        ({"vllm": {"server_port": 1}}, r"execution.vllm: got .*, allowed: {}, with execution.roll"),
        (
            {"fsdp": True, "fsdp_config": {"shard": 1}},
            r"execution.fsdp_config's key: got 'shard', allowed: version",
        ),
        (
            {"fsdp": True, "deepspeed": "ds.json"},
            r"execution.deepspeed: got 'ds.json', allowed: null",
        ),
    ],
)
def test_what_nobody_would_take_is_refused_at_planning(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Execution(**given)


ASYNC = {
    "model": HF,
    "task": replace(TINY.task, chat=True),
    "loss": Loss("dapo"),
    "staleness": Staleness("pipeline", 8),
    "execution": Execution(rollouts="async", vllm={"server_base_url": "http://node7:8000"}),
}


def test_the_asynchronous_trainer_takes_the_same_values(tmp_path: Path) -> None:
    config = tiny(**ASYNC)
    told, known = asynchronous_arguments(config, tmp_path), arguments(config, tmp_path)
    assert isinstance(told, AsyncGRPOConfig)
    assert (told.max_staleness, told.token_budget) == (8, 0)
    assert told.vllm_server_base_url == "http://node7:8000"
    assert told.model_init_kwargs == {"revision": "main"}
    assert told.learning_rate == TINY.optimizer.lr
    assert told.per_device_train_batch_size * told.gradient_accumulation_steps == 16
    for name in SHARED:
        assert getattr(told, name) == getattr(known, name), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"staleness": Staleness()}, "staleness.kind: got 'on_policy', allowed: pipeline, with"),
        (
            {"loss": Loss("cispo", epsilon_high=5.0)},
            "loss.name: got 'cispo', allowed: grpo | dapo,",
        ),
        ({"loss": Loss("grpo")}, "aggregation.over: got 'native', allowed: token, with"),
        (
            {"aggregation": Aggregation("prompt")},
            "aggregation.over: got 'prompt', allowed: token |",
        ),
        ({"advantage": Advantage("batch")}, "advantage.scale: got 'batch', allowed: prompt, with"),
        ({"filtering": Filtering("drop")}, "filtering.zero_variance: got 'drop', allowed: keep, "),
        (
            {"filtering": Filtering(max_pass_rate=0.9)},
            "filtering.max_pass_rate: got 0.9, allowed: N",
        ),
        ({"length": Length("penalty")}, "length.kind: got 'penalty', allowed: truncate, with"),
        ({"precision": Precision("bf16", True)}, "precision.fp32_head: got True, allowed: False, "),
        ({"task": TINY.task}, "task.chat: got False, allowed: True, with execution.rollouts=async"),
    ],
)
def test_what_the_asynchronous_trainer_lacks_is_refused_at_planning(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        tiny(**{**ASYNC, **change})


def test_without_vllm_nothing_starts(models_dir: Path, tmp_path: Path) -> None:
    message = "execution.rollouts: got 'vllm_colocate', allowed: transformers, where vLLM is not"
    with pytest.raises(ConfigError, match=message):
        train(tiny(execution=Execution(rollouts="vllm_colocate")), tmp_path, models_dir, Recorder())
    assert not list(tmp_path.iterdir())
