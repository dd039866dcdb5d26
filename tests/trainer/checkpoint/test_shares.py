"""Every file has one rank that reads it whole, and the ranks have about as much to read."""

from trainer.checkpoint.reader.storage_reader import share_out

TWO = {"a": 100, "b": 100}


def test_on_the_layout_that_wrote_it_each_rank_reads_its_own_file() -> None:
    assert share_out(TWO, [{"a": 100}, {"b": 100}]) == [("a",), ("b",)]


def test_a_rank_that_needs_several_files_whole_reads_them_all() -> None:
    sizes = dict.fromkeys("abcd", 100)
    needs = [{"a": 100, "b": 100}, {"c": 100, "d": 100}]
    assert share_out(sizes, needs) == [("a", "b"), ("c", "d")]


def test_who_needs_parts_of_several_files_reads_none_of_them_whole() -> None:
    needs = [{"a": 67}, {"a": 33, "b": 33}, {"b": 67}]
    assert share_out(TWO, needs) == [("a",), (), ("b",)]


def test_files_that_nobody_needs_are_shared_out_among_those_who_read() -> None:
    sizes = dict.fromkeys("abcd", 100)
    assert share_out(sizes, [None, {}, None, {}]) == [(), ("a", "c"), (), ("b", "d")]
