"""The routing table as it is read from the rows, and how it is kept fresh."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from mirbad.kernel.actor import CONFIG
from models_app import keys, routing
from models_app.gateway import loader
from models_app.gateway.table import NodeState, RouteState, RoutingTable
from models_app.models import ApiKey, ModelDefinition, Placement
from nodes.models import Node, NodePin
from nodes.pki import authority

pytestmark = [pytest.mark.app, pytest.mark.django_db]

REPLICA = UUID("00000000-0000-4000-8000-000000000001")


def node(name, lifecycle="approved", reachability="online"):
    made = Node.objects.create(id=name, address="192.0.2.7", lifecycle=lifecycle, reachability=reachability)
    NodePin.objects.create(node=made, slot=NodePin.CURRENT, spki_sha256=(name * 64)[:64])
    return made


def placed(model, on, desired="running", observed="ready", **more):
    return Placement.objects.create(model_id=model, node_id_text=on, desired=desired, observed=observed, **more)


def defined(name, **more):
    return ModelDefinition.objects.create(id=name, runtime="sim", delivery="process", **more)


@pytest.fixture
def trust():
    authority.ensure()


@pytest.mark.parametrize(
    ("desired", "observed", "expected"),
    [
        ("running", "ready", RouteState.READY),
        ("running", "starting", RouteState.STARTING),
        ("running", "stopped", RouteState.STARTING),
        ("running", "unknown", RouteState.STARTING),
        ("running", "failed", RouteState.RESTARTING),
        ("running", "unhealthy", RouteState.DOWN),
        ("running", "stopping", RouteState.DOWN),
        ("stopped", "ready", RouteState.STOPPED),
        ("stopped", "stopped", RouteState.STOPPED),
        ("stopped", "starting", RouteState.STOPPED),
    ],
)
def test_a_route_is_ready_only_when_it_is_wanted_and_seen(desired, observed, expected):
    defined("m")
    row = placed("m", "n1", desired, observed, generation=7)
    route = loader.build().models["m"].routes[0]
    assert (route.state, route.placement_id, route.generation) == (expected, str(row.id), 7)


def test_a_request_names_the_generation_that_runs_not_the_one_that_a_restart_will_bring():
    defined("m")
    placed("m", "n1", "running", "ready", generation=7, observed_generation=6)
    assert loader.build().models["m"].routes[0].generation == 6


@pytest.mark.parametrize(
    ("lifecycle", "reachability", "expected"),
    [
        ("approved", "online", NodeState.SERVING),
        ("approved", "offline", NodeState.OFFLINE),
        ("approved", "unknown", NodeState.OFFLINE),
        ("approved", "incompatible", NodeState.INCOMPATIBLE),
        ("approved", "fenced", NodeState.PENDING_TAKEOVER),
        ("pending", "online", None),
        ("revoked", "online", None),
    ],
)
def test_a_node_serves_only_when_approved_and_online(trust, lifecycle, reachability, expected):
    node("n1", lifecycle, reachability)
    table = loader.build()
    assert table.nodes.get("n1") is expected
    assert ("n1" in table.endpoints) is (expected is not None)


def test_names_time_outs_and_dial_addresses_come_from_the_rows(trust):
    defined("plain")
    defined("named", served_names=["org/a", "b"], first_byte_timeout_seconds=7, idle_timeout_seconds=8)
    made = node("n1")
    table = loader.build()
    assert set(table.models) == {"plain", "org/a", "b"}
    assert table.models["b"] is table.models["org/a"]
    assert (table.models["b"].first_byte_seconds, table.models["b"].idle_seconds) == (7, 8)
    endpoint = table.endpoints["n1"]
    assert (endpoint.host, endpoint.port) == ("192.0.2.7", 9443)
    assert str(made.uid) in endpoint.server_name
    assert loader.build().endpoints == table.endpoints  # so that connections are kept


@pytest.mark.parametrize(
    ("settings", "context"),
    [
        ({"runtime": "vllm", "context_length": 4096}, 4096),
        ({"runtime": "vllm", "context_length": 4096, "args": ["--max-model-len=8k"]}, 8000),
        ({"runtime": "vllm", "args": ["--max_model_len", "8192"]}, 8192),
        ({"runtime": "vllm", "context_length": 4096, "args": ["--max-model-len", "auto"]}, None),
        ({"runtime": "vllm"}, None),
        ({"runtime": "llama.cpp", "context_length": 4096, "args": ["--parallel", "4"]}, 4096),
        ({"runtime": "llama.cpp", "args": ["-c", "8192", "--parallel", "4"]}, 2048),
        ({"runtime": "llama.cpp", "args": ["-c", "8192", "--parallel", "4", "--kv-unified"]}, 8192),
        ({"runtime": "llama.cpp", "context_length": 4096, "args": ["-c", "0"]}, None),
        ({"runtime": "llama.cpp"}, None),
        ({"runtime": "sim", "context_length": 100}, 100),
        ({"runtime": "sim", "args": ["--context-length", "50"]}, 50),
    ],
)
def test_the_context_of_a_request_is_known_where_the_definition_says_it(settings, context):
    ModelDefinition.objects.create(id="m", delivery="process", **settings)
    assert loader.build().models["m"].context_length == context


@pytest.mark.parametrize(
    ("reported", "defined_length", "context"),
    [
        ([4096], None, 4096),
        ([4096], 8192, 4096),
        ([8192, 4096], None, 4096),
        ([4096, None], None, None),
        ([4096, None], 2048, 2048),
        (["10" * 20], None, None),
        ([-1], None, None),
        ([True], None, None),
        ([None], None, None),
    ],
)
def test_the_context_is_the_smallest_that_the_ready_engines_report(reported, defined_length, context):
    defined("m", context_length=defined_length)
    for number, tokens in enumerate(reported):
        placed("m", f"n{number}", replica=UUID(int=number), observed_view={"contextLength": tokens})
    placed("m", "n9", observed="starting", replica=UUID(int=9), observed_view={"contextLength": 1})
    assert loader.build().models["m"].context_length == context


def test_the_owner_is_the_publisher_of_the_weights():
    for name, sources in {"none": [], "two": ["Qwen/Qwen3", "other/draft"], "odd": ["gpt2"], "folder": [""]}.items():
        made = defined(name)
        for position, repository in enumerate(sources):
            made.sources.create(kind="huggingface", repository=repository, folder="f", position=position)
    owners = {name: model.owner for name, model in loader.build().models.items()}
    assert owners == {"none": "", "two": "Qwen", "odd": "", "folder": ""}


def test_revoked_keys_are_not_in_the_table_and_expired_ones_are_told_apart_later():
    defined("m")
    until = datetime.now(UTC) + timedelta(hours=1)
    _, good = keys.create("good", actor=CONFIG, allowed_models=["m"], expires_at=until)
    old, secret = keys.create("old", actor=CONFIG)
    keys.revoke(old.id, CONFIG)
    table = loader.build()
    assert keys.digest(secret) not in table.keys
    key = table.keys[keys.digest(good)]
    assert (key.allowed, key.expires_at) == (frozenset({"m"}), until)


def test_the_number_of_queries_does_not_grow_with_the_rows(trust, django_assert_max_num_queries):
    for count in (1, 12):
        for number in range(count):
            name = f"{count}-{number}"
            defined(name)
            node(name)
            placed(name, name)
            keys.create(name, actor=CONFIG)
        with django_assert_max_num_queries(10):
            loader.build()


def test_an_unchanged_version_is_one_query(django_assert_num_queries):
    routing.bump()
    source = loader.GatewayDatabase()
    table = source.read(None)
    assert table is not None
    with django_assert_num_queries(1):
        assert source.read(table.version) is None
    routing.bump()
    assert source.read(table.version) is not None


def test_the_last_use_of_keys_is_written_for_many_at_once(django_assert_num_queries):
    ids = {keys.create(name, actor=CONFIG)[0].id for name in "abc"}
    unused, _ = keys.create("unused", actor=CONFIG)
    with django_assert_num_queries(3):  # its transaction, and one statement for all
        loader.GatewayDatabase().write(ids, {})
    assert set(ApiKey.objects.exclude(last_used_at=None).values_list("id", flat=True)) == ids
    unused.refresh_from_db()
    assert unused.last_used_at is None


class TableSource:
    """A source by hand, which can fail."""

    def __init__(self):
        self.version, self.reads, self.fails, self.closed = 0, [], False, 0
        self.closed_thrice = threading.Event()

    def read(self, known):
        self.reads.append(known)
        if self.fails:
            raise OSError("the database is away")
        return None if known == self.version else RoutingTable(version=self.version)

    def close(self):
        self.closed += 1
        if self.closed == 3:
            self.closed_thrice.set()


@pytest.fixture
def source(monkeypatch):
    monkeypatch.setattr(loader, "POLL_SECONDS", 0.02)
    return TableSource()


async def test_a_change_is_swapped_in_and_told(source):
    seen = []
    table = loader.TableLoader(seen.append, source)
    await table.start()
    assert [t.version for t in seen] == [0]
    source.version = 5
    await asyncio.wait_for(table.changed(), 2)
    assert table.table.version == 5
    await table.stop()
    assert source.closed


async def test_without_a_change_the_table_is_still_rebuilt_now_and_then(source, monkeypatch):
    monkeypatch.setattr(loader, "REBUILD_SECONDS", 0.1)
    table = loader.TableLoader(lambda _: None, source)
    await table.start()
    await asyncio.wait_for(table.changed(), 2)
    assert source.reads.count(None) >= 2
    assert source.reads.count(0) >= 1
    await table.stop()


async def test_a_database_that_is_away_leaves_the_last_table_in_use(source, caplog):
    source.version = 3
    table = loader.TableLoader(lambda _: None, source)
    await table.start()
    source.fails, source.version = True, 4
    assert await asyncio.to_thread(source.closed_thrice.wait, 5)
    assert table.table.version == 3
    source.fails = False
    await asyncio.wait_for(table.changed(), 2)
    assert table.table.version == 4
    await table.stop()


async def test_a_hint_that_the_table_is_wrong_reads_it_at_once(source, monkeypatch):
    monkeypatch.setattr(loader, "POLL_SECONDS", 10)
    table = loader.TableLoader(lambda _: None, source)
    await table.start()
    table.rebuild_now()
    await asyncio.wait_for(table.changed(), 3)
    await table.stop()


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ("ready", RouteState.READY),
        ("starting", RouteState.STARTING),
        ("stopped", RouteState.STARTING),
        ("failed", RouteState.RESTARTING),
        ("unhealthy", RouteState.DOWN),
        ("stopping", RouteState.DOWN),
    ],
)
def test_a_replica_of_two_shards_is_one_route_that_is_ready_when_both_are(second, expected):
    defined("m")
    head = placed("m", "n1", replica=REPLICA, shard=0, shards=2)
    placed("m", "n2", observed=second, replica=REPLICA, shard=1, shards=2)
    (route,) = loader.build().models["m"].routes
    assert (route.placement_id, route.node_id, route.state) == (str(head.pk), "n1", expected)


def test_a_replica_that_lacks_a_shard_is_never_ready():
    defined("m")
    placed("m", "n1", replica=REPLICA, shard=0, shards=2)
    (route,) = loader.build().models["m"].routes
    assert route.state == RouteState.DOWN


def test_what_is_left_of_a_replica_without_its_rank_0_is_no_route():
    defined("m")
    placed("m", "n2", replica=REPLICA, shard=1, shards=2)
    assert loader.build().models["m"].routes == ()


def test_the_table_has_the_places_of_placements_that_are_not_routed(trust):
    for name, routed in (("a", True), ("b", False)):
        defined(name)
        placed(name, "n1", routed=routed)
    built = loader.build()
    assert built.placed == {("a", "n1"), ("b", "n1")}
    assert [len(built.models[name].routes) for name in "ab"] == [1, 0]
