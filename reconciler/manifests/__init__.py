"""From files to manifests, for all commands: strict YAML, the schemas, and every mistake with its remedy.

It also reads `reconciler.yaml`. Begin at `validate.validate` for manifests and at `settings.load_config` for
settings; `diagnose` explains what `fast_validate` doesn't accept.
"""
