"""The delaying connection: order, time, completeness, back-pressure."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fleet_worker.local_daytona.lag import IN_FLIGHT_BYTES, LaggedProtocol, Link


class Echo(asyncio.Protocol):
    """Sends back what it gets; counts how often it was asked to pause."""

    def __init__(self) -> None:
        self.pauses = 0
        self.paused = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.paused = True
        self.pauses += 1

    def resume_writing(self) -> None:
        self.paused = False


@contextlib.asynccontextmanager
async def echo(link: Link) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, list[Echo]]]:
    made: list[Echo] = []

    def protocol() -> LaggedProtocol:
        made.append(Echo())
        return LaggedProtocol(made[-1], link)

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer, made
    finally:
        writer.close()
        server.close()


def test_a_round_trip_takes_twice_the_latency() -> None:
    async def story() -> None:
        link = Link()
        link.latency_s = 0.05
        async with echo(link) as (reader, writer, _):
            started = asyncio.get_running_loop().time()
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            assert 0.1 <= asyncio.get_running_loop().time() - started < 1

    asyncio.run(asyncio.wait_for(story(), 30))


def test_bytes_keep_their_order_when_the_latency_changes_under_way() -> None:
    async def story() -> None:
        link = Link()
        async with echo(link) as (reader, writer, _):
            sent = b""
            for number in range(200):
                link.latency_s = 0.01 * (number % 3)
                part = f"{number} ".encode()
                writer.write(part)
                sent += part
                await asyncio.sleep(0.001)
            assert await reader.readexactly(len(sent)) == sent

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_full_line_pauses_its_writer_and_loses_nothing() -> None:
    async def story() -> None:
        link = Link()
        link.latency_s = 0.2
        async with echo(link) as (reader, writer, made):
            size = 8 * IN_FLIGHT_BYTES
            writer.write(b"y" * size)
            assert len(await reader.readexactly(size)) == size
            assert made[0].pauses > 0
            assert not made[0].paused

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_stall_holds_one_direction_for_its_time() -> None:
    async def story() -> None:
        link = Link()
        async with echo(link) as (reader, writer, _):
            link.stall(False, 0.3)
            started = asyncio.get_running_loop().time()
            writer.write(b"z")
            await reader.readexactly(1)
            assert asyncio.get_running_loop().time() - started >= 0.29

    asyncio.run(asyncio.wait_for(story(), 30))


def test_close_comes_after_the_delayed_bytes() -> None:
    async def story() -> None:
        link = Link()
        link.latency_s = 0.05
        async with echo(link) as (reader, writer, made):
            writer.write(b"last")
            while not made or made[0].transport is None:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.06)
            made[0].transport.close()
            assert await reader.read() == b"last"

    asyncio.run(asyncio.wait_for(story(), 30))
