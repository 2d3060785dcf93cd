"""Compiled programs survive the process, and the user's own cache setting is left alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from kit.runtime.compiling import disk_cache
from kit.runtime.compiling.folder import chosen_folder, is_private, why_not_kept
from kit.runtime.compiling.sealed import SealedFolder
from kit.versions import tried_text
from tests.warm import warm_python

PROGRAM = """
import json
from kit.workloads import mlp
from kit.measure.experiment import run
from kit.runs.settings import Settings
r = run(mlp, Settings(mode="lazy", steps=2))
kernels = [s.node for s in r.timeline.spans if s.kind == "kernel"]
print(json.dumps([r.losses, r.metrics["compile.count"], r.metrics["compile.from_disk"],
                  len({n for n in kernels if n >= 0})]))
"""

# Without torch, which takes longer to load than all else here.
FOLDER = """
import json, jax
from kit.runtime.session.session import Session
with Session():
    print(json.dumps(jax.config.jax_compilation_cache_dir))
"""


def test_a_folder_that_others_may_write_to_is_refused_and_a_new_one_is_private(
    tmp_path: Path,
) -> None:
    assert is_private(str(tmp_path / "new" / "xla"))
    assert (tmp_path / "new" / "xla").stat().st_mode & 0o777 == 0o700
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.warns(UserWarning, match="others may write"):
        assert not is_private(str(shared))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such users")
def test_a_folder_of_another_user_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said to `chmod` it, which changes nothing."""
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.warns(UserWarning, match="another user, of number .*`chown` it") as said:
        assert not is_private(str(tmp_path))
    assert str(said[0].message).count("KIT_CACHE_DIR") == 1


def test_a_home_that_cannot_be_written_to_is_said_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    with pytest.warns(UserWarning, match="is kept in .*: Not a directory") as said:
        assert not is_private(str(tmp_path / "file" / "xla"))
    assert "KIT_CACHE_DIR names another folder" in str(said[0].message)
    with warnings.catch_warnings():  # each session asks: a sweep had said it once a run
        warnings.simplefilter("error")
        assert not is_private(str(tmp_path / "file" / "xla"))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files, modes or users")
def test_what_kit_doctor_says_of_a_folder_is_what_a_session_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said "ok" of a file, of a link that leads nowhere, and of what others may write."""
    (tmp_path / "file").touch()
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    for name, why in (
        ("file", "it is no folder"),
        ("lost", "it is no folder"),
        ("file/x", "Not a directory|a file stands in its way"),
        ("shared", "others may write there"),
    ):
        assert re.match(why, why_not_kept(str(tmp_path / name)))
        with pytest.warns(UserWarning, match=why):
            assert not is_private(str(tmp_path / name))
    assert why_not_kept(str(tmp_path / "new" / "one")) == ""
    assert {path.name for path in tmp_path.iterdir()} == {"file", "lost", "shared"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KIT_CACHE_DIR", "here")
    assert chosen_folder() == str(tmp_path / "here")  # also once the program has gone elsewhere


def test_a_user_without_a_home_keeps_no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "KIT_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it gives for such a user
    assert chosen_folder() == ""
    monkeypatch.setenv("KIT_CACHE_DIR", "/programs")
    assert chosen_folder() == os.path.abspath("/programs")
    monkeypatch.delenv("KIT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert chosen_folder() == os.path.abspath("/caches/overlap-kit/xla")


def test_where_modes_say_nothing_only_a_folder_of_the_users_own_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert is_private(str(tmp_path / "me" / "AppData" / "xla"))
    with pytest.warns(UserWarning, match="below your own"):
        assert not is_private(str(tmp_path / "everyone"))


@pytest.mark.parametrize("cache", [None, SimpleNamespace()])
def test_a_jax_without_a_place_for_the_folder_is_said_with_the_versions_that_were_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: object
) -> None:
    monkeypatch.setattr(disk_cache, "jax_cache", cache)
    with pytest.warns(UserWarning, match=f"tried with {re.escape(tried_text('jax'))}"):
        assert not disk_cache._let_jax_keep_in(str(tmp_path))


@pytest.mark.parametrize(("version", "is_kept"), [("0.10.1", False), ("0.10.2", True)])
def test_a_jaxlib_that_writes_errors_where_it_loads_a_program_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_kept: bool
) -> None:
    asked = list[str]()
    monkeypatch.setattr(disk_cache, "_let_jax_keep_in", lambda folder: asked.append(folder))
    monkeypatch.setattr(disk_cache.jaxlib.version, "__version__", version)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setenv("KIT_CACHE_DIR", str(tmp_path / "cache"))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        disk_cache.use_disk_cache()
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert asked == [str(tmp_path / "cache")] * is_kept


def fresh_process(program: str, python: str = "", **changes: str) -> Any:
    """What a new process prints last, as JSON."""
    environment = {**os.environ, **changes}
    command = [python or warm_python(), "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_a_second_process_compiles_nothing_and_joins_its_kernels(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    losses, compiles, loaded, joined = fresh_process(PROGRAM, KIT_CACHE_DIR=folder)
    assert loaded == 0
    again = fresh_process(PROGRAM, sys.executable, KIT_CACHE_DIR=folder)  # its hashes are others
    assert again[:3] == [losses, compiles, compiles]
    assert isinstance(joined, int)
    assert isinstance(again[3], int)
    assert again[3] > 0.9 * joined > 0


def test_the_users_own_folder_is_kept_and_an_empty_one_means_none(tmp_path: Path) -> None:
    mine = str(tmp_path / "mine")
    theirs = {"JAX_COMPILATION_CACHE_DIR": mine, "KIT_CACHE_DIR": "elsewhere"}
    assert fresh_process(FOLDER, sys.executable, **theirs) == mine
    assert fresh_process(FOLDER, KIT_CACHE_DIR="") is None


AHEAD = """
from kit.measure.many.placement import Placement
from kit.measure.search.prepare import Prepared
from kit.runs.settings import Settings
from kit.workloads import mlp
ready = Prepared(Placement.of(mlp)).prepare(
    Settings(mode="lazy", steps=2), progress=lambda text, part: None, cancelled=lambda: False)
print(ready)
"""


def test_what_was_compiled_ahead_is_not_compiled_by_the_next_process(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    ready = fresh_process(AHEAD, KIT_CACHE_DIR=folder)
    _, compiles, loaded, _ = fresh_process(PROGRAM, KIT_CACHE_DIR=folder)
    assert loaded == ready == compiles


TINY = """
import json, numpy, kit.jax
from kit.runtime.session.session import Session
with Session() as session:
    x = kit.jax.device_put(numpy.arange(4, dtype=numpy.float32))
    found = [(x * 2).sum().item(), (x + 3).prod().item(), (x - 1).max().item()]
    metrics = session.metrics()
print(json.dumps([found, metrics["compile.count"], metrics["compile.from_disk"]]))
"""


def test_programs_that_were_put_in_each_others_places_are_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    found, compiles, loaded = fresh_process(TINY, KIT_CACHE_DIR=str(folder))
    assert loaded == 0
    entries = sorted(folder.glob("*.sealed"))
    assert len(entries) >= compiles >= 3
    contents = [entry.read_bytes() for entry in entries]
    for entry, other in zip(entries, [*contents[1:], contents[0]], strict=True):
        entry.write_bytes(other)
    assert fresh_process(TINY, KIT_CACHE_DIR=str(folder)) == [found, compiles, 0]
    sealed = SealedFolder(str(folder))
    assert all(sealed.get(entry.stem) is not None for entry in entries)  # they were replaced


def test_the_keys_of_the_users_own_cache_stay_as_they_are() -> None:
    before = jax.config.jax_compilation_cache_include_metadata_in_key
    jax.config.update("jax_compilation_cache_include_metadata_in_key", False)
    try:
        disk_cache.use_disk_cache()
        assert not jax.config.jax_compilation_cache_include_metadata_in_key
        with disk_cache.with_nodes():
            assert jax.config.jax_compilation_cache_include_metadata_in_key
        assert not jax.config.jax_compilation_cache_include_metadata_in_key
    finally:
        jax.config.update("jax_compilation_cache_include_metadata_in_key", before)
