"""The asynchronous trainer with all but its GPU: a server, a rollout worker and a weight transfer.

Its attention is a kernel for GPUs; PyTorch's stands in for it, on rows of one sample each.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PrinterCallback
from trl.experimental.async_grpo import async_grpo_trainer
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from recipes import models, tasks
from recipes.asynchronous import AsynchronousTrainer, WorkerRewards
from recipes.checkpoints import Checkpoints
from recipes.config import Budget, Execution, Loss, Model, Staleness
from recipes.progress import Progress
from tests.recipes.conftest import TINY, Recorder, tiny

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
EOS = 2
CHAT = "{{ messages[0]['content'] }}"
PROMPT, OWN = 3, 3  # two digits and "="; two digits and the end token


class Server(BaseHTTPRequestHandler):
    """A vLLM server that completes rightly the first of each prompt's completions alone.

    It drops its first connection, as an overloaded one does.
    """

    dropped = False

    def do_POST(self) -> None:
        if not Server.dropped:
            Server.dropped = True
            return
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        right = [*sorted(asked["prompt"][:-1]), EOS]
        wrong = [3] * asked["max_tokens"]
        choices = [{"token_ids": wrong if index else right} for index in range(asked["n"])]
        self._answer({"choices": choices})

    def _answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Listening(ThreadingHTTPServer):
    request_queue_size = 128  # of 5, a connection is reset when all ask at once


@pytest.fixture
def server() -> Iterator[str]:
    http = Listening(("127.0.0.1", 0), Server)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


class Worker:
    """A rollout worker whose samples are of the first policy, and differ from each other."""

    def __init__(self, samples: int) -> None:
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.version = 0
        for index in range(samples):
            ids = [3 + index % 10, 3 + index // 10, 13, 3 + index % 7, 4, EOS]
            sample = RolloutSample(
                prompt=[],
                completion=[],
                input_ids=np.array(ids),
                completion_mask=np.array([0] * PROMPT + [1] * OWN),
                old_log_probs=np.array([0.0] * PROMPT + [-1.0] * OWN),
                advantage=1.0 if index % 2 else -1.0,
                model_version=1,
                group_id=index,
                metrics={"reward": float(index % 2)},
            )
            self.rollout_buffer.put(sample)

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def check_health(self, stale_after_s: float) -> None: ...

    def update_model_version(self, model_version: int) -> None:
        self.version = model_version


class Transfer:
    """Takes the weights that a server would be sent."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.sent.append(torch.cat([tensor.flatten().clone() for _, tensor in iterator]))


def test_it_trains_evaluates_and_is_kept(
    server: str, models_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_grpo_trainer, "TREE_ATTENTION", "sdpa")
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
    config = tiny(
        model=Model(str(models.ensure_embedded(TINY, models_dir))),
        task=replace(TINY.task, chat=True),
        loss=Loss("dapo"),
        staleness=Staleness("pipeline", 2),
        budget=Budget(amount=2, eval_every=2, log_every=1),
        execution=Execution(1, rollouts="async", vllm={"server_base_url": server}),
    )
    model, tokenizer = models.load(config, models_dir)
    tokenizer.chat_template = CHAT
    worker, transfer, sink = Worker(48), Transfer(), Recorder()
    progress, checkpoints = Progress(config, sink), Checkpoints(tmp_path, 1)
    trainer = AsynchronousTrainer(
        config,
        model,
        tokenizer,
        tasks.load(config.task),
        checkpoints,
        progress,
        rollout_worker=worker,
        weight_transfer=transfer,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.go_on(None)

    assert Server.dropped
    compute = sink.compute[2]
    assert compute["steps"] == 2
    assert compute["generated_tokens"] == 2 * 16 * OWN
    assert compute["prompt_tokens"] == 2 * 16 * PROMPT
    assert compute["trained_tokens"] == 2 * 16 * (PROMPT + OWN)
    for step in (0, 2):
        evaluation = sink.points[step, "eval"]
        assert evaluation["eval/pass_rate"] == 0.25  # one of four
        assert evaluation["eval/truncation_rate"] == 0.75
    assert len(transfer.sent) == 3  # before the first step, and after each
    assert not torch.equal(transfer.sent[0], transfer.sent[2])
    assert worker.version == 3
    assert sink.points[1, "train"]["train/grad_norm"] > 0
    assert (tmp_path / "step-000002" / "model.safetensors").exists()
    assert sink.events == [("checkpoint", {"step": 2})]


def test_the_reward_is_of_the_last_message() -> None:
    data = tasks.load(TINY.task)
    rewards = WorkerRewards(TINY, data)
    conversations = [[{"role": "assistant", "content": text}] for text in ("12", "21")]
    row = {**data.train[0], "answer": "12"}
    assert rewards(conversations, [[4, 5, EOS]] * 2, [row, row]) == [1, 0]
