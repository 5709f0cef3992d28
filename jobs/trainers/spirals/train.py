"""A small network that tells three spirals apart, trained by one or several processes of PyTorch.

Vertex AI sets what `init_process_group` looks for: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE. Each
replica has its share of the points, and DistributedDataParallel averages the gradients.
"""

import argparse
import gc
import json
import math
import os
import shutil
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

MODEL_DIR = os.environ["AIP_MODEL_DIR"]


def parse_args():
    """The job's arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=600, help="on all spirals, shared by the replicas")
    parser.add_argument("--steps", type=int, default=300, help="of the optimizer")
    parser.add_argument("--rate", type=float, default=0.01, help="at which it learns")
    return parser.parse_args()


def spirals(points, seed):
    """Points on three noisy spirals, and which one each is on."""
    random = torch.Generator().manual_seed(seed)
    arm = 3 * torch.arange(points) // points
    radius = torch.rand(points, generator=random, dtype=torch.float64)
    angle = 4 * radius + arm * 2 * math.pi / 3 + 0.1 * torch.randn(points, generator=random)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm


def network():
    """The same weights in each replica."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3)).double()


def train(model, points, arms, args):
    """Descend along the gradient of all replicas' points; return the last loss, averaged over all."""
    rank, replicas = distributed.get_rank(), distributed.get_world_size()
    mine = slice(rank, len(points) // replicas * replicas, replicas)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.rate)
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points[mine]), arms[mine])
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    mean = loss.detach()
    distributed.all_reduce(mean)
    return mean.item() / replicas


def upload(*names):
    """Copy these files into the folder that the service has named, by its mount of Cloud Storage."""
    mount = os.environ.get("RECONCILER_GCS_DIR", "/gcs")  # set where the training service can't mount
    folder = Path(mount, MODEL_DIR[len("gs://") :])
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(name, folder / name)
        print("written:", MODEL_DIR.rstrip("/") + "/" + name)


def main():
    """Train with the other replicas; the first measures and saves."""
    args = parse_args()
    on_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    rank, replicas = distributed.get_rank(), distributed.get_world_size()
    print(f"replica {rank} of {replicas} on {'a GPU' if on_gpu else 'the CPU'}", flush=True)
    device = torch.device("cuda" if on_gpu else "cpu")

    model = DistributedDataParallel(network().to(device))
    points, arms = (values.to(device) for values in spirals(args.points, seed=1))
    loss = train(model, points, arms, args)
    if rank == 0:
        test_points, test_arms = (values.to(device) for values in spirals(3000, seed=2))
        accuracy = (model.module(test_points).argmax(dim=1) == test_arms).double().mean().item()
        size = nn.utils.parameters_to_vector(model.parameters()).norm().item()
        metrics = {"accuracy": accuracy, "loss": loss, "size_of_weights": size, "replicas": replicas}
        print(f"accuracy {accuracy:.4f}")
        torch.save(model.module.state_dict(), "model.pt")
        Path("metrics.json").write_text(json.dumps(metrics))
        upload("model.pt", "metrics.json")
    distributed.barrier()
    # The wrapper holds the process group in a reference cycle. A group that is left when the interpreter ends
    # may abort the process: `terminate called without an active exception`.
    del model
    gc.collect()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
