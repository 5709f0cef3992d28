"""Reasons why a server can't be reached, each with its remedy."""

from __future__ import annotations

import errno
import socket
import ssl
import time
from contextlib import closing, suppress

from reconciler.base.http.connections import AuthoritiesError, open_connection, why
from reconciler.base.http.destination import Destination
from reconciler.base.http.proxies import Proxy, ProxyError
from reconciler.base.http.wire import NotSentError
from reconciler.base.sanitize import one_line

_NO_NETWORK = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)
_BEHIND_PROXY = "behind a proxy, name it in HTTPS_PROXY"
_MOST_QUOTED = 200
# X509_V_ERR_… of OpenSSL: the issuer is unknown, or signed itself.
_UNKNOWN_ISSUERS = (2, 18, 19, 20, 21)


def explained(
    address: Destination, error: Exception, proxy: Proxy | None, end: float, trusted: ssl.SSLContext | None
) -> NotSentError:
    """Return the error to report for a connection that wasn't made.

    Args:
        proxy: The proxy that the connection was to take.
        trusted: The context of the connection.
        end: The deadline on the monotonic clock of a look at the server's certificate.
    """
    if isinstance(error, ProxyError):
        return NotSentError(f"{address.origin} can't be reached: {error}", hint=error.hint)
    if isinstance(error, AuthoritiesError):
        return NotSentError(
            f"{address.origin} can't be reached: {error}", hint="correct the variable, or unset it"
        )
    reason = why(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(address, error, proxy, end, trusted)
    hint = _hint(address, error, proxy)
    return NotSentError(f"{address.origin} can't be reached: {reason}", hint=hint)


def _hint(address: Destination, error: Exception, proxy: Proxy | None) -> str:
    if address.scheme == "http" or proxy is not None:
        return ""
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"check the name and the network; {_BEHIND_PROXY}"
    if isinstance(error, TimeoutError | ConnectionRefusedError) or getattr(error, "errno", 0) in _NO_NETWORK:
        return f"check the network and any firewall; {_BEHIND_PROXY}"
    return ""


def _untrusted(
    address: Destination,
    error: ssl.SSLCertVerificationError,
    proxy: Proxy | None,
    end: float,
    trusted: ssl.SSLContext | None,
) -> NotSentError:
    message = (
        f"{address.origin} can't be reached: its certificate isn't trusted: {one_line(error.verify_message)}"
    )
    if error.verify_code not in _UNKNOWN_ISSUERS:
        return NotSentError(
            message, hint="check for a proxy or a firewall that answers in the server's place"
        )
    issuer = _issuer_of(address, proxy, end, trusted)
    issued = f" (issued by {issuer})" if issuer else ""
    hint = "if that authority is your company's, name the file of its certificate in SSL_CERT_FILE"
    return NotSentError(message + issued, hint=hint)


def _issuer_of(address: Destination, proxy: Proxy | None, end: float, trusted: ssl.SSLContext | None) -> str:
    """Return the issuer of the server's certificate, "" if it can't be read.

    The look sends the server no request: the connection ends after the certificate. The proxy must be the
    trusted one, as it gets its credentials again.
    """
    anyone = ssl.create_default_context()
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE
    with (
        suppress(Exception),
        closing(open_connection(address, max(end, time.monotonic() + 2), anyone, proxy, trusted)) as made,
    ):
        from cryptography import x509  # a library of google-auth's

        issuer = x509.load_der_x509_certificate(made.certificate()).issuer.rfc4514_string()
        return one_line(issuer[:_MOST_QUOTED])
    return ""
