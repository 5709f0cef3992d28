"""Replicas that sum their numbers over gRPC, and write checkpoints to gs://."""

import json
import os
import platform

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = json.loads(os.environ["TF_CONFIG"])["task"]
primary = task["type"] == "chief"
with strategy.scope():
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)


@tf.function
def step(number):
    strategy.run(total.assign_add, args=(number,))


for _ in range(3):
    step(tf.constant(1.0 if primary else 2.0))
print("the total of", strategy.num_replicas_in_sync, "is", float(total.numpy()))
folder = os.environ["AIP_CHECKPOINT_DIR"] + ("" if primary else f"worker-{task['index']}/")
print(tf.train.Checkpoint(total=total).save(f"{folder}total"))
if primary:
    print(
        f"with Python {platform.python_version()}, Keras {tf.keras.__version__}, TensorFlow", tf.__version__
    )
