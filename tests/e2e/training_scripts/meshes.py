"""Meshes in every way to make them; each rank prints where torch says that it is."""

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from witness import declare

dist.init_process_group("gloo")
names = ("dp", "tp")
meshes = [
    DeviceMesh("cpu", torch.arange(2).view(1, 2), mesh_dim_names=names),
    DeviceMesh("cpu", mesh=[[0, 1]], mesh_dim_names=names),
    DeviceMesh(device_type="cpu", mesh=torch.arange(2).view(1, 2), mesh_dim_names=names),
    init_device_mesh("cpu", (1, 2), mesh_dim_names=names),
    init_device_mesh(device_type="cpu", mesh_shape=(1, 2), mesh_dim_names=names),
    DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh=[0, 1], mesh_dim_names=("tp",)),
]
lines = [f"{dist.get_rank()} {mesh} {mesh.get_coordinate()} {mesh['tp'].size()}" for mesh in meshes]
for arguments in ({}, {"mesh": None}, {"mesh": [[0, 0]]}, {"mesh": [0, 1], "no": 1}):
    try:
        lines.append(str(DeviceMesh("cpu", **arguments)))
    except Exception as error:  # noqa: BLE001  printed
        lines.append(f"{dist.get_rank()} {type(error).__name__} {error}")
print("\n".join(lines) + "\n", end="", flush=True)
declare()
dist.barrier()
time.sleep(0.1)  # or gloo may hang: docs/launchers.md
dist.destroy_process_group()
