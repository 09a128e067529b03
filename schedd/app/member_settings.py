"""Settings of this member, derived from its configuration."""

import logging
from importlib.metadata import version
from typing import Final

from schedd.cluster.member import MemberIdentity
from schedd.config.member_config import Config
from schedd.core.schedule.zones import tzdata_version
from schedd.web.forwarded import Reach
from schedkit.egress.policy import warn_of_ignored_proxies
from schedkit.net.channel import split_address

log = logging.getLogger(__name__)

VERSION: Final = version("schedd")


def tell_who_is_asked(config: Config) -> None:
    """Log once which callers this member serves without authentication."""
    if config.tls.files() is not None:
        log.info("TLS is set: callers must show a certificate or send a token")
    elif config.listen.insecure:
        log.warning("insecure = true: everybody who reaches this member may do everything")
    else:
        log.info("TLS isn't set: everybody on this host may do everything")
    warn_of_ignored_proxies(config.egress)


def reach(config: Config) -> Reach:
    """Return how HTTP is reached."""
    in_the_clear = config.tls.files() is None
    return Reach(
        config.listen.proxies(),
        config.listen.host_names,
        loopback_alone=in_the_clear and not config.listen.insecure,
    )


def identity(config: Config, grpc_port: int, http_port: int) -> MemberIdentity:
    return MemberIdentity(
        name=config.name,
        grpc=config.listen.advertise_grpc or _reached(config.listen.grpc, grpc_port),
        http=config.listen.advertise_http or _reached(config.listen.http, http_port),
        weight=config.weight,
        version=VERSION,
        tzdata=tzdata_version(),
    )


def _reached(address: str, port: int) -> str:
    host, _ = split_address(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
