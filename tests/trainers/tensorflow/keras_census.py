"""A trainer as published ones are: all its data, checkpoints, logs and models are at gs:// addresses."""

import os

import tensorflow as tf

files = tf.io.gfile
data, model_folder = "gs://census-data", os.environ["AIP_MODEL_DIR"]
checkpoints, logs = os.environ["AIP_CHECKPOINT_DIR"], os.environ["AIP_TENSORBOARD_LOG_DIR"]

# The file system: glob, read, write, list, rename, copy, exists, makedirs, rmtree.
(table,) = files.glob(f"{data}/*.csv")
with files.GFile(table) as lines:
    rows = [tuple(map(float, line.split(","))) for line in lines]
with tf.io.TFRecordWriter(f"{data}/new/part-0") as records:
    for row in rows:
        records.write(tf.io.serialize_tensor(tf.constant(row)).numpy())
files.rename(f"{data}/new/part-0", f"{data}/records/part-0")
files.copy(f"{data}/records/part-0", f"{data}/records/part-1")
assert files.listdir(f"{data}/records") == ["part-0", "part-1"], files.listdir(f"{data}/records")
assert not files.exists(f"{data}/new/part-0")
files.makedirs(f"{data}/made/deep")
assert files.isdir(f"{data}/made/deep")
files.rmtree(f"{data}/made")
assert files.stat(table).length > 0

# tf.data, and Keras with its callbacks.
parsed = tf.data.TFRecordDataset(files.glob(f"{data}/records/*")).map(
    lambda record: tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [3])
)
examples = parsed.map(lambda row: (row[:2], row[2:])).batch(16)
model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.SGD(0.1), "mse")
model.fit(examples, epochs=20, verbose=0, callbacks=[tf.keras.callbacks.TensorBoard(logs)])

# Checkpoints and models, read back as another program would.
saved = tf.train.Checkpoint(model=model).save(f"{checkpoints}ckpt")
assert tf.train.latest_checkpoint(checkpoints) == saved
model.save(f"{model_folder}model.keras")
model.export(f"{model_folder}saved")
loaded = tf.saved_model.load(f"{model_folder}saved")
error = abs(float(loaded.serve(tf.constant([[1.0, 2.0]]))[0, 0]) - 3.0)
again = tf.keras.models.load_model(f"{model_folder}model.keras")
assert float(again(tf.constant([[1.0, 2.0]]))[0, 0]) == float(model(tf.constant([[1.0, 2.0]]))[0, 0])
print("with TensorFlow", tf.__version__, "the error is", error)
assert error < 0.5
