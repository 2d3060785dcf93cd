"""The headline of a run: five numbers, what changed, and a mark where a model gave them."""

from __future__ import annotations

from kit.runs.analysis.headline import has_other_samples, headline_differences
from kit.runs.analysis.sentence import change_sentence
from kit.runs.knob import knobs_of
from kit.runs.run import Run
from kit.runs.whatif.predict import Prediction
from kit.text import safe_html
from kit.widgets.base.cards import headline_html
from kit.widgets.base.html_view import HtmlView
from kit.widgets.base.tables import FONT, INK, MUTED
from kit.widgets.base.theme import BACKGROUND, MODEL, MODEL_EDGE

__all__ = ["HeadlineView", "changed_html", "modelled_html"]


class HeadlineView(HtmlView):
    """The headline of `run`; assigning `run` redraws, without a change since another run."""

    def __init__(self) -> None:
        self._before: Run | None = None
        self._prediction: Prediction | None = None
        super().__init__(
            "headline", lambda run: self._above(run) + headline_html(run, self._before)
        )
        self.html.layout.margin = "2px 2px 10px"

    def show(self, run: Run, before: Run | None, prediction: Prediction | None = None) -> None:
        """Draw a run with the change since another one.

        Args:
            before: nothing is compared if there is none.
            prediction: given if `run` is what a model expects; the headline says so.
        """
        self._before, self._prediction = before, prediction
        try:
            if run is self.run:
                self._redraw()
            else:
                self.run = run
        finally:
            self._before = self._prediction = None

    def _above(self, run: Run) -> str:
        """What stands above the cards: whose numbers they are, or what changed."""
        if self._prediction is not None:
            return modelled_html(self._prediction)
        return "" if self._before is None else changed_html(self._before, run)


def changed_html(old: Run, new: Run) -> str:
    """Which settings were moved, and what that changed, in one sentence."""
    before, after = old.settings.as_dict(), new.settings.as_dict()
    both = [k for k in knobs_of(new.settings) if k.name in before]  # else of another workload
    moved = [
        f"{k.label} {k.shown(before[k.name])} → {k.shown(after[k.name])}"
        for k in both
        if before[k.name] != after[k.name]
    ]
    head = ", ".join(moved) or "Since the run before"
    unit = "sample" if has_other_samples(old, new) else "step"
    found = headline_differences(old, new)
    said = safe_html(change_sentence(found, unit=unit, known_doubt=new.doubt), 600)
    if any(difference.is_changed for difference in found.values()):
        said = f"<b>{said}</b>"
    return (
        f'<div class="kit-changed" style="font:13px/1.45 {FONT};color:{INK};margin-bottom:8px">'
        f'<span style="color:{MUTED}">{safe_html(head, 300)}:</span> {said}.'
        "</div>"
    )


def modelled_html(prediction: Prediction) -> str:
    """A box that marks the numbers under it as a model's, with what the model assumes."""
    notes = "".join(f"<li>{safe_html(note, 300)}</li>" for note in prediction.assumptions)
    folded = (
        f"<details><summary>what it assumes</summary><ul>{notes}</ul></details>" if notes else ""
    )
    return (
        f'<div style="font:13px/1.45 {FONT};color:{INK};border:1px dashed {MODEL_EDGE};'
        f'border-radius:6px;padding:6px 10px;margin-bottom:8px">'
        f'<b style="background:{MODEL};color:{BACKGROUND};border-radius:3px;padding:1px 6px">'
        "MODELLED</b> "
        f"not measured yet: <b>{safe_html(prediction.step_text)}</b> a step, predicted from "
        f"{safe_html(prediction.of, 200)}. The timeline shows the "
        f'model; <span style="color:{MUTED}">what is faded is of the run before.</span>'
        f"{folded}</div>"
    )
