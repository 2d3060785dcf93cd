"""Timelines at random, and the cause of each of their idle instants, asked for one by one."""

from __future__ import annotations

from hypothesis import strategies as st

from kit.trace import Span, SyncPoint, Timeline

END = 120
STEPS = [Span("host/main", f"step {i}", "step", 60 * i, 60 * i + 60) for i in range(2)]
HOST = ("record", "plan", "lower", "compile", "dispatch", "wait", "input", "ahead",
        "elsewhere", "own")  # fmt: skip
OWN_CAUSE = (
    "kernel",
    "reduction",
    "communication",
    "callback",
    "elsewhere",
)  # of these no wait is to blame


def kernel(start: int, stop: int, segment: int = -1, lane: str = "device/0 thread 1") -> Span:
    return Span(lane, f"k{start}", "kernel", start, stop, segment)


def reduction(start: int, stop: int, device: int = 0) -> Span:
    return Span(f"device/{device} reduction", "bucket 0", "reduction", start, stop)


def collective(start: int, stop: int, device: int = 0) -> Span:
    return Span(f"device/{device} stream 20", "ncclKernel", "communication", start, stop)


def callback(start: int, stop: int, device: int = 0) -> Span:
    return Span(f"device/{device} thread 9", "io_callback", "callback", start, stop)


def host(kind: str, start: int, stop: int, segment: int = -1, lane: str = "host/main") -> Span:
    return Span(lane, "forward", kind, start, stop, segment)


times = st.tuples(st.integers(0, END - 1), st.integers(0, 40))
segments = st.integers(-1, 2)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    kernels = draw(st.lists(st.tuples(times, segments, st.integers(0, 1)), max_size=7))
    hosts = draw(st.lists(st.tuples(times, segments, st.sampled_from(HOST)), max_size=8))
    waits = draw(st.lists(times, max_size=4, unique_by=lambda x: x[0]))
    bands = draw(st.lists(times, max_size=2))
    travels = draw(st.lists(st.tuples(times, st.integers(0, 1)), max_size=2))
    sent = draw(st.lists(st.tuples(times, st.integers(0, 1)), max_size=2))
    called = draw(st.lists(st.tuples(times, st.integers(0, 1)), max_size=2))
    spans = [*STEPS, *(reduction(a, min(a + n, END), d) for (a, n), d in travels)]
    spans += [collective(a, min(a + n, END), d) for (a, n), d in sent]
    spans += [callback(a, min(a + n, END), d) for (a, n), d in called]
    spans += [kernel(a, min(a + n, END), s, f"device/{d} x") for (a, n), s, d in kernels]
    spans += [host(kind, a, a + n, s) for (a, n), s, kind in hosts]
    spans += [Span("device steps", "s", "device step", a, a + n) for a, n in bands]
    return Timeline.of(spans, [SyncPoint(a, n, "item", f"train.py:{a % 2}") for a, n in waits])


def one_by_one(t: Timeline) -> list[tuple[str, int, str, str]]:
    """(device, instant, cause, site) of every idle instant, asked for one after another."""
    spans = list(enumerate(t.spans))
    kernels = [(i, s) for i, s in spans if s.kind == "kernel"]
    handed = hand_out(t, kernels)
    found = []
    seen = [s for _, s in kernels] or [s for s in t.spans if s.kind == "callback"]
    for device in dict.fromkeys(s.lane.split(" ")[0] for s in seen):
        mine = [(i, s) for i, s in kernels if s.lane.startswith(device)]
        for now in range(END):
            if not any(s.start_ns <= now < s.stop_ns for _, s in mine):
                found.append((device, now, *cause_at(t, now, device, mine, kernels, handed)))
    return found


def around(kernels: list[tuple[int, Span]], now: int) -> tuple[Span | None, Span | None]:
    """The kernel that had ended last, and the one that begins next."""
    before = [(s.stop_ns, i, s) for i, s in kernels if s.start_ns <= now]
    after = [(s.start_ns, i, s) for i, s in kernels if s.start_ns > now]
    return max(before)[2] if before else None, min(after)[2] if after else None


def is_in_program(t: Timeline, kernels: list[tuple[int, Span]], now: int) -> bool:
    before, after = around(kernels, now)
    if before is None or after is None or before.segment != after.segment or after.segment < 0:
        return False
    begun = [s.start_ns for s in t.spans if s.kind == "device step"]
    return sum(x < before.stop_ns for x in begun) == sum(x <= after.start_ns for x in begun)


def hand_out(t: Timeline, kernels: list[tuple[int, Span]]) -> dict[int, str]:
    """Which instants of idle time belong to a wait before them; see test_syncs.py."""
    left = [s.wait_ns for s in t.syncs]
    found = {}
    after = [*(s.at_ns for s in t.syncs), END, END]
    windows = [
        (k, range(s.at_ns + s.wait_ns, min(after[k + 1], END))) for k, s in enumerate(t.syncs)
    ]
    places = [{s.site for s in t.syncs if s.at_ns // 60 == i} for i in range(2)]
    if t.syncs and all(t.syncs[-1].site in place for place in places):
        windows.append((len(t.syncs) - 1, range(t.syncs[0].at_ns)))
    for k, window in windows:
        step = t.syncs[k].at_ns // 60
        for now in window:
            free = [j for j in range(k + 1) if left[j] and t.syncs[j].at_ns // 60 == step]
            is_busy = any(x.start_ns <= now < x.stop_ns for x in t.spans if x.kind in OWN_CAUSE)
            if not is_busy and not is_in_program(t, kernels, now) and free:
                found[now] = t.syncs[free[-1]].site
                left[free[-1]] -= 1
    return found


def cause_at(
    t: Timeline,
    now: int,
    here: str,
    mine: list[tuple[int, Span]],
    kernels: list[tuple[int, Span]],
    handed: dict[int, str],
) -> tuple[str, str]:
    active = {s.kind for s in t.spans if s.start_ns <= now < s.stop_ns}
    if any(s.lane == f"{here} reduction" and s.start_ns <= now < s.stop_ns for s in t.spans):
        return "reduction", ""
    if any(s.lane == f"{here} stream 20" and s.start_ns <= now < s.stop_ns for s in t.spans):
        return "communication", ""
    if any(s.lane == f"{here} thread 9" and s.start_ns <= now < s.stop_ns for s in t.spans):
        return "host callback", ""
    if "kernel" in active:
        return "dependency", ""
    if is_in_program(t, kernels, now):
        return "program", ""
    if now in handed:
        return "sync point", handed[now]
    before, after = around(mine, now)
    launches = [] if after is None or after.segment < 0 else [
        (s.start_ns, i, s.stop_ns) for i, s in enumerate(t.spans)
        if s.kind == "dispatch" and s.segment == after.segment and s.start_ns <= after.start_ns
    ]  # fmt: skip
    issued = max(launches)[2] if launches else END + 99
    loose = [
        [x for x in t.spans if x.kind in kinds and x.segment < 0]
        for kinds in (("kernel", "communication", "callback"), ("dispatch",))
    ]
    is_paired = len(loose[0]) == len(loose[1]) and all(
        b.start_ns <= a.start_ns for a, b in zip(*loose, strict=True)
    )
    if after is not None and after.segment < 0 and is_paired:
        mine_at = next(i for i, s in mine if s is after)
        number = [i for i, s in kernels if s.segment < 0].index(mine_at)
        issued = loose[1][number].stop_ns
    if issued <= (before.stop_ns if before else 0):
        return "dependency", ""
    waits = [s.site for s in t.syncs if s.at_ns <= now]
    waiting = [s for s in t.syncs if s.at_ns <= now < s.at_ns + s.wait_ns]
    site = waits[-1] if waiting and waiting[-1].site == waits[-1] else ""
    for holds, cause in (
        (active & {"lower", "compile"}, "compile"),
        ("dispatch" in active or issued <= now, "dispatch"),
        ("wait" in active or site, "sync point"),
        ("input" in active, "input"),
        ("elsewhere" in active, "host waits elsewhere"),
        ("own" in active, "own code"),
        (active & {"record", "plan"} and "ahead" not in active, "host recording"),
        ("ahead" in active, "dispatch"),
    ):
        if holds:
            named = {"sync point": site, "host waits elsewhere": "forward", "own code": "forward"}
            return cause, named.get(cause, "")
    return "unknown", ""
