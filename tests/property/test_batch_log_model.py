import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from moescope.core.batchlog import BatchLogReader, BatchLogWriter, Cursor, Entry, WriterSettings

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 120)),
        st.tuples(st.just("append_many"), st.integers(0, 6)),
        st.tuples(st.just("advance"), st.integers(0, 5)),
        st.tuples(st.just("read"), st.integers(1, 7)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=25)
@given(steps=steps, cap=st.sampled_from([None, 200, 500, 2_000]), segment=st.integers(1, 400))
def test_log_behaves_like_a_list_whose_head_may_be_forgotten(
    steps: list[tuple[str, int]], cap: int | None, segment: int
) -> None:
    """Any use keeps offsets dense, the cap, the exact accounts, and every kept record intact."""
    config = WriterSettings(segment_bytes=segment, byte_cap=cap, durability="none")
    written: list[bytes] = []
    done = position = missing = seen = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        writer = BatchLogWriter(root, "node", settings=config)
        cursor = Cursor(root, "node", "consumer")
        reader = BatchLogReader(root, "node")
        for action, number in steps:
            if action == "append":
                payload = b"%03d" % len(written) + bytes(number)
                assert writer.append(payload) == len(written)
                written.append(payload)
            elif action == "append_many":
                payloads = [b"%03d" % (len(written) + n) for n in range(number)]
                offsets = writer.append_many([Entry(payload) for payload in payloads])
                assert list(offsets) == list(range(len(written), len(written) + number))
                written += payloads
            elif action == "advance":
                done = min(done + number, len(written))
                cursor.advance(done)
            elif action == "reopen":
                writer.close()
                writer = BatchLogWriter(root, "node", settings=config)
            else:
                found = reader.read(position, max_records=number)
                missing += found.gap.count if found.gap else 0
                seen += len(found.records)
                assert not found.corrupt
                assert [r.payload for r in found.records] == [
                    written[record.offset] for record in found.records
                ]
                position = found.next_offset
                assert position == seen + missing
            frames = [48 + len(payload) for payload in written]
            first = writer.first_offset
            drops = writer.drops
            assert writer.next_offset == len(written)
            assert writer.total_bytes == sum(frames[first:])
            assert cap is None or writer.total_bytes <= cap
            assert drops.dropped_records + drops.released_records == first
            assert drops.dropped_bytes + drops.released_bytes == sum(frames[:first])
            assert drops.released_records <= done
        with BatchLogReader(root, "node") as latecomer:
            found = latecomer.read(0, max_records=10_000)
        assert [record.payload for record in found.records] == written[writer.first_offset :]
        writer.close()
        reader.close()
