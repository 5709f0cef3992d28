"""Classifier of flowers in PyTorch, trained by one or more replicas; data and model are at gs://."""

import argparse
import gc
import os
import platform

import pandas
import torch
from google.cloud import storage
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def loaded(path):
    """Return the table's measures and kinds of flowers."""
    table = pandas.read_csv(path)
    measures = torch.tensor(table.drop(columns="species").to_numpy(), dtype=torch.float32)
    return TensorDataset(measures, torch.tensor(table.species.to_numpy()))


def trained(examples, epochs):
    """Return the model after `epochs` passes of all replicas over their shares of the examples."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)))
    share = DistributedSampler(examples, shuffle=True, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(epochs):
        share.set_epoch(epoch)
        for measures, kinds in DataLoader(examples, batch_size=15, sampler=share):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(measures), kinds).backward()
            optimizer.step()
    return model.module


def uploaded(name, folder):
    """Copy a file to a folder at gs://."""
    bucket, _, path = folder.removeprefix("gs://").partition("/")
    storage.Client().bucket(bucket).blob(f"{path.rstrip('/')}/{name}").upload_from_filename(name)


def main():
    """Train with the other replicas; the first saves the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()

    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, replicas = distributed.get_rank(), distributed.get_world_size()
    examples = loaded(args.data)
    model = trained(examples, args.epochs)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().norm().item()
    print(f"replica {rank} of {replicas} has weights of {weights:.9f}")
    if rank == 0:
        measures, kinds = examples.tensors
        print("accuracy", (model(measures).argmax(dim=1) == kinds).double().mean().item())
        torch.save(model.state_dict(), "model.pt")
        uploaded("model.pt", os.environ["AIP_MODEL_DIR"])
        print(f"with Python {platform.python_version()}, PyTorch {torch.__version__}")
    distributed.barrier()
    # DistributedDataParallel holds the group in a cycle; a group that exists at exit may abort the process.
    gc.collect()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
