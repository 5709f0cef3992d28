"""Cloud Storage: buckets and objects as files of the home, for trainers, staging and claims.

Begin at `api.StorageApi`, which has the methods, and at `objects.Objects` below it, which keeps objects by
generation.
"""
