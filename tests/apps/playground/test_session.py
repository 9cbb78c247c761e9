"""What a page hears: of itself, of trainings, of its drawings and of its mistakes."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from support.pages import Page, small_digits
from support.playground import SETTINGS, TRAIN_DIGITS, TRAIN_POINTS, a_drawing
from warpfit.apps.playground.messages import MAX_BYTES
from warpfit.apps.playground.points import GRID
from warpfit.apps.playground.server import FRAME_BYTES, Playground
from warpfit.apps.playground.session import MOST_WAITING, Outbox, _as_report, _prediction, parse
from warpfit.apps.playground.trainer import Network
from warpfit.engines.base import EpochReport
from warpfit.losses import SoftmaxCrossEntropy

LONG = {**TRAIN_DIGITS, "settings": {**SETTINGS, "epochs": 1000}}


def test_the_first_message_says_what_there_is(playground: Playground) -> None:
    with Page.of(playground) as page:
        hello = page.hear()
    assert hello["type"] == "hello"
    assert (hello["device"], hello["device_label"]) == ("cpu", "CPU")
    assert hello["digits"] == {
        "name": "small",
        "classes": ["above", "middle", "below"],
        "size": 8,
        "train": 60,
        "test": 60,
    }
    assert hello["bounds"]["width"] == {"least": 1, "most": 512}
    assert hello["bounds"]["points"]["names"] == ["spirals", "moons", "circles", "blobs"]


def test_a_training_of_digits(playground: Playground) -> None:
    with Page.of(playground) as page:
        page.send(TRAIN_DIGITS)
        heard = page.until_type("ended")
    started = next(message for message in heard if message["type"] == "started")
    assert started["reason"] == "on the CPU there is one engine, layerwise"
    assert (started["task"], started["engine"], started["precision"]) == (
        "digits",
        "layerwise",
        "float32",
    )
    assert (started["epoch"], started["last_epoch"], started["goes_on"]) == (0, 2, False)
    assert (started["data"], started["rows"], started["num_parameters"]) == ("small", 60, 547)
    reports = [
        report
        for message in heard
        if message["type"] == "progress"
        for report in message["reports"]
    ]
    assert [report["epoch"] for report in reports] == [1, 2]
    assert all(report["seconds"] > 0 and 0 <= report["val_accuracy"] <= 1 for report in reports)
    assert heard[-1] == {
        "type": "ended",
        "run": started["run"],
        "task": "digits",
        "how": "finished",
        "reason": "",
    }


def test_a_training_of_points_brings_decisions(playground: Playground) -> None:
    with Page.of(playground) as page:
        page.send({**TRAIN_POINTS, "settings": {**SETTINGS, "epochs": 60, "lr": 0.1}})
        heard = page.until_type("ended")
    started = next(message for message in heard if message["type"] == "started")
    assert started["points"]["classes"] == ["A", "B"]
    assert (len(started["points"]["train"]), len(started["points"]["test"])) == (400, 200)
    images = [message["image"] for message in heard if message["type"] == "progress"]
    planes = (
        np.frombuffer(base64.b64decode(images[-1]), np.uint8).reshape(2, GRID, GRID).astype(int)
    )
    assert np.abs(planes.sum(axis=0) - 255).max() <= 1
    assert planes[0].min() < 30
    assert planes[0].max() > 225


def test_drawings_are_answered_in_order(playground: Playground) -> None:
    with Page.of(playground) as page:
        page.hear()
        page.send({"type": "predict", "id": 1, "pixels": a_drawing()})
        early = page.hear()
        assert (early["id"], early["probabilities"], early["epoch"]) == (1, None, None)
        assert len(base64.b64decode(early["seen"])) == 64
        page.send(TRAIN_DIGITS)
        page.until_type("ended")
        for number in (2, 3):
            page.send({"type": "predict", "id": number, "pixels": a_drawing()})
        for number in (2, 3):
            answer = page.hear()
            assert (answer["id"], answer["epoch"]) == (number, 2)
            assert sum(answer["probabilities"]) == pytest.approx(1, abs=1e-3)
        blank = base64.b64encode(bytes(112 * 112)).decode()
        page.send({"type": "predict", "id": 4, "pixels": blank})
        assert page.hear() == {
            "type": "prediction",
            "id": 4,
            "seen": None,
            "probabilities": None,
            "epoch": 2,
        }


def test_probabilities_change_while_it_trains(playground: Playground) -> None:
    with Page.of(playground) as page:
        page.send(LONG)
        seen = []
        for number in range(3):
            page.until_type("progress")
            page.send({"type": "predict", "id": number, "pixels": a_drawing()})
            seen.append(page.until_type("prediction")[-1])
        page.send({"type": "stop"})
        assert page.until_type("ended")[-1]["how"] == "stopped"
    assert len({answer["epoch"] for answer in seen}) == 3
    assert len({tuple(answer["probabilities"]) for answer in seen}) == 3


def test_a_test_digit(playground: Playground) -> None:
    with Page.of(playground) as page:
        page.hear()
        page.send({"type": "sample"})
        sample = page.hear()
    pixels = np.frombuffer(base64.b64decode(sample["pixels"]), np.uint8)
    label = ("above", "middle", "below").index(sample["label"])
    assert pixels.reshape(8, 8).sum(axis=1).argmax() // 3 == label


def test_mistakes_are_told_and_the_connection_stays(playground: Playground) -> None:
    with Page.of(playground) as page:
        page.hear()
        for wrong, sentence in [
            ("{", "expected a message in JSON, got something else"),
            (b"{}", "expected a message of text, got bytes"),
            ({"type": "format"}, "expected type among train, reset, stop, predict, sample"),
            (
                {**TRAIN_DIGITS, "settings": {**SETTINGS, "width": 513}},
                "expected width to be an integer from 1",
            ),
            (
                "x" * (MAX_BYTES + 1),
                f"expected a message of at most {MAX_BYTES} bytes, got a longer one",
            ),
        ]:
            page.send(wrong)
            error = page.hear()
            assert error["type"] == "error"
            assert sentence in error["message"]
        page.send({"type": "sample"})
        assert page.hear()["type"] == "sample"


def test_a_message_far_too_long_ends_the_connection(playground: Playground) -> None:
    with Page.of(playground) as page:
        page.hear()
        page.send("x" * (FRAME_BYTES + 1))
        with pytest.raises(ConnectionClosed, match="1009"):
            page.hear()


def test_pages_have_networks_of_their_own(playground: Playground) -> None:
    with Page.of(playground) as one, Page.of(playground) as other:
        one.send(TRAIN_DIGITS)
        one.until_type("ended")
        other.hear()
        other.send({"type": "predict", "id": 1, "pixels": a_drawing()})
        assert other.hear()["probabilities"] is None


def test_a_change_ends_the_training_under_way(playground: Playground) -> None:
    with Page.of(playground) as page:
        page.send(LONG)
        first = page.until_type("progress")[-1]["run"]
        page.send({**TRAIN_DIGITS, "settings": {**SETTINGS, "width": 9}})
        heard = page.until(lambda message: message["type"] == "ended" and message["run"] != first)
    ends = [(message["run"], message["how"]) for message in heard if message["type"] == "ended"]
    assert ends == [(first, "stopped"), (first + 1, "finished")]


def test_a_page_that_does_not_listen_holds_nobody_up(playground: Playground) -> None:
    with Page.of(playground, max_queue=1) as deaf, Page.of(playground) as page:
        long = {**TRAIN_POINTS, "settings": {**SETTINGS, "epochs": 150}}
        deaf.send(long)
        page.send(TRAIN_DIGITS)
        page.until_type("ended")
        time.sleep(0.3)  # of training without a listener
        heard = deaf.until_type("ended")
    reports = [
        report["epoch"]
        for message in heard
        if message["type"] == "progress"
        for report in message["reports"]
    ]
    assert reports == list(range(1, 151))


def test_many_requests_at_once_are_all_answered(playground: Playground) -> None:
    with Page.of(playground) as page:
        page.hear()
        for _ in range(3 * MOST_WAITING):
            page.send({"type": "sample"})
        assert [page.hear()["type"] for _ in range(3 * MOST_WAITING)] == [
            "sample"
        ] * 3 * MOST_WAITING


def network(epoch: int) -> Network:
    return Network(None, {}, SoftmaxCrossEntropy(), epoch)


def report(epoch: int, **values: Any) -> EpochReport:
    numbers = {"loss": 1.0, "accuracy": 0.5, "lr": 0.1, "seconds": 0.1, "num_rows": 4}
    return EpochReport(epoch=epoch, step_losses=np.ones(1), **{**numbers, **values})


def test_epochs_that_wait_become_one_message() -> None:
    async def scenario() -> None:
        outbox = Outbox()
        for epoch in range(1, 4):
            outbox.put_progress(1, "points", network(epoch), report(epoch))
        outbox.put({"type": "sample"})
        outbox.put_progress(1, "points", network(4), report(4))
        first: Any = await outbox.first()
        assert outbox.take() is first
        assert ([each.epoch for each in first.reports], first.network.epoch) == ([1, 2, 3], 3)
        assert outbox.take() == {"type": "sample"}
        last: Any = outbox.take()
        assert [each.epoch for each in last.reports] == [4]
        outbox.put_progress(
            1, "points", network(5), report(5)
        )  # what was taken does not grow any more
        assert len(last.reports) == 1

    asyncio.run(scenario())


def test_an_outbox_has_room_again_when_it_is_read() -> None:
    async def scenario() -> None:
        outbox = Outbox()
        for _ in range(MOST_WAITING):
            outbox.put({})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(outbox.room(), 0.01)
        outbox.take()
        await asyncio.wait_for(outbox.room(), 1)

    asyncio.run(scenario())


def test_losses_that_json_does_not_know_are_left_out() -> None:
    values = _as_report(report(1, val_loss=float("inf"), val_accuracy=0.25))
    assert (values["loss"], values["val_loss"], values["val_accuracy"]) == (1.0, None, 0.25)


def test_outputs_that_overflow_give_no_probabilities() -> None:
    class Overflowing(Network):
        def probabilities(self, x: Any) -> Any:
            return np.full((1, 3), np.nan, np.float32)

    digits = small_digits()
    request: Any = parse('{"type": "predict", "id": 1, "pixels": "' + a_drawing() + '"}')
    assert _prediction(request, Overflowing(None, {}, SoftmaxCrossEntropy(), 1), digits.size)[
        "probabilities"
    ] == [0, 0, 0]
