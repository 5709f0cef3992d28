"""Pages of HTML about an environment's jobs, for `report --html`, `open`, `watch` and `serve`.

Begin at `snapshot.snapshot`, which reads the values, and at `site.Pages`, which makes every page of them;
`folder` writes the pages, and `live` serves them to this machine's browsers.
"""
