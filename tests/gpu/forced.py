"""What an engine says of given tokens, through the public API: log-probs along a reference.

Free-running text parts from the reference at the first near-tie; so prompts are scored as prompts
(`score`), and answers are led back to the reference wherever they leave it (`follow`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import ingle

TOP = 20


@dataclass
class Followed:
    """One answer along its reference."""

    log_probs: list[float] = field(default_factory=list)
    """Of each reference token."""
    is_first_choice: list[bool] = field(default_factory=list)
    num_restarts: int = 0


def score(engine: ingle.Engine, prompts: list[list[int]], top: int = TOP) -> list[list]:
    """The log-probs of each token of each prompt but its first, given what stands before it."""
    params = ingle.SamplingParams(temperature=0, max_tokens=0, logprobs=top, echo=True)
    scored = []
    for prompt, output in zip(prompts, engine.generate(prompts, params), strict=True):
        entries = output.outputs[0].logprobs
        assert [entry.token_id for entry in entries] == prompt
        assert output.usage.cached_tokens == 0, "log-probs of a cached prompt do not exist"
        scored.append(entries[1:])
    return scored


def follow(
    engine: ingle.Engine, prompts: Sequence[list[int]], references: Sequence[list[int]]
) -> list[Followed]:
    """Answers all prompts at once; each goes on behind the reference's token where it left it."""
    done = [Followed() for _ in prompts]
    open_ones = list(range(len(prompts)))
    while open_ones:
        inputs = [prompts[i] + references[i][: len(done[i].log_probs)] for i in open_ones]
        longest = max(len(references[i]) - len(done[i].log_probs) for i in open_ones)
        params = ingle.SamplingParams(
            temperature=0, max_tokens=longest, ignore_eos=True, logprobs=TOP
        )
        outputs = engine.generate(inputs, params)
        for i, output in zip(open_ones, outputs, strict=True):
            (completion,) = output.outputs
            walk(done[i], references[i], completion.logprobs)
        open_ones = [i for i in open_ones if len(done[i].log_probs) < len(references[i])]
    return done


def walk(followed: Followed, reference: list[int], entries: list) -> None:
    """Takes an answer's entries up to and with the first that is not the reference's token."""
    rest = reference[len(followed.log_probs) :]
    # The answer may be longer: all of a batch get the longest one's max_tokens.
    for token, entry in zip(rest, entries, strict=False):
        if entry.token_id == token:
            followed.log_probs.append(entry.logprob)
            followed.is_first_choice.append(True)
            continue
        # At most what the last alternative has, if it is not among them.
        lowest = min(value for _, value in entry.top)
        followed.log_probs.append(dict(entry.top).get(token, lowest))
        followed.is_first_choice.append(False)
        followed.num_restarts += 1
        return


def summary(values: list[float]) -> tuple[float, float]:
    """Mean and 99th percentile."""
    ordered = sorted(values)
    return sum(ordered) / len(ordered), ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
