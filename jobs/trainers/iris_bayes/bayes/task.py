"""Gaussian naive Bayes on the iris data (150 flowers), in Python's standard library alone."""

import argparse
import csv
import json
import math
import os
from pathlib import Path
from statistics import NormalDist


def flowers():
    """Each flower's four measures in cm, and its species: 0, 1 or 2."""
    with Path(__file__).with_name("iris.csv").open() as file:
        return [(tuple(map(float, row[:4])), int(row[4])) for row in csv.reader(file)]


def fit(rows, smoothing):
    """For each species the normal distribution of each measure; `smoothing` cm are added to its deviation."""
    model = {}
    for species in sorted({species for _, species in rows}):
        columns = zip(*(measures for measures, own in rows if own == species), strict=True)
        held = [NormalDist.from_samples(column) for column in columns]
        model[species] = [NormalDist(found.mean, found.stdev + smoothing) for found in held]
    return model


def predict(model, measures):
    """The likeliest species; all are equally frequent."""

    def likelihood(species):
        return sum(
            math.log(normal.pdf(value)) for normal, value in zip(model[species], measures, strict=True)
        )

    return max(model, key=likelihood)


def main():
    """Train on all flowers, and measure by leaving out one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoothing", type=float, default=0.0, help="in cm")
    args = parser.parse_args()

    rows = flowers()
    right = sum(
        predict(fit(rows[:place] + rows[place + 1 :], args.smoothing), measures) == species
        for place, (measures, species) in enumerate(rows)
    )
    print(f"right about {right} of {len(rows)} flowers, each left out of its own training")

    # In the cloud buckets are folders below /gcs; where the embedded service can't show them there, it names
    # another folder.
    buckets = os.environ.get("RECONCILER_GCS_DIR", "/gcs")
    folder = Path(buckets, os.environ["AIP_MODEL_DIR"][len("gs://") :])
    folder.mkdir(parents=True, exist_ok=True)
    model = {
        species: [[normal.mean, normal.stdev] for normal in normals]
        for species, normals in fit(rows, args.smoothing).items()
    }
    (folder / "model.json").write_text(json.dumps(model))
    (folder / "metrics.json").write_text(json.dumps({"accuracy": right / len(rows), "flowers": len(rows)}))


if __name__ == "__main__":
    main()
