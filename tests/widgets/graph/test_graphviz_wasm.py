"""The Graphviz that the kit carries is the file that its notice names, with whole licences."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "kit/widgets/graph/graphviz_wasm"
NOTICE = (FOLDER / "NOTICE").read_text(encoding="utf-8")


def test_the_file_is_the_one_whose_version_and_checksum_the_notice_names() -> None:
    assert re.search(r"@hpcc-js/wasm-graphviz \d+\.\d+\.\d+:", NOTICE)
    assert re.search(r"Graphviz \d+\.\d+\.\d+, compiled", NOTICE)
    named = re.search(r"^graphviz\.js  sha256-([0-9a-f]{64})$", NOTICE, re.M)
    assert named is not None
    assert hashlib.sha256((FOLDER / "graphviz.js").read_bytes()).hexdigest() == named[1]


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("LICENSE", "Apache License", "limitations under the License."),
        ("LICENSE.graphviz", "Eclipse Public License - v 1.0", "jury trial in any resulting"),
        ("LICENSE.expat", "Copyright (c) 1998-2000 Thai Open Source", "DEALINGS\nIN THE SOFTWARE."),
    ],
)
def test_each_licence_that_the_notice_names_is_whole_and_is_installed(
    name: str, first: str, last: str
) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8").strip()
    assert first in text[:200]
    assert last in text[-200:]
    assert re.search(rf"see\s+{re.escape(name)}\.", NOTICE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = {path for pattern in project["license-files"] for path in ROOT.glob(pattern)}
    assert FOLDER / name in installed
