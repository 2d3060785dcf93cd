"""Files of profilers that are not read, and what their programs write that is: a row for each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["REFUSED", "Refused", "why_refused", "why_refused_database"]

_SQLITE_OF_NSYS = "write it as SQLite, `nsys export --type sqlite report.nsys-rep`, and open that"
_JSON_OF_ROCPROF = "trace with `rocprofv3 --output-format json`, and open *_results.json"


@dataclass(frozen=True, slots=True)
class Refused:
    """One sort of files."""

    known_by: re.Pattern[str]  # found in the file's name, a line feed, and how the file begins
    what: str
    cure: str

    @property
    def said(self) -> str:
        """What the file is, and what to open instead."""
        return f"it is {self.what}, which is not read: {self.cure}"


REFUSED = (
    Refused(re.compile(r"\A[^\n]*\.py\n"), "a script", "measure it, `kit run SCRIPT.py`"),
    Refused(
        re.compile(r"\A[^\n]*\n\s*<(!doctype )?html\b", re.IGNORECASE),
        "an HTML page",
        "open the trace or the saved run (.kitrun) that it was made from",
    ),
    Refused(
        re.compile(r"\A[^\n]*\.(nsys-rep|qdrep)\n"), "a report of Nsight Systems", _SQLITE_OF_NSYS
    ),
    Refused(
        re.compile(r'\A[^\n]*\n\s*\{[^\n]{0,400}"(CudaEvent|NvtxEvent|TraceProcessEvent)"\s*:'),
        "a JSON export of Nsight Systems",
        _SQLITE_OF_NSYS,
    ),
    Refused(
        re.compile(r"\A[^\n]*\.ncu-rep\n"),
        "a report of Nsight Compute, of kernels by themselves, without a timeline",
        "trace with `nsys profile --trace cuda,nvtx`, or with torch.profiler",
    ),
    Refused(
        re.compile(r'\A[^\n]*\n"?(Kind|Domain)"?,"?(Agent_Id|Function|Operation|Thread_Id)\b'),
        "a table of rocprofv3",
        _JSON_OF_ROCPROF,
    ),
    Refused(
        re.compile(r"\A[^\n]*\.(pftrace|perfetto-trace)(\.gz)?\n"),
        "a trace in Perfetto's own form",
        "have its program write JSON: `rocprofv3 --output-format json`, or "
        "prof.export_chrome_trace(path) of torch.profiler",
    ),
    Refused(
        re.compile(r"\A[^\n]*\n\s*\[\[\d+, [0-3], -?\d+, \d+\]"),
        "a memory timeline of torch.profiler's export_memory_timeline, without kernels",
        "open what prof.export_chrome_trace(path) writes; kit.open_memory opens what "
        "torch.cuda.memory._dump_snapshot(path) writes",
    ),
    Refused(
        re.compile(r'\A[^\n]*\n\s*\[\s*\{"name"[^\n]*?"pid": "CPU functions"'),
        "the short list of torch's events that prof.events().export_chrome_trace writes",
        "open what prof.export_chrome_trace(path) writes",
    ),
    # Each by the bytes that it begins with; those that are no UTF-8 have been replaced.
    Refused(
        re.compile(r"\A[^\n]*\n\ufffd[\2-\5][}\]\ufffd]"),
        "a pickle and no trace",
        "if it is a snapshot of torch's allocator, kit.open_memory(path) opens it, and `kit view` "
        "if its name ends in .pickle",
    ),
    Refused(
        re.compile(r"\A[^\n]*\n\(\ufffd/\ufffd"),
        "packed by zstd",
        "unpack it first, as by `zstd -d`",
    ),
    Refused(re.compile(r"\A[^\n]*\n\ufffd7zXZ\0"), "packed by xz", "unpack it first, as by `unxz`"),
    Refused(
        re.compile(r"\A[^\n]*\nBZh\d1AY&SY"), "packed by bzip2", "unpack it first, as by `bunzip2`"
    ),
    Refused(
        re.compile(r"\A[^\n]*\n[\s\S]{257}ustar[\0 ]"),
        "a tar archive",
        "unpack it first, as by `tar -xf`, and open the trace",
    ),
)

# Known by the names of their tables, which lie anywhere in the file.
DATABASES = (
    Refused(re.compile(r"\Arocpd_"), "a database of rocprofv3", _JSON_OF_ROCPROF),
    Refused(
        re.compile(r"\A(CANN_API|PYTORCH_API|NPU_INFO|CommAnalyzer\w+)\Z"),
        "a database of Huawei's profiler of Ascend NPUs",
        "of its trace_view.json what the host did is shown, and nothing of the NPU; MindStudio "
        "Insight shows both",
    ),
)


def why_refused(name: str, text: str) -> str:
    """What such a file is, and what to open instead; "" of one that may be read.

    Args:
        text: how it begins, unpacked.
    """
    found = (row.said for row in REFUSED if row.known_by.search(f"{name}\n{text}"))
    return next(found, "")


def why_refused_database(tables: Sequence[str]) -> str:
    """The same of a database, by the names of its tables."""
    return next((row.said for row in DATABASES if any(map(row.known_by.search, tables))), "")
