"""The rank layout: tp x cp x dp x pp, in any order, and the groups that it is made of.

    layout = ravel.mesh.layout(ranks=16, tp=2, pp=2)         pure: no communicator
    layout.locate(5), layout.groups("dp-cp")
    mesh = ravel.mesh.Mesh(comm, tp=2)                       collective: the same with communicators
    mesh.comm("tp"), mesh.coords.dp

Sets of axes are written "tp", "dp-cp", ...; order strings mean what they mean in Megatron.
"""

from __future__ import annotations

import ctypes as C
from typing import Any, NamedTuple

import numpy as np

from . import _abi
from ._lib import Handle, address, call, lib
from ._options import Table
from .comm import Comm

__all__ = ["Coords", "Layout", "Mesh", "layout"]

_TABLE = Table(_abi.ravel_mesh_options, "ravel_mesh")
_AXES = ("tp", "cp", "dp", "pp")


class Coords(NamedTuple):
    """A rank's place."""

    tp: int
    cp: int
    dp: int
    pp: int


def _coords(c: Any) -> Coords:
    return Coords(c.tp, c.cp, c.dp, c.pp)


def _axes(text: str) -> int:
    bits = C.c_int32()
    call("ravel_mesh_axes_parse", text.encode(), C.byref(bits))
    return bits.value


class Layout:
    """Sizes and groups of a mesh. Made by :func:`layout`, or a :class:`Mesh`'s own."""

    def __init__(self, c: _abi.ravel_mesh_layout):
        self._c = c

    @property
    def ranks(self) -> int:
        """tp * cp * dp * pp."""
        return int(self._c.ranks)

    @property
    def sizes(self) -> dict[str, int]:
        """Ranks along each axis."""
        return {name: int(self._c.sizes[i]) for i, name in enumerate(_AXES)}

    def locate(self, rank: int) -> Coords:
        """The coordinates of a rank."""
        if not 0 <= rank < self.ranks:
            raise IndexError(f"rank is {rank}; there are {self.ranks}")
        return _coords(lib.ravel_mesh_locate(C.byref(self._c), rank))

    def rank_at(self, tp: int = 0, cp: int = 0, dp: int = 0, pp: int = 0) -> int:
        """The rank at these coordinates."""
        rank = lib.ravel_mesh_rank_at(C.byref(self._c), _abi.ravel_mesh_coord(tp=tp, cp=cp, dp=dp, pp=pp))
        if rank < 0:
            raise IndexError(f"tp {tp}, cp {cp}, dp {dp}, pp {pp} is outside of {self.sizes}")
        return int(rank)

    def groups(self, axes: str) -> np.ndarray:
        """[groups, members]: the ranks that differ in these axes only, groups and members in Megatron's order."""
        bits = _axes(axes)
        out = np.empty(self.ranks, np.int32)
        lib.ravel_mesh_groups(C.byref(self._c), bits, address(out))
        return out.reshape(-1, lib.ravel_mesh_group_size(C.byref(self._c), bits))

    def __repr__(self) -> str:
        return f"<ravel.mesh.Layout: {' x '.join(f'{name} {size}' for name, size in self.sizes.items())}>"


def layout(ranks: int = 0, **options: Any) -> Layout:
    """A checked layout. Options: tp, cp, dp (0: what is left of ``ranks``), pp, vpp, order ("tp-cp-dp-pp")."""
    c = _abi.ravel_mesh_layout()
    call("ravel_mesh_plan", C.byref(_TABLE.make(**options)), ranks, C.byref(c))
    return Layout(c)


class Mesh:
    """A layout with communicators: tp, cp, dp, pp, dp-cp and tp-cp. Collective. Options as in :func:`layout`."""

    def __init__(self, comm: Comm, **options: Any):
        pointer = C.c_void_p()
        self._parent = comm
        comm._call("ravel_mesh_create", C.byref(_TABLE.make(**options)), C.byref(pointer))
        self._handle = Handle(pointer.value, lib.ravel_mesh_free, comm)
        self._comms: dict[int, Comm] = {}

    @property
    def pointer(self) -> Any:
        """Of the library's own object."""
        return self._handle.pointer

    @property
    def layout(self) -> Layout:
        """Sizes and groups."""
        c = _abi.ravel_mesh_layout()
        C.memmove(C.byref(c), lib.ravel_mesh_get_layout(self.pointer), C.sizeof(c))
        return Layout(c)

    @property
    def coords(self) -> Coords:
        """This rank's place."""
        return _coords(lib.ravel_mesh_coords(self.pointer))

    def comm(self, axes: str) -> Comm:
        """This rank's group of these axes. It belongs to the mesh."""
        bits = _axes(axes)
        if bits not in self._comms:
            pointer = lib.ravel_mesh_comm(self.pointer, bits)
            if not pointer:
                raise ValueError(f"the mesh has no communicator of {axes}; call add({axes!r}) on every rank first")
            self._comms[bits] = Comm(pointer, self._parent.raised, self, owned=False)
        return self._comms[bits]

    def add(self, axes: str) -> Comm:
        """Collective. Makes a further group, such as "tp-pp", and returns it."""
        self._parent.raised.call("ravel_mesh_add", self.pointer, _axes(axes))
        return self.comm(axes)

    def is_first(self, chunk: int = 0) -> bool:
        """Whether chunk ``chunk`` of this rank's stage is the first part of the model."""
        return bool(lib.ravel_mesh_is_first(self.pointer, chunk))

    def is_last(self, chunk: int = 0) -> bool:
        """Whether it is the last part."""
        return bool(lib.ravel_mesh_is_last(self.pointer, chunk))

    def close(self) -> None:
        """Frees the communicators; the one that the mesh was made of is the caller's."""
        for comm in self._comms.values():
            comm.close()
        self._handle.close()

    def __enter__(self) -> "Mesh":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ravel.mesh.Mesh: {self.layout!r}, this rank {self.coords}>"
