"""A launch from the request to a ready engine, and every way in which it can end otherwise."""

import pytest

from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, PullProgress
from audit.models import AuditLine
from jobs import worker
from jobs.models import Operation
from jobs.requests import cancellation, model_runs
from mirbad.kernel.errors import Conflict, NotFound
from models_app import holds, registry
from models_app.errors import GpuMissing, GpuUnusable, ModelBusy
from models_app.models import Placement
from nodes.errors import NodeDraining, NodeOffline
from nodes.models import Node
from tests.models_app.things import GIB, PERSON, capabilities, gpu, model_data, node, placed
from tests.standins.memory import DIES, READY, refusal

pytestmark = [pytest.mark.app, pytest.mark.django_db]

SLOW = [{"state": InstanceState.LOADING}] * 3


def placement() -> Placement:
    return Placement.objects.get()


def texts(operation: Operation) -> list[str]:
    return list(operation.events.values_list("text", flat=True))


def lines() -> list[tuple[str, str, str]]:
    rows = AuditLine.objects.filter(action__startswith="model.st").order_by("id")
    return [(row.action, row.result, row.error_code) for row in rows]


@pytest.fixture(autouse=True)
def _machine() -> None:
    node("pc-1")


def test_a_start_ends_with_a_ready_engine(agent, finish) -> None:
    placed()
    agent.plan = [{"state": InstanceState.LOADING}, READY]
    operation = model_runs.start("tiny", PERSON)
    assert (operation.stage, operation.outcome, placement().desired) == ("checking", "open", "running")
    done = finish(operation.pk)
    assert (done.outcome, done.stage, done.result) == ("succeeded", "done", {"startSeconds": 2.5})
    assert done.finished_at is not None
    assert (placement().observed, placement().start_seconds, len(agent.launches)) == ("ready", 2.5, 1)
    assert placement().desired_config_hash == placement().observed_config_hash
    assert texts(done) == [
        "Start requested.",
        "Node pc-1 is ready to start it.",
        "Accepted by the node.",
        "Loading the weights.",
        "Ready after 2.5 s.",
    ]
    assert lines() == [("model.start", "accepted", ""), ("model.start", "succeeded", "")]


def test_a_second_start_while_it_starts_is_the_same_operation(agent) -> None:
    placed()
    agent.plan = SLOW
    first = model_runs.start("tiny", PERSON)
    worker.run(first.pk)
    second = model_runs.start("tiny", PERSON)
    assert (second.pk, Operation.objects.count()) == (first.pk, 1)


def test_a_model_that_runs_is_not_started_again(agent, finish) -> None:
    placed()
    finish(model_runs.start("tiny", PERSON).pk)
    with pytest.raises(Conflict):
        model_runs.start("tiny", PERSON)
    assert lines()[-1] == ("model.start", "refused", "invalid_state")


def test_an_engine_that_dies_at_start_is_told_with_its_last_lines(agent, finish) -> None:
    placed()
    agent.plan = [{"state": InstanceState.LOADING}, DIES]
    done = finish(model_runs.start("tiny", PERSON).pk)
    assert done.outcome == "failed"
    assert done.error == {
        "code": "engine_exited",
        "detail": "The engine ended with exit code 1 before it was ready.",
        "lines": ["loading", "CUDA out of memory"],
    }
    assert (placement().desired, placement().observed) == ("stopped", "failed"), "nobody tries again by himself"
    assert lines()[-1] == ("model.start", "failed", "engine_exited")


def test_secrets_in_last_lines_do_not_reach_the_operation(agent, finish) -> None:
    placed()
    agent.plan = [{**DIES, "last_lines": ("token=hf_canary12345678",), "reason": "password=canary99"}]
    done = finish(model_runs.start("tiny", PERSON).pk)
    assert "canary" not in str(done.error) + str(texts(done)) + str(AuditLine.objects.values_list())


@pytest.mark.parametrize(
    "code",
    [
        AgentCode.SPEC_REJECTED,
        AgentCode.RUNTIME_UNAVAILABLE,
        AgentCode.SOURCE_MISSING,
        AgentCode.PORT_UNAVAILABLE,
        AgentCode.ADMISSION_REFUSED,
        AgentCode.GPU_MISSING,
    ],
)
def test_a_refusal_of_the_agent_ends_the_launch_in_its_own_words(agent, finish, code) -> None:
    placed()
    agent.refusals = [refusal(code, "No, and this is why.")]
    done = finish(model_runs.start("tiny", PERSON).pk)
    assert (done.outcome, done.error["code"], agent.launches) == ("failed", code.value, [])
    assert "No, and this is why." in done.error["detail"]
    assert placement().desired == "stopped"


def test_a_start_beside_another_start_is_tried_again(agent, finish) -> None:
    placed()
    agent.refusals = [refusal(AgentCode.START_CONFLICT, "Another model starts on this GPU.")] * 3
    done = finish(model_runs.start("tiny", PERSON).pk)
    assert (done.outcome, len(agent.launches)) == ("succeeded", 1)
    assert "Another model starts on this GPU." in texts(done)


def test_an_error_of_the_agent_is_tried_again_and_then_told(agent, finish) -> None:
    placed()
    agent.refusals = [refusal(AgentCode.DELIVERY_FAILED, "Docker does not answer.")] * 2
    assert finish(model_runs.start("tiny", PERSON).pk).outcome == "succeeded"
    finish(model_runs.stop("tiny", PERSON).pk)
    agent.refusals = [refusal(AgentCode.DELIVERY_FAILED, "Docker does not answer.")] * 20
    done = finish(model_runs.start("tiny", PERSON).pk)
    assert (done.outcome, done.error["code"]) == ("failed", "delivery_failed")


def test_a_node_that_goes_away_during_a_launch_is_waited_for(agent, finish, pass_time) -> None:
    placed()
    operation = model_runs.start("tiny", PERSON)
    agent.offline = True
    for _ in range(4):
        worker.run(operation.pk)
        pass_time(6)
    operation.refresh_from_db()
    assert (operation.outcome, operation.error["code"]) == ("open", "node_offline")
    assert operation.progress["text"].startswith("Node pc-1 is offline, waiting.")
    assert len([text for text in texts(operation) if "offline" in text]) == 1, "the timeline does not repeat itself"
    agent.offline = False
    assert finish(operation.pk).outcome == "succeeded"
    assert len(agent.launches) == 1


def test_a_node_that_stays_away_ends_the_launch_and_the_wish_stays(agent, finish, pass_time) -> None:
    placed()
    operation = model_runs.start("tiny", PERSON)
    agent.offline = True
    worker.run(operation.pk)
    pass_time(31 * 60)
    done = finish(operation.pk)
    assert (done.outcome, done.error["code"], placement().desired) == ("failed", "node_offline", "running")
    assert "starts once the node works again" in done.error["detail"]


def test_an_engine_that_is_never_ready_is_stopped_again(agent, finish, pass_time) -> None:
    placed()
    agent.plan = [{"state": InstanceState.LOADING}] * 500
    operation = model_runs.start("tiny", PERSON)
    worker.run(operation.pk)
    pass_time(32 * 60)
    done = finish(operation.pk)
    assert (done.outcome, done.error["code"], agent.running) == ("failed", "start_timeout", 0)


@pytest.mark.parametrize("steps", range(7))
def test_a_stop_during_a_launch_ends_it_with_nothing_left_running(agent, finish, pass_time, steps) -> None:
    placed()
    agent.plan = [*SLOW, READY]
    operation = model_runs.start("tiny", PERSON)
    for _ in range(steps):
        worker.run_step(operation.pk)
        pass_time(1)
    if Operation.objects.get().finished_at is None:
        assert model_runs.stop("tiny", PERSON).pk == operation.pk
        assert finish(operation.pk).outcome == "cancelled"
    else:
        finish(model_runs.stop("tiny", PERSON).pk)
    assert (agent.running, placement().desired, placement().observed) == (0, "stopped", "stopped")


def test_a_cancelled_launch_is_not_started_again_by_a_second_start(agent, pass_time) -> None:
    placed()
    agent.plan = SLOW * 9
    operation = model_runs.start("tiny", PERSON)
    worker.run(operation.pk)
    cancellation.request(operation.pk, PERSON)
    assert placement().desired == "stopped"
    with pytest.raises(Conflict) as caught:
        model_runs.start("tiny", PERSON)
    assert caught.value.fields["operationId"] == operation.pk


def test_what_is_over_cannot_be_cancelled(agent, finish) -> None:
    placed()
    operation = finish(model_runs.start("tiny", PERSON).pk)
    with pytest.raises(Conflict):
        cancellation.request(operation.pk, PERSON)
    with pytest.raises(NotFound):
        cancellation.request("op-none", PERSON)


def test_a_restart_stops_first_and_brings_up_the_present_settings(agent, finish) -> None:
    placed()
    finish(model_runs.start("tiny", PERSON).pk)
    registry.update("tiny", model_data(args=["--tokens-per-second", "9"]), PERSON)
    operation = model_runs.restart("tiny", PERSON)
    assert (operation.kind, operation.stage) == ("launch", "stopping")
    assert finish(operation.pk).outcome == "succeeded"
    assert (agent.stops, [spec.args for spec in agent.launches]) == (1, [(), ("--tokens-per-second", "9")])
    assert model_runs.restart("tiny", PERSON).pk == model_runs.restart("tiny", PERSON).pk


def test_a_restart_of_a_model_that_does_not_run_starts_it(agent, finish) -> None:
    placed()
    assert finish(model_runs.restart("tiny", PERSON).pk).outcome == "succeeded"
    assert (agent.stops, len(agent.launches)) == (0, 1)


def test_a_definition_saved_during_the_launch_does_not_break_it(agent, finish, pass_time) -> None:
    placed()
    operation = model_runs.start("tiny", PERSON)
    worker.run_step(operation.pk)

    def lose(route: str) -> None:
        if route == "PUT instances":
            agent.before_answer = lambda _: None
            registry.update("tiny", model_data(args=["--tokens-per-second", "9"]), PERSON)
            raise NodeOffline("the answer was lost")

    agent.before_answer = lose
    assert finish(operation.pk).outcome == "succeeded"
    assert len(agent.launches) == 1, "the first order stands; the page says that a restart is needed"
    assert placement().observed_config_hash == agent.launches[0].config_hash


def test_an_engine_that_runs_already_is_taken_over(agent, finish) -> None:
    placed()
    finish(model_runs.start("tiny", PERSON).pk)
    Placement.objects.update(desired="stopped", observed="unknown", observed_seq=-1)
    assert finish(model_runs.start("tiny", PERSON).pk).outcome == "succeeded"
    assert len(agent.launches) == 1


def test_an_engine_with_other_settings_is_not_replaced_by_a_start(agent, finish) -> None:
    placed()
    finish(model_runs.start("tiny", PERSON).pk)
    Placement.objects.update(desired="stopped", observed="unknown", observed_seq=-1)
    registry.update("tiny", model_data(args=["--tokens-per-second", "9"]), PERSON)
    done = finish(model_runs.start("tiny", PERSON).pk)
    assert (done.error["code"], agent.running) == ("invalid_state", 1)


def test_force_reaches_the_agent(agent, finish) -> None:
    placed()
    finish(model_runs.start("tiny", PERSON, force=True).pk)
    assert agent.launches[0].force is True


def test_a_gpu_that_left_is_told_at_the_request(agent) -> None:
    Node.objects.update(capabilities=capabilities(gpu("GPU-a")).to_wire())
    placed(placement={"nodeId": "pc-1", "gpuUuids": ["GPU-a"]})
    Node.objects.update(capabilities=capabilities(gpu("GPU-b", memory=8 * GIB)).to_wire())
    with pytest.raises(GpuMissing) as caught:
        model_runs.start("tiny", PERSON)
    assert (caught.value.http_status, caught.value.fields) == (422, {"gpuUuids": ["GPU-a"]})
    assert (placement().desired, Operation.objects.count()) == ("stopped", 0)


@pytest.mark.parametrize("fault", [{"lost": True}, {"problem_code": "gpu_needs_reset"}, {"problem_code": "gpu_lost"}])
def test_a_gpu_that_wants_a_reset_is_told_at_the_request_and_before_the_start(agent, finish, fault) -> None:
    Node.objects.update(capabilities=capabilities(gpu("GPU-a")).to_wire())
    placed(placement={"nodeId": "pc-1", "gpuUuids": ["GPU-a"]})
    waiting = model_runs.start("tiny", PERSON)
    faulty = capabilities(gpu("GPU-a", problem="GPU 0 cannot be used.", **fault))
    Node.objects.update(capabilities=faulty.to_wire())
    assert finish(waiting.pk).error["code"] == "gpu_unusable"
    assert agent.launches == []
    with pytest.raises(GpuUnusable, match="GPU 0 cannot be used") as caught:
        model_runs.start("tiny", PERSON)
    assert (caught.value.http_status, caught.value.fields) == (422, {"gpuUuids": ["GPU-a"]})


@pytest.mark.parametrize(
    ("columns", "error"), [({"reachability": "offline"}, NodeOffline), ({"draining": True}, NodeDraining)]
)
def test_a_start_on_a_node_that_takes_none_is_refused(agent, columns, error) -> None:
    placed()
    Node.objects.update(**columns)
    with pytest.raises(error):
        model_runs.start("tiny", PERSON)
    assert placement().desired == "stopped"


def test_a_held_model_is_neither_started_nor_stopped(agent) -> None:
    placed()
    holds.take("tiny", "job", "job-1", "a benchmark on node pc-1")
    for ask in (model_runs.start, model_runs.stop, model_runs.restart):
        with pytest.raises(ModelBusy):
            ask("tiny", PERSON)


def test_a_model_that_stands_nowhere_is_not_started(agent) -> None:
    node("pc-2")
    Node.objects.update(lifecycle="revoked")
    registry.create(model_data(), PERSON)
    with pytest.raises(Conflict):
        model_runs.start("tiny", PERSON)
    with pytest.raises(NotFound):
        model_runs.start("nobody", PERSON)


def test_progress_of_the_agent_is_shown_with_bytes(agent, pass_time) -> None:
    placed()
    progress = PullProgress(text="Pulling", done_bytes=5, total_bytes=9)
    agent.plan = [{"state": InstanceState.PREPARING, "progress": progress}]
    operation = model_runs.start("tiny", PERSON)
    worker.run(operation.pk)
    operation.refresh_from_db()
    assert operation.progress == {"text": "Pulling", "doneBytes": 5, "totalBytes": 9}
