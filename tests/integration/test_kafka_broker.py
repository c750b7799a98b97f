"""The broker that other tests trust: what it acknowledged stays, and who may not enter does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import KafkaError
from support import broker_choice
from support.kafka_broker import KafkaBroker, answers
from support.kafka_settings import kafka_settings

from moescope.console.findings import Outcome
from moescope.console.kafka.broker_checks import check_broker
from moescope.console.kafka.topic_work import check_topics
from moescope.core.kafka import BrokerRefusedError, BrokerUnreachableError
from moescope.core.kafka.broker_settings import BROKER_SETTINGS, SINGLE_NODE_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.broker_choice import Broker, SharedBroker

# A restarted broker takes a while to answer metadata, and a busy machine longer.
PATIENCE_MS = 90_000


def _create_topic(bootstrap: str, topic: str) -> None:

    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])


@contextmanager
def _producer(bootstrap: str, **options: object) -> Iterator[Any]:

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        reconnect_backoff_max_ms=500,
        max_block_ms=PATIENCE_MS,
        delivery_timeout_ms=PATIENCE_MS,
        request_timeout_ms=5_000,
        max_request_size=9 << 20,
        **options,
    )
    try:
        yield producer
    finally:
        producer.close(timeout=5)


def _produce(bootstrap: str, topic: str, values: list[bytes], **options: object) -> None:
    with _producer(bootstrap, **options) as producer:
        sent = [producer.send(topic, value) for value in values]
        for future in sent:
            future.get(timeout=PATIENCE_MS / 1e3)


def _consume(bootstrap: str, topic: str, count: int, **options: object) -> list[bytes]:

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=9 << 20,
        consumer_timeout_ms=PATIENCE_MS,
        **options,
    )
    with closing(consumer):
        values: list[bytes] = []
        for record in consumer:
            values.append(record.value)
            if len(values) == count:
                break
        return values


def test_shared_broker_carries_the_largest_record(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """A record of 8 MiB, the largest routing batch, arrives whole, and a small one behind it."""
    topic = f"{topic_prefix}.routing"
    values = [os.urandom(8 << 20), b"small"]
    _create_topic(kafka_broker.bootstrap, topic)
    _produce(kafka_broker.bootstrap, topic, values)
    assert _consume(kafka_broker.bootstrap, topic, 2) == values


def test_shared_broker_does_not_make_topics_by_itself(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """A mistyped topic name fails, and no topic of that name comes to be."""
    topic = f"{topic_prefix}.mistyped"
    with _producer(kafka_broker.bootstrap) as producer:
        producer.config["max_block_ms"] = 500
        with pytest.raises(KafkaError):
            producer.send(topic, b"lost").get(timeout=5)
    with closing(KafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)) as admin:
        assert topic not in admin.list_topics()


def test_records_acknowledged_before_kill_survive_it(own_broker: Broker, topic_prefix: str) -> None:
    """After kill −9 and a restart on the same data and port, every acknowledged record is there.

    The same producer then goes on, and nothing is there twice.
    """
    topic = f"{topic_prefix}.routing"
    before = [b"before %d" % number for number in range(50)]
    after = [b"after %d" % number for number in range(5)]
    _create_topic(own_broker.bootstrap, topic)
    with _producer(own_broker.bootstrap) as producer:
        for future in [producer.send(topic, value) for value in before]:
            future.get(timeout=PATIENCE_MS / 1e3)
        own_broker.kill()
        assert not answers(own_broker.bootstrap)
        own_broker.start()
        for future in [producer.send(topic, value) for value in after]:
            future.get(timeout=PATIENCE_MS / 1e3)
    assert _consume(own_broker.bootstrap, topic, 55) == before + after


def test_paused_broker_answers_nobody_until_resumed(own_broker: Broker, topic_prefix: str) -> None:
    """A record sent while the broker is frozen is acknowledged only after it goes on."""
    topic = f"{topic_prefix}.routing"
    _create_topic(own_broker.bootstrap, topic)
    with _producer(own_broker.bootstrap) as producer:
        producer.send(topic, b"first").get(timeout=PATIENCE_MS / 1e3)
        own_broker.pause()
        assert not answers(own_broker.bootstrap, seconds=0.3)
        frozen = producer.send(topic, b"second")
        time.sleep(0.3)
        assert not frozen.is_done
        own_broker.resume()
        frozen.get(timeout=PATIENCE_MS / 1e3)
    assert _consume(own_broker.bootstrap, topic, 2) == [b"first", b"second"]


@pytest.fixture(scope="module")
def guarded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker with a SASL and a mutual TLS listener, always a native one."""
    broker_choice.require_native()
    folder = tmp_path_factory.mktemp("guarded")
    with KafkaBroker(folder, scram_users={"agent": "right"}, mutual_tls=True) as broker:
        yield broker


def test_sasl_listener_lets_in_who_knows_the_password(
    guarded_broker: KafkaBroker, topic_prefix: str
) -> None:
    """SCRAM-SHA-512 refuses a wrong password, and accepts the right one."""
    topic = f"{topic_prefix}.routing"
    _create_topic(guarded_broker.bootstrap, topic)
    assert guarded_broker.sasl_bootstrap is not None
    sasl = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "agent",
    }
    # The client does not say why: it tries again until its time is over.
    with pytest.raises(KafkaError):
        KafkaAdminClient(
            bootstrap_servers=guarded_broker.sasl_bootstrap,
            bootstrap_timeout_ms=1_500,
            sasl_plain_password="wrong",
            **sasl,
        )
    right = {**sasl, "sasl_plain_password": "right"}
    _produce(guarded_broker.sasl_bootstrap, topic, [b"hello"], **right)
    assert _consume(guarded_broker.sasl_bootstrap, topic, 1, **right) == [b"hello"]


def test_doctor_tells_a_wrong_password_from_an_absent_broker(
    guarded_broker: KafkaBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Who is refused is told so, exit code 3; with the right password all is well."""
    assert guarded_broker.sasl_bootstrap is not None
    password = tmp_path / "password"
    settings = kafka_settings(
        guarded_broker.sasl_bootstrap,
        topic_prefix,
        kafka__security_protocol="SASL_PLAINTEXT",
        kafka__sasl_mechanism="SCRAM-SHA-512",
        kafka__sasl_username="agent",
        kafka__sasl_password_file=str(password),
        kafka__connect_timeout=3,
    )
    password.write_text("wrong")
    with pytest.raises(BrokerRefusedError) as refused:
        list(check_broker(settings))
    assert refused.value.exit_code == 3
    assert "user" in refused.value.next_step
    password.write_text("right\n")
    findings = list(check_broker(settings))
    assert findings[0].outcome is Outcome.OK
    assert {each.what for each in check_topics(settings).differences} == {"topic"}


def test_tls_listener_asks_for_a_certificate(
    guarded_broker: KafkaBroker, topic_prefix: str
) -> None:
    """Mutual TLS accepts the PEM files that the broker offers, and nobody without them."""
    topic = f"{topic_prefix}.routing"
    _create_topic(guarded_broker.bootstrap, topic)
    files = guarded_broker.tls_files
    assert files is not None
    assert guarded_broker.tls_bootstrap is not None
    anonymous = {"security_protocol": "SSL", "ssl_cafile": str(files.authority)}
    with pytest.raises(KafkaError):
        KafkaAdminClient(
            bootstrap_servers=guarded_broker.tls_bootstrap, bootstrap_timeout_ms=1_500, **anonymous
        )
    known = {
        **anonymous,
        "ssl_certfile": str(files.client_certificate),
        "ssl_keyfile": str(files.client_key),
    }
    _produce(guarded_broker.tls_bootstrap, topic, [b"hello"], **known)
    assert _consume(guarded_broker.tls_bootstrap, topic, 1, **known) == [b"hello"]


def test_plain_client_at_a_tls_port_is_told_of_the_protocol(
    guarded_broker: KafkaBroker, topic_prefix: str
) -> None:
    """A broker that ends each connection may want TLS: the message names that setting."""
    assert guarded_broker.tls_bootstrap is not None
    settings = kafka_settings(guarded_broker.tls_bootstrap, topic_prefix, kafka__connect_timeout=1)
    with pytest.raises(BrokerUnreachableError) as caught:
        list(check_broker(settings))
    assert "kafka.security_protocol" in caught.value.next_step


def test_broker_takes_the_settings_that_moescope_asks_for(kafka_broker: SharedBroker) -> None:
    """Each setting has a name that Kafka knows (it ignores others), and the value given here."""
    with closing(KafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)) as admin:
        described = admin.describe_configs(
            [ConfigResource(ConfigResourceType.BROKER, "1")], config_filter="all"
        )
    values = described["broker"]["1"]
    asked = {**BROKER_SETTINGS, **SINGLE_NODE_SETTINGS}
    assert {name: values[name]["value"] for name in asked} == asked


# A worker of a test run, as far as the shared broker is concerned; it is killed while it holds it.
_WORKER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from support.broker_choice import shared_broker
with shared_broker(Path(sys.argv[1])) as broker:
    print(broker.bootstrap, flush=True)
    sys.stdin.read()
"""


def test_shared_broker_lives_as_long_as_somebody_uses_it(tmp_path: Path) -> None:
    """Workers find the same broker; it survives the one that started it, and ends with the last.

    The first one is killed, as a test run may be: no Java process is left behind all the same.
    """
    broker_choice.require_native()
    paths = [path for path in sys.path if path.endswith(("/tests", "/core"))]
    with subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(tmp_path), *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        bootstrap = worker.stdout.readline().strip()
        java = Path(f"/proc/{(tmp_path / 'pid').read_text()}")
        with broker_choice.shared_broker(tmp_path) as joined:
            assert joined.bootstrap == bootstrap
            worker.kill()
            worker.wait()
            # Its end, were it to come, would come at once.
            time.sleep(0.3)
            assert answers(bootstrap)
    end = time.monotonic() + PATIENCE_MS / 1e3
    while java.exists():
        assert time.monotonic() < end, "the broker outlived all who used it"
        time.sleep(0.05)


def test_missing_java_and_maven_are_named_as_packages(
    tmp_path: Path, repository_root: Path
) -> None:
    """Without Java and Maven the script that fetches Kafka ends with 3 and says what to install."""
    for tool in ("bash", "cat", "cksum", "dirname", "head", "sed"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    # A checkout without jars: what this one has fetched must not matter.
    (tmp_path / "scripts" / "kafka_libs").mkdir(parents=True)
    for name in ("kafka_jars.sh", "kafka_libs/pom.xml"):
        shutil.copy(repository_root / "scripts" / name, tmp_path / "scripts" / name)
    done = subprocess.run(
        [str(tmp_path / "scripts" / "kafka_jars.sh")],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
    )
    assert done.returncode == 3
    assert done.stderr.rstrip().endswith("openjdk-17-jre-headless maven).")


def test_fetching_the_jars_leaves_no_escape_codes(tmp_path: Path, repository_root: Path) -> None:
    """Maven resets colours at its end even where it used none; it is told not to."""
    for tool, body in {
        "java": "echo 'openjdk version \"17.0.1\"' >&2",
        "mvn": '[[ "$MAVEN_OPTS" == "-Xmx1g -Djansi.noreset=true" ]] || printf "\\033[0m"',
    }.items():
        program = tmp_path / "bin" / tool
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/usr/bin/env bash\n{body}\n")
        program.chmod(0o755)
    (tmp_path / "scripts" / "kafka_libs").mkdir(parents=True)
    for name in ("kafka_jars.sh", "kafka_libs/pom.xml"):
        shutil.copy(repository_root / "scripts" / name, tmp_path / "scripts" / name)
    done = subprocess.run(
        [str(tmp_path / "scripts" / "kafka_jars.sh")],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "MAVEN_OPTS": "-Xmx1g"},
    )
    assert "\033" not in done.stdout + done.stderr
    assert (tmp_path / ".tools" / "kafka" / "libs" / ".stamp").exists()


def test_tests_with_a_broker_find_kernels_compiled(
    kafka_broker: SharedBroker, request: pytest.FixtureRequest
) -> None:
    """Neither compiling, on a machine without a cache, nor a busy machine takes their time."""
    assert answers(kafka_broker.bootstrap)
    assert "support.fleet_warm" in sys.modules
    limit = request.node.get_closest_marker("timeout")
    assert limit is not None
    assert limit.args[0] > 3 * PATIENCE_MS / 1e3


@pytest.mark.parametrize(
    ("required", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_missing_service_is_a_failure_where_services_are_required(
    monkeypatch: pytest.MonkeyPatch, required: str, outcome: type[BaseException]
) -> None:
    """The gate does not pass by skipping what it could not start."""
    monkeypatch.setenv("MOESCOPE_REQUIRE_SERVICES", required)
    with pytest.raises(outcome, match="no Java"):
        broker_choice.unavailable("no Java")
