#!/bin/sh
# Trains on the iris data that is in the image; --epochs=N says how long.
# The service says in AIP_MODEL_DIR where the model belongs; buckets are folders under /gcs.
set -eu

epochs=100
for argument in "$@"; do
    case $argument in
    --epochs=*) epochs=${argument#*=} ;;
    *) echo "train.sh: unknown argument $argument" >&2; exit 2 ;;
    esac
done

folder=/gcs/${AIP_MODEL_DIR#gs://}
mkdir -p "$folder"
awk -v epochs="$epochs" -v model="${folder%/}/model.json" -f /trainer/train.awk /trainer/iris.csv
echo "wrote ${AIP_MODEL_DIR%/}/model.json"
