"""The sentences of reasons, for text, Markdown, JSON, pages, commit statuses and logs.

`model/` and `planning/` decide, and return codes with values; here is what a reader sees of them. `plan` has
the reasons of a plan's lines and of outcomes, `notes` what stands beside them, `cause` the causes of jobs'
ends with their remedies, and `tree` what the checkout's commit means. To find a line, search for its words.
"""
