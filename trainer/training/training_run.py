"""A training run, from settings to a trained model in a model directory."""

import json
import zlib
from collections.abc import Callable

import keras
import tensorflow as tf

from ..config import RunConfig
from ..data.batching import evaluation_batches, training_batches
from ..model_dir import ModelDirectory
from .batch_parts import shard
from .callbacks import FirstStep, Steps, StopAtNan, StopSignals, WriteCheckpoints
from .checkpoints import BestCheckpoints, Checkpoints
from .dev_set import METRIC_NAMES, DevEvaluator, DevResults, DevTranslator, format_score
from .optimizer import FusedAdam, NoamSchedule
from .preparation import describe, prepare, recorded_settings
from .reports import StepLog, TensorBoard, Terminal
from .strategy import WorkerGroup, check_xla, describe_devices, device_settings, make_strategy
from .training_model import Longest, TrainingModel, make_model


class TrainingRun:
    """A training run, restored from its last checkpoint.

    Attributes:
        config: the resolved settings.
        directory: the `ModelDirectory`.
        model: the `TrainingModel`.
        step: number of batches that the model was trained on.
        signal: the `signal.Signals` that ended `fit`, or None.
        worker_group: the `WorkerGroup` of processes that train together.

    Raises:
        ValueError: if settings, data or the model directory are invalid.
        WorkerLostError: if another process of the run has ended.
    """

    def __init__(self, config: RunConfig):
        self.directory = ModelDirectory(config.model_dir)
        self._recorded = recorded_settings(self.directory)
        devices = device_settings(config, self._recorded)
        self._strategy = make_strategy(devices["strategy"], config.logical_devices)
        devices = check_xla(devices, self._strategy)
        self.worker_group = WorkerGroup(self._strategy)
        self.signal = None
        keras.utils.set_random_seed(config.seed)
        if config.deterministic:
            tf.config.experimental.enable_op_determinism()
        try:
            with self.worker_group.detecting_lost_workers(self.how_to_resume):
                self._restore_or_create(config, devices)
        except BaseException:
            self.directory.unlock()
            raise

    def _restore_or_create(self, config, devices):
        is_chief = self.worker_group.is_chief
        with self.worker_group.chief_first():
            if is_chief:
                self.directory = ModelDirectory.create(config.model_dir, lock=True)
            self._prepared = prepare(config, self.directory, devices, is_chief=is_chief)
        config = self.config = self._prepared.config
        self._batches(start=0)  # Raises ValueError if no batch can be made.
        self.worker_group.check_same(
            self._checksum(), "the same settings and data (checksums are compared)"
        )
        self._longest = self._longest_sequences()
        self.checkpoints = Checkpoints(self.directory.checkpoints, config.keep_checkpoints)
        with self._strategy.scope():
            self.model = self._make_model()
            self.step = self.checkpoints.restore_latest(self.model)
        if self.step > config.train_steps:
            raise ValueError(
                f"Expected --train_steps of at least {self.step}, the step of the last checkpoint. "
                f"Received: {config.train_steps}. Give a larger --train_steps, or another "
                "--model_dir."
            )
        if self._prepared.parent is not None and self.step == 0:
            self.model.transformer.set_weights(self._prepared.parent.load_model().get_weights())
        is_due = self.step >= config.train_steps or self.step % config.evaluate_every == 0
        with_scores = config.computes_dev_bleu and is_due
        self.evaluations = DevResults(
            self.directory.evaluations_file,
            self.step,
            config.best_metric,
            writes=is_chief,
            with_scores=with_scores,
        )
        self.worker_group.check_same(
            self.step, "the same last checkpoint (--model_dir must be on a shared file system)"
        )
        self._write_run(self._recorded.get("first_step_seconds"))

    def _write_run(self, seconds):
        """Writes run.json. `seconds` are those of the first step, or None."""
        if self.worker_group.is_chief:
            others = {"contents": self._prepared.contents, "longest": self._longest.train}
            others["first_step_seconds"] = seconds
            self.directory.write_run(self.config.to_dict() | others)

    def _longest_sequences(self):
        """Returns the `Longest` of the data. A resumed run keeps that of training."""
        train = self._prepared.lengths.boundary
        if self._recorded:
            # Runs of earlier versions have no limit. The text may have changed.
            recorded = self._recorded.get("longest")
            train = None if recorded is None else max(recorded, train)
        dev = self._prepared.dev_pairs
        return Longest(train, None if dev is None else int(dev.lengths.max()))

    def _checksum(self):
        """Returns a checksum of the settings and data that must be equal on all workers."""
        names = ("train_steps", "evaluate_every", "dev_bleu", "early_stopping")
        names += tuple(self.config.score_settings)
        settings = {name: getattr(self.config, name) for name in names}
        settings |= self.config.fixed_on_resume()
        contents = self._prepared.contents
        return zlib.crc32(json.dumps([settings, contents], sort_keys=True).encode())

    def how_to_resume(self) -> str:
        """Returns an instruction, with the step of the last checkpoint."""
        workers = " on all workers" if self.worker_group.size > 1 else ""
        try:
            saved = Checkpoints(self.directory.checkpoints).steps()
            start = f"step {saved[-1] if saved else 0}"
        except OSError:  # An error here would hide the one that is being reported.
            start = "the last checkpoint"
        return f"Rerun the same command{workers} to resume from {start}."

    def _make_model(self):
        config, architecture = self.config, self._prepared.architecture
        transformer = make_model(architecture, config.kind, config.dtype_policy)
        model = TrainingModel(
            transformer,
            config.label_smoothing,
            config.device_tokens,
            config.clip_norm,
            self._longest,
        )
        self._schedule = NoamSchedule(
            architecture.hidden_dim, config.warmup_steps, config.learning_rate
        )
        adam = FusedAdam(self._schedule, config.adam_beta1, config.adam_beta2, config.adam_epsilon)
        model.compile(adam, jit_compile=config.jit_compile)
        return model

    def describe(self) -> str:
        """Returns the settings, training pairs, number of parameters and devices as text."""
        devices = self._strategy.num_replicas_in_sync
        settings = describe(self._prepared, self.model, devices)
        return f"{settings}\n{describe_devices(devices, self.config)}"

    def fit(self, end_at_once: Callable | None = None):
        """Trains until the last step, until `best_metric` stops improving, or until a signal.

        Writes checkpoints, logs and model.keras. `end_at_once` is as in `StopSignals`.

        Raises:
            OSError: if a file can't be written.
            NotFiniteError: if the loss is not finite.
            WorkerLostError: if another process of the run has ended.
        """
        detecting = self.worker_group.detecting_lost_workers(self.how_to_resume)
        with detecting, StopSignals(end_at_once) as signals:
            steps = Steps(self.step, self.config.train_steps, signals)
            self._fit(steps)
            self.step, self.signal = steps.step, signals.received
            if self.signal is None:
                self.worker_group.wait()

    def _fit(self, steps):
        config, directory = self.config, self.directory
        stop_at_nan = StopAtNan(steps, self._schedule)
        is_chief = self.worker_group.is_chief
        reports = [Terminal(steps), TensorBoard(steps, directory.logs)] if is_chief else []
        # `Steps` is the first, because all others read the step from it.
        callbacks = [steps, stop_at_nan]
        if is_chief:
            callbacks.append(FirstStep(self._recorded.get("first_step_seconds"), self._write_run))
        callbacks.append(StepLog(steps, config.log_every, reports))
        evaluate = self._dev_evaluation(steps, reports)
        if not is_chief:
            self._alternate(steps, callbacks, evaluate)
            return
        checkpoint_writer = WriteCheckpoints(
            steps, directory, self.checkpoints, config.checkpoint_every, config.checkpoint_minutes
        )
        checkpoint_writer.set_model(self.model)
        self._alternate(steps, [*callbacks, checkpoint_writer], evaluate)
        checkpoint_writer.write()

    def _alternate(self, steps, callbacks, evaluate):
        """Alternates between evaluation, if it is due, and training to the next evaluation."""
        evaluate_every = self.config.evaluate_every if evaluate else steps.last
        while True:
            if evaluate is not None:
                evaluate.evaluate_if_due(self.model)
                if self.evaluations.has_converged(self.config.early_stopping):
                    return
            if steps.step >= steps.last or steps.interrupted:
                return
            next_stop = min((steps.step // evaluate_every + 1) * evaluate_every, steps.last)
            self.model.fit(
                shard(self._batches(steps.step), self._strategy),
                steps_per_epoch=next_stop - steps.step,
                callbacks=callbacks,
                verbose=0,
                shuffle=False,
            )

    def _batches(self, start):
        config = self.config
        return training_batches(
            self._prepared.train_pairs,
            config.batch_tokens,
            config.max_length,
            config.seed,
            start,
            pad_to_boundary=config.jit_compile,
            row_multiple=self._strategy.num_replicas_in_sync,
        )

    def _dev_evaluation(self, steps, reports):
        """Returns the `DevEvaluator`, or None without a dev set."""
        config, prepared, is_chief = self.config, self._prepared, self.worker_group.is_chief
        if prepared.dev_pairs is None:
            return None
        translate = best = None
        if config.computes_dev_bleu and is_chief:
            longest = int(prepared.dev_pairs.sources.lengths.max())
            data = prepared.tokenizers, prepared.dev_corpus, longest, config.bleu_tokenize
            translate = DevTranslator(self.model.transformer, *data)
        if config.keep_best and is_chief:
            best = BestCheckpoints(self.directory.best, config.keep_best, config.best_metric)
        tokens = min(config.batch_tokens, config.device_tokens or config.batch_tokens)
        return DevEvaluator(
            steps,
            config.evaluate_every,
            evaluation_batches(prepared.dev_pairs, tokens),
            self.evaluations,
            reports=reports,
            translate=translate,
            best=best,
            from_chief=self.worker_group.from_chief,
        )

    def summary(self) -> str:
        """Returns a summary of the results of `fit` as text."""
        lines, best = [], self.evaluations.best()
        name = METRIC_NAMES[self.config.best_metric]
        if self.step < self.config.train_steps:
            lines.append(
                f"Stopped early: {name} did not improve in the last "
                f"{self.evaluations.without_improvement()} evaluations."
            )
        if best is not None:
            score = format_score(self.config.best_metric, self.evaluations.score(best))
            lines.append(f"Best on dev: step {best.step}, {name} = {score}.")
        if self.config.keep_best:
            kept = BestCheckpoints(self.directory.best, self.config.keep_best)
            lines += [
                f"  {kept.path(step)}: {name} = {format_score(self.config.best_metric, score)}"
                for step, score in kept.scores().items()
            ]
        lines.append(f"Trained model: {self.directory.model_file} (step {self.step})")
        return "\n".join(lines)
