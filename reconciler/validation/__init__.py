"""From files to manifests: strict YAML, the schemas, and every mistake with its place and remedy.

The verdict comes by the quickest way; places and sentences are made only for what is wrong.
"""
