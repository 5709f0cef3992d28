"""Import of jobs that people already have, as manifests, for `reconciler import`.

It reads command lines of gcloud in scripts, notebooks and CI workflows, gcloud's config files, and answers of
the services' APIs, and runs none of them. Begin at `jobs.Importer`, which takes each source from its bytes to
checked manifests; `sources` finds the jobs in a file, and `manifest` writes them.
"""
