"""Distributions whose name differs from that of the module that they install."""

from __future__ import annotations

from collections.abc import Mapping

GENERIC_MODULES = frozenset(
    {
        *(
            "app",
            "base",
            "common",
            "conf",
            "config",
            "constants",
            "core",
            "data",
            "dataset",
            "datasets",
            "helper",
        ),
        *("helpers", "input", "lib", "main", "metrics", "model", "modeling", "models", "module", "modules"),
        *("network", "networks", "params", "preprocess", "preprocessing", "settings", "src", "task", "test"),
        *("train", "trainer", "training", "types", "util", "utils"),
    }
)
"""Names that mostly are a job's own modules: a distribution of that name is a stranger's."""

# As on PyPI; where several distributions have a module, the one without needs of a desktop.
_DISTRIBUTIONS: Mapping[str, str] = {
    "absl": "absl-py",
    "apache_beam": "apache-beam",
    "attr": "attrs",
    "Bio": "biopython",
    "bs4": "beautifulsoup4",
    "cairo": "pycairo",
    "category_encoders": "category-encoders",
    "community": "python-louvain",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "efficientnet_pytorch": "efficientnet-pytorch",
    "faiss": "faiss-cpu",
    "ffmpeg": "ffmpeg-python",
    "fitz": "pymupdf",
    "git": "gitpython",
    "google.api_core": "google-api-core",
    "google.auth": "google-auth",
    "google.cloud": "google-cloud-storage",
    "google.oauth2": "google-auth",
    "google.protobuf": "protobuf",
    "googleapiclient": "google-api-python-client",
    "haiku": "dm-haiku",
    "hydra": "hydra-core",
    "hypertune": "cloudml-hypertune",
    "ignite": "pytorch-ignite",
    "imblearn": "imbalanced-learn",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "kaggle_environments": "kaggle-environments",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "MySQLdb": "mysqlclient",
    "nacl": "pynacl",
    "OpenSSL": "pyopenssl",
    "osgeo": "gdal",
    "PIL": "pillow",
    "pkg_resources": "setuptools<81",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "pylab": "matplotlib",
    "pythonjsonlogger": "python-json-logger",
    "pytorch_lightning": "pytorch-lightning",
    "ruamel": "ruamel.yaml",
    "segmentation_models_pytorch": "segmentation-models-pytorch",
    "sentence_transformers": "sentence-transformers",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "skopt": "scikit-optimize",
    "slugify": "python-slugify",
    "snappy": "python-snappy",
    "sonnet": "dm-sonnet",
    "talib": "TA-Lib",
    "tensorflow_addons": "tensorflow-addons",
    "tensorflow_datasets": "tensorflow-datasets",
    "tensorflow_hub": "tensorflow-hub",
    "tensorflow_probability": "tensorflow-probability",
    "tensorflow_text": "tensorflow-text",
    "tensorflow_transform": "tensorflow-transform",
    "tf_keras": "tf-keras",
    "torch_geometric": "torch-geometric",
    "tree": "dm-tree",
    "umap": "umap-learn",
    "usb": "pyusb",
    "vertexai": "google-cloud-aiplatform",
    "websocket": "websocket-client",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}


def distribution_of(module: str) -> str:
    """Return the distribution on PyPI with a module such as "sklearn.svm"; its own name if none is known."""
    parts = module.split(".")
    if parts[:2] == ["google", "cloud"] and len(parts) > 2:
        return f"google-cloud-{parts[2].replace('_', '-')}"
    for name in (".".join(parts[:2]), parts[0]):
        if name in _DISTRIBUTIONS:
            return _DISTRIBUTIONS[name]
    return parts[0]
