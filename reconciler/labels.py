"""The labels that the reconciler puts on a job, beside the user's own.

Label keys and values of both APIs are at most 63 characters of lower-case letters, digits, '_' and '-'.
"""

from __future__ import annotations

PREFIX = "reconciler-"
SOURCE = PREFIX + "source"
"""The id of the repository that owns the job."""
KEY = PREFIX + "key"
"""The whole identity, base32."""
ATTEMPT = PREFIX + "attempt"
"""Which attempt the run is, from 1."""
CODE = PREFIX + "code"
"""The digest of the source tree, base32; absent without a package."""
COMMIT = PREFIX + "commit"
"""The commit that asked for the job, 40 hex digits; absent where the work tree wasn't a clean checkout."""
