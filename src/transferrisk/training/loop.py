"""The training loop, the same for all algorithms."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import asdict, replace

from ..algorithms import Logs
from ..data import Splits
from ..errors import DivergedError, TransferRiskError
from .config import Run
from .digests import of_description
from .engine import Engine
from .evaluate import evaluate, featurise, held_out_transfer_matrix, irm_penalties
from .feed import Feed
from .output import Output
from .plain import plain
from .records import Record, mean_accuracy
from .rounding import rounding_kept
from .signals import Stop, Stopped, stop_asked
from .state import TrainState, start
from .step import make_step

OnStep = Callable[[int, int], None]
"""(steps done, steps in all)"""
OnLoss = Callable[[int, float], None]
"""(step, its loss), whenever the loss is looked at"""
OnRecord = Callable[[Record], None]

LOOK_EVERY = 50  # steps between two looks at the loss on a GPU, which has to be waited for


@rounding_kept()
def train(
    run: Run,
    on_step: OnStep | None = None,
    *,
    output: Output | None = None,
    on_loss: OnLoss | None = None,
    on_record: OnRecord | None = None,
) -> list[Record]:
    """Train one model and evaluate it `config.evaluations` times.

    With an `output` folder, its state is saved there and an interrupted run goes on, bit for bit on a CPU; SIGINT and
    SIGTERM then finish the step, save, and raise `Stopped`. Loss or weights that are no numbers raise a DivergedError,
    and are never saved. Torch's precision of products is afterwards as it was.
    """
    config, engine = run.config, Engine.of(run)
    with engine.together():
        state = start(run, engine)
    total = config.epochs * state.sampler.steps_per_epoch
    due = config.evaluated(total)
    description = run.describe() | {"precision": engine.precision}
    records = []
    if output is not None:
        with engine.first_alone():
            records = output.open(state, description, total, writes=engine.team.rank == 0)
    splits = engine.place(run.splits)
    augmentation = state.augmentation if config.augment else None
    stream = Feed(splits.train, state.sampler, engine.device, augmentation, run.workers, engine.team)
    step = make_step(state, run.captured)
    state.model.train()
    releasing = closing(output) if output else nullcontext()
    with releasing, closing(stream) as feed, stop_asked() if output else nullcontext(Stop()) as stop:
        asked = None
        while state.step < total and asked is None:
            began = time.perf_counter()
            state.set_rate(config.rate(state.step, total))
            state.seed_augmentation(run.seed, engine.team.rank)
            try:
                logs = step(feed.next())
            except TransferRiskError:
                check_numbers(run, state, None, output)  # if it is because of them, that is what to say
                raise
            state.step += 1
            evaluated, saved = state.step in due, output is not None and output.due(state.step)
            if evaluated or saved:
                engine.wait()
            state.seconds += time.perf_counter() - began
            if evaluated or saved or not engine.on_gpu or state.step % LOOK_EVERY == 0:
                loss = check_numbers(run, state, logs, output, weights=evaluated or saved)
                if on_loss is not None:
                    on_loss(state.step, loss)
            if evaluated:
                records.append(measure(run, splits, state, logs, of_description(description)))
                note_best(state, records[-1])
                if output is not None:
                    output.append(records[-1])
                if on_record is not None:
                    on_record(records[-1])
            if output is not None and (evaluated or saved):
                output.save(state)
            if on_step is not None:
                on_step(state.step, total)
            if engine.team.size == 1 or not engine.on_gpu or state.step % LOOK_EVERY == 0:
                asked = engine.agreed(stop.signum)
        if output is not None and asked is not None and state.step < total:
            if output.saved_step != state.step:
                check_numbers(run, state, None, output)
                output.save(state)
            raise Stopped(asked, state.step, total)
    return records


def check_numbers(run: Run, state: TrainState, logs: Logs | None, output: Output | None, weights: bool = True) -> float:
    """The loss, if it is a number and, where asked for, all weights are; otherwise training ends here."""
    loss = float(logs["loss"]) if logs is not None else 0.0
    if math.isfinite(loss) and (not weights or state.finite):
        return loss
    what = "the weights are no numbers" if math.isfinite(loss) else f"the loss is {loss}"
    standing = f"; {output.standing}" if output is not None else ""
    raise DivergedError(
        f"{what} after step {state.step}: {run.algorithm} has diverged at lr={run.config.lr:g}; use a lower one"
        f"{standing}"
    )


def measure(run: Run, splits: Splits, state: TrainState, logs: Logs, identity: str = "") -> Record:
    """One evaluation on all parts of the data."""
    model, config, validation = state.model, run.config, splits.training_domain
    features = featurise(model, validation)
    record = Record(
        algorithm=run.algorithm,
        seed=run.seed,
        step=state.step,
        epoch=state.epoch,
        seconds=state.seconds,
        train=evaluate(model, splits.train),
        training_domain=evaluate(model, validation, features),
        test_domain=evaluate(model, splits.test_domain),
        test=evaluate(model, splits.test),
        transfer_matrix=[],
        logs={name: float(value) for name, value in logs.items()},
        settings=dict(run.settings),
        held_out=run.held_out,
        origin=plain(run.origin),
        training=plain(asdict(config)),
        identity=identity,
    )
    if "irm" in config.record:
        record = replace(record, irm=irm_penalties(model, validation, features))
    if "transfer" in config.record:
        matrix = held_out_transfer_matrix(model, validation, config.transfer_ridge, features)
        record = replace(record, transfer_matrix=matrix.tolist())
    return record


def note_best(state: TrainState, record: Record) -> None:
    """The best so far by training-domain validation, the later one when they tie, as `select` has it."""
    state.records += 1
    if not record.training_domain:
        return
    accuracy = mean_accuracy(record.training_domain)
    if accuracy >= state.best:
        state.best, state.best_step = accuracy, record.step
