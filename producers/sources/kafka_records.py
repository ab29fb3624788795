"""What a consumer of kafka-python fetches, taken apart by the compiled reader of aiokafka.

kafka-python does it in Python, record by record, and copies each into an object of thirteen fields:
that takes longer than all that a client does with a record afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from aiokafka.errors import KafkaError as ReaderError
from aiokafka.record.default_records import DefaultRecordBatch
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.protocol.consumer import IsolationLevel


class CompiledRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """The records of one answer for one partition, as they were parsed: offset, timestamp, value.

    What is handed out, and which error where, is as in the class that it takes the place of.
    """

    def _unpack_records(self, tp: Any, records: Any, *_: Any) -> Iterator[Any]:
        last = None
        while (batch := records.next_batch()) is not None:
            if self.check_crcs and not batch.validate_crc():
                raise CorruptRecordError(f"{tp}: a batch fails its checksum")
            if batch.magic < 2:
                for record in batch:
                    if self.check_crcs and not record.validate_crc():
                        raise CorruptRecordError(f"{tp}: a record fails its checksum")
                    self.next_fetch_offset = record.offset + 1
                    yield record
                continue
            last, self.leader_epoch = batch, batch.leader_epoch
            if self._aborted(batch) or batch.is_control_batch:
                self.next_fetch_offset = batch.next_offset
                continue
            self.records_read += batch.records_count
            self.bytes_read += batch.size_in_bytes
            for record in _parsed(batch):
                self.next_fetch_offset = record.offset + 1
                yield record
        if last is not None:
            # a batch says where it ended even where compaction has removed its last record
            self.next_fetch_offset = last.next_offset
        self.drain()

    def _aborted(self, batch: Any) -> bool:
        """Whether a batch belongs to a transaction that was aborted."""
        if self.isolation_level != IsolationLevel.READ_COMMITTED or not batch.has_producer_id():
            return False
        self._consume_aborted_transactions_up_to(batch.last_offset)
        if self._contains_abort_marker(batch):
            self.aborted_producer_ids.discard(batch.producer_id)
            return False
        found: bool = self._is_batch_aborted(batch)
        return found


def compile_records(consumer: Any) -> None:
    """Have a consumer take apart what it fetches this way."""
    consumer._fetcher.PartitionRecords = CompiledRecords


def hand_out_parked(consumer: Any) -> None:
    """Let a consumer hand out what it set aside while a partition was paused.

    kafka-python 3.0 puts it back only where no answer is in line, and leaves one there that has
    nothing left: such a partition is neither handed out nor fetched again, for ever.
    """
    if not consumer._fetcher._next_partition_records:
        consumer._fetcher._next_partition_records = None


def _parsed(batch: Any) -> Iterable[Any]:
    """Return the records of a batch; CorruptRecordError if they cannot be read."""
    batch._maybe_uncompress()
    header, begin = list(batch._header_data), batch._pos
    header[5] &= ~batch.CODEC_MASK
    whole = batch.HEADER_STRUCT.pack(*header) + batch._buffer[begin:]
    try:
        return list(DefaultRecordBatch(bytes(whole)))
    except UnicodeDecodeError:
        # a name of a header that is no text: `infra.header_names`
        return list(batch)
    except (ReaderError, ValueError, IndexError) as error:
        raise CorruptRecordError("a batch of records cannot be read") from error
