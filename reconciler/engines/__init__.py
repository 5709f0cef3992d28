"""The engines: each runs the jobs of one apiVersion, and has a module in `spec` and one in `api`.

`spec` reads and changes specs, and reaches nothing outside; `api` sends requests. Begin with the
protocols and their tables: `EngineSpec` in `spec/engine_spec.py`, `EngineClient` in `api/engine_client.py`.
"""
