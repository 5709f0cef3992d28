"""Classifier of flowers as an estimator of TensorFlow 1: all its output is below --job-dir."""

import argparse
import platform

import tensorflow as tf

MEASURES = ["sepal_length", "sepal_width", "petal_length", "petal_width"]


def parsed(line):
    """Return a line's measures by name, and its kind of flower."""
    *measures, kind = tf.io.decode_csv(line, [[0.0]] * len(MEASURES) + [[0]])
    return dict(zip(MEASURES, measures)), kind  # noqa: B905 Python 3.7 has no `strict`


def examples(pattern, epochs):
    """Return batches from the matching files, in another order each time."""
    lines = tf.data.TextLineDataset(tf.io.gfile.glob(pattern)).skip(1)
    return lines.map(parsed).shuffle(150).repeat(epochs).batch(15)


def main():
    """Train, with checkpoints; evaluate, and export the best model for serving."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    columns = [tf.feature_column.numeric_column(name) for name in MEASURES]
    classifier = tf.estimator.DNNClassifier(
        [16, 8],
        columns,
        n_classes=3,
        config=tf.estimator.RunConfig(args.job_dir, tf_random_seed=1, save_checkpoints_steps=200),
    )
    served = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        tf.feature_column.make_parse_example_spec(columns)
    )
    tf.estimator.train_and_evaluate(
        classifier,
        tf.estimator.TrainSpec(lambda: examples(args.data, None), args.steps),
        tf.estimator.EvalSpec(
            lambda: examples(args.data, 1), exporters=tf.estimator.FinalExporter("export", served)
        ),
    )
    print("accuracy", classifier.evaluate(lambda: examples(args.data, 1))["accuracy"])
    print("with Python", platform.python_version() + ", TensorFlow", tf.__version__)


if __name__ == "__main__":
    main()
