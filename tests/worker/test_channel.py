"""Messages arrive whole, or it is said that they do not."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from aitune.torch.worker.channel import Channel, ClosedError


@pytest.fixture
def ends():
    here, there = socket.socketpair()
    yield Channel(here), there
    here.close()
    there.close()


def test_messages_arrive_in_order_whatever_their_size(ends):
    here, there = ends
    other = Channel(there)
    for message in ("a", b"x" * 100_000, {"local": lambda: 3}):
        other.send(message)

    assert here.receive() == "a"
    assert len(here.receive()) == 100_000
    assert here.holds_message()
    assert here.receive()["local"]() == 3


def test_a_part_of_a_message_is_none_yet(ends):
    here, there = ends
    there.sendall(struct.pack("!Q", 100) + b"x")

    assert here.receive_if_whole() is None
    assert not here.holds_message()


@pytest.mark.parametrize("junk", [struct.pack("!Q", 1 << 60), struct.pack("!Q", 4) + b"junk"])
def test_what_is_no_message_counts_as_the_end(ends, junk):
    here, there = ends
    there.sendall(junk)

    with pytest.raises(ClosedError):
        here.receive_if_whole()


def test_the_end_of_the_other_side_is_noticed(ends):
    here, there = ends
    there.close()

    with pytest.raises(ClosedError):
        here.receive()
    with pytest.raises(ClosedError):
        here.send("x" * 1_000_000)


def test_a_forked_process_cannot_send(ends):
    here, there = ends
    child = os.fork()
    if child == 0:
        here.send("from the wrong one")
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    there.setblocking(False)
    with pytest.raises(BlockingIOError):
        there.recv(1)
