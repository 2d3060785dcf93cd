"""A figure in a notebook: when its snapshot is renewed, and when patches are enough."""

from __future__ import annotations

import json
import threading

from bokeh.models import ColumnDataSource
from bokeh.plotting import figure
from IPython.core.events import EventManager
from ipywidgets import VBox

from kit.widgets.base.live_plot import LivePlot
from kit.widgets.graph.view import GraphView
from tests.factories import make_run


def _title(live):
    return str(live.render_bundle["docs_json"]).count("new title")


def _lay_out(live, plot, width):
    """What the front end sends when a view is laid out."""
    content = {"event": "jsevent", "kind": "ModelChanged", "model": {"id": plot.id},
               "attr": "inner_width", "new": width}  # fmt: skip
    live._handle_custom_msg(content, [])


def test_a_change_made_before_the_view_exists_is_in_the_snapshot_it_draws():
    plot = figure(title="old")
    live = LivePlot(plot)
    plot.title.text = "new title"
    assert _title(live) == 0
    live._view_count = 1
    assert _title(live) == 1


def test_a_change_made_while_the_view_is_built_is_drawn_again_when_it_is_laid_out():
    plot = figure(title="old")
    live = LivePlot(plot)
    live._view_count = 1
    plot.title.text = "new title"
    assert _title(live) == 0
    _lay_out(live, plot, 600)
    assert _title(live) == 1


def test_once_laid_out_changes_go_as_patches_and_the_view_is_kept():
    plot = figure(title="old")
    live = LivePlot(plot)
    live._view_count = 1
    _lay_out(live, plot, 600)
    before = live.render_bundle
    plot.title.text = "new title"
    _lay_out(live, plot, 500)
    assert live.render_bundle == before


def test_a_second_view_of_a_changed_figure_gets_a_new_snapshot():
    plot = figure(title="old")
    live = LivePlot(plot)
    live._view_count = 1
    _lay_out(live, plot, 600)
    plot.title.text = "new title"
    live._view_count = 2
    assert _title(live) == 1


def test_what_a_view_shows_when_it_is_displayed_is_drawn_though_the_kernel_is_busy_by_then():
    view = GraphView()
    live = next(child for child in view.children if isinstance(child, LivePlot))
    view.run = make_run()
    view._live()
    assert "no run yet" not in str(live.render_bundle["docs_json"])


def test_in_a_box_of_the_users_a_changed_figure_is_drawn_though_the_kernel_is_busy(monkeypatch):
    """A box is displayed without the kit: its figures said "no run yet" until all cells had run."""
    events = EventManager(None, {"post_run_cell": lambda result: None})
    monkeypatch.setattr("kit.widgets.base.live_plot.notebook_events", lambda: events)
    view = GraphView()
    live = next(child for child in view.children if isinstance(child, LivePlot))
    view.run = make_run()
    VBox([view])._repr_mimebundle_()
    events.trigger("post_run_cell", None)
    assert "no run yet" not in str(live.render_bundle["docs_json"])
    assert len(events.callbacks["post_run_cell"]) == 0
    view.run = make_run(seed=1)
    view.close()
    events.trigger("post_run_cell", None)
    assert not live.plot.document.callbacks._change_callbacks


def test_what_the_front_end_opens_is_heard_once():
    view, heard = GraphView(make_run()), []
    view.observe(lambda change: heard.append(change["new"]), "expanded")
    live = next(child for child in view.children if isinstance(child, LivePlot))
    message = json.dumps({"from": "page", "sequence": 1, "open": ["forward/layers.0"]})
    content = {"event": "jsevent", "kind": "ModelChanged", "attr": "tags", "new": [message],
               "model": {"id": view.sources["state"].id}}  # fmt: skip
    live._handle_custom_msg(content, [])
    assert view.expanded == {"forward/layers.0"}
    assert len(heard) == 1


class _Interrupted(LivePlot):
    """After its first message another thread changes the figure, too."""

    def __init__(self, plot):
        super().__init__(plot)
        self.sent, self.other = [], None

    def send(self, content, buffers=None):
        self.sent.append(threading.current_thread())
        if self.other is None:
            self.other = threading.Thread(target=self.plot.update, kwargs={"height": 321})
            self.other.start()
            self.other.join(0.2)  # as long as it may take, were nothing in its way


def test_the_messages_of_one_patch_follow_each_other_whatever_another_thread_changes():
    live = _Interrupted(figure(title="old"))
    live.plot.title.text = "new title"
    live.other.join()
    mine = threading.current_thread()
    assert live.sent == [mine] * 3 + [live.other] * 3  # header, metadata, content of each


def test_an_echo_of_an_older_picture_does_not_take_the_newer_ones_place() -> None:
    """A saved notebook had the model's timeline under the measured cards."""
    drawn, picked = ColumnDataSource({"x": [1]}), ColumnDataSource({"x": [1]})
    plot = figure()
    plot.scatter("x", "x", source=drawn)
    plot.scatter("x", "x", source=picked)
    live = LivePlot(plot, [drawn])
    for source in (drawn, picked):
        said = {"event": "jsevent", "kind": "ModelChanged", "model": {"id": source.id},
                "attr": "data", "new": {"type": "map", "entries": [["x", [0]]]}}  # fmt: skip
        live._sync_model(live, said, [])
    assert (drawn.data, picked.data) == ({"x": [1]}, {"x": [0]})
