"""Tells irises apart, trained by several replicas together."""
