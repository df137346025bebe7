"""The tap's ctypes face: typed methods over the C interface of the library that ``build`` made.

Stage: tap. In: the path of the library, then calls from hooks and preload. Out: records and strings in the
spool, written by the C++ side. Runs in the trainer, any thread; ctypes gives the GIL up around each call
but the few quick ones that hooks make in every module. It must never raise into the user's code: failures
to open or attach are RankmemErrors for the preload's guard, everything else returns.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rankmem_agent.spool.layout import Category, Kind
from rankmem_agent.spool.records import slots_of
from rankmem_agent.tap.step_calls import StepCalls
from rankmem_protos.errors import Code, RankmemError


class What(enum.IntFlag):
    """The switches of :meth:`Tap.enable`."""

    CPU_EVENTS = 1
    CUDA_EVENTS = 2
    CALLS = 4
    STACKS = 8
    MODULES = 16
    """Read from frames; on by :meth:`Tap.follow_modules`."""
    COMPARE_MODULES = 32
    """For a test: modules by hooks, beside those by frames."""
    EVIDENCE = 64
    """Blocks are compared with those of steps before (PART records); in a tap built with it, after
    :meth:`Tap.follow_modules`."""
    HEIGHTS = 128
    """Detail auto: the tap chooses from step to step whether all is recorded or memory alone. For good, where
    :attr:`Stat.CHOOSES_DETAIL` is 1 after it; elsewhere all is recorded."""
    SHOW_ALL = 256
    """For a test: with EVIDENCE, an EVIDENCE record behind each block."""


class Stat(enum.IntEnum):
    """Figures that :meth:`Tap.stat` reads; the enum of tap.cpp."""

    NEXT_SEQ = 0
    """Records numbered so far."""
    DROPPED = 1
    """Of those, records whose segment was lost."""
    STRINGS_DROPPED = 2
    """Names, frames and stacks that could not be written."""
    STACKS = 3
    """Different stacks written."""
    CALLS = 4
    """Calls that wrote something."""
    STACKS_GATHERED = 5
    """Times that a call asked for its Python stack."""
    PYTHON_FOUND = 6
    """1 if CPython's functions were found, so that stacks can be gathered."""
    HAS_CUDA = 7
    """1 if the library was built with CUDA."""
    SEGMENTS_READY = 8
    """Segment files made so far."""
    SPOOL_OPEN = 9
    """1 between open and close, in the process that opened."""
    STACKS_WALKED = 10
    """Of those gathered, how many took the GIL: the stack was new to its thread."""
    FRAMES_KNOWN = 11
    """1 if stacks are known again without the GIL in this Python."""
    MODULES_FOLLOWED = 12
    """1 if modules are read from Python frames, without hooks in them."""
    MODULES_ASKED = 13
    """Times that a call met a module without a name."""
    STEP = 14
    """The number of the step that goes on."""
    EVIDENCE_READ = 15
    """1 if allocations show where they are made."""
    CHOOSES_DETAIL = 16
    """1 if detail auto holds, or did: the heights of steps are followed."""
    FRAMES_MISREAD = 17
    """For a test, with SHOW_ALL: times that a thread's frames gave other keys than read anew."""
    CPU_SEES = 20
    """Bits of :class:`CpuSees`."""
    HAS_BLOCKS = 21
    """1 once a block was recorded."""


class CpuSees(enum.IntFlag):
    """The parts of torch's CPU memory that the tap sees; the bits of tap_cpu.h."""

    REGISTERED = 1
    """Blocks of the allocator that torch has registered for CPU: tensors."""
    DEFAULT = 2
    """Blocks of c10's default allocator, for any caller: also storages made directly, so deep copies."""
    MAPPED = 4
    """Files and shared memory that storages are mapped from."""


_U8, _U32, _U64, _INT = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int
_PROVISIONAL: Final = 1  # rkm_open's flags
_SIGNATURES: Final[dict[str, tuple[type | None, tuple[type, ...]]]] = {
    "rkm_open": (_INT, (ctypes.c_char_p, _U64, _U32)),
    "rkm_publish": (_INT, (ctypes.c_char_p,)),
    "rkm_when_busy": (None, (ctypes.py_object, _U64, _U64)),
    "rkm_attach_cpu": (_INT, ()),
    "rkm_attach_cuda": (_INT, ()),
    "rkm_leave_cpu": (None, (_U32,)),
    "rkm_cuda_counters": (_INT, ()),
    "rkm_sample_pinned": (_INT, ()),
    "rkm_attach_calls": (_INT, ()),
    "rkm_enable": (None, (_U32, _INT)),
    "rkm_choose_steady": (_INT, (_U64, _U64)),
    "rkm_intern": (_U32, (ctypes.c_char_p, _U64)),
    "rkm_record": (None, (_U8, _U8, _U8, _U8, _U64, _U64, _U64, _U64, _U32)),
    "rkm_tag": (None, (_U8, _U8, _U8, _U32, *[ctypes.c_void_p] * 3)),
    "rkm_set_module": (None, (_U32,)),
    "rkm_module_slot": (ctypes.c_void_p, ()),
    "rkm_follow_modules": (_INT, (*[ctypes.py_object] * 2, _INT, ctypes.c_void_p, _U32)),
    "rkm_name_module": (None, (ctypes.c_void_p, _U32, _INT)),
    "rkm_forget_module": (None, (ctypes.c_void_p,)),
    "rkm_watch_roots": (None, (ctypes.py_object, _U32)),
    "rkm_answer_same_calls": (
        _INT,
        (*[ctypes.c_void_p] * 2, ctypes.py_object, *[_U32] * 3),
    ),
    "rkm_others_end": (None, ()),
    "rkm_note_inputs": (None, (_U32, _U64, _U64, _U32)),
    "rkm_forget_same_calls": (None, (ctypes.c_void_p,)),
    "rkm_set_phase": (None, (_U8,)),
    "rkm_compare_phase": (None, (_U8,)),
    "rkm_set_step": (None, (_U64, _INT)),
    "rkm_start_unseen": (_INT, (*[ctypes.POINTER(ctypes.c_char_p)] * 2, _INT, _INT)),
    "rkm_stop_stacks": (None, ()),
    "rkm_close": (_INT, ()),
    "rkm_stat": (_U64, (_U32,)),
    "rkm_layout": (_INT, (_U32, ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(_U64))),
}
_RECORD_SLOTS: Final = ("action", "device_type", "device_index", "a", "b", "c", "d", "e")  # rkm_record's
# Stores to a thread-local or an atomic: giving the GIL up around them costs ten times the call, and would let
# another Python thread in at every module's entry. What modules are called is written under the GIL.
_QUICK: Final = (
    "rkm_set_module", "rkm_set_phase", "rkm_set_step",
    "rkm_follow_modules", "rkm_name_module", "rkm_forget_module", "rkm_watch_roots",
    "rkm_answer_same_calls", "rkm_others_end", "rkm_note_inputs", "rkm_forget_same_calls",
)  # fmt: skip


_ONCE: Final = (Code.CONFLICT, "one spool and one attachment are made in a process's life")
_NO_ROOM: Final = (Code.EXHAUSTED, "name a folder with room in RANKMEM_SPOOL_DIR")
_FAILURES: Final[dict[int, tuple[Code, str]]] = {
    errno.EALREADY: _ONCE,
    errno.EEXIST: _ONCE,
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.ENOMEM: _NO_ROOM,
    errno.ENOSYS: (Code.UNSUPPORTED, "rankmem doctor shows what this machine lacks"),
}


_loaded: Tap | None = None


class Tap:
    """One loaded tap. One spool in a process's life: a second :meth:`open` is refused.

    Args:
        path: the library, from :func:`rankmem_agent.tap.build.build_tap`.

    Raises:
        RankmemError: UNSUPPORTED if it does not load.
    """

    def __init__(self, path: Path) -> None:
        try:
            slow, quick = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        except OSError as exc:
            hint = "remove it and let rankmem doctor build it again"
            raise RankmemError(Code.UNSUPPORTED, f"the tap {path} does not load: {exc}", hint) from exc
        self.path = path
        self._library = slow
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(quick if name in _QUICK else slow, name)
            function.restype, function.argtypes = result, arguments
        # Bound once: hooks call these in every module and step.
        self._set_module = quick.rkm_set_module
        self._set_phase = quick.rkm_set_phase
        self._set_step = quick.rkm_set_step
        self._follow_modules = quick.rkm_follow_modules
        self._name_module = quick.rkm_name_module
        self._forget_module = quick.rkm_forget_module
        self._watch_roots = quick.rkm_watch_roots
        self._answer_same_calls = quick.rkm_answer_same_calls
        self._others_end = quick.rkm_others_end
        self._note_inputs = quick.rkm_note_inputs
        self._forget_same_calls = quick.rkm_forget_same_calls
        self._record = slow.rkm_record
        self._intern = slow.rkm_intern
        self._tag = slow.rkm_tag
        global _loaded
        _loaded = self

    def open(self, folder: Path, budget_bytes: int, *, is_provisional: bool = False) -> None:
        """Create the spool's files in an existing folder and start the native thread.

        Args:
            folder: the spool; it must not hold one yet.
            budget_bytes: segment files at most; above it records are counted and dropped.
            is_provisional: a small part of the budget, until :meth:`publish`.

        Raises:
            RankmemError: CONFLICT if a spool was opened before, EXHAUSTED without room, INVALID otherwise.
        """
        flags = _PROVISIONAL if is_provisional else 0
        _check(self._library.rkm_open(os.fsencode(folder), budget_bytes, flags), f"open the spool {folder}")

    def publish(self, folder: Path) -> None:
        """Move the spool to ``folder``, which is empty, and grant it the whole budget.

        Raises:
            RankmemError: INVALID if it cannot be moved.
        """
        _check(self._library.rkm_publish(os.fsencode(folder)), f"move the spool to {folder}")

    def when_busy(self, callback: Callable[[], None], *, after_s: float, records: int) -> None:
        """Have the main thread call ``callback`` once, unless the spool is published by then.

        Args:
            callback: called between two instructions of the main thread, like a signal's handler; what it
                raises is raised there.
            after_s: seconds from now at least ...
            records: ... and so many in the spool; or half of the provisional budget is used.
        """
        self._busy = callback  # kept: the native thread has its address
        self._library.rkm_when_busy(self._busy, int(after_s * 1e9), records)

    def attach_cpu(self) -> None:
        """Attach to every source of CPU memory in torch, for good; they record once enabled.

        What of them could not be reached: :meth:`cpu_sees`.
        """
        _check(self._library.rkm_attach_cpu(), "record the CPU allocator")

    def cpu_sees(self) -> CpuSees:
        """The parts of torch's CPU memory seen since :meth:`attach_cpu`."""
        return CpuSees(self.stat(Stat.CPU_SEES))

    def attach_cuda(self) -> bool:
        """Attach to every CUDA device's allocator, for good; after CUDA's initialisation. Enables its events.

        Returns:
            False where the allocator reports no events (cudaMallocAsync, a pluggable one, caching switched
            off): samples of the devices' memory are taken all the same.

        Raises:
            RankmemError: UNSUPPORTED if the tap was built without CUDA.
        """
        result = self._library.rkm_attach_cuda()
        if result == -errno.EOPNOTSUPP:
            return False
        _check(result, "record the CUDA allocator")
        return True

    def leave_cpu_for_cuda(self, facts: int) -> None:
        """Record no CPU memory any more from the first event of a CUDA device on; before :meth:`attach_cuda`.

        Args:
            facts: number of the interned text of the DEVICE record that ends it.
        """
        self._library.rkm_leave_cpu(facts)

    def cuda_counters(self) -> None:
        """Write the allocator's own figures and peaks of every CUDA device in use, as :meth:`close` does."""
        self._library.rkm_cuda_counters()

    def sample_pinned(self) -> bool:
        """Write what torch's host allocator for CUDA holds, as the native thread does once a second.

        Returns:
            False where it has no figures: a torch older than the registry of host allocators, or one
            without CUDA.
        """
        return int(self._library.rkm_sample_pinned()) == 0

    def attach_calls(self) -> None:
        """Add the global RecordFunction callback, for good."""
        _check(self._library.rkm_attach_calls(), "observe operators")

    def enable(self, what: What, on: bool = True) -> None:
        """Switch recording of ``what`` on or off."""
        self._library.rkm_enable(int(what), int(on))

    def choose_steady(self, audits_every: int, *, apart_s: float = 0.0) -> bool:
        """From the next step on calls are not observed in steps that are known; in one of so many they are
        all the same, at most once in so many seconds. False where nothing can be compared here: then all is
        observed in each step."""
        return int(self._library.rkm_choose_steady(audits_every, int(apart_s * 1e9))) == 0

    def intern(self, text: str) -> int:
        """The id of a string in this spool; 0 if it could not be written."""
        data = text.encode("utf-8", "replace")
        return int(self._intern(data, len(data)))

    def record(self, kind: Kind, /, **fields: int) -> None:
        """Append a record of this thread, now; see :class:`~rankmem_agent.spool.records.RecordWriter`."""
        slots = slots_of(kind, fields)
        self._record(kind, *[slots.get(name, 0) for name in _RECORD_SLOTS])

    def tag(
        self,
        category: Category,
        device_type: int,
        device_index: int,
        addresses: array[int],
        sizes: array[int],
        names: array[int],
    ) -> None:
        """Append a TAG record (``since_allocation``) for each address that is not 0: a step has hundreds.

        Args:
            addresses, sizes: array("Q"), bytes; names: array("I"), string ids; all of one length.
        """
        arrays = (addresses.buffer_info()[0], sizes.buffer_info()[0], names.buffer_info()[0])
        self._tag(category, device_type, device_index, min(len(addresses), len(sizes), len(names)), *arrays)

    def set_module(self, module_string_id: int) -> None:
        """The module this thread is in, for calls that begin from now on; 0 for none."""
        self._set_module(module_string_id)

    def module_slot(self) -> memoryview:
        """This thread's module in the tap's own memory: item 0 is what :meth:`set_module` sets. A store costs
        17 ns, the call 170 (measured). Valid in this thread until it ends."""
        slot = (_U32 * 1).from_address(self._library.rkm_module_slot())
        return memoryview(slot).cast("B").cast("I")

    def module_reader(self) -> Tap:
        """Itself: it reads modules from frames where they can be read."""
        return self

    def follow_modules(
        self, call_code: object, ask: Callable[..., None] | None, modules: Sequence[int]
    ) -> bool:
        """Read modules from Python frames from now on; called within the calls of ``modules``.

        Args:
            call_code: the code object that every call of a module runs.
            ask: called with a module that has no name yet, and with the one around it if there is one; it
                answers through :meth:`name_module`, or not, and is asked again. None: only that a module runs
                is read, no module gets a name.
            modules: identities of the modules that this thread is in, nearest first: those must be found.

        Returns:
            False where frames cannot be read, or show something else.
        """
        identities = array("Q", modules)
        address = identities.buffer_info()[0]
        return int(self._follow_modules(call_code, ask, ask is not None, address, len(identities))) == 0

    def stop_modules(self) -> None:
        """Read no modules from now on."""
        self.enable(What.MODULES, False)

    def name_module(self, identity: int, string_id: int, may_change: bool) -> None:
        """The module with this identity has this path; 0: none.

        Args:
            may_change: it may be a part of a module around it that has no name yet: that is asked for then.
        """
        self._name_module(identity, string_id, may_change)

    def forget_module(self, identity: int) -> None:
        """The module with this identity is gone."""
        self._forget_module(identity)

    def watch_calls(self, ask: Callable[[Any, Any, Any, int], int], name: int) -> None:
        """Call ``ask`` (module, args, kwargs, calls answered here) in each outermost call of a module, from
        its first operator.

        Args:
            ask: its answer has the bits of ``hooks.model_calls``; it must not raise.
            name: string id that the steps have which such calls end.
        """
        self._watch_roots(ask, name)

    def answer_same_calls(
        self, tensor: Any, containers: tuple[type, ...], limits: tuple[int, int, int]
    ) -> bool:
        """Before :meth:`watch_calls`: calls that are given the same as one before are answered here.

        Args:
            tensor: any one of ``torch.Tensor`` itself.
            containers: the types whose subclasses are looked into, beside tuples, lists and dictionaries.
            limits: calls of the model that are recorded in a step; calls that are looked at in one; how deep
                containers are looked into.

        Returns:
            False where tensors cannot be read here: ``ask`` is called each time.
        """
        impl = getattr(tensor, "_cdata", 0)
        done = self._answer_same_calls(id(tensor), impl, containers, *limits)
        return int(done) == 0

    def others_end(self) -> None:
        """From now on optimizers or the user end the steps: no call does."""
        self._others_end()

    def note_inputs(self, module: int, size_bytes: int, num_left_out: int, facts: int) -> None:
        """What has been recorded of the call that is being asked about: the fields of its INPUT record."""
        self._note_inputs(module, size_bytes, num_left_out, facts)

    def forget_same_calls(self, identity: int = 0) -> None:
        """The module with this identity is gone; 0: no call is answered until it was asked about again."""
        self._forget_same_calls(identity)

    def step_number(self) -> int:
        """The number of the step that goes on."""
        return self.stat(Stat.STEP)

    def compare_phase(self, phase: int) -> None:
        """For a test, with ``What.COMPARE_MODULES``: the phase as hooks of modules have it."""
        self._library.rkm_compare_phase(phase)

    def set_phase(self, phase: int) -> None:
        """The phase of the training, for calls that begin from now on in any thread: a ``layout.Phase``, or
        IN_CLOSURE."""
        self._set_phase(phase)

    def set_step(self, step: int, *, by_call: bool = False) -> None:
        """The training step, for calls that begin from now on in any thread.

        Args:
            by_call: a call of the model has ended the one before, which only observed operators show.
        """
        self._set_step(step, by_call)

    def step_calls(self) -> StepCalls | None:
        """The native calls around an optimizer's step; None where this Python does not allow them."""
        import torch  # loaded, since there are optimizers

        calls = StepCalls(self.path)
        return calls if calls.prepare(torch) else None

    def start_unseen(
        self, command: Sequence[str], environment: Mapping[str, str], *, output_fd: int, kept_fd: int
    ) -> None:
        """Start a program that is no child of this process: the training gets no SIGCHLD and no child to wait
        for.

        It has a session of its own, "/" as its working directory and nothing to read. Works at any time, also
        after :meth:`close`.

        Args:
            command: the path of the program first.
            environment: all of it.
            output_fd: where its output and errors go.
            kept_fd: the one other descriptor that it inherits; above 2.

        Raises:
            OSError: it could not be started.
        """
        arguments = _strings(command)
        variables = _strings(f"{name}={value}" for name, value in environment.items())
        failure = -int(self._library.rkm_start_unseen(arguments, variables, output_fd, kept_fd))
        if failure:
            raise OSError(failure, os.strerror(failure), command[0])

    def stop_stacks(self) -> None:
        """Gather no Python stacks from now on; returns when no thread is at it. For interpreter exit."""
        self._library.rkm_stop_stacks()

    def close(self) -> None:
        """Write END and stop the native thread. Idempotent; the library stays, late frees go through it."""
        self._library.rkm_close()

    def stat(self, which: Stat) -> int:
        """One of the tap's figures."""
        return int(self._library.rkm_stat(which))

    def layout(self) -> dict[str, int]:
        """Byte offset of every field as the compiler laid it out, by ``Struct.field``."""
        name, offset = ctypes.c_char_p(), _U64()
        offsets: dict[str, int] = {}
        while self._library.rkm_layout(len(offsets), ctypes.byref(name), ctypes.byref(offset)) == 0:
            offsets[(name.value or b"").decode()] = offset.value
        return offsets


def loaded() -> Tap | None:
    """The tap that this process has loaded, if any."""
    return _loaded


def _strings(texts: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    """The strings as a null-terminated array for C."""
    encoded = [os.fsencode(text) for text in texts]
    return (ctypes.c_char_p * (len(encoded) + 1))(*encoded, None)


def _check(result: int, what: str) -> None:
    """Turn -errno into a RankmemError with what could not be done."""
    if result == 0:
        return
    number = -result
    code, hint = _FAILURES.get(number, (Code.INVALID, ""))
    raise RankmemError(code, f"cannot {what}: {os.strerror(number)}", hint)
