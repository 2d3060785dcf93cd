"""What a model expects of settings that were not measured yet, as a run that a view can draw."""

from __future__ import annotations

from collections.abc import Sequence

from kit.errors import SettingsError
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.predict import Model, Prediction, predict
from kit.text import safe_html
from kit.widgets.base.tables import FONT, INK, MUTED, headline_html

__all__ = ["Foresight", "modelled_html", "modelled_run"]

_MODELS = 16  # kept: who moves a slider often goes back
_KNOWN = ("dtype", "device", "segment_mode")  # no model goes from one of these to another


class Foresight:
    """Predicts from the runs so far; the costs of a run are worked out once."""

    def __init__(self) -> None:
        self._models: dict[int, Model] = {}  # by the run's id, which the model keeps alive

    def predict(self, runs: Sequence[Run], settings: Settings) -> Prediction:
        """From the newest run that can tell, with one of another batch size if that is needed.

        Raises:
            SettingsError: no run can tell.
        """
        able = [
            r
            for r in reversed(runs)
            if r.settings.mode != "torch"
            and all(getattr(r.settings, name) == getattr(settings, name) for name in _KNOWN)
        ]
        base = next((r for r in able if r.settings.batch_size == settings.batch_size), None)
        if base is not None:
            return self._model_of(base).predict(settings)
        if not able:
            raise SettingsError("no run so far can tell: only a measurement can")
        size = able[0].settings.batch_size
        other = next((r for r in able if r.settings.batch_size != size), None)
        return predict([able[0]] if other is None else [able[0], other], settings)

    def warm(self, run: Run) -> None:
        """Work out the costs of a run before somebody asks."""
        if run.settings.mode != "torch":
            self._model_of(run)

    def _model_of(self, run: Run) -> Model:
        model = self._models.pop(id(run), None)
        self._models[id(run)] = model = model or Model(run)  # the one used last is the last
        while len(self._models) > _MODELS:
            del self._models[next(iter(self._models))]
        return model


def modelled_run(prediction: Prediction, of: Run) -> Run:
    """A prediction as a run: its timeline, of origin "modelled", and the step time; no losses."""
    steps = prediction.timeline.intervals(kind="step")
    return Run(
        settings=prediction.settings,
        losses=(),
        step_times_ns=tuple(int(b - a) for a, b in steps) or (round(prediction.step_ms * 1e6),),
        timeline=prediction.timeline,
        sync_points=prediction.timeline.syncs,
        environment=of.environment,
        name=of.name,
        predicted_ms=prediction.step_ms,
    )


def modelled_html(prediction: Prediction, modelled: Run, measured: Run) -> str:
    """The headline of a prediction, marked as one, against the last measurement."""
    notes = "".join(f"<li>{safe_html(note, 300)}</li>" for note in prediction.assumptions)
    folded = (
        f"<details><summary>what it assumes</summary><ul>{notes}</ul></details>" if notes else ""
    )
    return (
        f'<div style="font:13px/1.45 {FONT};color:{INK};border:1px dashed #b07d12;'
        f'border-radius:6px;padding:6px 10px;margin-bottom:8px">'
        f'<b style="background:#8a6109;color:#fff;border-radius:3px;padding:1px 6px">MODELLED</b> '
        f"not measured yet: predicted from {safe_html(prediction.of, 200)}. The timeline shows the "
        f'model; <span style="color:{MUTED}">what is faded is of the run before.</span>'
        f"{folded}</div>{headline_html(modelled, measured)}"
    )
