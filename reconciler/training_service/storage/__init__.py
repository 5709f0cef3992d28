"""Cloud Storage: buckets, objects, uploads."""
