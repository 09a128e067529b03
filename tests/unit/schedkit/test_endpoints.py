"""Endpoints and methods of gRPC jobs, in their accepted forms."""

from __future__ import annotations

import pytest

from schedkit.net.endpoints import Endpoint, endpoint_of, method_of


@pytest.mark.parametrize(
    ("text", "endpoint", "authority"),
    [
        ("shop.example:50051", Endpoint("shop.example", 50051, tls=False), "shop.example:50051"),
        ("grpcs://shop.example:443", Endpoint("shop.example", 443, tls=True), "shop.example:443"),
        ("my_shop:1", Endpoint("my_shop", 1, tls=False), "my_shop:1"),
        ("192.0.2.1:65535", Endpoint("192.0.2.1", 65535, tls=False), "192.0.2.1:65535"),
        ("grpcs://[2001:db8::1]:1", Endpoint("2001:db8::1", 1, tls=True), "[2001:db8::1]:1"),
    ],
)
def test_an_endpoint_is_a_host_and_a_port_in_the_clear_or_with_tls(
    text: str, endpoint: Endpoint, authority: str
) -> None:
    assert endpoint_of(text) == endpoint
    assert endpoint.authority == authority


@pytest.mark.parametrize(
    "text",
    [
        *("", "shop", "shop:", ":1", "shop:0", "shop:65536", "shop:-1", "shop:one", "shop:١"),
        *("http://shop:1", "grpc://shop:1", "GRPCS://shop:1", "dns:///shop:1", "unix:/run/shop"),
        *("ipv4:192.0.2.1:1", "2001:db8::1:1", "[shop]:1", "[fe80::1%eth0]:1", "[::1:1"),
        *("me@shop:1", "shop:1/path", "shop:1#a", "shop:1,other:2", "my shop:1", " shop:1"),
        *("shop:1 ", "shöp:1", "①②⑦.0.0.1:1", "-shop:1", "shop%2e:1", "shop\n:1"),
        "x" * 254 + ":1",
    ],
)
def test_an_invalid_endpoint_is_reported_with_the_valid_forms(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"isn't a valid endpoint: write host:port \(without TLS\) or grpcs://host"
    ):
        endpoint_of(text)


def test_a_method_is_a_service_with_its_package_and_a_name() -> None:
    assert method_of("shop.v1.Shop/Price") == ("shop.v1.Shop", "Price")
    assert method_of("Shop/Price_2") == ("Shop", "Price_2")


@pytest.mark.parametrize(
    "text",
    [
        *("", "Shop", "/shop.Shop/Price", "shop.Shop.Price", "shop.Shop/", "shop..Shop/Price"),
        *("Shop/Price/Now", "Shop/Price ", "1.Shop/Price", "Shöp/Price", ".Shop/Price"),
        "Shop/Price\n",
    ],
)
def test_an_invalid_method_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match="isn't a valid gRPC method: write package"):
        method_of(text)
