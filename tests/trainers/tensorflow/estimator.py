"""An estimator of TensorFlow 1, with `--job-dir` as AI Platform Training gives it."""

import argparse

import tensorflow as tf

arguments = argparse.ArgumentParser()
arguments.add_argument("--job-dir")
folder = arguments.parse_args().job_dir


def examples():
    return tf.data.Dataset.from_tensors(({"x": [[1.0], [2.0]]}, [[2.0], [4.0]])).repeat(50)


columns = [tf.feature_column.numeric_column("x")]
model = tf.estimator.LinearRegressor(columns, model_dir=folder)
model.train(examples)
served = tf.estimator.export.build_parsing_serving_input_receiver_fn(
    tf.feature_column.make_parse_example_spec(columns)
)
model.export_saved_model(folder + "/export", served)
print("with TensorFlow", tf.__version__, tf.io.gfile.glob(folder + "/model.ckpt-*.index"))
