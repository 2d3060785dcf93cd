"""What a model expects of settings that were not measured yet.

`Foresight` asks the model on a thread of its own; the newest question wins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kit.errors import KitError, SettingsError
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.predict import Model, Prediction, predict
from kit.runs.whatif.question import Question, unlike
from kit.widgets.explorer.rerun import Newest, RunStep

__all__ = ["Foresight", "Models"]

_MODELS = 16  # kept, because a slider often moves back
_MODEL_S = 5.0  # a run waits no longer for the model, which should not disturb its clock


class Foresight:
    """Predictions from the runs so far, made on a thread of its own.

    Args:
        runs: gives the measured runs, the newest last; called on the thread.
        on_answer: called on the thread with the settings of a question and the prediction, or with
            None if only a measurement can tell. Not called before the first run.
    """

    def __init__(
        self,
        runs: Callable[[], Sequence[Run]],
        on_answer: Callable[[Settings, Prediction | None], None],
    ) -> None:
        self._runs, self._on_answer = runs, on_answer
        self._models = Models()
        self._last: Prediction | None = None
        self._questions: Newest = Newest(self._answer, "kit model")

    def ask(self, settings: Settings) -> None:
        """Predict these settings next; a question that waits is dropped."""
        self._questions.put(settings)

    def learn(self, run: Run) -> None:
        """Get ready to predict from a new run, if nothing is asked meanwhile."""
        self._questions.put(run)

    def expected(self, settings: Settings) -> Prediction | None:
        """The prediction of these settings, if they were the last to be predicted."""
        last = self._last
        return last if last is not None and last.settings == settings else None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until no question is open; false if it takes longer than `timeout_s`."""
        return self._questions.wait(timeout_s)

    def measure(self, run_step: RunStep, settings: Settings, **options: Any) -> Run:
        """The step, with what the model had said of it; called by the worker."""
        self.wait(_MODEL_S)
        expected = self.expected(settings)  # before another request asks anew
        run = run_step(settings, **options)
        if expected is None or not isinstance(run, Run):
            return run
        return replace(run, predicted_ms=expected.step_ms)

    def close(self, timeout_s: float = 0.0) -> None:
        """Answer nothing more, and wait so long for the thread's end."""
        self._questions.close(timeout_s)

    def _answer(self, asked: Settings | Run) -> None:
        if isinstance(asked, Run):
            self._models.warm(asked)
            return
        runs = self._runs()
        if not runs:
            return
        try:
            prediction = self._models.predict(runs, asked)
        except KitError:  # another dtype, a run of native torch
            self._on_answer(asked, None)
            return
        self._last = prediction
        self._on_answer(asked, prediction)


class Models:
    """Predicts from the newest run that can tell; the costs of a run are worked out once."""

    def __init__(self) -> None:
        self._models: dict[int, Model] = {}  # by the run's id, which the model keeps alive

    def predict(self, runs: Sequence[Run], settings: Settings) -> Prediction:
        """From the newest run that can tell, with one of another batch size if that is needed.

        Raises:
            SettingsError: no run can tell.
        """
        alike = [
            r
            for r in reversed(runs)
            if r.settings.mode != "torch" and not unlike(r.settings, settings)
        ]
        for base in alike:
            if base.settings.batch_size == settings.batch_size:
                with contextlib.suppress(SettingsError):  # such as a replayed one
                    return self._model_of(base).answer(Question(settings))
        if not alike:
            raise SettingsError("no run so far can tell: only a measurement can")
        size = alike[0].settings.batch_size
        other = next((r for r in alike if r.settings.batch_size != size), None)
        return predict(alike[:1] if other is None else [alike[0], other], settings)

    def warm(self, run: Run) -> None:
        """Work out the costs of a run ahead of the first question, if a model of it can be made."""
        if run.settings.mode != "torch":
            with contextlib.suppress(KitError):
                self._model_of(run)

    def _model_of(self, run: Run) -> Model:
        model = self._models.pop(id(run), None)
        self._models[id(run)] = model = model or Model(run)  # the one used last is the last
        while len(self._models) > _MODELS:
            del self._models[next(iter(self._models))]
        return model
