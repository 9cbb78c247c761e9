"""``warpfit plan``: a launch on paper."""

from __future__ import annotations

import re

import pytest

from support.commands import Invoke
from warpfit.backends.cuda import jit
from warpfit.backends.cuda.nvrtc import compiled

ADAM = (
    "plan",
    "--hidden",
    "256,128",
    "--optimizer",
    "adam",
    "--batch-size",
    "128",
    "--card",
    "h200",
)


def numbers(text: str) -> dict[str, int]:
    """Return the numbers of the lines that name one."""
    found = re.findall(r"^  (\S.*?) +([\d,]+)(?: B)?$", text, re.MULTILINE)
    return {name: int(size.replace(",", "")) for name, size in found}


def test_it_shows_layout_and_memory(invoke: Invoke) -> None:
    outcome = invoke(*ADAM)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("784-256-128-10, adam, cross_entropy, batch 128\n")
    whole = re.search(
        r"4 clusters of 16 blocks that partition a batch, each of 8 warps, .* (\d+) bytes of "
        r"shared",
        outcome.out,
    )
    assert whole
    found = numbers(outcome.out)
    assert found["x and targets"] == 60_000 * (784 + 8)
    assert found["batches of x"] == 2 * 32 * (784 + 8) * 2  # of a replica, two at once
    of_device = ("x and targets", "batches of an epoch, targets, settings and record")
    others = ("of a thread", "for weights", "exchanged, or far from the weights", *of_device)
    parts = sum(size for name, size in found.items() if name not in others)
    assert 0 <= int(whole[1]) - parts < 16
    assert found["for weights"] < found["of a thread"] == 255


def test_it_shows_a_whole_card_too(invoke: Invoke) -> None:
    out = invoke("plan", "--hidden", "512,512,512", "--batch-size", "32", "--card", "h200").out
    whole = re.search(
        r"11 clusters of 8 blocks of 16 warps that partition all weights, (\d+) bytes", out
    )
    assert whole
    found = numbers(out)
    of_a_block = (
        "weights",
        "low halves of weights",
        "biases",
        "batches of x and units",
        "parts of sums",
    )
    of_a_block += ("gradients and derivatives", "outputs and losses", "targets", "barriers")
    assert 0 <= int(whole[1]) - sum(found[name] for name in of_a_block) < 16


def test_it_shows_the_kernel_in_roles_too(invoke: Invoke) -> None:
    out = invoke("plan", "--card", "h100", "--batch-size", "32").out
    assert "784-256-10, sgd, cross_entropy, batch 32" in out
    assert "in each 8x1 warps over features and units" in out
    assert numbers(out)["hidden units and their gradients"] == 4 * 32 * (16 + 8)


def test_it_names_the_optimizer(invoke: Invoke) -> None:
    out = invoke("plan", "--card", "h200", "--optimizer", "adamw", "--batch-size", "32").out
    assert "784-256-10, adamw, cross_entropy, batch 32" in out


def test_data_that_a_card_has_no_room_for_comes_in_pieces(invoke: Invoke) -> None:
    out = invoke("plan", "--card", "t4", "--rows", "100000000", "--hidden", "none").out
    launches = re.search(
        r"x stays on the host, and comes to the device in (\d+) launches an epoch", out
    )
    assert launches
    found = numbers(out)
    assert "x and targets" not in found
    of_piece = found["2 pieces of x and targets"] // 2
    assert 100_000_000 * (784 + 8) < int(launches[1]) * of_piece < 101_000_000 * (784 + 8)
    assert found["batches of a piece, targets and settings"] < 2**25
    assert found["record of an epoch"] == 4 * 24 * 100_000_000 // 64  # of four replicas


def test_the_source_is_what_is_compiled(invoke: Invoke) -> None:
    pytest.importorskip("cuda.core")
    out = invoke(
        "plan",
        "--hidden",
        "16",
        "--features",
        "20",
        "--outputs",
        "3",
        "--card",
        "h200",
        "--source",
    ).out
    source = out[out.index("#define ") :]
    assert "constexpr int WIDTHS[] = {20, 16, 3};" in source
    assert '#include "' not in source
    options = ["--gpu-architecture=sm_90a", *jit.compiler_options()]
    assert compiled(source, "plan.cu", options)[0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--card", "voodoo"],
            "expected a card among t4, a100, rtx3090, rtx4090, h100, h200, got 'voodoo'",
        ),
        (["--card", "h200", "--rows", "9" * 20], "'--rows': "),
        (
            ["--card", "h200", "--hidden", "8192,8192"],
            "bytes of shared memory for a tile of each layer, got",
        ),
        (
            ["--card", "t4", "--hidden", "512,512,512"],
            "bytes of weights for the registers of a block, got",
        ),
        (["--card", "h200", "--precision", "tf32"], "'bfloat16' or 'float32', got 'tf32'"),
        (["--card", "h200", "--outputs", "1000"], "expected at most 128 outputs, got 1000"),
        (["--card", "t4", "--precision", "bfloat16"], "tensor cores multiply bfloat16, got sm_75"),
        (["--device", "cpu"], "expected a GPU, or --card with one of t4"),
        (["--hidden", "16,x", "--card", "h200"], "'16,x'"),
        (["--features", "0", "--card", "h200"], "--features"),
        (["--cards", "2", "--hidden", "9" * 20], "expected out_features below 2**60, got 9"),
        (["--device", "cuda:all"], "expected one device, 'auto', "),
        (["--cards", "2", "--device", "cuda:1"], "got --card, --device or --source, too"),
        (
            ["--cards", "2", "--precision", "float32"],
            "'float16' or 'bfloat16' for several cards, whose prices are those of half precision, "
            "got 'float32'",
        ),
    ],
)
def test_misuse(misuse: Invoke, flags: list[str], words: str) -> None:
    assert words in misuse("plan", *flags).err


def test_it_says_what_is_expected_of_several_cards(invoke: Invoke) -> None:
    wide = ("plan", "--hidden", "4096,4096,4096", "--features", "4096", "--outputs", "4096")
    outcome = invoke(*wide, "--batch-size", "16384", "--momentum", "0.9", "--cards", "2")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("4096-4096-4096-4096-4096, sgd, batch 16384, shared by 2 H200s\n")
    found = numbers(outcome.out.replace(" us", ""))
    num_parameters = 4 * (4096 * 4096 + 4096)
    assert found["bytes that each card sends"] == 4 * num_parameters
    assert found["a step on one card, of its rows"] < found["a step on all cards"]
    assert "efficiency" in outcome.out
    assert outcome.out.count("not trained so: ") == 2
    assert invoke(*wide, "--batch-size", "4", "--cards", "5").err == (
        "warpfit: expected cards from 1 to 4, a row of the batch for each, got 5\n"
    )


def test_it_says_what_is_expected_of_several_cards_for_numbers_too(invoke: Invoke) -> None:
    outcome = invoke("plan", "--loss", "mse", "--outputs", "3", "--cards", "2")
    assert (outcome.code, outcome.err) == (0, "")
    assert "efficiency" in outcome.out


def test_it_says_when_one_launch_over_several_cards_pays(invoke: Invoke) -> None:
    small = ("plan", "--hidden", "128,128", "--features", "784", "--outputs", "10")
    text = {
        rows: invoke(*small, "--batch-size", rows, "--cards", "2").out for rows in ("128", "1344")
    }
    *_, of_one, of_all = re.findall(r"on (?:one card|all cards) +([\d.]+) us", text["128"])
    assert float(of_one) < float(of_all)
    assert re.search(
        r"on one card +not trained so: [^\n]+\n  on all cards +[\d.]+ us", text["1344"]
    )
