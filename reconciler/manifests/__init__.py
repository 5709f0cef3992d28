"""From files to manifests: strict YAML, the schemas, and every mistake with its place and remedy."""
