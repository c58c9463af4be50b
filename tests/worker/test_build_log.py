"""A log keeps the start and the end of what was printed."""

from __future__ import annotations

from aitune.torch.worker.build_log import HEAD, TAIL, BuildLog


def test_nothing_printed_leaves_no_file(tmp_path):
    BuildLog(tmp_path / "log").close()

    assert not (tmp_path / "log").exists()


def test_short_output_is_kept_as_it_is(tmp_path):
    log = BuildLog(tmp_path / "folder" / "log")
    for word in (b"one ", b"two ", b"three"):
        log.write(word)
    log.close()

    assert (tmp_path / "folder" / "log").read_bytes() == b"one two three"


def test_the_middle_of_a_flood_is_left_out_and_counted(tmp_path):
    log = BuildLog(tmp_path / "log")
    printed = 0
    for number in range(300_000):
        line = b"%08d " % number * 4
        log.write(line)
        printed += len(line)
    log.close()

    data = (tmp_path / "log").read_bytes()
    head, _, rest = data.partition(b"\n[... ")
    count, _, tail = rest.partition(b" bytes of output are left out here ...]\n")
    assert len(head) == HEAD
    assert TAIL <= len(tail) < TAIL + 100
    assert len(head) + int(count) + len(tail) == printed
    assert head.startswith(b"00000000 ")
    assert tail.endswith(b"00299999 ")


def test_what_two_attempts_print_into_one_file_follows(tmp_path):
    for word in (b"first ", b"second"):
        log = BuildLog(tmp_path / "log")
        log.write(word)
        log.close()

    assert (tmp_path / "log").read_bytes() == b"first second"


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    log = BuildLog(tmp_path / "file" / "log")
    log.write(b"words")
    log.close()
