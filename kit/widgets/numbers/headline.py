"""The headline of a run: five numbers, what changed, and a mark where a model gave them."""

from __future__ import annotations

from collections.abc import Mapping

from kit.runs.analysis.headline import headline_differences
from kit.runs.analysis.sentence import change_sentence, is_told
from kit.runs.change import Difference
from kit.runs.knob import knobs_of
from kit.runs.labels import has_other_samples
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.predict import Prediction
from kit.text import safe_html
from kit.widgets.base.cards import headline_html, note_box
from kit.widgets.base.html_view import HtmlView
from kit.widgets.base.tables import FONT, INK, MUTED
from kit.widgets.base.theme import BACKGROUND, MODEL, MODEL_EDGE

__all__ = ["HeadlineView", "changed_html", "still_html"]


class HeadlineView(HtmlView):
    """The headline of `run`; assigning `run` redraws, without a change since another run.

    `changed` is what it says of the change, without markup, for those who hear it: `batch size 4 →
    8: a step takes 9 ms ...`; "" where no run is compared.
    """

    def __init__(self) -> None:
        self._before: Run | None = None
        self._prediction: Prediction | None = None
        self._still = self.changed = ""
        super().__init__("headline", self._drawn)
        self.html.layout.margin = "2px 2px 10px"

    def show(
        self,
        run: Run,
        before: Run | None,
        prediction: Prediction | None = None,
        *,
        still: str = "",
    ) -> None:
        """Draw a run with the change since another one.

        Args:
            before: nothing is compared if there is none.
            prediction: given if `run` is what a model expects; the headline says so.
            still: why it is no run of the settings that were asked for, from `still_html`.
        """
        self._before, self._prediction, self._still = before, prediction, still
        try:
            if run is self.run:
                self._redraw()
            else:
                self.run = run
        finally:
            self._before, self._prediction, self._still = None, None, ""

    def _drawn(self, run: Run) -> str:
        """The cards, and above them whose numbers they are, or what changed."""
        self.changed, before = "", self._before
        found = None if before is None else headline_differences(before, run)
        if self._prediction is not None:
            above = _modelled_html(self._prediction)
        elif before is None or found is None:
            above = self._still
        else:
            above = self._still + changed_html(before, run, found)
            self.changed = f"{_head(before, run)}: {_sentence(before, run, found)}"
        return above + headline_html(run, before, found)


def changed_html(old: Run, new: Run, found: Mapping[str, Difference] | None = None) -> str:
    """Which settings were moved, and what that changed, in one sentence; `found` as for the cards.

    A box says the doubt of the new run.
    """
    found = found or headline_differences(old, new)
    said = safe_html(_sentence(old, new, found, known_doubt=new.doubt), 600)
    if is_told(found):
        said = f"<b>{said}</b>"
    return (
        f'<div class="kit-changed" style="font:13px/1.45 {FONT};color:{INK};margin-bottom:8px">'
        f'<span style="color:{MUTED}">{safe_html(_head(old, new), 300)}:</span> {said}.'
        "</div>"
    )


def _head(old: Run, new: Run) -> str:
    """Which settings were moved."""
    moved = _moved(old.settings, new.settings)
    return "; ".join(f"{label} {a} → {b}" for label, a, b in moved) or "Since the run before"


def _sentence(old: Run, new: Run, found: Mapping[str, Difference], *, known_doubt: str = "") -> str:
    unit = "sample" if has_other_samples(old, new) else "step"
    return change_sentence(found, unit=unit, known_doubt=known_doubt)


def _moved(old: Settings, new: Settings) -> list[tuple[str, str, str]]:
    """The settings in which two differ: what each is called, and its two values in words.

    Names and values have commas: where several stand in a line, a semicolon parts them.
    """
    before, after = old.as_dict(), new.as_dict()
    both = [k for k in knobs_of(new) if k.name in before]  # else of another workload
    return [
        (k.label, k.shown(before[k.name]), k.shown(after[k.name]))
        for k in both
        if before[k.name] != after[k.name]
    ]


def still_html(run: Run, asked: Settings, what: str) -> str:
    """A box above the numbers of a run that are not those of the settings of the controls.

    Args:
        what: what became of the run that was asked for, such as "was cancelled".
    """
    moved = _moved(run.settings, asked)
    shown = "; ".join(f"{label} {now}" for label, now, _ in moved)
    wanted = "; ".join(f"{label} {then}" for label, _, then in moved)
    these = f"Still the run with {shown}" if shown else "Still the run before"
    other = f"The one with {wanted}" if wanted else "The newer one"
    more = f"{safe_html(f'{other} {what}', 300)}."
    return note_box(safe_html(these, 300), more, line="dashed")


def _modelled_html(prediction: Prediction) -> str:
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
