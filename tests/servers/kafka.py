#!/usr/bin/python3
"""A real Apache Kafka for tests: brokers in KRaft mode on loopback, on free ports, in a temporary folder.

The jars come from Maven once and stay in ~/.cache/postrider-tests.  A young JVM is slow to start, so the first call
also writes an archive of its classes, which halves the boot.  Each broker can be killed, stopped and started again.
"""
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import uuid

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from servers.postgres import CACHE, free_port

HERE = pathlib.Path(__file__).parent
HOME = CACHE / "kafka-4.3.1"
CLUSTER = "cG9zdHJpZGVyLXRlc3RzAA"  # any 16 bytes in base64
JAVA = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms64m", "-Xss512k", "-Xlog:disable", "-Xlog:all=error:stderr",
        "-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info"]
SETTINGS = {"process.roles": "broker,controller", "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT", "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1", "share.coordinator.state.topic.num.partitions": "1",
            "log.cleaner.dedupe.buffer.size": "2097152", "controller.quorum.election.timeout.ms": "200",
            "controller.quorum.election.backoff.max.ms": "100", "broker.heartbeat.interval.ms": "300",
            # A broker that was killed comes back when its old registration has run out.
            "broker.session.timeout.ms": "2000", "metadata.max.idle.interval.ms": "500"}


# Who may do what: loopback without a password may do all, "relay" what a test says.
SECURE = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "sasl.enabled.mechanisms": "PLAIN",
          "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL",
          "listener.name.sasl.plain.sasl.jaas.config":
              'org.apache.kafka.common.security.plain.PlainLoginModule required user_relay="secret";',
          "listener.name.tls.ssl.keystore.type": "PEM", "listener.name.tls.ssl.truststore.type": "PEM",
          "listener.name.tls.ssl.client.auth": "required"}


def run(args, **more):
    done = subprocess.run(args, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{args[0]} {args[1]}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def classpath():
    """The jars, fetched at the first call; two callers at once are safe."""
    HOME.mkdir(parents=True, exist_ok=True)
    with open(HOME / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (HOME / "lib" / ".ready").exists():
            shutil.copy(HERE / "kafka_jars" / "pom.xml", HOME / "pom.xml")
            run(["mvn", "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies",
                 f"-DoutputDirectory={HOME / 'lib'}", "-DincludeScope=runtime"], cwd=HOME)
            (HOME / "lib" / ".ready").touch()
    return ":".join(sorted(str(jar) for jar in (HOME / "lib").glob("*.jar")))


def class_archive():
    """The archive fits one JVM only, so its name has that JVM in it."""
    java = pathlib.Path(shutil.which("java")).resolve()
    return HOME / f"classes-{int(java.stat().st_mtime)}-{java.stat().st_size}.jsa"


def make_certificates(folder):
    """A CA, and one certificate for the broker and one for the relay: {ca,broker,relay,other-ca}.pem, {broker,relay}.key."""
    def openssl(*args):
        run(["openssl", *args], cwd=folder)
    for ca in ("ca", "other-ca"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={ca}", "-keyout", f"{ca}.key",
                "-out", f"{ca}.pem")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("broker", "relay"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-extfile", "names", "-out", f"{name}.pem")
    (folder / "broker-all.pem").write_text((folder / "broker.key").read_text() + (folder / "broker.pem").read_text())


class Broker:
    def __init__(self, kafka, number):
        self.kafka, self.number = kafka, number
        self.port, self.controller_port = free_port(), free_port()
        self.sasl_port, self.tls_port = (free_port(), free_port()) if kafka.secure else (None, None)
        self.folder = kafka.folder / f"n{number}"
        self.folder.mkdir()
        self.log = self.folder / "log"
        self.process = None

    def write_settings(self, voters, replication, settings):
        values = {**SETTINGS, "node.id": self.number,
                  "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
                  "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
                  "controller.quorum.voters": voters, "log.dirs": self.folder / "data",
                  "default.replication.factor": replication, "offsets.topic.replication.factor": replication,
                  "transaction.state.log.replication.factor": replication, "transaction.state.log.min.isr": 1,
                  "share.coordinator.state.topic.replication.factor": replication,
                  "share.coordinator.state.topic.min.isr": 1, "min.insync.replicas": max(1, replication - 1)}
        if self.kafka.secure:
            more = f",SASL://127.0.0.1:{self.sasl_port},TLS://127.0.0.1:{self.tls_port}"
            values.update(SECURE)
            values["listeners"] += more
            values["advertised.listeners"] += more
            values["listener.name.tls.ssl.keystore.location"] = self.kafka.folder / "broker-all.pem"
            values["listener.name.tls.ssl.truststore.location"] = self.kafka.folder / "ca.pem"
            values["super.users"] = "User:ANONYMOUS;User:CN=relay"
        self.settings = {**values, **settings}
        self.save()

    def save(self):
        (self.folder / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in self.settings.items()))

    def restart_with(self, **settings):
        """Killed, and started again with other settings: super_users="…"."""
        self.settings.update({name.replace("_", "."): value for name, value in settings.items()})
        self.save()
        self.kill()
        self.restart()

    def start(self, archive_to=None):
        started = self.log.read_text().count("Kafka Server started") if self.log.exists() else 0
        archive = [f"-XX:ArchiveClassesAtExit={archive_to}"] if archive_to else \
            [f"-XX:SharedArchiveFile={class_archive()}", "-Xshare:auto"] if class_archive().exists() else []
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(["java", f"-Xmx{self.kafka.heap}", *JAVA, *archive, "-cp", self.kafka.classpath,
                                             "kafka.Kafka", "server.properties"], cwd=self.folder, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, start_new_session=True)
        return started

    def wait_ready(self, started, timeout=60):
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if self.log.read_text().count("Kafka Server started") > started:
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"broker {self.number} did not start:\n{self.log.read_text()[-3000:]}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def restart(self):
        self.wait_ready(self.start())


class Kafka:
    """`Kafka(3)` is a cluster of three, replication factor 3 and min.insync.replicas 2 unless told otherwise.

    A secure one has two more listeners, with a password (relay, secret) and with certificates, and asks for rights.
    """

    def __init__(self, brokers=1, settings=None, heap="384m", secure=False):
        self.classpath, self.heap, self.secure = classpath(), heap, False
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="postrider-kafka-"))
        self.make_archive()
        self.secure = secure
        if secure:
            make_certificates(self.folder)
        self.brokers = [Broker(self, n + 1) for n in range(brokers)]
        self.boot(settings or {})
        self.bootstrap = ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)
        self._admin = None

    def make_archive(self):
        """Once for each JVM: a broker that writes down its classes when it ends."""
        archive = class_archive()
        with open(HOME / "lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if archive.exists():
                return
            self.brokers = [Broker(self, 0)]
            self.format(self.brokers, {})
            part = archive.with_suffix(".part")
            self.brokers[0].wait_ready(self.brokers[0].start(archive_to=part))
            self.brokers[0].process.terminate()
            self.brokers[0].process.wait(timeout=60)
            if part.exists():
                part.rename(archive)

    def format(self, brokers, settings):
        voters = ",".join(f"{b.number}@127.0.0.1:{b.controller_port}" for b in brokers)
        for broker in brokers:
            broker.write_settings(voters, min(3, len(brokers)), settings)
            run(["java", *JAVA[:3], "-cp", self.classpath, "kafka.tools.StorageTool", "format", "-t", CLUSTER,
                 "-c", str(broker.folder / "server.properties")])

    def boot(self, settings):
        self.format(self.brokers, settings)
        started = [broker.start() for broker in self.brokers]
        for broker, count in zip(self.brokers, started):
            broker.wait_ready(count)

    @property
    def admin(self):
        self._admin = self._admin or AdminClient({"bootstrap.servers": self.bootstrap})
        return self._admin

    @staticmethod
    def wait(futures):
        for future in futures.values():
            future.result(30)

    def create(self, topic, partitions=4, replication=None, config=None):
        replication = replication or min(3, len(self.brokers))
        self.wait(self.admin.create_topics([NewTopic(topic, partitions, replication, config=config or {})]))
        self.wait_topic(topic, partitions)

    def wait_topic(self, topic, partitions):
        until = time.monotonic() + 20
        while time.monotonic() < until:
            found = self.admin.list_topics(topic, timeout=10).topics[topic]
            if not found.error and len(found.partitions) == partitions and \
                    all(p.leader >= 0 for p in found.partitions.values()):
                return
            time.sleep(0.05)
        raise RuntimeError(f"topic {topic} did not come")

    def delete(self, topic):
        self.wait(self.admin.delete_topics([topic], operation_timeout=20))

    def add_partitions(self, topic, count):
        self.wait(self.admin.create_partitions([NewPartitions(topic, count)]))

    def configure(self, topic, **config):
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic,
                                  set_config={name.replace("_", "."): str(value) for name, value in config.items()})
        self.wait(self.admin.alter_configs([resource]))
        wanted = {name.replace("_", "."): str(value) for name, value in config.items()}
        for _ in range(100):  # the broker learns of it a little later
            told = next(iter(self.admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values())).result()
            if all(told[name].value == value for name, value in wanted.items()):
                return
            time.sleep(0.1)
        raise RuntimeError(f"{topic} did not take {wanted}")

    @staticmethod
    def offsets(consumer, topic, part):
        """A leader that was elected just now may not know it yet."""
        for _ in range(100):
            try:
                return consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=10)
            except KafkaException:
                time.sleep(0.1)
        raise RuntimeError(f"{topic}/{part} has no leader")

    def read(self, topic, timeout=20):
        """All messages of a topic: (partition, offset, key, headers, value), by partition and offset."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": str(uuid.uuid4()), "enable.auto.commit": False,
                             "auto.offset.reset": "earliest", "isolation.level": "read_uncommitted"})
        try:
            found = self.admin.list_topics(topic, timeout=10).topics[topic]
            if found.error:
                raise KafkaException(found.error)
            left = {}
            for part in found.partitions:
                low, high = self.offsets(consumer, topic, part)
                if high > low:
                    left[part] = high
            consumer.assign([TopicPartition(topic, part, 0) for part in left])
            messages, until = [], time.monotonic() + timeout
            while left and time.monotonic() < until:
                for message in consumer.consume(5000, timeout=0.5):
                    if message.error():
                        raise KafkaException(message.error())
                    messages.append((message.partition(), message.offset(), message.key(), message.headers() or [], message.value()))
                    if message.offset() + 1 >= left.get(message.partition(), 0):
                        left.pop(message.partition(), None)
            if left:
                raise RuntimeError(f"topic {topic} was not read to its end: {left}")
            return sorted(messages, key=lambda m: m[:2])
        finally:
            consumer.close()

    def stop(self):
        for broker in self.brokers:
            if broker.process and broker.process.poll() is None:
                broker.process.send_signal(signal.SIGCONT)
                broker.process.kill()
                broker.process.wait()

    def remove(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
