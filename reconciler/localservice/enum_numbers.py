"""The numbers of the enum values that a client may send instead of their names.

Discovery documents give only the names. The official SDK's REST transport sends numbers; these are
those of its protocol buffers (google/cloud/aiplatform/v1). AI Platform's clients send names only.
"""

from __future__ import annotations

from collections.abc import Mapping

_V1 = "GoogleCloudAiplatformV1"


def _counted(*names: str) -> dict[int, str]:
    return dict(enumerate(names))


NUMBERS: Mapping[tuple[str, str], Mapping[int, str]] = {
    (_V1 + "MachineSpec", "acceleratorType"): {
        0: "ACCELERATOR_TYPE_UNSPECIFIED",
        1: "NVIDIA_TESLA_K80",
        2: "NVIDIA_TESLA_P100",
        3: "NVIDIA_TESLA_V100",
        4: "NVIDIA_TESLA_P4",
        5: "NVIDIA_TESLA_T4",
        6: "TPU_V2",
        7: "TPU_V3",
        8: "NVIDIA_TESLA_A100",
        9: "NVIDIA_A100_80GB",
        10: "TPU_V4_POD",
        11: "NVIDIA_L4",
        12: "TPU_V5_LITEPOD",
        13: "NVIDIA_H100_80GB",
        14: "NVIDIA_H100_MEGA_80GB",
        15: "NVIDIA_H200_141GB",
        16: "NVIDIA_B200",
        17: "NVIDIA_GB200",
        18: "NVIDIA_RTX_PRO_6000",
    },
    (_V1 + "ReservationAffinity", "reservationAffinityType"): _counted(
        "TYPE_UNSPECIFIED", "NO_RESERVATION", "ANY_RESERVATION", "SPECIFIC_RESERVATION"
    ),
    (_V1 + "Scheduling", "strategy"): {
        0: "STRATEGY_UNSPECIFIED",
        1: "ON_DEMAND",
        2: "LOW_COST",
        3: "STANDARD",
        4: "SPOT",
        6: "FLEX_START",
    },
    (_V1 + "StudySpec", "algorithm"): {0: "ALGORITHM_UNSPECIFIED", 2: "GRID_SEARCH", 3: "RANDOM_SEARCH"},
    (_V1 + "StudySpec", "measurementSelectionType"): _counted(
        "MEASUREMENT_SELECTION_TYPE_UNSPECIFIED", "LAST_MEASUREMENT", "BEST_MEASUREMENT"
    ),
    (_V1 + "StudySpec", "observationNoise"): _counted("OBSERVATION_NOISE_UNSPECIFIED", "LOW", "HIGH"),
    (_V1 + "StudySpecMetricSpec", "goal"): _counted("GOAL_TYPE_UNSPECIFIED", "MAXIMIZE", "MINIMIZE"),
    (_V1 + "StudySpecParameterSpec", "scaleType"): _counted(
        "SCALE_TYPE_UNSPECIFIED", "UNIT_LINEAR_SCALE", "UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE"
    ),
}
"""By schema and property."""
