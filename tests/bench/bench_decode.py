"""Decode and prefill in tokens/s, beside transformers' generate() on the same weights.

    python tests/bench/bench_decode.py --model smollm2 --dtypes float32 bfloat16 --batches 1 8 32

Both run in one process, in turn, `--repeats` times, on the same prompts, greedily, to the same
number of new tokens; one thread unless `OMP_NUM_THREADS` says otherwise. Ours is the whole engine:
both roles, the wire, the scheduler, sampling and log-probabilities, stepped as a server steps it.
Prefill ends with the first token of the last request, decode is all after it. Seconds are CPU time,
which with one thread is wall time on a quiet machine and says less about the neighbours on a busy
one; `--clock wall` for the other. The ratio is the median of the repeats' ratios, so that a machine
that is slow for a while is slow for both.

`--profile` adds where a decode step's time goes, by kind of operation.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, StoppingCriteria

from engine.config import EngineConfig
from engine.engine import build_engine
from engine.model import DTYPES
from engine.model_folders import FETCHABLE, kept_folder
from engine.request import DecodeState, Request, Sampling

PAGE = 16
SEED = 7
NOTHING = nullcontext()
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}
KINDS = {
    "linear layers": ("addmm", "mm", "bmm", "linear", "mkldnn"),
    "gather of pages": ("index_select",),
    "attention": ("attention", "softmax"),
    "writing keys and values": ("index_put", "index_copy"),
    "log-probabilities and sampling": ("log_softmax", "argmax", "sort", "multinomial"),
    "copies": ("copy_", "cat", "clone"),
    "norms, rotation, activation": ("mul", "add", "silu", "pow", "mean", "rsqrt", "neg", "cos"),
}


class Speed(NamedTuple):
    """Tokens per second, and what was said."""

    prefill: float
    decode: float
    outputs: tuple[tuple[int, ...], ...]


class Ours:
    """The reference engine, with pools that hold the whole batch."""

    name = "kvaudit"

    def __init__(self, model, dtype, *, clock, context, batch_max):
        self.now = CLOCKS[clock]
        pool = (-(-context // PAGE) + 1) * PAGE * batch_max
        self.engine, _ = build_engine(
            EngineConfig(
                model=model, device="cpu", dtype=dtype, context_tokens=context, page_size=PAGE,
                prefill_pool_tokens=pool, decode_pool_tokens=pool, running_max=batch_max,
                # All prompts in one step and one transfer, as generate() takes them, so that
                # every decode step has the whole batch.
                chunk_tokens=context * batch_max, wire_pages_per_step=pool // PAGE,
            )
        )  # fmt: skip

    def run(self, prompts, new_tokens, watch=NOTHING):
        began = self.now()
        self.submit(prompts, new_tokens)
        made = [[] for _ in prompts]
        self.until_all_decode(prompts, made)
        prefilled = self.now()
        early = sum(len(tokens) for tokens in made)
        with watch:
            decoding = self.now()
            while self.engine.has_work:
                self.step(made)
            decode_s = self.now() - decoding
        late = sum(len(tokens) for tokens in made) - early
        return Speed(
            sum(map(len, prompts)) / (prefilled - began),
            late / decode_s,
            tuple(map(tuple, made)),
        )

    def submit(self, prompts, new_tokens):
        for number, prompt in enumerate(prompts):
            sampling = Sampling(max_tokens=new_tokens, ignore_eos=True)
            self.engine.submit(
                Request(request_id=str(number), prompt_ids=tuple(prompt), sampling=sampling)
            )

    def until_all_decode(self, prompts, made):
        names = [str(number) for number in range(len(prompts))]
        while any(self.engine.states(name)[1] is not DecodeState.RUNNING for name in names):
            self.step(made)

    def step(self, made):
        for event in self.engine.step():
            token = getattr(event, "token_id", None)
            if token is not None:
                made[int(event.request_id)].append(token)


class Theirs:
    """transformers' generate() with its default cache and fused attention."""

    name = "generate()"

    def __init__(self, folder, dtype, *, clock):
        self.now = CLOCKS[clock]
        self.network = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=DTYPES[dtype], attn_implementation="sdpa", local_files_only=True
        ).train(mode=False)  # fmt: skip
        self.network.generation_config.eos_token_id = None
        self.network.generation_config.pad_token_id = 0

    @torch.inference_mode()
    def run(self, prompts, new_tokens):
        ticks = _Ticks(self.now)
        ids = torch.tensor(prompts)
        began = self.now()
        made = self.network.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False,
            stopping_criteria=[ticks],
        )  # fmt: skip
        late = len(prompts) * (len(ticks.at) - 1)
        return Speed(
            ids.numel() / (ticks.at[0] - began),
            late / (ticks.at[-1] - ticks.at[0]),
            tuple(tuple(row[ids.shape[1] :].tolist()) for row in made),
        )


class _Ticks(StoppingCriteria):
    """Notes when each token was there; stops nothing."""

    def __init__(self, now):
        self.now = now
        self.at = []

    def __call__(self, input_ids, scores, **_):
        self.at.append(self.now())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def prompts_for(vocab_size, batch, tokens):
    """Return random prompts, the same every time."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(100, vocab_size, (batch, tokens), generator=generator).tolist()


def row(ours, theirs, batch, asked):
    """Time both in turn and return one line of the table."""
    prompts = prompts_for(theirs.network.config.vocab_size, batch, asked.prompt)
    short = [prompt[:8] for prompt in prompts[:1]]
    ours.run(short, 2), theirs.run(short, 2)  # first calls pay for what is made once
    pairs = []
    for number in range(asked.repeats):
        order = (ours, theirs) if number % 2 else (theirs, ours)
        made = {side.name: side.run(prompts, asked.new) for side in order}
        pairs.append((made[ours.name], made[theirs.name]))
    same = sum(
        one == other for one, other in zip(pairs[0][0].outputs, pairs[0][1].outputs, strict=True)
    )
    decode = [one.decode / other.decode for one, other in pairs]
    prefill = [one.prefill / other.prefill for one, other in pairs]
    return [
        batch, f"{_median(one.decode for one, _ in pairs):.1f}",
        f"{_median(other.decode for _, other in pairs):.1f}",
        f"**{_median(decode):.2f}x** ({min(decode):.2f}-{max(decode):.2f})",
        f"{_median(one.prefill for one, _ in pairs):.0f}",
        f"{_median(other.prefill for _, other in pairs):.0f}",
        f"{_median(prefill):.2f}x ({min(prefill):.2f}-{max(prefill):.2f})",
        f"{same}/{batch}",
    ]  # fmt: skip


def where_time_goes(ours, vocab_size, batch, asked):
    """Return the wall time of decode by kind of operation, in ms a step and as share."""
    prompts = prompts_for(vocab_size, batch, asked.prompt)
    watch = profile(activities=[ProfilerActivity.CPU])
    ours.now = CLOCKS["wall"]  # which is what the profiler reads
    speed = ours.run(prompts, asked.new, watch=watch)
    ours.now = CLOCKS[asked.clock]
    spent = Counter()
    for item in watch.key_averages():
        name = item.key.removeprefix("aten::")
        kind = next(
            (kind for kind, marks in KINDS.items() if any(mark in name for mark in marks)),
            "other operations",
        )
        spent[kind] += item.self_cpu_time_total / 1e3
    whole = 1e3 * batch * (asked.new - 1) / speed.decode
    spent["Python between operations"] = max(0.0, whole - sum(spent.values()))
    step = whole / (asked.new - 1)
    return [(kind, ms / (asked.new - 1), ms / whole) for kind, ms in spent.most_common()], step


def _median(values):
    return statistics.median(list(values))


def _line(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


def _say(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def main():
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=sorted(DTYPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens")
    parser.add_argument("--new", type=int, default=16, help="new tokens")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    folder = kept_folder(asked.model) if asked.model in FETCHABLE else Path(asked.model)
    _say(_stamp(asked))
    for dtype in asked.dtypes:
        ours = Ours(
            asked.model, dtype, clock=asked.clock, context=asked.prompt + asked.new + 8,
            batch_max=max(asked.batches),
        )  # fmt: skip
        theirs = Theirs(folder, dtype, clock=asked.clock)
        _say(f"\n{dtype}\n\n" + _line([
            "batch", "decode, tokens/s", "generate()", "ratio", "prefill, tokens/s", "generate()",
            "ratio", "same answers",
        ]) + _line(["---"] * 8))  # fmt: skip
        for batch in asked.batches:
            _say(_line(row(ours, theirs, batch, asked)))
        if asked.profile:
            for batch in asked.batches:
                kinds, step = where_time_goes(
                    ours, theirs.network.config.vocab_size, batch, asked
                )  # fmt: skip
                _say(f"\n{dtype}, batch {batch}: {step:.1f} ms a step under the profiler\n\n")
                _say(_line(["kind", "ms", "share"]) + _line(["---"] * 3))
                for kind, ms, share in kinds:
                    _say(_line([kind, f"{ms:.2f}", f"{share:.0%}"]))


def _stamp(asked):
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"`{asked.model}`, {asked.prompt}-token prompts, {asked.new} new tokens,"
        f" {asked.repeats} repeats, {asked.clock} time, {torch.get_num_threads()} thread,"
        f" commit {commit or 'unknown'}; torch {version('torch')},"
        f" transformers {version('transformers')},"
        f" {torch.backends.cpu.get_cpu_capability()}, {platform.machine()},"
        f" Python {platform.python_version()}\n"
    )


if __name__ == "__main__":
    main()
