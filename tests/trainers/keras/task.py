"""Classifier of flowers in Keras: all its data, checkpoints, logs and models are at gs:// addresses.

It also makes the calls of TensorFlow's file system that published trainers make, and prints their names.
"""

import argparse
import os
import platform

import tensorflow as tf

files = tf.io.gfile
model_folder, checkpoints = os.environ["AIP_MODEL_DIR"], os.environ["AIP_CHECKPOINT_DIR"]


def tried(*calls):
    """Print the names of successful calls."""
    print("tried", *calls)


def arranged(data):
    """Write the table as TFRecords, in two parts; also exercise the file system."""
    (table,) = files.glob(f"{data}/*.csv")
    with files.GFile(table) as lines:
        rows = [[float(word) for word in line.split(",")] for line in list(lines)[1:]]
    with tf.io.TFRecordWriter(f"{data}/new/part-0") as records:
        for row in rows:
            records.write(tf.io.serialize_tensor(tf.constant(row)).numpy())
    tried("tf.io.gfile.glob", "tf.io.gfile.GFile", "tf.io.TFRecordWriter")
    files.rename(f"{data}/new/part-0", f"{data}/records/part-0")
    files.copy(f"{data}/records/part-0", f"{data}/records/part-1")
    assert files.listdir(f"{data}/records") == ["part-0", "part-1"], files.listdir(f"{data}/records")
    assert next(iter(files.walk(f"{data}/records")))[2] == ["part-0", "part-1"]
    assert (files.exists(f"{data}/new/part-0"), files.stat(table).length > 0) == (False, True)
    tried("tf.io.gfile.rename", "tf.io.gfile.copy", "tf.io.gfile.listdir", "tf.io.gfile.walk")
    tried("tf.io.gfile.exists", "tf.io.gfile.stat")
    files.mkdir(f"{data}/one")
    files.makedirs(f"{data}/made/deep")
    assert files.isdir(f"{data}/made/deep")
    with files.GFile(f"{data}/made/note", "w") as note:
        note.write("a")
    with files.GFile(f"{data}/made/note", "a") as note:
        note.write("b")
    with files.GFile(f"{data}/made/note") as note:
        assert note.read() == "ab"
    files.remove(f"{data}/made/note")
    files.rmtree(f"{data}/made")
    files.rmtree(f"{data}/one")
    assert not files.exists(f"{data}/made/deep")
    tried("tf.io.gfile.mkdir", "tf.io.gfile.makedirs", "tf.io.gfile.isdir", "tf.io.gfile.remove")
    tried("tf.io.gfile.rmtree")
    return files.glob(f"{data}/records/*")


def trained(records):
    """Return the model, trained on these files."""
    parsed = tf.data.TFRecordDataset(records).map(
        lambda record: tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [5])
    )
    examples = parsed.shuffle(300, seed=1).map(lambda row: (row[:4], row[4])).batch(16)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((4,)), layers.Dense(16, "relu"), layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = tf.keras.callbacks
    kept = [
        callbacks.TensorBoard(os.environ["AIP_TENSORBOARD_LOG_DIR"]),
        callbacks.ModelCheckpoint(f"{checkpoints}best.keras", save_best_only=True, monitor="loss"),
    ]
    model.fit(examples, epochs=40, verbose=0, callbacks=kept)
    tried("tf.data.TFRecordDataset", "tf.keras.callbacks.TensorBoard", "tf.keras.callbacks.ModelCheckpoint")
    return model, model.evaluate(examples, verbose=0)[1]


def saved(model):
    """Save the model in each format, and read each file back as another program would."""
    flower = tf.constant([[5.1, 3.5, 1.4, 0.2]])
    expected = model(flower).numpy().tolist()
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.save(f"{checkpoints}ckpt")
    assert tf.train.latest_checkpoint(checkpoints) == path
    checkpoint.restore(path).assert_existing_objects_matched()
    tried("tf.train.Checkpoint.save", "tf.train.latest_checkpoint", "tf.train.Checkpoint.restore")
    model.save(f"{model_folder}model.keras")
    again = tf.keras.models.load_model(f"{model_folder}model.keras")
    assert again(flower).numpy().tolist() == expected
    model.export(f"{model_folder}saved")
    loaded = tf.saved_model.load(f"{model_folder}saved")
    assert abs(loaded.serve(flower).numpy() - expected).max() < 1e-5
    tried("tf.keras.Model.save", "tf.keras.models.load_model", "tf.keras.Model.export")
    tried("tf.saved_model.load")


def main():
    """Prepare the data, train, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    model, accuracy = trained(arranged(parser.parse_args().data))
    saved(model)
    print("accuracy", accuracy)
    print(
        f"with Python {platform.python_version()}, Keras {tf.keras.__version__}, TensorFlow", tf.__version__
    )


if __name__ == "__main__":
    main()
