"""Adapters to Google's APIs, for operations; the embedded training service serves the same APIs.

A session joins what an environment needs: the engines with their jobs, the claims, the commit records and the
staging bucket. Begin at `session.open_session`; `client` sends the requests, `responses` reads the answers.
"""
