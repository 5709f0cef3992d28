"""Plans, results and job details as text, Markdown and JSON, for the commands and for GitHub.

It makes texts of values, and prints none of them. Begin at `text.plan_text`; `markdown` has the form for pull
requests, and `json` the shapes for scripts.
"""
