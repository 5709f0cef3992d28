import os
import pathlib

folder = pathlib.Path(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/"))
folder.mkdir(parents=True, exist_ok=True)
(folder / "model.txt").write_text("weights\n")
print("trained")
