"""Who belongs to a run over processes: whoever proves, when it connects, that it knows the secret.

Both ends of a connection prove it, each for a number that the other has just drawn: the secret
itself is never sent, and a greeting that was heard once is worth nothing in another connection.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kit.errors import SettingsError, but_of_handlers
from kit.runtime.processes.wire import Wire, frame
from kit.text import safe_terminal

__all__ = ["GREETING_S", "Badge", "admit", "checked_secret", "introduce", "new_secret"]

GREETING_S = 10.0  # after which a connection that has not proved itself is closed
_GREETING = "overlap-kit"
_SHORTEST = 16  # characters: a shorter secret could be guessed from one greeting
_NAME, _FILE = "KIT_RUN_SECRET", "KIT_RUN_SECRET_FILE"
_CURE = (
    f"give {_NAME} the same random text in the environment of each process, a new one for each job "
    "(`openssl rand -hex 32` prints one), or write it to a file that only you can read and name "
    f"that in {_FILE}"
)


@dataclass(frozen=True)
class Badge:
    """One process of one run.

    Attributes:
        rank, count: of processes.
        secret: of the run.
        run: its name. A process of another run is refused, also with the same secret.
    """

    rank: int
    count: int
    secret: str = field(repr=False)
    run: str = ""

    def proof(self, *said: object) -> str:
        """What only one who knows the secret can say of these."""
        return hmac.digest(self.secret.encode(), json.dumps(said).encode(), "sha256").hex()

    def is_proof(self, proof: str, *said: object) -> bool:
        """Whether it is the proof of these."""
        return hmac.compare_digest(proof.encode(), self.proof(*said).encode())


def new_secret() -> str:
    """A secret for a run whose processes are all started from here."""
    return secrets.token_hex(32)


def checked_secret(secret: str | None = None) -> str:
    """The given secret; else that of the environment, for processes that are started one by one.

    Raises:
        SettingsError: there is none, it is too short, or others can read its file.
    """
    secret = (secret or os.environ.get(_NAME, "")).strip()
    if not secret and (file := os.environ.get(_FILE)):
        secret = _read(Path(file))
    if not secret:
        raise SettingsError(f"processes that join each other need a secret: {_CURE}")
    if len(secret) < _SHORTEST:
        raise SettingsError(
            f"a secret of {len(secret)} characters can be guessed (at least {_SHORTEST}): {_CURE}"
        )
    return secret


def _read(file: Path) -> str:
    name = safe_terminal(file, 200)
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SettingsError(f"{_FILE}: {name!r} is no file")
        if os.name == "posix" and found.st_mode & 0o077:
            raise SettingsError(f"{_FILE}: others can read {name!r}: `chmod 600` it")
        return file.read_text(encoding="utf-8").strip()
    except but_of_handlers(OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{_FILE}: {name!r} cannot be read ({error})") from error


async def admit(wire: Wire, badge: Badge, objection: Callable[[int, int, str], str]) -> int:
    """Process 0's half of a greeting: the rank of a process that has proved itself; -1: refused.

    Args:
        objection: why a process with this rank, count and run may not come; "" if it may. Only
            one that has proved itself is asked about, and is told.

    Raises:
        EOFError, ValueError: it is a stranger, or went away.
    """
    drawn = secrets.token_hex(16)
    wire.send(frame([_GREETING, drawn]))
    match await wire.receive():
        case [int(rank), int(count), str(run), str(theirs), str(proof)]:
            if not badge.is_proof(proof, "join", drawn, rank, count, run, theirs):
                raise ValueError("it does not know the secret")
        case _:
            raise ValueError("it does not greet")
    why = objection(rank, count, run)
    wire.send(frame([why, badge.proof("answer", drawn, theirs, rank, why)]))
    return -1 if why else rank


async def introduce(wire: Wire, badge: Badge) -> str:
    """The half of a process that comes to process 0: why it may not join, "" if it may.

    Raises:
        EOFError, ValueError: the other end is not process 0 of this run.
    """
    match await wire.receive():
        case [str(name), str(drawn)] if name == _GREETING:
            mine = secrets.token_hex(16)
        case _:
            raise ValueError("what answers there is no process of a run")
    who = (badge.rank, badge.count, badge.run, mine)
    wire.send(frame([*who, badge.proof("join", drawn, *who)]))
    try:
        answer = await wire.receive()
    except EOFError:
        raise ValueError(f"the process there has another secret ({_NAME})") from None
    match answer:
        case [str(why), str(proof)] if badge.is_proof(
            proof, "answer", drawn, mine, badge.rank, why
        ):
            return why
    raise ValueError("what answers there does not know the secret")
