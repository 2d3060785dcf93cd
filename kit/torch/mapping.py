"""Run code that names other devices on device kit: "cuda", "mps", and "cpu" where it is placed.

By torch's own function mode, which sees the calls of torch's functions and no others.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from kit.errors import SettingsError
from kit.files import in_packages
from kit.runtime.recording.sites import is_kits
from kit.text import format_count
from kit.torch import mixed_precision, modules
from kit.torch.mixed_precision import mixed_precision_follows
from kit.torch.tensors.private import private
from kit.torch.threads import threads_follow

__all__ = ["DeviceNames", "named_devices"]

_DeviceBlock: Any = private("torch.utils._device.DeviceContext")  # of `with torch.device(...)`
_TORCH = os.path.dirname(torch.__file__) + os.sep
_ACCELERATORS = ("cuda", "mps", "xpu")
_DEVICE_OF = torch.Tensor.device.__get__
_ITS_CPU = torch.device("cpu")  # this object: what `x.device` is of a CPU tensor
_DRAWN = (torch.rand, torch.randn, torch.randint, torch.randperm)
_BETWEEN = (  # the files of a call that passes the user's "cpu" on
    __file__,
    os.path.join(_TORCH, "nn", "modules", "module.py"),
    os.path.join(_TORCH, "utils", "_device.py"),
    modules.__file__,
    os.path.join(_TORCH, "cpu", "amp", "autocast_mode.py"),
    mixed_precision.__file__,
)


@contextmanager
def named_devices() -> Iterator[DeviceNames]:
    """Inside the block, tensors go to device kit where the code names a device.

    Of this thread, and of those that it starts, which run in a copy of its context.

    "cpu" is such a name too, where code places something there: `.to("cpu")` of a tensor that is on
    the CPU already, or `device="cpu"`. Of a tensor on device kit `.to("cpu")` is a read, as ever,
    and so is `.cpu()`; but `.to(device)` leaves it there if the code has placed something by that
    name. What torch's own files, kit's and installed packages say of the CPU is left, and so is
    `x.device` of a tensor there, which names no device. A module goes to one place, whole.

    `torch.load`, `torch.compile`, `torch.set_default_device`, `with torch.device(...)`,
    `torch.Generator`, `nn.Module.to`, autocast and GradScaler are no functions that a mode sees:
    they are replaced inside the block. What is compiled there runs as it is written: torch would
    trace this mode with it, and device kit, which compiles by itself, gains nothing. A warning that
    torch gives of a call that the mode has seen would name the mode's line: it names the program's.
    """
    with ExitStack() as undo:
        names = undo.enter_context(DeviceNames())
        undo.callback(_end_default, torch.set_default_device)
        for owner, name, stand_in in (
            (warnings, "showwarning", _at_the_programs_line),
            (torch, "load", names.loading),
            (torch, "compile", functools.partial(names.compiling, undo)),
            (torch, "set_default_device", names.defaulting),
            (nn.Module, "to", names.moving),
            (type(torch.Generator), "__call__", names.drawing),
            (_DeviceBlock, "__init__", names.entering),
        ):
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, stand_in(getattr(owner, name)))
        follows = mixed_precision_follows(_ACCELERATORS, lambda: _users_frame() is not None)
        undo.enter_context(follows)
        undo.enter_context(threads_follow(lambda: names))
        yield names


class DeviceNames(TorchFunctionMode):
    """torch's mode for this, and what it has mapped.

    Its `__enter__` and `__exit__` are torch's own: an error in one of ours would leave it on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()  # of the counts
        self._names: set[str] = set()  # of devices, by which the code has placed something
        self._process = os.getpid()
        self._has_compiled = False  # by torch.compile
        self._has_loaded_to_cpu = False  # though the program named no place

    @property
    def is_used(self) -> bool:
        """True once the code has named a device that device kit stands in for."""
        return bool(self._counts)

    @property
    def said(self) -> str:
        """What was mapped, in words."""
        if not self.is_used:
            return (
                "the script names no device that device kit could stand in for, so it ran where it "
                "put its tensors: on the CPU. To have it on device kit, let it name one, and not "
                "only under torch.cuda.is_available(), which asks for a real GPU: "
                'model.to("cuda"), x.to("cuda")'
            )
        parts = [
            f"{name} in {format_count(count, 'call')}" for name, count in self._counts.most_common()
        ]
        said = (
            f"device kit stood in for {', '.join(parts)}. Not mapped: torch.cuda's functions, such "
            "as is_available"
        )
        if self._has_loaded_to_cpu:
            said += (
                "; and torch.load without map_location, which gives CPU tensors of what device kit "
                'has saved: torch.load(file, map_location="cuda") is mapped'
            )
        if self._has_compiled:
            said += "; and torch.compile: its functions ran as they are written"
        if "cpu" in self._counts:
            said += (
                '; and what an installed package puts on "cpu": if it belongs on the device, let '
                'the script name "cuda", which is mapped there, too'
            )
        return said

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if os.getpid() != self._process:  # a loader's worker: device kit is not there
            return func(*args, **kwargs)
        if func is torch.Tensor.cuda:
            self._count("cuda")
            return args[0].to("kit")
        if func == _DEVICE_OF:
            device = func(*args)
            return _ITS_CPU if device == _ITS_CPU else device
        if func is torch.Tensor.to:
            args = (args[0], *(self._mapped(x, args[0]) for x in args[1:]))
        device = kwargs.get("device")
        if device is None and func in _DRAWN and kwargs.get("generator") is not None:
            device = torch.get_default_device()
            device = device if device.type == "kit" else None
        if device is not None:
            on = args[0] if func is torch.Tensor.to else None
            kwargs = {**kwargs, "device": (placed := self._mapped(device, on))}
            is_to_kit = isinstance(placed, torch.device) and placed.type == "kit"
            generator = kwargs.get("generator")
            if is_to_kit and generator is not None and generator.device.type != "kit":
                return _drawn(func, args, kwargs)
        return func(*args, **kwargs)

    def loading(self, load: Any) -> Any:
        """The function that stands in for this `torch.load`."""
        return functools.wraps(load)(functools.partial(self._loaded, load))

    def compiling(self, undo: ExitStack, compiler: Any) -> Any:
        """The function that stands in for this `torch.compile`, until that is undone."""

        @functools.wraps(compiler)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            if not self._has_compiled:
                undo.enter_context(torch.compiler.set_stance("force_eager"))
                self._has_compiled = True
            return compiler(*args, **kwargs)

        return compiled

    def moving(self, to: Any) -> Any:
        """The function that stands in for this `nn.Module.to`.

        torch moves each parameter by itself, and a part that two modules share twice: the second
        time it is on device kit, from where "cpu" is a read. It is decided once for the module.
        """

        @functools.wraps(to)
        def moved(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            on = _first_to_move(module)
            args = tuple(self._mapped(x, on) for x in args)
            if (device := kwargs.get("device")) is not None:
                kwargs["device"] = self._mapped(device, on)
            return _moved_as_said(to, module, args, kwargs)

        return moved

    def defaulting(self, set_default: Any) -> Any:
        """The function that stands in for this `torch.set_default_device`."""

        @functools.wraps(set_default)
        def set_default_device(device: Any) -> None:
            set_default(self._mapped(device))

        return set_default_device

    def drawing(self, make: Any) -> Any:
        """The function that stands in for this one, which makes generators; "cpu" stays."""

        def placed(argument: Any) -> Any:
            is_device = isinstance(argument, str | torch.device)
            is_on_cpu = is_device and torch.device(argument).type == "cpu"
            return argument if is_on_cpu else self._mapped(argument)

        @functools.wraps(make)
        def made(kind: Any, *args: Any, **kwargs: Any) -> Any:
            named = {name: placed(value) for name, value in kwargs.items()}
            return make(kind, *map(placed, args), **named)

        return made

    def entering(self, make: Any) -> Any:
        """The function that stands in for this one, which `with torch.device(...)` calls."""

        @functools.wraps(make)
        def __init__(block: Any, device: Any) -> None:
            make(block, self._mapped(device))
            if block.device == _ITS_CPU:
                block.device = _ITS_CPU  # it stays: what is made in the block asks no more

        return __init__

    def _loaded(
        self, load: Any, file: Any, map_location: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """`torch.load`, with device kit for each accelerator that is named there or in the file.

        What the file has of the CPU stays there: device kit's own tensors are written as the CPU's.
        """
        if os.getpid() != self._process:
            place = map_location
        elif map_location is None:
            place = self._restored
        elif isinstance(map_location, dict):
            place = {tag: self._place_of(target) for tag, target in map_location.items()}
        else:
            place = self._place_of(map_location)
        return load(file, place, *args, **kwargs)

    def _place_of(self, target: Any) -> Any:
        """Where to load to; "cpu" is the CPU here: the script moves it on by itself."""
        if not isinstance(target, str | torch.device) or torch.device(target).type == "cpu":
            return target
        mapped = self._mapped(target)
        return str(mapped) if isinstance(mapped, torch.device) else mapped

    def _restored(self, storage: Any, tag: str) -> Any:
        """A storage of a file where the program names no place: None is what torch would do."""
        kind = tag.partition(":")[0]
        if kind not in _ACCELERATORS:
            self._has_loaded_to_cpu = True
            return None
        self._count(kind)
        return torch.serialization.default_restore_location(storage, "kit")

    def _mapped(self, argument: Any, tensor: Any = None) -> Any:
        """The device that is meant; anything else as it is, and all in a loader's worker."""
        if not isinstance(argument, str | torch.device) or argument is _ITS_CPU:
            return argument
        if os.getpid() != self._process:
            return argument
        device = torch.device(argument)
        if device.type == "cpu":
            is_there = tensor is not None and tensor.device.type != "cpu"
            if (frame := _users_frame()) is None:
                return argument
            name = _device_name(frame)
            if is_there and name not in self._names:
                return argument  # a read
            self._names |= {name} if name else set()
        elif device.type not in _ACCELERATORS:
            return argument
        elif device.index:
            raise SettingsError(
                f"the script asks for {device}: device kit, which stands in for it, is one device"
            )
        self._count(device.type)
        return torch.device("kit")

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1


def _drawn(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """The numbers that a generator of the program's gives where it is, copied to device kit."""
    learns = kwargs.pop("requires_grad", False)
    made: torch.Tensor = func(*args, **{**kwargs, "device": kwargs["generator"].device})
    return made.to("kit").requires_grad_(learns)


def _end_default(set_default: Any) -> None:
    """Makes tensors on the CPU again, if the program had them made on device kit."""
    if torch.get_default_device().type == "kit":
        set_default(None)


def _first_to_move(module: nn.Module) -> torch.Tensor | None:
    """A tensor of the module that is on the CPU; if none is, any."""
    tensors = [*module.parameters(), *module.buffers()]
    return next((x for x in tensors if x.device.type == "cpu"), next(iter(tensors), None))


def _moved_as_said(to: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """The module, moved; by this call `_users_frame` knows that "cpu" means the CPU there."""
    return to(module, *args, **kwargs)


def _at_the_programs_line(show: Any) -> Any:
    """Shows a warning as this does, but of a line here with the line that has called torch."""

    def shown(message: Any, category: Any, filename: str, lineno: int, *more: Any) -> None:
        frame: Any = sys._getframe(1)
        if filename == __file__:
            while frame is not None and frame.f_code.co_filename != __file__:
                frame = frame.f_back
            while frame is not None and _is_below(frame.f_code.co_filename):
                frame = frame.f_back
            if frame is not None:
                filename, lineno = frame.f_code.co_filename, frame.f_lineno
        show(message, category, filename, lineno, *more)

    return shown


def _is_below(file: str) -> bool:
    return file.startswith(_TORCH) or is_kits(file)


def _users_frame() -> Any:
    """The call that says "cpu", if it is the user's: torch and packages mean the CPU by it."""
    frame: Any = sys._getframe(2)
    while frame is not None and (frame.f_code.co_filename in _BETWEEN or _is_move_of_module(frame)):
        if frame.f_code is _moved_as_said.__code__:
            return None
        frame = frame.f_back  # a module's `to` says what its caller has said
    name = "" if frame is None else frame.f_code.co_filename
    return None if _is_below(name) or in_packages(name) else frame


def _device_name(frame: Any) -> str:
    """The variable that a call gives as its device, as it is written: `args.device`; "" of none."""
    positions = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    given = _given(frame.f_code.co_filename).get(positions)
    if not isinstance(given, ast.Name | ast.Attribute | ast.Subscript):
        return ""
    return ast.unparse(given)


@functools.lru_cache(maxsize=64)
def _given(file: str) -> dict[Any, ast.expr | None]:
    """What calls of a file give as a device, by where they begin and end (see `co_positions`).

    So do blocks, `with torch.device(name):`, of which Python 3.11 tells the whole statement.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    nodes = list(ast.walk(tree))
    found = {_positions(node): _of_call(node) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.With) and len(node.items) == 1:
            entered = node.items[0].context_expr
            given = _of_call(entered) if isinstance(entered, ast.Call) else entered
            for at in (node, entered):
                found[at.lineno, at.end_lineno, at.col_offset, at.end_col_offset] = given
    return found


def _of_call(call: ast.Call) -> ast.expr | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "device"]
    return next(iter((*named, *call.args)), None)


def _positions(call: ast.Call) -> tuple[int | None, ...]:
    """Of a method on a line below the one where the call begins: from the method's name on."""
    line, column, method = call.lineno, call.col_offset, call.func
    end_line, end_column = method.end_lineno, method.end_col_offset
    if isinstance(method, ast.Attribute) and end_line and end_column and end_line != line:
        line, column = end_line, end_column - len(method.attr)
    return line, call.end_lineno, column, call.end_col_offset


def _is_move_of_module(frame: Any) -> bool:
    """A recurrent layer, and a model of transformers, has a method of its own for this."""
    return frame.f_code.co_name in ("to", "_apply") and isinstance(
        frame.f_locals.get("self"), nn.Module
    )
