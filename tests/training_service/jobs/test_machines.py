from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.training_service.jobs.machines import Machine, has_tpu, machine_of

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "cpus", "gib", "gpus"),
    [
        ("n1-standard-4", 4, 15, 0),
        ("n1-standard-96", 96, 360, 0),
        ("n1-highmem-8", 8, 52, 0),
        ("n1-highcpu-16", 16, 14.4, 0),
        ("n1-megamem-96", 96, 1433.6, 0),
        ("n2-standard-32", 32, 128, 0),
        ("n2-highcpu-8", 8, 8, 0),
        ("n2d-highmem-16", 16, 128, 0),
        ("c2-standard-60", 60, 240, 0),
        ("c2d-highcpu-112", 112, 224, 0),
        ("c3-highmem-88", 88, 704, 0),
        ("c4-standard-8", 8, 30, 0),
        ("e2-standard-4", 4, 16, 0),
        ("e2-highcpu-32", 32, 32, 0),
        ("e2-medium", 2, 4, 0),
        ("t2d-standard-8", 8, 32, 0),
        ("m1-ultramem-40", 40, 961, 0),
        ("m1-megamem-96", 96, 1433.6, 0),
        ("m2-ultramem-416", 416, 11776, 0),
        ("m3-megamem-64", 64, 976, 0),
        ("a2-highgpu-1g", 12, 85, 1),
        ("a2-highgpu-8g", 96, 680, 8),
        ("a2-megagpu-16g", 96, 1360, 16),
        ("a2-ultragpu-4g", 48, 680, 4),
        ("a3-highgpu-8g", 208, 1872, 8),
        ("a3-ultragpu-8g", 224, 2952, 8),
        ("a4-highgpu-8g", 224, 3968, 8),
        ("g2-standard-8", 8, 32, 1),
        ("g2-standard-24", 24, 96, 2),
        ("g2-standard-96", 96, 384, 8),
        ("g4-standard-48", 48, 180, 1),
        ("n1-custom-6-23040", 6, 22.5, 0),
        ("custom-2-4096", 2, 4, 0),
        ("n2-custom-4-65536-ext", 4, 64, 0),
        ("n9-standard-16", 16, 64, 0),
    ],
)
def test_compute_engine_s_types_hold_what_it_says(name: str, cpus: int, gib: float, gpus: int) -> None:
    machine = machine_of(name)
    assert machine is not None
    assert (machine.cpus, machine.gpus) == (cpus, gpus)
    assert machine.memory == pytest.approx(gib * GIB, rel=0.002)


@pytest.mark.parametrize(
    ("name", "like", "gpus"),
    [
        ("standard", "n1-standard-4", 0),
        ("large_model", "n1-highmem-8", 0),
        ("complex_model_s", "n1-highcpu-8", 0),
        ("complex_model_m", "n1-highcpu-16", 0),
        ("complex_model_l", "n1-highcpu-32", 0),
        ("standard_gpu", "n1-standard-8", 1),
        ("standard_p100", "n1-standard-8", 1),
    ],
)
def test_ai_platform_s_own_names_stand_for_machine_types(name: str, like: str, gpus: int) -> None:
    machine = machine_of(like)
    assert machine is not None
    assert machine_of(name) == Machine(machine.cpus, machine.memory, gpus)


@pytest.mark.parametrize(
    "name", ["", "something-new", "n1-standard-", "a9-highgpu-1g", "n1-standard-0", "big"]
)
def test_a_name_that_doesn_t_tell_is_none(name: str) -> None:
    assert machine_of(name) is None


def test_attached_accelerators_count() -> None:
    assert machine_of("n1-standard-8", 4) == Machine(8, 30 * GIB, 4)
    assert machine_of("a2-highgpu-2g", 2) == machine_of("a2-highgpu-2g")


@given(
    st.sampled_from(["n1", "n2", "n2d", "c2", "c2d", "e2", "c3", "n4"]),
    st.sampled_from(["standard", "highmem", "highcpu"]),
    st.integers(1, 416),
)
def test_a_machine_has_the_cpus_of_its_name_and_grows_evenly(series: str, kind: str, cpus: int) -> None:
    one, many = machine_of(f"{series}-{kind}-1"), machine_of(f"{series}-{kind}-{cpus}")
    assert one is not None
    assert many is not None
    assert many.cpus == cpus
    assert many.memory == pytest.approx(cpus * one.memory, abs=cpus)


@pytest.mark.parametrize(
    ("machine", "accelerator"), [("cloud_tpu", ""), ("ct5lp-hightpu-1t", ""), ("n1-standard-4", "TPU_V2")]
)
def test_tpus_are_known(machine: str, accelerator: str) -> None:
    assert has_tpu(machine, accelerator)
    assert not has_tpu("n1-standard-4", "NVIDIA_TESLA_T4")
